"""Steps of vLLM's iteration details as rows that can be predicted; the others are counted with the reason.

A line says how many requests and tokens a step held, not how much of them was in the cache. That is known from the
printed usage of the cache where a step holds one kind of requests, or where the user says that all requests are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.schema import Gqa, Mla, ModelSpec, Moe
from perfmodel.roofline.batch import Batch
from perfmodel.roofline.setup import Setup
from perfmodel.validate.iteration_times import step_times
from perfmodel.validate.logs_vllm_iterations import Iteration, IterationLog
from perfmodel.validate.step_rows import StepRows, check_model, make

#: Requests of one length as the user states them: prompt and output tokens.
Lengths = tuple[int, int]

STATE = "state --input and --output if all requests have the same"
UNKNOWN_CONTEXT = f"the contexts of its requests are not known: {STATE}"
AHEAD = f"the cache usage on it may count prompts that the next step was given: {STATE}"
MIXED = f"prompts beside decodes, and the usage of the cache does not tell them apart: {STATE}"
CHUNK = "a part of a prompt, and how much of it was in the cache is not known"
#: Tokens that a context may be longer than its chunk and still be a whole prompt: blocks are rounded up. [tokens]
BLOCK = 16


def rows_of(log: IterationLog, ready: Setup, lengths: Lengths | None = None) -> StepRows:
    """Steps whose contexts are known.

    The tokens in the cache come from the printed usage of a cache of known size (vLLM 0.26 and later, models that keep
    every token), which counts a prefix that requests share once; else from ``lengths``.

    Parameters
    ----------
    log : IterationLog
    ready : Setup
        What the log's engine ran.
    lengths : tuple of int, optional
        Prompt and output tokens, when all requests are alike.

    Raises
    ------
    UsageError
        When the engine printed other settings, or its steps cannot be told from its lines.
    """
    check_settings(log, ready)
    times = step_times(log.iterations)
    pool = log.pool if log.pool and keeps_every_token(ready.model) else None
    skipped: Counter[str] = Counter()
    rows = []
    for one, seconds, admits in zip(log.iterations, times.seconds, _admits(log.iterations), strict=True):
        held = one.usage * pool if one.usage and pool else None
        found = unusable(one, float(seconds)) or _batch(one, None if admits else held, lengths)
        if isinstance(found, Batch):
            rows.append((found, float(seconds), False))
        else:
            skipped[AHEAD if found == UNKNOWN_CONTEXT and held else found] += 1
    notes = [f"a step's time is {times.measured}"]
    if times.between is not None:
        notes.append(f"{log.path.name}: {times.between * 1e3:.3g} ms of a step lie between two waits of the engine")
    return make(rows, measured=times.measured, skipped=skipped, notes=notes, version=log.version)


def _admits(iterations: Sequence[Iteration]) -> list[bool]:
    """Whether the next step of the same engine has prompts: it was planned before the line was written."""
    found, last = [False] * len(iterations), dict[str, int]()
    for at, one in enumerate(iterations):
        if one.engine in last:
            found[last[one.engine]] = one.context_requests > 0
        last[one.engine] = at
    return found


def unusable(one: Iteration, seconds: float) -> str:
    """Why a line is no row, whatever its contexts; ``""`` when it can be one."""
    if one.encoder:
        return "it encodes images or sound"
    if not one.context_requests and not one.generation_requests:
        return "it computes nothing"
    if one.generation_tokens > one.generation_requests:
        return "speculative decoding: what drafts cost is not in the line"
    if one.context_tokens < one.context_requests or one.generation_tokens < one.generation_requests:
        return "fewer tokens than requests"
    return "" if seconds > 0 else "its stamp is not after the one before it"


def _batch(one: Iteration, held: float | None, lengths: Lengths | None) -> Batch | str:
    """What the step held, or why that is not known. ``held``: tokens in the cache after it, where they are known."""
    m, n = one.context_requests, one.generation_requests
    usual = lengths[0] + (lengths[1] + 1) / 2 if lengths else None
    if not m:
        context = max(held / n, 1.0) if held else usual
        return Batch(n, context) if context else UNKNOWN_CONTEXT
    tokens = one.context_tokens / m
    whole = lengths is not None and abs(tokens - lengths[0]) < 1
    if n:  # the usage is of both: only prompts of a known length can be taken out of it
        if usual is None or not whole:
            return MIXED if usual is None else CHUNK
        context = max((held - one.context_tokens) / n, 1.0) if held else usual
        return Batch(n, context, m, tokens, tokens)
    if held:
        reach = held / m
        return Batch(chunks=m, tokens=tokens, reach=tokens if reach < tokens + BLOCK else reach)
    if whole:
        return Batch(chunks=m, tokens=tokens, reach=tokens)
    return CHUNK if lengths else UNKNOWN_CONTEXT


def keeps_every_token(model: ModelSpec) -> bool:
    """Whether all layers cache the whole context, so that the usage of the pool tells tokens."""
    return all(
        isinstance(a, Mla) or (isinstance(a, Gqa) and not (a.window or a.chunk or a.beside))
        for a in model.attention.values()
    )


def check_settings(log: IterationLog, ready: Setup) -> None:
    """Refuse a log of another plan than is asked for, or one whose lines are not those of whole steps.

    Raises
    ------
    UsageError
    """
    check_model(log.path.name, log.model, ready.model)
    printed = log.settings or {}
    tp = printed.get("tensor_parallel_size")
    if tp and int(tp) != ready.plan.tp:
        raise UsageError(f"{log.path.name} says tensor_parallel_size={tp}, and --tp is {ready.plan.tp}: give --tp {tp}")
    for name, what in (("pipeline_parallel_size", "stages"), ("decode_context_parallel_size", "shares of a context")):
        if printed.get(name, "1") != "1":
            raise UsageError(f"{log.path.name} says {name}={printed[name]}: steps of several {what} are not predicted")
    cache = printed.get("kv_cache_dtype", "auto")
    fp8 = ready.plan.kv.name.startswith("fp8")
    if "kv_cache_dtype" in printed and cache.startswith("fp8") != fp8:
        raise UsageError(
            f"{log.path.name} says kv_cache_dtype={cache}, and --kv is {ready.plan.kv.name}: make them agree"
        )
    waits = any(one.dummy for one in log.iterations) or printed.get("data_parallel_size", "1") != "1"
    if waits and any(isinstance(f, Moe) for f in ready.model.ffn.values()):
        raise UsageError(
            f"{log.path.name}: its data-parallel ranks wait for one another in every expert layer, and a line does not "
            "say what the others ran: calibrate on a run with one of them"
        )
