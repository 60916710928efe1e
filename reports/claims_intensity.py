"""Claims about arithmetic intensity and batching (chapter sections 1.3, 1.5 and 1.6): H5 and H7."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from perfmodel.base.num import Num
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.reports.claims import Line, claim
from perfmodel.reports.claims_flops import CHAPTER_MODELS
from perfmodel.roofline.critical import compute_bound_context, critical_batch, linear_critical_batch
from perfmodel.roofline.intensity import batch_intensity, part_intensity, score_intensity, shortest_prompt
from perfmodel.roofline.step import Step, decode, prefill

#: What the chapter prints for the critical batch, from its ridge over 2.
CRITICAL = {"A100": ("a100-sxm", 156.0, 78.0), "H100": ("h100-sxm", 295.0, 148.0), "B200": ("b200", 250.0, 125.0)}


@claim("H5", where="1.6", says="critical batch = critical intensity / 2: 78, 148, 125")
def h5() -> Iterator[Line]:
    """Batch at which linear layers turn compute-bound, by format; and the whole step, by context."""
    reason = "the intensity of a linear layer is 2 B / b at b bytes a weight, so B* = ridge x b / 2: the ridge at FP16"
    for title, (name, ridge, batch) in CRITICAL.items():
        critical = linear_critical_batch(gpu(name), 2.0, "fp16")
        yield Line(
            f"{title}, FP16 weights: critical batch", batch, critical, "sequences", linear_critical_batch, reason
        )
        yield Line(
            f"{title}: intensity at the chapter's batch of {batch:.0f}, FP16 (its ridge)", ridge,
            float(batch_intensity(batch)), "FLOP/byte", batch_intensity,
            reason="by the chapter's own rule a batch of B has an intensity of B FLOP/byte: half its ridge",
        )  # fmt: skip
    h100 = gpu("h100-sxm")
    yield Line(
        "H100, 8-bit weights, FP16 math: critical batch", None, linear_critical_batch(h100, 1.0, "fp16"), "sequences",
        linear_critical_batch,
    )  # fmt: skip
    yield Line(
        "H100, 8-bit weights, FP8 math: critical batch", None, linear_critical_batch(h100, 1.0, "fp8"), "sequences",
        linear_critical_batch,
    )  # fmt: skip
    contexts = [128.0, 512.0, 1024.0]
    for found in critical_batch("llama3-70b", "h100-sxm", contexts, include_activations=False):  # type: ignore[arg-type]
        yield Line(
            f"H100, Llama 3 70B, whole step at {found.context:,.0f} tokens of context: critical batch", 148, found.step,
            "sequences", critical_batch, reason="KV-cache reads grow with the batch and push it up",
        )  # fmt: skip
    yield Line(
        "H100, Llama 3 70B: context beyond which no batch is compute-bound", None,
        compute_bound_context("llama3-70b", "h100-sxm"), "tokens", compute_bound_context,
    )  # fmt: skip


#: Prompt of the prefill rows, from the chapter's "hundreds to thousands of tokens".
PROMPT = 512.0
#: Tokens in the cache of the decode rows.
CONTEXT = 4096.0


@claim("H7", where="1.3 and 1.5", says="intensity: prefill 55 to 100, decode 0.5 to 2; QK^T prefill s/2, decode 0.5")
def h7() -> Iterator[Line]:
    """Each operator's intensity from its own FLOPs and bytes, for the chapter's models; and where its bands hold."""
    yield from _prefill_rows()
    yield from _band_rows()
    yield from _decode_rows()
    yield from _score_rows()


def _extremes(compute: Callable[[ModelSpec], object]) -> Iterator[tuple[str, float]]:
    values = {title: float(compute(model(name))) for title, name in CHAPTER_MODELS.items()}  # type: ignore[arg-type]
    for word, pick in (("lowest", min), ("highest", max)):
        title = pick(values, key=lambda key: values[key])
        yield f"{word} of the chapter's 8 models ({title})", values[title]


def _prefill_rows() -> Iterator[Line]:
    reason = (
        "a GEMM of s tokens has nearly s FLOP/byte (1 / (1/s + 1/n + 1/k)); of experts, each sees a few of the s tokens"
    )
    for part, chapter in (("QKV projections", (55.0, 100.0)), ("FFN", 95.0)):
        for words, value in _extremes(functools.partial(_part, prefill(1.0, PROMPT), part)):
            what = f"{part}, prefill of {PROMPT:.0f} tokens, {words}"
            yield Line(what, chapter, value, "FLOP/byte", part_intensity, reason)


def _part(step: Step, part: str, spec: ModelSpec) -> Num:
    return part_intensity(spec, step, part)


def _band_rows() -> Iterator[Line]:
    for part, edges in (("QKV projections", (55, 100)), ("FFN", (95,))):
        for edge in edges:
            for words, value in _extremes(functools.partial(_shortest, part, edge)):
                what = f"{part}: shortest prompt that reaches {edge} FLOP/byte, {words}"
                yield Line(what, None, value, "tokens", shortest_prompt)


def _shortest(part: str, edge: float, spec: ModelSpec) -> float:
    return shortest_prompt(spec, part, edge)


def _decode_rows() -> Iterator[Line]:
    reason = "at FP16 a weight of 2 bytes does 2 FLOPs: 1 FLOP/byte a sequence"
    step = decode(1.0, CONTEXT)
    for part in ("QKV projections", "FFN"):
        for words, value in _extremes(functools.partial(_part, step, part)):
            what = f"{part}, decode of one sequence, {words}"
            yield Line(f"{what} (section 1.3)", (0.5, 2), value, "FLOP/byte", part_intensity, reason)
            yield Line(f"{what} (section 1.5)", 2, value, "FLOP/byte", part_intensity, reason)
    reason = "each K and V element read does 2 FLOPs for every query head of its group (MLA: for all heads)"
    for words, value in _extremes(functools.partial(_part, step, "attention")):
        what = f"attention over the KV cache, decode at {CONTEXT:,.0f} tokens, {words}"
        yield Line(what, 0.5, value, "FLOP/byte", part_intensity, reason)


def _score_rows() -> Iterator[Line]:
    s, d = CONTEXT, 128
    cases = (
        ("fused, multi-head", 32, 32, False, ""),
        ("fused, 4 query heads a KV head", 32, 8, False, "K is read once for 4 heads: s / (1 + 1/4)"),
        ("standard, S written, multi-head", 32, 32, True, "writing S limits it to s d / (2 d + s), below d = 128"),
    )
    for words, heads, kv_heads, stored, reason in cases:
        value = float(score_intensity(heads, kv_heads, s, s, d, 2.0, stored))
        yield Line(
            f"QK^T, prefill of {s:,.0f} tokens, {words} (s/2)", s / 2, value, "FLOP/byte", score_intensity, reason
        )
    reason = "at FP16 each K element of 2 bytes does 2 FLOPs a query head of its group: 1 x the group"
    for words, kv_heads in (("multi-head", 32), ("4 query heads a KV head", 8)):
        value = float(score_intensity(32, kv_heads, 1, s, d))
        yield Line(f"QK^T, decode at {s:,.0f} tokens, {words}", 0.5, value, "FLOP/byte", score_intensity, reason)
