"""Claims about attention kernels (chapter sections 2.2 and 2.5 to 2.7): A4 to A7."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfmodel.base.num import Num
from perfmodel.hwspecs.load import gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import Gqa
from perfmodel.reports.claims import Line, claim, known
from perfmodel.roofline.attention_bounds import paper_tiles
from perfmodel.roofline.attention_decode import online_softmax_merge, partial_softmax, split_speedup_limit
from perfmodel.roofline.attention_published import SplitRow, published, share_of_peak, utilisation
from perfmodel.roofline.attention_units import non_matmul_ops, unit_times
from perfmodel.roofline.phases import run_phase
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import decode

#: A100's 192 KiB of L1 and shared memory in FP16 elements, for the tile of FlashAttention-1's paper.
SRAM_ELEMENTS = 192 * 1024 / 2


@claim(
    "A4",
    where="2.5 and 2.6",
    says="use: FA1 25-40 %, FA2 50-73 % (225 TFLOP/s), FA3 85 % (840), FP8 75 % (1.3 PFLOP/s)",
)
def a4() -> Iterator[Line]:
    """Reported shares of the peak (presets), and the shares that reported rates are of the specs' peaks."""
    for name, title, low, high in (("fa1", "FlashAttention-1", 25, 40), ("fa2", "FlashAttention-2", 50, 73)):
        share = known(utilisation(name).share)
        source = f"{title}: {utilisation(name).source}"
        yield Line(f"{title} on A100: lowest reported share", low, share[0] * 100, "%", utilisation, note=source)
        yield Line(f"{title} on A100: highest reported share", high, share[1] * 100, "%", utilisation)
    gemm = known(utilisation("gemm").share)
    yield Line("GEMM on A100: lowest reported share", 80, gemm[0] * 100, "%", utilisation)
    yield Line(
        "GEMM on A100: rate at that share", 250, gemm[0] * gpu("a100-sxm").peak("fp16") / 1e12, "TFLOP/s", Gpu.peak
    )
    yield _rate("fa2", "FlashAttention-2 on A100, forward", 73, "TFLOP/s of a kernel, not of training")
    yield _rate("fa2-training", "FlashAttention-2 on A100, 225 TFLOP/s", None, "")
    yield _rate("fa3-bf16", "FlashAttention-3 on H100 at BF16, 840 TFLOP/s", 85, "")
    yield _rate("fa3-fp16", "FlashAttention-3 on H100 at FP16, first version, 740 TFLOP/s", None, "")
    fp8 = "1.3 of 1.979 PFLOP/s; 75 % is what the paper's first version reports at FP16"
    yield _rate("fa3-fp8", "FlashAttention-3 on H100 at FP8, 1.3 PFLOP/s", 75, fp8)
    yield Line("speedup of FlashAttention-3 over 2 on H100", 2, _fa3_over_fa2("fa3-fp16"), "x", share_of_peak,
               note="from the shares of 75 and 35 % that the paper's first version reports")  # fmt: skip
    reason = "a rate of whole training: the model's other operators are not given"
    yield Line("FlashAttention-1 in training", 110, None, "TFLOP/s", reason=reason)
    yield Line("error of FP8 attention, lower by", 2.6, None, "x", reason="a numerical error is measured on data")


def _rate(name: str, title: str, chapter: float | None, reason: str) -> Line:
    entry = utilisation(name)
    share = known(share_of_peak(name, gpu(entry.gpu)))
    return Line(f"{title}: share of the peak", chapter, share * 100, "%", share_of_peak, reason, strict=True)


def _fa3_over_fa2(name: str) -> float:
    return known(share_of_peak(name, gpu("h100-sxm"))) / known(utilisation("fa2-h100").share)[1]


@claim("A5", where="2.5", says="FlashAttention's non-matmul share of the FLOPs is 50 %, FlashAttention-2's 25 %")
def a5() -> Iterator[Line]:
    """Share of operations outside the matrix units by count, and of their time, nothing overlapped, on A100."""
    a100 = gpu("a100-sxm")
    slow = "rates of A100's units, nothing overlapped; exponentials cost the same in both, only the rescaling falls"
    few = "by count they are few; they take long because their units are slow: see the share of the time"
    for version, chapter in ((1, 50), (2, 25)):
        for d in (64, 128):
            block_q, block_kv = paper_tiles(SRAM_ELEMENTS, d) if version == 1 else (128, 128)
            ops = non_matmul_ops(1, 32, 32, 8192, 8192, d, block_q=block_q, block_kv=block_kv, version=version)
            times = unit_times(ops, a100, "fp16")
            words, time, count = f"FlashAttention-{version}, head of {d}", times.serial_share, ops.flop_share
            yield Line(
                f"{words}: non-matmul share of the operations", chapter, _percent(count), "%", non_matmul_ops, few
            )
            yield Line(f"{words}: non-matmul share of the time", chapter, _percent(time), "%", unit_times, slow)
            exps = float(times.exp_to_matrix)
            yield Line(f"{words}: time of the exponentials over the matrix products", None, exps, "x", unit_times)


