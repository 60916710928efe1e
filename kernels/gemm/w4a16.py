"""The product of 16-bit activations and 4-bit weights (W4A16): few rows read the weights once, many a dequantized copy.

For few rows the kernel turns integers into 16-bit floats in registers. The weights are the left operand of the tensor
cores, out^T = W^T x^T: on Hopper the left operand may come from registers, and 128 outputs fill the hardware's rows
where a few rows of x would not. Integers less zero point are exact in fp16 and bf16; a group's product is accumulated
in fp32 and scaled once, so that a scale costs an FMA for each result and group, not an instruction a weight. K is split
among programs where the outputs alone do not fill the GPU; a second kernel adds the parts in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_apart, check_range, check_tensor, require
from perfmodel.kernels.device import target
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .dense import gemm_dense
from .geometry import CONFIG_LIMITS, MOST_PARTIAL, MOST_SPLITS, ceil_div, constants, split_count, tile_count
from .launch import MOST_ROWS
from .pointer import merge
from .scales import NO_SCALES
from .tiles import part_at, row_at, split_range
from .w4_dequantize import TILE_LIMIT, check_weight, dequantize_w4, weight_constants
from .w4_nibbles import integers_less_zero, scale_of
from .w4_packing import TILE_K, W4Weight

DENSE_FROM = 128
"""Rows of x from which the weights are dequantized first: writing and reading the copy is then a small part, and the
dense kernel's tiles of 128 rows are full."""


@triton.jit
def _add_products(
    acc,
    packed,
    meta,
    x_at,
    k,
    K,
    kept,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    EVEN_K: tl.constexpr,
    USE_ASM: tl.constexpr,
):
    """acc plus (q - z)^T x^T over nibbles FIRST to FIRST + COUNT - 1 of a tile, a run of 32 inputs each.

    x_at: where x^T [32, BLOCK_M] of nibble 0 lies, whose inputs are `k`. kept: which rows of x there are.
    """
    for i in tl.static_range(FIRST, FIRST + COUNT):
        if EVEN_K:
            x = tl.load(x_at + i * 32, mask=kept, other=0.0)
        else:
            x = tl.load(x_at + i * 32, mask=kept & (k + i * 32 < K)[:, None], other=0.0)
        acc = tl.dot(integers_less_zero(packed, meta, i, x.dtype, USE_ASM), x, acc)
    return acc


@triton.jit(do_not_specialize=["M", "per_split"])
def _w4a16_kernel(
    x,
    words,
    meta,
    out,
    M,
    N,
    EIGHTHS,
    N_FILLED,
    per_split,
    GROUPS: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    USE_ASM: tl.constexpr,
):
    RUN: tl.constexpr = 32
    EACH: tl.constexpr = 4 // GROUPS if GROUPS else 4
    K = EIGHTHS * 8  # so the compiler knows that 16 bytes of a row can be loaded at once
    split = tl.program_id(2)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    run = tl.arange(0, RUN)
    kept = rows[None, :] < M
    begin, tiles = split_range(split, per_split, tl.cdiv(K, 4 * RUN))
    words_at = row_at(words, begin, N_FILLED * RUN) + columns[:, None] * RUN + run[None, :]
    x_at = x + rows[None, :] * K + (begin * 4 * RUN + run)[:, None]
    meta_at = row_at(meta, begin * GROUPS, N_FILLED) + columns
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if GROUPS == 0:
        shared = tl.load(meta_at)
    for tile in range(0, tiles):
        k = (begin + tile) * 4 * RUN + run
        packed = tl.load(words_at, eviction_policy="evict_first")
        if GROUPS == 0:
            acc = _add_products(acc, packed, shared, x_at, k, K, kept, 0, 4, EVEN_K, USE_ASM)
        for group in tl.static_range(GROUPS):
            own = tl.load(meta_at + group * N_FILLED)
            part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            part = _add_products(part, packed, own, x_at, k, K, kept, group * EACH, EACH, EVEN_K, USE_ASM)
            acc += part * scale_of(own, SCALE)[:, None]
        words_at += N_FILLED * RUN
        x_at += 4 * RUN
        meta_at += GROUPS * N_FILLED
    if GROUPS == 0:
        acc *= scale_of(shared, SCALE)[:, None]
    out_at = part_at(out, split, 0, M, N) + rows[None, :] * N + columns[:, None]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=kept & (columns[:, None] < N))


