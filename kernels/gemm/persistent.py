"""The persistent product: tiles are loaded by TMA, each program walks over output tiles (sm_90 and later)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.device import prepare_descriptors
from perfmodel.kernels.table import Config

from .geometry import constants, persistent_grid
from .scales import Scales
from .tiles import accumulated, grouped_tile, store_tile


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
    a_tiles = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_tiles = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    out_tiles = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2 if HALVES else BLOCK_N])
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
        store_tile(
            out_tiles, acc, row_scale, column_scale, row, column, M, N,
            BLOCK_M, BLOCK_N, HALVES, ROW_SCALE, COLUMN_SCALE,
        )  # fmt: skip


def launch_persistent(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scales: Scales, acc: tl.dtype, config: Config
) -> None:
    """Write a b^T, times the scales, to `out`; TMA must be able to take all three (`launch.tma_takes`)."""
    options = constants(config, GROUP_M=8, HALVES=False, FLATTEN=False, SPECIALIZE=False, PROMOTE=False)
    prepare_descriptors()
    _persistent_kernel[persistent_grid(out, config)](
        a, b, out, scales.row, scales.column, *out.shape, a.shape[1], **scales.kinds(), ACC=acc, **options
    )
