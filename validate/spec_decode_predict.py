"""Predicted speedups of speculative decoding: which engine's round a row is, and what it costs there.

Nothing here reads a measured speedup. The plain speed of a row is read for ``given`` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.roofline.clock import Clock, clock
from perfmodel.roofline.efficiency import ENGINES
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.speculative import compare, eager, llamacpp_metal
from perfmodel.roofline.speculative.adaptive import LLAMACPP_2025, Drafting, drafting
from perfmodel.roofline.speculative.bench import Bench
from perfmodel.roofline.speculative.candidates import default_candidate
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.methods import method
from perfmodel.roofline.speculative.rounds import chain_shape, measure
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Skip
from perfmodel.validate.spec_decode_rows import (
    NO_ACCEPTANCE,
    NO_LENGTH,
    Machine,
    Named,
    Stated,
    machine,
    method_word,
    named,
)

#: Tokens in the cache, where no row says: prompts and answers of the usual benchmarks.
CONTEXT, SHORT_CONTEXT = 1024.0, 600
#: Sequences at a load that is called high: vLLM's ``max_num_seqs`` of 2024. Tokens of an answer, for a request rate.
HIGH_LOAD, ANSWER = 256.0, 200.0
RATIO = " vs "


@dataclass(frozen=True)
class Predicted:
    """A predicted speedup.

    Attributes
    ----------
    speedup : float
    words, source : str
        How it comes about, and what it rests on.
    length : str
        ``adaptive``, ``chain``, ``tree`` or ``ratio``: a group of its own.
    given : float, optional
        The same with the row's own plain speed.
    low, high : float, optional
        80 % interval from the errors of the times.
    """

    speedup: float
    words: str
    source: str
    length: str
    given: float | None = None
    low: float | None = None
    high: float | None = None


def predict(row: Stated, models: Models, siblings: Sequence[Stated] = ()) -> Predicted:
    """The speedup of a row that states its acceptance (or whose siblings do, for a ratio of two methods).

    Raises
    ------
    Skip
        With what the row lacks.
    """
    target, where = named(row.target, models), machine(row.hardware)
    if RATIO in row.method:
        return _ratio(row, target, where, siblings)
    engine = row.engine.casefold()
    if "llama.cpp" in engine:
        return _metal(row, target, where, models)
    if row.alpha is None and row.tau is None:
        raise Skip(NO_ACCEPTANCE)
    if "transformers" in engine:
        return _eager(row, target, where)
    return _engine(row, target, where, models)


def _metal(row: Stated, target: Named, where: Machine, models: Models) -> Predicted:
    """llama.cpp on an Apple GPU, at a fixed length or with the one that goes with the acceptance."""
    if where.gpu.vendor != "apple":
        raise Skip("llama.cpp is modelled on Apple GPUs only")
    if not target.mix:
        raise Skip("the GGUF file type of the target is not named")
    d, rule = _lengths(row)
    drafter = named(row.method, models)
    if not drafter.mix:
        raise Skip("the GGUF file type of the drafter is not named")

    def seconds(of: Named, tokens: int, sampled: float) -> float:
        return llamacpp_metal.step_seconds(of.model, of.mix, where.gpu, tokens, SHORT_CONTEXT, sampled)

    plain, one = seconds(target, 1, 1.0), seconds(drafter, 1, 1.0)
    sampling = d.tokens * target.model.vocab_size * llamacpp_metal.METAL.entry
    verify = d.mean(lambda n: seconds(target, n + 1, 0.0)) + sampling
    speedup = d.tokens * plain / (d.drafted * one + verify)
    given = d.tokens / (d.drafted * one * row.baseline + verify / plain) if row.baseline else None
    words = (
        f"{rule}: {d.drafted:.2f} drafted, {d.tokens:.2f} tokens a round; plain step {plain * 1e3:.2f} ms, draft pass "
        f"{one * 1e3:.2f} ms, verification {verify * 1e3:.2f} ms"
    )
    return Predicted(speedup, words, "llama.cpp on Metal", "adaptive" if row.adaptive else "chain", given)


def _lengths(row: Stated) -> tuple[Drafting, str]:
    """What a round of llama.cpp drafts: the length that is given, or those that go with the acceptance."""
    if row.adaptive:
        if row.alpha is None:
            raise Skip(NO_ACCEPTANCE)
        return drafting(row.alpha, LLAMACPP_2025), f"{LLAMACPP_2025.words}; acceptance {row.alpha:.3f}"
    if row.alpha is None and row.tau is None:
        raise Skip(NO_ACCEPTANCE)
    if row.gamma is None or row.tokens is None:
        raise Skip(NO_LENGTH)
    lengths = np.zeros(row.gamma + 1)
    lengths[-1] = 1.0
    return Drafting(lengths, row.tokens - 1), f"always {row.gamma}"


def _clock(target: Setup, engine: str) -> Clock:
    known = next((name for name in ENGINES if name in engine.replace("tensorrt-llm", "trtllm")), None)
    return clock(target, "calibrated", known)


def _eager(row: Stated, target: Named, where: Machine) -> Predicted:
    """Hugging Face transformers, launched operator by operator."""
    if row.tau is None:
        raise Skip(NO_ACCEPTANCE)
    r = _eager_round(target, where, row.method)
    return Predicted(
        r.speedup(row.tau), f"{row.tau:g} tokens a round; {r.words}", "transformers in eager mode",
        "tree" if eager.eager_method(row.method).tokens > 20 else "chain",
        row.tau / (r.round * row.baseline) if row.baseline else None,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _eager_round(target: Named, where: Machine, name: str) -> eager.EagerRound:
    ready = setup(target.model, where.gpu, tp=where.count, weights=target.weights or "fp16")
    return eager.round_seconds(ready, _clock(ready, ""), eager.eager_method(name), SHORT_CONTEXT)


@functools.lru_cache(maxsize=256)
def _setup(target: Named, where: Machine) -> Setup:
    return setup(target.model, where.gpu, tp=where.count, weights=target.weights)


def _drafter(row: Stated, name: str, target: Setup, models: Models) -> Draft:
    """The drafter of a row: the model that it names, or the method's own head."""
    if "separate" in row.kind or "model" in row.kind:
        found = named(name, models)
        return method("speculative-sampling").draft.build(target, found.model)  # type: ignore[arg-type]
    return method(method_word(name)).draft.build(target)


