"""The product by pointers: for sm_80, for rows TMA cannot take, and, split along K, for few output tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perfmodel.kernels.device import target
from perfmodel.kernels.table import Config

from .geometry import alignment, ceil_div, constants, per_split, tile_count
from .scales import NO_SCALES, Scales
from .tiles import accumulated, grouped_tile, load_k, part_at, row_at, rows_at, scaled, split_range, store_part


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
    x_at = rows_at(a, row, rows, M, K)[:, None] + ks[None, :]
    w_at = rows_at(b, column, columns, N, K)[None, :] + ks[:, None]
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
    store_part(out, y, split, row, column, rows, columns, M, N)


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
    at = part_at(partial, split, row, M, N)[:, None] + columns[None, :]
    parts = tl.load(at, mask=(split < splits)[:, None] & kept[None, :], other=0.0)
    rows = row + tl.arange(0, 1)
    total = tl.sum(parts, 0)[None, :]
    y = scaled(total, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
    tl.store(row_at(out, row, N) + columns[None, :], y.to(out.dtype.element_ty), mask=kept[None, :])


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


@dataclass(frozen=True)
class Division:
    """How programs share a product.

    grid: output tiles, and parts of K. each: K tiles of a part. to: where they write, `out` or, where K is split,
    [parts, M, N] for `merge`. sizes: M, N and K in units of `constants["ALIGN"]`, which tells the compiler of them.
    """

    grid: tuple[int, int]
    each: int
    to: torch.Tensor
    sizes: tuple[int, int, int]
    constants: dict[str, int | bool]

    @property
    def split(self) -> bool:
        """Whether the results are parts."""
        return self.grid[1] > 1


def divide(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: Config, partial: torch.dtype = torch.float32
) -> Division:
    """How programs of a kernel with pointers share a b^T; `partial` is the type of results of parts of K."""
    (m, k), n = a.shape, b.shape[0]
    block_k = int(config.meta["BLOCK_K"])
    each = per_split(m, n, k, a.element_size(), target(a).sm_count, config)
    parts = ceil_div(ceil_div(k, block_k), each)
    to = out if parts == 1 else torch.empty((parts, m, n), dtype=partial, device=a.device)
    grid, unit = (tile_count(m, n, config), parts), alignment(k)
    return Division(grid, each, to, (m, n, k // unit), {"EVEN_K": k % block_k == 0, "ALIGN": unit})


def launch_pointer(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scales: Scales, acc: tl.dtype, config: Config
) -> None:
    """Write a b^T, times the scales, to `out`; in two kernels where K is split."""
    options = constants(config, GROUP_M=8, SWAP=False, PROMOTE=False)
    shared = divide(a, b, out, config, torch.int32 if acc == tl.int32 else torch.float32)
    applied = NO_SCALES if shared.split else scales
    _pointer_kernel[shared.grid](
        a, b, shared.to, applied.row, applied.column, *shared.sizes, shared.each,
        ACC=acc, **applied.kinds(), **shared.constants, **options,
    )  # fmt: skip
    if shared.split:
        merge(shared.to, out, scales)
