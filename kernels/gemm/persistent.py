"""The persistent product: tiles are loaded by TMA, each program walks over output tiles (sm_90 and later)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.device import prepare_descriptors
from perfmodel.kernels.table import Config

from .geometry import constants, persistent_programs
from .scales import Scales
from .tiles import accumulated, column_halves, grouped_tile, scaled


@triton.jit(do_not_specialize=["M"])
def _persistent_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    PROMOTE: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    COLUMN_SCALE: tl.constexpr,
    ACC: tl.constexpr,
):
    OUT_N: tl.constexpr = BLOCK_N // 2 if HALVES else BLOCK_N
    a_tiles = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_tiles = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    out_tiles = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK_M, OUT_N])
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(
        tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        tile_m, tile_n = grouped_tile(tile, num_m, num_n, GROUP_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for k in range(k_tiles):
            x = a_tiles.load([row, k * BLOCK_K])
            w = b_tiles.load([column, k * BLOCK_K]).T
            acc = accumulated(acc, x, w, PROMOTE)
        rows = row + tl.arange(0, BLOCK_M)
        columns = column + tl.arange(0, OUT_N)
        if HALVES:
            left, right = column_halves(acc, BLOCK_M, BLOCK_N)
            y = scaled(left, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
            out_tiles.store([row, column], y.to(out.dtype.element_ty))
            y = scaled(right, row_scale, column_scale, rows, columns + OUT_N, M, N, ROW_SCALE, COLUMN_SCALE)
            out_tiles.store([row, column + OUT_N], y.to(out.dtype.element_ty))
        else:
            y = scaled(acc, row_scale, column_scale, rows, columns, M, N, ROW_SCALE, COLUMN_SCALE)
            out_tiles.store([row, column], y.to(out.dtype.element_ty))


def launch_persistent(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scales: Scales, acc: tl.dtype, config: Config
) -> None:
    """Write a b^T, times the scales, to `out`; TMA must be able to take all three (`launch.tma_takes`)."""
    (m, k), n = a.shape, b.shape[0]
    options = constants(config, GROUP_M=8, HALVES=False, FLATTEN=False, SPECIALIZE=False, PROMOTE=False)
    prepare_descriptors()
    _persistent_kernel[(persistent_programs(a, m, n, config),)](
        a, b, out, scales.row, scales.column, m, n, k, **scales.kinds(), ACC=acc, **options
    )
