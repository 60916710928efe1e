"""Claims about the traffic of attention and its tiles (chapter sections 2.1 to 2.4): A1, A2, A3 and A8."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.hwspecs.load import gpu
from perfmodel.reports.claims import Line, claim, known
from perfmodel.roofline.attention_bounds import (
    FLASH1_CONSTANT,
    linear_io_length,
    minimal_sram_for_linear_io,
    paper_tiles,
    standard_bound,
    theorem_bound,
    training_traffic,
)
from perfmodel.roofline.attention_io import flash_traffic, standard_traffic
from perfmodel.roofline.attention_published import published
from perfmodel.roofline.attention_tiles import plan_tiles, textbook_bytes, tile

#: The chapter's long sequence and head.
N, D = 2**17, 128
#: 192 KiB of L1 and shared memory in FP16 elements: what the chapter calls A100's SRAM.
SRAM = 192 * 1024
M = SRAM / 2


@claim("A1", where="2.1", says="standard attention moves Theta(Nd + N^2); S at N = 128K is 32 GB at FP16")
def a1() -> Iterator[Line]:
    """Traffic of standard attention, one head, and what the chapter's "bytes" are."""
    got = standard_traffic(1, 1, 1, N, N, D, 2)
    scores = got.step("scores")
    words = "one head, N = 128K, d = 128"
    elements = "the chapter's bytes are elements: FP16 has two bytes each"
    yield Line(f"{words}: S in GB", 32, float(got.scores) / 1e9, "GB", standard_traffic)
    yield Line(f"{words}: S in GiB", 32, float(got.scores) / 2**30, "GiB", standard_traffic)
    yield Line(f"{words}: Q and K read", 2 * N * D / 1e6, float(scores.read) / 1e6, "MB", standard_traffic, elements)
    yield Line(f"{words}: S written", N**2 / 1e9, float(scores.written) / 1e9, "GB", standard_traffic, elements)
    yield Line(f"{words}: all traffic", None, float(got.l2) / 1e9, "GB", standard_traffic)
    exact = float(got.l2) / 2 / float(standard_bound(N, D))
    yield Line(f"{words}: exact count over N d + N^2, in elements", None, exact, "x", standard_bound)
    twice = standard_traffic(1, 1, 1, 2 * N, 2 * N, D, 2)
    yield Line(f"{words}: growth when N doubles (N^2)", 4, float(twice.l2 / got.l2), "x", standard_traffic)
    flops = 4 * N**2 * D
    yield Line(f"{words}: elements moved a FLOP (1/d)", 1 / D, float(got.l2) / 2 / flops, "1/FLOP", standard_traffic)


@claim("A2", where="2.3 and 2.4", says="FlashAttention moves Theta(N^2 d^2 / M), M in bytes; HBM traffic down up to 9x")
def a2() -> Iterator[Line]:
    """The theorem beside exact counts, and the "9x" of training."""
    block_q, block_kv = paper_tiles(M, D)
    exact = _flash1(N, block_q, block_kv)
    words = "FlashAttention-1, one head, N = 128K, d = 128"
    bound = float(theorem_bound(N, D, M))
    yield Line(
        f"{words}: N^2 d^2 / M with M = 192 KiB", N**2 * D**2 / SRAM / 1e6, bound / 1e6, "M elements", theorem_bound,
        reason="M counts elements, as the traffic does: 98,304 at FP16, not 196,608",
    )  # fmt: skip
    constant = float(theorem_bound(N, D, M, FLASH1_CONSTANT))
    yield Line(
        f"{words}: exact count over 12 N^2 d^2 / M", None, exact / constant, "x", flash_traffic,
        note="the constant 12 and the row statistics are what the theorem leaves out",
    )  # fmt: skip
    yield Line(
        f"{words}: growth when N doubles (N^2)", 4, _flash1(2 * N, block_q, block_kv) / exact, "x", flash_traffic
    )
    half = _flash1(N, *paper_tiles(2 * M, D))
    yield Line(f"{words}: traffic when M doubles (1/M)", 0.5, half / exact, "x", flash_traffic)
    yield from _flash2_rows()
    yield from _nine_times()
    yield from _trained()


def _flash1(length: int, block_q: int, block_kv: int) -> float:
    return float(flash_traffic(1, 1, 1, length, length, D, 2, block_q=block_q, block_kv=block_kv, version=1).l2) / 2


def _flash2_rows() -> Iterator[Line]:
    a100 = gpu("a100-sxm")
    got = flash_traffic(1, 32, 8, 8192, 8192, D, 2, causal=True, l2_reuse=a100)
    words = "FlashAttention-2, Llama 3 8B's heads, 8,192 tokens, causal, tiles of 128 x 128"
    yield Line(f"{words}: Q once, K and V once a query block", None, float(got.l2) / 1e9, "GB", flash_traffic)
    yield Line(f"{words}: the same less what A100's L2 keeps", None, float(got.dram) / 1e9, "GB", flash_traffic)
    standard = standard_traffic(1, 32, 8, 8192, 8192, D, 2, causal=True)
    yield Line(f"{words}: standard attention beside it", None, float(standard.l2) / 1e9, "GB", standard_traffic)


