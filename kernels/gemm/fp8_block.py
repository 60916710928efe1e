"""Product of FP8 operands with block scales: activations one a row and 128 of K, weights one a 128 x 128 block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_apart, check_tensor, require
from perfmodel.kernels.device import prepare_descriptors
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .fp8 import require_fp8
from .geometry import ceil_div, constants, persistent_grid
from .launch import check_operands, choose
from .pointer import divide, merge
from .scales import NO_SCALES
from .tiles import grouped_tile, load_k, row_at, rows_at, split_range, store_part, store_tile

BLOCK = 128
"""Values along K, and weight rows, that share a scale (DeepSeek-V3)."""


@triton.jit
def _next_k(k, k_tiles):
    """The K tile whose scales to fetch while tile k is multiplied; the last again after the last."""
    return tl.minimum(k + 1, k_tiles - 1)


@triton.jit
def _promoted(acc, x, w, row_scale, column_scale, SWAP: tl.constexpr):
    """Add one K tile to the sum: its product, summed on its own, times the scales of its 128 values of K."""
    scale = row_scale * column_scale
    if SWAP:
        return acc + tl.dot(w.T, x.T) * scale[None, :]
    else:
        return acc + tl.dot(x, w) * scale[:, None]


@triton.jit(do_not_specialize=["M", "scale_m", "scale_k"])
def _block_persistent_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    M,
    N,
    K,
    scale_m,
    scale_k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    a_tiles = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_tiles = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    out_tiles = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2 if HALVES else BLOCK_N])
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = grouped_tile(tile, num_m, num_n, GROUP_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        rows = tl.minimum(row + tl.arange(0, BLOCK_M), M - 1)
        r_at = row_at(row_scale, rows, scale_m)
        c_at = row_at(column_scale, column // BLOCK_K, k_tiles)
        r = tl.load(r_at)
        c = tl.load(c_at)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(k_tiles):
            x = a_tiles.load([row, k * BLOCK_K])
            w = b_tiles.load([column, k * BLOCK_K]).T
            after = _next_k(k, k_tiles)
            r_after = tl.load(row_at(r_at, after, scale_k))
            c_after = tl.load(c_at + after)
            acc = _promoted(acc, x, w, r, c, False)
            r = r_after
            c = c_after
        store_tile(out_tiles, acc, None, None, row, column, M, N, BLOCK_M, BLOCK_N, HALVES, 0, 0)


@triton.jit(do_not_specialize=["M", "scale_m", "scale_k", "per_split"])
def _block_pointer_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    M,
    N,
    k_units,
    scale_m,
    scale_k,
    per_split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
    EVEN_K: tl.constexpr,
    ALIGN: tl.constexpr,
):
    K = k_units * ALIGN
    k_tiles = tl.cdiv(K, BLOCK_K)
    split = tl.program_id(1)
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row = tile_m * BLOCK_M
    column = tile_n * BLOCK_N
    begin, count = split_range(split, per_split, k_tiles)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    ks = begin * BLOCK_K + tl.arange(0, BLOCK_K)
    x_at = rows_at(a, row, rows, M, K)[:, None] + ks[None, :]
    w_at = rows_at(b, column, columns, N, K)[None, :] + ks[:, None]
    r_at = row_at(row_scale, tl.minimum(row + rows, M - 1), scale_m)
    c_at = row_at(column_scale, column // BLOCK_K, k_tiles)
    r = tl.load(row_at(r_at, begin, scale_k))
    c = tl.load(c_at + begin)
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    for i in range(count):
        at_k = ks + i * BLOCK_K
        x = load_k(x_at, at_k[None, :], K, EVEN_K)
        w = load_k(w_at, at_k[:, None], K, EVEN_K)
        after = _next_k(begin + i, k_tiles)
        r_after = tl.load(row_at(r_at, after, scale_k))
        c_after = tl.load(c_at + after)
        acc = _promoted(acc, x, w, r, c, SWAP)
        r = r_after
        c = c_after
        x_at += BLOCK_K
        w_at += BLOCK_K
    if SWAP:
        acc = acc.T
    store_part(out, acc, split, row, column, rows, columns, M, N)


@entry
def gemm_fp8_block(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """The product a b^T of e4m3 numbers with block scales (DeepSeek-V3), rounded once to bf16.

    out[m, n] = sum over blocks j of scale_a[m, j] scale_b[n // 128, j] sum over k in block j of a[m, k] b[n, k]

    Block j is k = 128 j to 128 j + 127, cut at K. The inner sum is the tensor cores', the outer one in fp32 registers.

    a: activations [M, K], b: weights [N, K], both float8_e4m3fn, contiguous. scale_a: fp32 [M, ceil(K / 128)], row by
    row or column by column (any strides). scale_b: fp32 [ceil(N / 128), ceil(K / 128)], contiguous. out: [M, N] bf16,
    made if not given, apart from the others. a, b and out 16-byte aligned. M, N >= 0 and K >= 1 up to `launch`'s limits
    (MOST_ROWS, LONGEST); K a multiple of 16 is fast.
    Raises KernelInputError for what does not fit, and on sm_80, which has no FP8.
    """
    out = check_operands(a, b, out, [torch.float8_e4m3fn], torch.bfloat16)
    require_fp8(a)
    m, k = a.shape
    blocks = ceil_div(k, BLOCK)
    check_tensor("scale_a", scale_a, (m, blocks), [torch.float32], like=a, contiguous=False, align=4)
    check_tensor("scale_b", scale_b, (ceil_div(b.shape[0], BLOCK), blocks), [torch.float32], like=a, align=4)
    check_apart("out", out, {"scale_a": scale_a, "scale_b": scale_b})
    config = choose("gemm_fp8_block", a, b, out, (128, 128), config)
    sizes = int(config.meta["BLOCK_K"]), BLOCK % int(config.meta["BLOCK_N"])
    require(sizes == (BLOCK, 0), f"the configuration's BLOCK_K must be {BLOCK}, its BLOCK_N divide {BLOCK}")
    if out.numel():
        way = _launch_persistent if config.meta.get("tma") else _launch_pointer
        way(a, b, out, scale_a, scale_b, config)
    return out


def _launch_persistent(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, config: Config
) -> None:
    options = constants(config, GROUP_M=8, HALVES=False, FLATTEN=False)
    prepare_descriptors()
    _block_persistent_kernel[persistent_grid(out, config)](
        a, b, out, scale_a, scale_b, *out.shape, a.shape[1], *scale_a.stride(), **options
    )


def _launch_pointer(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, config: Config
) -> None:
    options = constants(config, GROUP_M=8, SWAP=False)
    shared = divide(a, b, out, config)
    _block_pointer_kernel[shared.grid](
        a, b, shared.to, scale_a, scale_b, *shared.sizes, *scale_a.stride(), shared.each, **shared.constants, **options
    )
    if shared.split:
        merge(shared.to, out, NO_SCALES)


def gemm_fp8_block_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The same by torch in `dtype`, which is also the type of the result."""
    k, n = a.shape[1], b.shape[0]
    rows = scale_a.to(dtype).repeat_interleave(BLOCK, 1)[:, :k]
    columns = scale_b.to(dtype).repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return (a.to(dtype) * rows) @ (b.to(dtype) * columns).T
