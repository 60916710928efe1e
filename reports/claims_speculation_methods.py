"""Claims about the methods of speculative decoding (chapter sections 3.7 to 3.12): S6 and S9."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.reports.claims import Figure, Line, claim, known
from perfmodel.roofline.speculative.evaluate import speculate
from perfmodel.roofline.speculative.formulas import alpha_of_tokens
from perfmodel.roofline.speculative.methods import Method, method

#: Method, the chapter's figure, and which published result says it: by index.
TABLE: tuple[tuple[str, Figure, int], ...] = (
    ("specdec", 5.0, 0), ("online", (1.42, 2.17), 0), ("staged", 3.16, 0), ("parallelspec", 2.84, 0),
    ("eagle-2", (3.05, 4.26), 0), ("mirror", (2.8, 5.8), 0),
)  # fmt: skip


@claim(
    "S6", where="3.7 to 3.12", says="SpecDec 5x, Sampling 2-2.5x, Online 1.42-2.17x, Staged 3.16x, Medusa 2.3-3.6x, ..."
)
def s6() -> Iterator[Line]:
    """The chapter's figures beside the papers', and what the graphs of the drafts predict for one target."""
    for name, chapter, index in TABLE:
        m = method(name)
        result = m.published[index]
        top = result.speedup_high or known(result.speedup)
        yield Line(
            f"{m.title}: published, {result.setting}", chapter, top, "x", method, note=f"{m.title}: {result.source}"
        )
    sampling = method("speculative-sampling").published[4:7]
    speedups = [known(r.speedup) for r in sampling]
    yield Line("Speculative Sampling, Chinchilla 70B: least published", (2, 2.5), min(speedups), "x", method)
    yield Line("Speculative Sampling, Chinchilla 70B: most published", (2, 2.5), max(speedups), "x", method)
    for name, chapter in (("medusa-1", (2.2, float("inf"))), ("medusa-2", (2.3, 3.6))):
        paper = [known(r.speedup) for r in method(name).published if "2401.10774" in r.source]
        yield Line(f"{method(name).title}: most published on a whole benchmark", chapter, max(paper), "x", method)
    eagle = [known(r.speedup) for r in method("eagle-3").published if r.speedup]
    yield Line("EAGLE-3: most published", 6.5, max(eagle), "x", method)
    yield Line("EAGLE-3: SGLang, batch 64", 1.38, known(method("eagle-3").published[9].speedup), "x", method)
    yield from _predicted()


def _predicted() -> Iterator[Line]:
    """Our speedups on the architecture that most of the figures were measured on: 13 B, one GPU, batch 1."""
    note = "the acceptance is the catalogue's; times are of calibrated kernels without an engine around them"
    for name, chapter in (
        ("medusa-1", (2.2, float("inf"))), ("medusa-2", (2.3, 3.6)), ("eagle-1", None), ("eagle-2", (3.05, 4.26)),
        ("eagle-3", (3.0, 6.5)), ("parallelspec", 2.84), ("ngram", None),
    ):  # fmt: skip
        m = method(name)
        ours = speculate("llama2-13b", "a100", method=m, batch=1, context=512)
        reason = "fast kernels leave the heads and drafts a larger share of a step than the frameworks of the papers"
        yield Line(
            f"{m.title}: predicted, Llama 2 13B on A100, batch 1, tau {ours.tokens[0, 0]:.2f}", chapter,
            float(ours.speedup[0, 0]), "x", speculate, reason, note,
        )  # fmt: skip


@claim("S9", where="3.11 and 3.12", says="P-EAGLE gains 1.69x over EAGLE-3 on B200; Mirror 2.8-5.8x; Google 2-3x")
def s9() -> Iterator[Line]:
    """The ratio of two predictions, from the lengths that were published beside it."""
    parallel = _with_lengths(method("p-eagle"), 2.87, 3.38)
    serial = _with_lengths(method("eagle-3").model_copy(update={"strategy": parallel.strategy}), 2.24, 2.59)
    best = [
        float(speculate("gpt-oss-20b", "b200", method=m, batch=1, context=2048).best_speedup[0, 0])
        for m in (parallel, serial)
    ]
    yield Line(
        "gpt-oss-20b on B200, batch 1, SPEED-Bench lengths: P-EAGLE over EAGLE-3, each at its best length", 1.69,
        best[0] / best[1], "x", speculate, "the engine's time a serial draft pass is not in it, the kernels' is",
    )  # fmt: skip
    result = method("p-eagle").published[2]
    yield Line("the same: published", 1.69, known(result.speedup), "x", method, note=f"P-EAGLE: {result.source}")
    mirror = speculate("qwen3-14b", "h100", method="mirror", draft="qwen3-0.6b", batch=1, context=512)
    yield Line(
        "Mirror: predicted, Qwen3 14B with 0.6B on H100, batch 1, acceptance of 0.75", (2.8, 5.8),
        float(mirror.best_speedup[0, 0]), "x", speculate, "the acceptance is a stand-in",
    )  # fmt: skip
    reason = "neither model nor hardware nor batch is given"
    yield Line("Google AI Overviews: speedup", (2, 3), None, "x", reason=reason)
    yield Line("Meta Llama 8B and 13B: speedup", 2, None, "x", reason=reason)


def _with_lengths(m: Method, at3: float, at7: float) -> Method:
    """A method with the mean lengths of chains of 3 and of 7: one acceptance to position 3, another after it."""
    first = float(alpha_of_tokens(at3, 3))
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        more = first**3 * sum(middle**i for i in range(1, 5))
        low, high = (middle, high) if at3 + more < at7 else (low, middle)
    alphas = (first, first, first, low)
    return m.model_copy(update={"acceptance": m.acceptance.model_copy(update={"alphas": alphas, "siblings": ()})})