def _nine_times() -> Iterator[Line]:
    paper = published().training_traffic["gpt2-medium"]
    block_q, block_kv = paper_tiles(M, paper.head_dim)
    shape = (paper.batch, paper.heads, paper.length, paper.head_dim, 2, block_q, block_kv)
    ours = training_traffic(*shape)
    words = "GPT-2 medium on A100, forward and backward"
    yield Line(
        f"{words}: reported traffic, standard over FlashAttention", 9, paper.standard / paper.flash, "x", published
    )
    passes = float(ours.passes_in(paper.standard)) - 11
    yield Line(
        f"{words}: from the algorithms", 9, float(ours.ratio), "x", training_traffic,
        reason=f"the reported standard figure holds {passes:.0f} more passes over S, for mask and dropout",
    )  # fmt: skip
    more = training_traffic(*shape, extra_passes=round(passes))
    yield Line(f"{words}: from the algorithms with those passes", 9, float(more.ratio), "x", training_traffic)


def _trained() -> Iterator[Line]:
    proof = "a proof that holds for every M of a range; it gives no figure"
    yield Line("lower bound Omega(N^2 d^2 / M): no exact algorithm moves less", None, None, reason=proof)
    reason = "a training run: model, data and software decide, not attention alone"
    quality = "an accuracy is learnt, not computed from work and bytes"
    yield Line("BERT-large training, 512 tokens: faster by", 15, None, "%", reason=reason)
    yield Line("GPT-2 training, 1K tokens: speedup", 3, None, "x", reason=reason)
    yield Line("GPT-2 training: perplexity better by", 0.7, None, "", reason=quality)
    yield Line("Long-Range Arena, 1K to 4K tokens: speedup", 2.4, None, "x", reason=reason)
    yield Line("Path-X, 16K tokens: accuracy", 61.4, None, "%", reason=quality)
    yield Line("Path-256, 64K tokens: accuracy", 63.1, None, "%", reason=quality)


@claim("A3", where="2.2", says="tiles of 128 x 128 at d = 128 take 193 KB, which just fits A100's 192 KB")
def a3() -> Iterator[Line]:
    """The chapter's account of a tile, the real limits, and the same tile as a kernel keeps it."""
    a100 = gpu("a100-sxm")
    need, limit = textbook_bytes(128, 128, D, 2) / 1024, known(a100.memory.shared).per_block.value / 1024
    yield Line("six tiles of 32 KiB and the row statistics", 193, need, "KiB", textbook_bytes)
    yield Line(
        "the same, against the chapter's 192 KiB", (0, 192), need, "KiB", textbook_bytes, strict=True,
        reason=f"{need:.0f} is above 192",
    )  # fmt: skip
    yield Line(
        "shared memory that a block can use on A100", 192, limit, "KiB", gpu, strict=True,
        reason=tile(a100, D, 2, "textbook", 128, 128).why or f"{limit:.0f} KiB a block",
    )  # fmt: skip
    fits = [t for t in plan_tiles(a100, D, 2, "textbook") if t.fits and t.block_q == 128]
    yield Line(
        "most keys beside 128 rows with everything in shared memory on A100", 128, fits[0].block_kv, "keys", plan_tiles,
        strict=True, reason="more do not fit the limit of a block",
    )  # fmt: skip
    real = tile(a100, D, 2, "fa2", 128, 128, warps=8)
    yield Line(
        "128 x 128 as FlashAttention-2 keeps it, 8 warps: shared memory", None, real.shared_bytes / 1024, "KiB", tile,
        note=f"S, P and O stay in registers, about {real.registers:.0f} of {real.register_limit:.0f} a thread",
    )  # fmt: skip


@claim("A8", where="2.3", says="with M = Theta(Nd), about 16 KB at d = 128, FlashAttention moves Theta(Nd)")
def a8() -> Iterator[Line]:
    """On-chip memory that linear traffic asks for, and the length that 192 KiB is enough for."""
    reason = "M = N d grows with N: 16 K elements is N d at N = 128, one tile"
    for length, words in ((128, "128"), (N, "128K")):
        need = float(minimal_sram_for_linear_io(length, D)) * 2 / 1024
        yield Line(f"M = N d at N = {words}, d = 128, FP16", 16, need, "KiB", minimal_sram_for_linear_io, reason)
    longest = linear_io_length(SRAM, D, 2)
    yield Line("longest N with M = N d in 192 KiB, d = 128, FP16", None, longest, "tokens", linear_io_length)
