"""The product by pointers: for sm_80, for rows TMA cannot take, and, split along K, for few output tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.device import target
from perfmodel.kernels.table import Config

from .geometry import alignment, ceil_div, constants, per_split
from .scales import NO_SCALES, Scales
from .tiles import accumulated, grouped_tile, load_k, scaled, split_range


@triton.jit(do_not_specialize=["M", "per_split"])
def _pointer_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    M,
    N,
    k_units,
    per_split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
    PROMOTE: tl.constexpr,
    EVEN_K: tl.constexpr,
    ALIGN: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    COLUMN_SCALE: tl.constexpr,
    ACC: tl.constexpr,
):
    K = k_units * ALIGN
    split = tl.program_id(1)
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row = tile_m * BLOCK_M
    column = tile_n * BLOCK_N
    begin, count = split_range(split, per_split, tl.cdiv(K, BLOCK_K))
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    ks = begin * BLOCK_K + tl.arange(0, BLOCK_K)
    # 64 bits once a tile, 32 within it. Rows and columns past the end read the last one; they are not stored.
    x_at = a + row.to(tl.int64) * K + (tl.minimum(rows, M - 1 - row) * K)[:, None] + ks[None, :]
    w_at = b + column.to(tl.int64) * K + (tl.minimum(columns, N - 1 - column) * K)[None, :] + ks[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), ACC)
    for i in range(count):
        at_k = ks + i * BLOCK_K
        x = load_k(x_at, at_k[None, :], K, EVEN_K)
        w = load_k(w_at, at_k[:, None], K, EVEN_K)
        acc = accumulated(acc, w.T, x.T, PROMOTE) if SWAP else accumulated(acc, x, w, PROMOTE)
        x_at += BLOCK_K
        w_at += BLOCK_K
    if SWAP:
        acc = acc.T
    if ROW_SCALE or COLUMN_SCALE:
        y = scaled(acc, row_scale, column_scale, row + rows, column + columns, M, N, ROW_SCALE, COLUMN_SCALE)
    else:
        y = acc
    kept = (row + rows < M)[:, None] & (column + columns < N)[None, :]
    corner = out + (split.to(tl.int64) * M + row) * N + column
    tl.store(corner + rows[:, None] * N + columns[None, :], y.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["M", "splits"])
def _merge_kernel(
    partial,
    out,
    row_scale,
    column_scale,
    M,
    N,
    splits,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    COLUMN_SCALE: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    split = tl.arange(0, SPLITS)
    kept = columns < N
    at = partial + (split.to(tl.int64) * M + row)[:, None] * N + columns[None, :]
    parts = tl.load(at, mask=(split < splits)[:, None] & kept[None, :], other=0.0)
    rows = row + tl.arange(0, 1)
    total = tl.sum(parts, 0)[None, :]
    y = scaled(total, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
    tl.store(out + row.to(tl.int64) * N + columns[None, :], y.to(out.dtype.element_ty), mask=kept[None, :])


def merge(partial: torch.Tensor, out: torch.Tensor, scales: Scales) -> None:
    """Write the sum over the first axis of `partial` [splits, M, N], times the scales, to `out` [M, N].

    The order of the sum depends on the shape alone, so equal calls give equal bits.
    """
    splits, m, n = partial.shape
    padded = triton.next_power_of_2(splits)
    block = max(32, min(1024, 4096 // padded, triton.next_power_of_2(n)))
    _merge_kernel[(m, ceil_div(n, block))](
        partial, out, scales.row, scales.column, m, n, splits, SPLITS=padded, BLOCK=block, **scales.kinds(), num_warps=4
    )


def launch_pointer(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scales: Scales, acc: tl.dtype, config: Config
) -> None:
    """Write a b^T, times the scales, to `out`; in two kernels where K is split."""
    (m, k), n = a.shape, b.shape[0]
    options = constants(config, GROUP_M=8, SWAP=False, PROMOTE=False)
    block_m, block_n, block_k = (int(options[f"BLOCK_{axis}"]) for axis in "MNK")
    each = per_split(m, n, k, a.element_size(), target(a).sm_count, config)
    splits = ceil_div(ceil_div(k, block_k), each)
    kind = torch.int32 if acc == tl.int32 else torch.float32
    to = out if splits == 1 else torch.empty((splits, m, n), dtype=kind, device=a.device)
    applied = scales if splits == 1 else NO_SCALES
    unit = alignment(k)
    _pointer_kernel[(ceil_div(m, block_m) * ceil_div(n, block_n), splits)](
        a,
        b,
        to,
        applied.row,
        applied.column,
        m,
        n,
        k // unit,
        each,
        EVEN_K=k % block_k == 0,
        ALIGN=unit,
        ACC=acc,
        **applied.kinds(),
        **options,
    )
    if splits > 1:
        merge(to, out, scales)
