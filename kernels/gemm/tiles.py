"""What the matrix products share inside a kernel: the order of tiles, where they lie, scales, stores."""

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
def row_at(matrix, row, width):
    """Where a row of a matrix begins: 64 bits, for a matrix of 2^31 elements and more."""
    return matrix + row.to(tl.int64) * width


@triton.jit
def rows_at(matrix, first, rows, count, width):
    """Where the rows first + rows of a matrix of `count` rows begin: 64 bits once a tile, 32 within it.

    Rows past the end are the last one: what is read there is not stored.
    """
    return row_at(matrix, first, width) + tl.minimum(rows, count - 1 - first) * width


@triton.jit
def part_at(parts, split, row, M, width):
    """Where a row of one of several matrices of M rows each begins, laid end to end: 64 bits."""
    return row_at(parts, split.to(tl.int64) * M + row, width)


@triton.jit
def store_part(out, y, split, row, column, rows, columns, M, N):
    """Store a tile whose first element is (row, column) of the matrix [M, N] of a split, without what lies outside."""
    kept = (row + rows < M)[:, None] & (column + columns < N)[None, :]
    corner = part_at(out, split, row, M, N) + column
    tl.store(corner + rows[:, None] * N + columns[None, :], y.to(out.dtype.element_ty), mask=kept)


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


@triton.jit
def store_tile(
    tiles,
    acc,
    row_scale,
    column_scale,
    row,
    column,
    M,
    N,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HALVES: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    COLUMN_SCALE: tl.constexpr,
):
    """Store an accumulator whose first element is (row, column), scaled, by TMA: whole or (HALVES) in two tiles."""
    OUT_N: tl.constexpr = BLOCK_N // 2 if HALVES else BLOCK_N
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, OUT_N)
    if HALVES:
        left, right = column_halves(acc, BLOCK_M, BLOCK_N)
        y = scaled(left, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
        tiles.store([row, column], y.to(tiles.dtype))
        y = scaled(right, row_scale, column_scale, rows, columns + OUT_N, M, N, ROW_SCALE, COLUMN_SCALE)
        tiles.store([row, column + OUT_N], y.to(tiles.dtype))
    else:
        y = scaled(acc, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
        tiles.store([row, column], y.to(tiles.dtype))
