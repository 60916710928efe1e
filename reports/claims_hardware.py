"""Claims about hardware and the roofline (chapter sections 1.2 to 1.6): H1 to H4, H6 and H8.

H5 and H7 (batching and intensity) are in ``claims_intensity``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from perfmodel.hwspecs.load import gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.reports.claims import Line, claim, known
from perfmodel.roofline.flops import flops_per_token
from perfmodel.roofline.memory import Memory, memory
from perfmodel.roofline.phases import run_phase
from perfmodel.roofline.setup import setup
from perfmodel.roofline.sharding import rank_weight_bytes
from perfmodel.roofline.step import decode, make_plan
from perfmodel.roofline.times import Rates

KIB, MIB = 2.0**10, 2.0**20

#: What the chapter prints: TFLOP/s at FP16, TB/s, ridge, GB of memory, MiB of L2, KiB of L1 and shared memory an SM.
CHAPTER = {
    "A100": ("a100-sxm", 312.0, 2.0, 156.0, 80.0, 40.0, 192.0),
    "H100": ("h100-sxm", 990.0, 3.35, 295.0, 80.0, 50.0, 256.0),
    "B200": ("b200", 2250.0, 9.0, 250.0, 192.0, 96.0, 256.0),
}


@claim("H1", where="1.4", says="A100 312 TFLOP/s, 2.0 TB/s, ridge 156; H100 990, 3.35, 295; B200 2250, 9.0, 250")
def h1() -> Iterator[Line]:
    """Peaks, bandwidths, ridges and capacities of three GPUs."""
    for title, (name, peak, bandwidth, ridge, capacity, *_) in CHAPTER.items():
        g = gpu(name)
        hbm = g.memory.hbm
        yield Line(f"{title}: FP16 peak, dense", peak, g.peak("fp16") / 1e12, "TFLOP/s", Gpu.peak, strict=True)
        others = "; ".join(f"{a.value}: {a.source} ({a.why})" for a in hbm.bandwidth.alternatives)
        yield Line(
            f"{title}: memory bandwidth", bandwidth, g.bandwidth / 1e12, "TB/s", Gpu.bandwidth,
            reason=", ".join(part for part in (hbm.bandwidth.text, hbm.bandwidth.source, hbm.bandwidth.note) if part),
            note=f"{title} bandwidth, other sources: {others}" if others else "", strict=True,
        )  # fmt: skip
        yield Line(
            f"{title}: ridge at FP16", ridge, g.ridge("fp16"), "FLOP/byte", Gpu.ridge, strict=True,
            reason=f"{g.peak('fp16') / 1e12:,.0f} TFLOP/s over {hbm.bandwidth.text}",
        )  # fmt: skip
        yield Line(
            f"{title}: memory as sold", capacity, hbm.capacity.value / 1e9, "GB", gpu, strict=True,
            reason=", ".join(part for part in (hbm.capacity.text, hbm.capacity.source, hbm.capacity.note) if part),
        )  # fmt: skip


@claim("H2", where="1.4", says="compute grows about 7x, bandwidth about 4.5x; critical intensity keeps climbing")
def h2() -> Iterator[Line]:
    """Growth over three generations, by the chapter's figures and by the specs."""
    a, h, b = (gpu(row[0]) for row in CHAPTER.values())
    steps = "A100 to B200"
    yield Line(f"{steps}: growth of the FP16 peak", 7, b.peak("fp16") / a.peak("fp16"), "x", Gpu.peak)
    yield Line(
        f"{steps}: growth of memory bandwidth", 4.5, b.bandwidth / a.bandwidth, "x", Gpu.bandwidth,
        reason="the chapter's 9.0 TB/s of B200 is not its bandwidth",
    )  # fmt: skip
    printed = {title: chapter_ridge(title) for title in CHAPTER}
    yield Line(
        "from the chapter's own figures, H100 to B200: growth of the ridge", (1, float("inf")),
        printed["B200"] / printed["H100"], "x", chapter_ridge, strict=True,
        reason=f"its own ridge falls from {CHAPTER['H100'][3]:.0f} to {CHAPTER['B200'][3]:.0f}",
    )  # fmt: skip
    yield Line(
        "H100 to B200: growth of the ridge", (1, float("inf")), b.ridge("fp16") / h.ridge("fp16"), "x", Gpu.ridge,
        strict=True, reason=f"it is flat: {h.ridge('fp16'):.0f} to {b.ridge('fp16'):.0f} FLOP/byte",
    )  # fmt: skip
    yield Line(
        "A100 to H100: growth of the ridge", (1, float("inf")), h.ridge("fp16") / a.ridge("fp16"), "x", Gpu.ridge
    )