def _engine(row: Stated, target: Named, where: Machine, models: Models) -> Predicted:
    """A serving engine's chain of a fixed length."""
    if row.gamma is None:
        raise Skip(NO_LENGTH)
    tokens = row.tokens
    if tokens is None:
        raise Skip(NO_ACCEPTANCE)
    ready = _setup(target, where)
    draft = _drafter(row, row.method, ready, models)
    r = measure(
        draft, row.batch or 1.0, CONTEXT, chain_shape(float(row.gamma)), clock=_clock(ready, row.engine.lower())
    )
    low, high = r.interval(tokens)
    words = (
        f"{draft.title}: {row.gamma} drafted, {tokens:.2f} tokens a round that costs {float(r.cost):.2f} plain steps "
        f"of {float(r.plain.seconds) * 1e3:.2f} ms"
    )
    return Predicted(
        float(r.speedup(tokens)), words, "calibrated times", "chain", None, float(low), float(high)
    )  # fmt: skip


def _ratio(row: Stated, target: Named, where: Machine, siblings: Sequence[Stated]) -> Predicted:
    """Speed of one method over another's, each at its best draft length, with the lengths of the table's other rows."""
    ready, words, speeds = _setup(target, where), [], []
    for name in row.method.partition("(")[0].split(RATIO):
        draft = method(method_word(name)).draft.build(ready)
        timer, found = _clock(ready, row.engine.lower()), []
        for k, tau in _lengths_of(row, name, siblings):
            r = measure(draft, row.batch or 1.0, CONTEXT, chain_shape(float(k)), clock=timer)
            found.append((tau / float(r.whole.seconds), k, tau))
        if not found:
            raise Skip("the accepted lengths of the two methods are not in the table")
        speed, k, tau = max(found)
        speeds.append(speed)
        words.append(f"{name.strip()} at K = {k}: {tau:g} tokens in {tau / speed * 1e3:.2f} ms")
    return Predicted(speeds[0] / speeds[1], "; ".join(words), "calibrated times", "ratio")


def _lengths_of(row: Stated, name: str, siblings: Sequence[Stated]) -> list[tuple[int, float]]:
    """Draft lengths and accepted lengths of a method on a row's model, GPU and task."""
    same = (row.source, row.target, row.hardware, row.task)
    return [
        (s.gamma, s.tau)
        for s in siblings
        if s.tau and s.gamma and (s.source, s.target, s.hardware, s.task) == same
        and method_word(s.method) == method_word(name)
    ]  # fmt: skip


def assume(row: Stated, models: Models) -> Predicted:
    """The speedup of a row that states no acceptance, with the catalogue's for its method: only its side of 1 is sure.

    Raises
    ------
    Skip
        When method, model, GPU or load are not known.
    """
    target, where = named(row.target, models), machine(row.hardware)
    if RATIO in row.method or not any(name in row.engine.casefold() for name in ENGINES):
        raise Skip(NO_ACCEPTANCE)
    ready = _setup(target, where)
    word = method_word(row.method)
    separate = "draft" in word
    found = method("speculative-sampling" if separate else word)
    draft = found.draft.build(ready, compare.default_draft(ready.model) if separate else None)
    chosen = default_candidate(found, found.acceptance, row.gamma)
    bench, context = Bench(draft, _clock(ready, row.engine.lower())), np.array([[CONTEXT]])
    one = float(np.squeeze(bench.round(chosen, np.array([[1.0]]), context).plain.seconds))
    batch = HIGH_LOAD if row.high_load else row.batch or (max(1.0, row.rate * ANSWER * one) if row.rate else None)
    if batch is None:
        raise Skip("no batch or load is given")
    r = bench.round(chosen, np.array([[batch]]), context)
    tokens = float(np.squeeze(bench.tokens(chosen, np.array([[batch]]), context)))
    words = (
        f"{draft.title}, {chosen.words}: {tokens:.2f} tokens a round that costs {float(np.squeeze(r.cost)):.2f} plain "
        f"steps; {batch:.0f} sequences; acceptance of the catalogue: {found.acceptance.setting}"
    )
    source = f"acceptance assumed: {found.acceptance.source}"
    return Predicted(float(np.squeeze(r.speedup(tokens))), words, source, "assumed")