def _percent(share: Num) -> float:
    return float(share) * 100


#: Head layout of the published table: CodeLlama 34B on four A100.
CODELLAMA = ("codellama-34b", "a100-sxm", 4)


def step_split_speedup(context: int) -> float:
    """Upper bound on the speedup of a decode step of CodeLlama 34B on 4 A100 by splitting the keys.

    Roofline bound of the step; without a split, attention runs ``split_speedup_limit`` times longer.
    """
    name, card, tp = CODELLAMA
    ready = setup(name, card, tp=tp)
    phase = run_phase(ready, decode(1.0, float(context)))
    attention = sum(float(r.time.bound) for r in phase.ops if r.op.kind == "attention")
    return 1 + attention * (_limit(1) - 1) / float(phase.time.bound)


def _limit(batch: int) -> float:
    name, card, tp = CODELLAMA
    a, sms = next(iter(model(name).attention.values())), known(gpu(card).compute.sms)
    assert isinstance(a, Gqa)
    return float(split_speedup_limit(batch, a.kv_heads // tp, sms.value, unsplit_heads=a.heads // tp))


@claim("A6", where="2.7", says="FlashDecoding up to 8x for long sequences; FlashDecoding++ 1.11 to 1.14x more")
def a6() -> Iterator[Line]:
    """From the occupancy of the SMs: batch x KV heads x splits against their number."""
    words = "CodeLlama 34B on 4 A100, one sequence"
    grows = "it grows with the context, as attention's share of the step does; an upper bound"
    for context in (32768, 65536):
        mine = step_split_speedup(context)
        yield Line(f"{words}, {context:,} tokens: whole step, bound", 8, mine, "x", step_split_speedup, grows)
    row = _row(65536)
    alone = "8x is of a whole step; attention alone gains up to SMs / (batch x KV heads)"
    yield Line(f"{words}, {row.kv:,} tokens: attention alone, reported", 8, row.speedup, "x", published, alone)
    yield Line(f"{words}: attention alone, bound from the SMs", 8, _limit(1), "x", split_speedup_limit, alone)
    yield Line(f"{words} at batch 64: attention alone, bound from the SMs", None, _limit(64), "x", split_speedup_limit)
    for title, name in (("A100", "a100-sxm"), ("H100", "h100-sxm")):
        sms = known(gpu(name).compute.sms)
        most = max(n for n in range(1, 200) if float(split_speedup_limit(n, 1, sms.value)) >= 8)
        yield Line(f"{title}: most batch x KV heads with a gain of 8x", None, most, "", split_speedup_limit)
    yield Line(
        "FlashDecoding++ over FlashDecoding", (1.11, 1.14), None, "x",
        reason="an engine's figure: asynchronous softmax and double buffering hide time that the bound does not hold",
    )  # fmt: skip


def _row(kv: int) -> SplitRow:
    return next(row for row in published().decode_split.rows if row.kv == kv)


def merge_error() -> float:
    """Largest difference between attention over 1,000 keys in one part and merged from 7 parts, FP64, fixed draws."""
    draw = np.random.default_rng(2)
    scores, values = draw.normal(0.0, 5.0, (16, 1000)), draw.normal(0.0, 1.0, (1000, 8))
    cuts = np.array_split(np.arange(1000), 7)
    whole = partial_softmax(scores, values)
    merged = partial_softmax(scores[:, cuts[0]], values[cuts[0]])
    for cut in cuts[1:]:
        merged = online_softmax_merge(*merged, *partial_softmax(scores[:, cut], values[cut]))
    return max(float(np.max(np.abs(mine - right))) for mine, right in zip(merged, whole, strict=True))


@claim("A7", where="2.2 and 2.7", says="the online-softmax merge formula")
def a7() -> Iterator[Line]:
    """The formula is exact: what is left is rounding."""
    what = "merged from 7 parts against the whole: largest error of m, l and o, FP64"
    yield Line(what, (0, 1e-12), merge_error(), "", online_softmax_merge, strict=True)