def chapter_ridge(title: str) -> float:
    """The ridge that follows from the chapter's own peak and bandwidth. [FLOP/byte]"""
    _, peak, bandwidth, *_ = CHAPTER[title]
    return peak / bandwidth


@claim("H3", where="1.4", says="shared memory 19 TB/s per SM, 4 cycles; L2 5.5 TB/s, 30 cycles; HBM 300 cycles")
def h3() -> Iterator[Line]:
    """Bandwidth and latency of the memory levels of A100."""
    a, h = gpu("a100-sxm"), gpu("h100-sxm")
    sms, shared, l2 = known(a.compute.sms), known(known(a.memory.shared).bandwidth), known(known(a.memory.l2).bandwidth)
    whole = shared.value
    yield Line(
        "A100: shared-memory bandwidth of one SM", 19, whole / sms.value / 1e12, "TB/s", gpu,
        reason=f"19 TB/s is the sum over all {sms.value:.0f} SMs ({shared.source})",
    )  # fmt: skip
    yield Line("A100: shared-memory bandwidth of all SMs", 19, whole / 1e12, "TB/s", gpu)
    yield Line("A100: shared over device-memory bandwidth", (10, float("inf")), whole / a.bandwidth, "x", Gpu.bandwidth)
    yield Line("A100: L2 bandwidth", 5.5, l2.value / 1e12, "TB/s", gpu, note=f"L2 of A100: {l2.source}")
    registers = known(a.memory.registers_per_sm)
    yield Line("A100: register file of an SM", 256, registers.value / KIB, "KiB", gpu)
    for title, g in (("A100", a), ("H100", h)):
        m = g.memory
        levels = (("shared memory", 4, m.shared), ("L2", 30, m.l2), ("device memory", 300, m.hbm))
        for level, chapter, where in levels:
            latency = where.latency_clocks if where else None
            if latency is None:
                continue
            yield Line(
                f"{title}: latency of {level}", chapter, latency.value, "clocks", gpu,
                reason="measured: " + latency.source,
            )  # fmt: skip


@claim("H4", where="1.4", says="SRAM per SM: A100 192 KB, H100 256, B200 256; L2 40, 50, 96 MB")
def h4() -> Iterator[Line]:
    """On-chip memories: with L1, the largest carve-out, and what one thread block can have."""
    for title, (name, *_, l2, sram) in CHAPTER.items():
        g = gpu(name)
        shared, cache = known(g.memory.shared), known(g.memory.l2).capacity
        yield Line(f"{title}: L1 and shared memory of an SM", sram, known(shared.with_l1).value / KIB, "KiB", gpu)
        yield Line(f"{title}: largest shared memory of an SM", None, shared.per_sm.value / KIB, "KiB", gpu)
        yield Line(
            f"{title}: shared memory that a thread block can use", sram, shared.per_block.value / KIB, "KiB", gpu,
            strict=True, reason=f"L1 takes a part of the {sram:.0f} KiB, and 1 KiB a block is reserved",
        )  # fmt: skip
        yield Line(
            f"{title}: L2", l2, cache.value / MIB, "MiB", gpu,
            reason=f"{cache.text} by {cache.source}",
        )  # fmt: skip


def chapter_decode(bandwidth: float, peak: float) -> tuple[float, float, float]:
    """The chapter's sum for 70 B parameters of 2 bytes: seconds to read them, to compute 140 GFLOP, and their ratio."""
    load, compute = 70e9 * 2 / bandwidth, 2 * 70e9 / peak
    return load, compute, compute / load