@entry
def gemm_w4a16(
    x: torch.Tensor, weight: W4Weight, *, out: torch.Tensor | None = None, config: Config | None = None
) -> torch.Tensor:
    """The product x W with 4-bit weights, accumulated in fp32, rounded once.

    out[m, n] = sum over k of x[m, k] (q[k, n] - zero[group of k, n]) scale[group of k, n]

    x: activations [M, K], fp16 or bf16, contiguous, 16-byte aligned, M 0 to `launch.MOST_ROWS`. weight: [K, N] as
    `from_gptq`, `from_awq` or `from_integers` pack it: groups of 32, 64, 128 or all of K; K a positive multiple of 8, N
    any (limits: see W4Weight). out: [M, N], the type of x; made if not given, apart from the others. config: the kernel
    for few rows with these constants, whatever M is; M max(N, K) must then be below 2^31.

    Below DENSE_FROM rows the weights are dequantized in registers; K is split where outputs are few, into fp32 parts
    that a second kernel adds in a fixed order: equal calls give equal bits. From there on they are dequantized to
    memory (2 K N bytes, freed afterwards; q - zero times scale rounded once to the type of x) for the dense kernel.
    With act-order the columns of x are first gathered in the weight's order, a copy of x.
    Raises KernelInputError for what does not fit.
    """
    check_weight(weight)
    check_tensor("x", x, (None, weight.k), [torch.float16, torch.bfloat16], like=weight.words)
    m = x.shape[0]
    check_range("M", m, 0, MOST_ROWS)
    if out is None:
        out = torch.empty((m, weight.n), dtype=x.dtype, device=x.device)
    check_tensor("out", out, (m, weight.n), [x.dtype], like=x)
    check_apart("out", out, {"x": x, "weight.words": weight.words, "weight.meta": weight.meta})
    if not out.numel():
        return out
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    if config is None and m >= DENSE_FROM:
        return gemm_dense(x, dequantize_w4(weight, x.dtype), out=out)
    limits = {name: CONFIG_LIMITS[name] for name in ("BLOCK_M", "per_sm", "splits")} | TILE_LIMIT
    config = configured("gemm_w4a16", x, config, limits=limits, m=m, groups=weight.groups_a_tile)
    return _few_rows(x, weight, out, config)


def _few_rows(x: torch.Tensor, weight: W4Weight, out: torch.Tensor, config: Config) -> torch.Tensor:
    """Launch the kernel of a configuration, and the merging of its parts where K is split."""
    m, n = out.shape
    block_m, block_n = int(config.meta["BLOCK_M"]), int(config.meta["BLOCK_N"])
    largest = m * max(n, weight.k)
    require(largest < 2**31, f"x or the result has {largest} elements; this kernel's offsets need fewer than 2^31")
    each = _per_split(m, n, weight.words.shape[0], target(x).sm_count, config)
    splits = ceil_div(weight.words.shape[0], each)
    to = out if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=x.device)
    _w4a16_kernel[(ceil_div(m, block_m), ceil_div(n, block_n), splits)](
        x, weight.words, weight.meta, to, m, n, weight.k // 8, weight.words.shape[1], each,
        **weight_constants(weight), **constants(config),
    )  # fmt: skip
    if splits > 1:
        merge(to, out, NO_SCALES)
    return out


def _per_split(m: int, n: int, k_tiles: int, sm_count: int, config: Config) -> int:
    """K tiles a program takes: by `splits` of the configuration if it names that, by `split_count` if it has `per_sm`.

    Bytes of a partial result over those of a K tile: BLOCK_M BLOCK_N 4 / (128 (BLOCK_N / 2 + BLOCK_M 2)).
    """
    splits = int(config.meta.get("splits", 0))
    if not splits and "per_sm" in config.meta:
        block_m, block_n = int(config.meta["BLOCK_M"]), int(config.meta["BLOCK_N"])
        tiles = tile_count(m, n, config)
        partial_tiles = 4 * block_m * block_n / (TILE_K * (block_n / 2 + 2 * block_m))
        most = max(1, min(MOST_SPLITS, MOST_PARTIAL // (4 * m * n)))
        splits = split_count(tiles, k_tiles, sm_count * int(config.meta["per_sm"]), partial_tiles, most)
    return ceil_div(k_tiles, max(1, min(splits, k_tiles)))


def gemm_w4a16_reference(
    x: torch.Tensor,
    q: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group: int,
    g_idx: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The same by torch in `dtype`, from integers: q [K, N], scales and zeros [groups, N], g_idx [K] or None."""
    k = q.shape[0]
    if g_idx is None:
        g_idx = torch.arange(k, device=q.device) // (k if group == -1 else group)
    of_input = g_idx.long()
    values = (q.to(dtype) - zeros.to(dtype)[of_input]) * scales.to(dtype)[of_input]
    return x.to(dtype) @ values
