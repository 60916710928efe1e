"""What the matrix products share inside a kernel: the order of tiles, loads at the end of K, scales, halves."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grouped_tile(tile, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of a tile: bands of GROUP_M tile rows, each walked column by column, share operands in L2."""
    per_band = GROUP_M * num_n
    first = (tile // per_band) * GROUP_M
    rows = tl.minimum(num_m - first, GROUP_M)
    within = tile % per_band
    return first + within % rows, within // rows


@triton.jit
def load_k(at, k, K, EVEN_K: tl.constexpr):
    """Load a tile whose positions along K are `k`, zeros past the end; no masks where K is a multiple of the tile."""
    if EVEN_K:
        return tl.load(at)
    else:
        return tl.load(at, mask=k < K, other=0.0)


@triton.jit
def accumulated(acc, x, w, PROMOTE: tl.constexpr):
    """The sum with one K tile added: by the tensor cores or (PROMOTE) in registers, once they have summed the tile."""
    if PROMOTE:
        return acc + tl.dot(x, w, out_dtype=acc.dtype)
    else:
        return tl.dot(x, w, acc, out_dtype=acc.dtype)


@triton.jit
def split_range(split, per_split, k_tiles):
    """First K tile of a split and how many it has; at least one, so that the compiler sees a loop that runs."""
    begin = split * per_split
    return begin, tl.maximum(tl.minimum(per_split, k_tiles - begin), 1)


@triton.jit
def scaled(acc, row_scale, column_scale, rows, columns, M, N, ROW_SCALE: tl.constexpr, COLUMN_SCALE: tl.constexpr):
    """An accumulator in fp32, times the scale of its row and that of its column.

    ROW_SCALE, COLUMN_SCALE: 0 for no scale, 1 for one number, 2 for one a row or column.
    """
    value = acc.to(tl.float32)
    if ROW_SCALE == 1:
        value = value * tl.load(row_scale)
    elif ROW_SCALE == 2:
        value = value * tl.load(row_scale + rows, mask=rows < M, other=0.0)[:, None]
    if COLUMN_SCALE == 1:
        value = value * tl.load(column_scale)
    elif COLUMN_SCALE == 2:
        value = value * tl.load(column_scale + columns, mask=columns < N, other=0.0)[None, :]
    return value


@triton.jit
def column_halves(acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Left and right half of an accumulator: they lie in different registers, and each store needs half the memory."""
    return tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