@claim(
    "H6",
    where="1.2",
    says="LLaMA-2 70B FP16 decode: 140 GB, 1 FLOP/byte; A100 70 ms, 0.45 ms, 0.6 %; H100 42 ms, 0.3 %",
)
def h6() -> Iterator[Line]:
    """One request, weights only: the chapter's sums redone, then the same from the specs, then whether it fits."""
    chapter = {"A100": (70.0, 0.45, 0.6), "H100": (42.0, None, 0.3)}
    for title, (load, compute, use) in chapter.items():
        _, peak, bandwidth, *_ = CHAPTER[title]
        mine = chapter_decode(bandwidth * 1e12, peak * 1e12)
        yield Line(f"{title}, as the chapter sums: reading 70 B weights", load, mine[0] * 1e3, "ms", chapter_decode)
        yield Line(f"{title}, as the chapter sums: 140 GFLOP", compute, mine[1] * 1e3, "ms", chapter_decode)
        yield Line(f"{title}, as the chapter sums: use of the peak", use, mine[2] * 100, "%", chapter_decode)
    spec = model("llama2-70b")
    size, work = weight_bytes(spec, "fp16"), flops_per_token(spec)
    yield Line("exact: weights at FP16", 140, size / 1e9, "GB", weight_bytes)
    yield Line("exact: FLOPs of a token at short context", 140, work / 1e9, "GFLOP", flops_per_token)
    yield Line("exact: intensity of the weights", 1, work / size, "FLOP/byte", flops_per_token)
    for title, (load, compute, use) in chapter.items():
        g = gpu(CHAPTER[title][0])
        yield Line(f"{title}, exact: reading the weights", load, size / g.bandwidth * 1e3, "ms", Gpu.bandwidth)
        yield Line(f"{title}, exact: computing", compute, work / g.peak("fp16") * 1e3, "ms", Gpu.peak)
        ratio = work / size / g.ridge("fp16")
        yield Line(f"{title}, exact: use of the peak at batch 1", use, ratio * 100, "%", Gpu.ridge)
    yield from _cards("A100")


def smallest_tp(model_name: str, gpu_name: str, context: int = 2048) -> tuple[int, Memory]:
    """The smallest tensor parallelism at which a model fits for one sequence, and the memory of a rank."""
    spec, g = model(model_name), gpu(gpu_name)
    for tp in (2**n for n in count()):
        need = memory(spec, g, make_plan(spec, g, tp), 1, context, 1)
        if need.fits:
            return tp, need
    raise AssertionError("unreachable")


def _cards(title: str) -> Iterator[Line]:
    name = CHAPTER[title][0]
    tp, _ = smallest_tp("llama2-70b", name)
    spec, g = model("llama2-70b"), gpu(name)
    yield Line(
        f"{title} cards that hold it, with 2,048 tokens of context", 1, tp, "GPUs", memory, strict=True,
        reason=f"its weights do not fit the {g.usable_memory / 2**30:.1f} GiB of one card; TP {tp} does",
    )  # fmt: skip
    share = rank_weight_bytes(spec, make_plan(spec, g, tp))
    yield Line(f"{title}, TP {tp}: reading a rank's weights", None, share / g.bandwidth * 1e3, "ms", rank_weight_bytes)


def decode_use(model_name: str, gpu_name: str, tp: int, batch: int, context: int) -> float:
    """Highest use of the matrix peak in a decode step: its compute time over its roofline bound. [1]"""
    ready = setup(model_name, gpu_name, tp=tp)
    phase = run_phase(ready, decode(float(batch), float(context)))
    compute = Rates(ready.gpu, ready.topology).terms(phase.cost)["matrix"]
    return float(compute) / float(phase.time.bound)


@claim("H8", where="1.4 and 1.6", says="L2 hit rate at decode 2 to 16 %; use at batch 100 and more 30 to 40 %")
def h8() -> Iterator[Line]:
    """Empirical figures: quoted, with the bound's use beside the one that can be set beside it."""
    yield Line(
        "L2 hit rate at decode", (2, 16), None, "%", reason="a hit rate is measured, on a kernel and a cache layout"
    )
    yield Line(
        "GPU use in prefill", (60, 85), None, "%", reason="the bound gives the limit of use, not the use of an engine"
    )
    yield Line(
        "GPU use in decode", (10, 20), None, "%", reason="depends on batch, context and engine, which are not given"
    )
    reason = "highest use by the bound, kernels and launches perfect; it moves with the context, which is not given"
    for title, tp in (("A100", 8), ("H100", 8)):
        for context in (512, 2048):
            use = decode_use("llama2-70b", CHAPTER[title][0], tp, 100, context)
            yield Line(
                f"Llama 2 70B on {tp} {title}, batch 100, {context:,} tokens: highest use of the peak", (30, 40),
                use * 100, "%", decode_use, reason=reason,
            )  # fmt: skip
