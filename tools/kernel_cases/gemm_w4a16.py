"""The product with 4-bit weights: every row of its table with each number of groups a tile, in both types; the copy."""

from __future__ import annotations

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4
from perfmodel.kernels.gemm.w4_packing import TILE_K, W4Weight
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
from perfmodel.kernels.table import Config, rows

Expected = dict[str, bool | int | float | str]

BF16, FP16 = torch.bfloat16, torch.float16
ROWS_AND_GROUPS = {
    BF16: [*((m, group) for m in (16, 32) for group in (32, 64, 128, -1)), (64, 128), (64, -1)],
    FP16: [(16, 128), (32, 64), (64, 128)],
}
"""Rows of x and group: all that compile to different code in bf16, in fp16 the most usual and those near a limit."""

LAYER_N, LAYER_K = 28672, 8192
"""The layer for which configurations are compared: an up projection of a 70B model."""

PER_WEIGHT = 4.2
"""SASS instructions a weight. At 1.98 GHz an H200's SM issues 128 a clock and, at 4.3 TB/s, reads 31 weights: 4.1."""


def product(m: int, n: int, k: int, group: int, dtype: torch.dtype) -> object:
    x = torch.empty(m, k, dtype=dtype, device="meta")
    return gemm_w4a16(x, W4Weight.empty(k, n, group, device="meta"))


def copy(n: int, k: int, group: int, dtype: torch.dtype) -> object:
    return dequantize_w4(W4Weight.empty(k, n, group, device="meta"), dtype)


def chosen(arch: str, m: int, group: int) -> Config:
    """The row of the table that is taken."""
    groups = 0 if group == -1 else TILE_K // group
    return next(row.config for row in rows("gemm_w4a16", arch) if row.applies({"m": m, "groups": groups}))


def unit(arch: str, config: Config) -> Expected:
    """The matrix instruction, on Hopper with its shape: 64 outputs by the rows of x."""
    if arch == "sm_90":
        return {"wgmma": True, "mma_sync": False, "shape": f"m64n{config.meta['BLOCK_M']}k16"}
    if arch == "sm_100" and config.num_warps == 4:
        return {"tcgen05": True, "mma_sync": False}
    return {"mma_sync": True}


def words(group: int, dtype: torch.dtype) -> str:
    return f"{'one scale' if group == -1 else f'group {group}'}, {str(dtype).removeprefix('torch.')}"


def full(arch: str, m: int, group: int, dtype: torch.dtype) -> Case:
    """One launch whose programs fill the GPU once: those that the row counts on must fit."""
    config = chosen(arch, m, group)
    per_sm, block_n = int(config.meta["per_sm"]), int(config.meta["BLOCK_N"])
    n, k = block_n * per_sm * SM_COUNT[arch], 4096
    expects: Expected = {**unit(arch, config), "cp_async16": True, "blocks_per_sm": per_sm}
    if arch == "sm_90":
        expects["instructions_per_weight"] = PER_WEIGHT
    # In the SASS for tcgen05 the waits lie past the loop and make its longest backward branch longer than the loop.
    counted = TILE_K * block_n if not expects.get("tcgen05") else 0
    return Case(
        "gemm_w4a16",
        arch,
        f"m<={m}, {words(group, dtype)}, {m}x{n}x{k}",
        lambda: product(m, n, k, group, dtype),
        expects,
        loop_weights=counted,
    )


def other(arch: str, label: str, m: int, k: int, group: int = 128, dtype: torch.dtype = BF16, spills: int = 0) -> Case:
    return Case(
        "gemm_w4a16",
        arch,
        f"{label}, {words(group, dtype)}, {m}x4096x{k}",
        lambda: product(m, 4096, k, group, dtype),
        {**unit(arch, chosen(arch, m, group)), "cp_async16": True},
        max_spill=spills,
        why="ptxas stops at the 168 registers that six programs can have, and spills one" if spills else "",
    )


def dequantize(arch: str, group: int, dtype: torch.dtype, k: int) -> Case:
    label = f"{words(group, dtype)}, 28672x{k}"
    return Case("gemm_w4a16_dequantize", arch, label, lambda: copy(28672, k, group, dtype), {"load_v4": True})


def of(arch: str) -> list[Case]:
    return [
        *(
            full(arch, m, group, dtype)
            for dtype, pairs in ROWS_AND_GROUPS.items()
            for m, group in pairs
            if m <= 32 or arch != "sm_80"  # where 33 rows take the configuration for 32
        ),
        other(arch, "K split", 16, 4096),
        other(arch, "K split", 32, 4096, 64, FP16, spills=4 if arch == "sm_100" else 0),
        other(arch, "K ends in a tile", 16, 4040),
        dequantize(arch, 128, BF16, 8192),
        dequantize(arch, 32, FP16, 8192),
        dequantize(arch, -1, BF16, 8200),
    ]


CASES = [case for arch in ("sm_80", "sm_90", "sm_100") for case in of(arch)]


def with_config(m: int, config: Config) -> object:
    x = torch.empty(m, LAYER_K, dtype=BF16, device="meta")
    return gemm_w4a16(x, W4Weight.empty(LAYER_K, LAYER_N, 128, device="meta"), config=config)


def work(m: int, config: Config) -> Work:
    """Weights are read by each tile of rows, from memory once; x by each tile of outputs."""
    block_m, block_n = int(config.meta["BLOCK_M"]), int(config.meta["BLOCK_N"])
    tiles_m, tiles_n = -(-m // block_m), -(-LAYER_N // block_n)
    weights, activations, results = LAYER_N * LAYER_K * 4.25 / 8, 2 * m * LAYER_K, 2 * m * LAYER_N
    return Work(
        blocks=tiles_m * tiles_n,
        hbm_bytes=weights + activations + results,
        l2_bytes=tiles_m * weights + tiles_n * activations + results,
        flops=2.0 * tiles_m * block_m * tiles_n * block_n * LAYER_K,
    )


def candidates(arch: str, m: int) -> Candidates:
    """Without splitting K, so that the launch is the kernel alone.

    Fewer outputs than threads are left out: scales are then not copied asynchronously but waited for.
    """
    return Candidates(
        "gemm_w4a16",
        arch,
        f"{m} rows",
        {"BLOCK_M": [16, 32, 64], "BLOCK_N": [64, 128], "splits": [1]},
        [2, 4],
        [3, 4, 5],
        lambda config: with_config(m, config),
        lambda config: work(m, config),
        keep=lambda config: int(config.meta["BLOCK_M"]) <= m and int(config.meta["BLOCK_N"]) >= 32 * config.num_warps,
        loop_weights=lambda config: TILE_K * int(config.meta["BLOCK_N"]),
    )


CANDIDATES = [candidates(arch, m) for arch in ("sm_80", "sm_90", "sm_100") for m in (16, 32, 64)]
