"""Matrix products: a case for each row of their launch tables, and for the shapes that compile to other code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.gemm.dense import gemm_dense
from perfmodel.kernels.gemm.fp8 import gemm_fp8
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block
from perfmodel.kernels.gemm.geometry import ceil_div, per_split
from perfmodel.kernels.gemm.int8 import gemm_w8a8
from perfmodel.kernels.table import Config, rows

Expectations = Mapping[str, bool | int | float | str]
Call = Callable[..., object]
Shape = tuple[int, int, int]

PROMPT, SQUARE = (256, 4096, 4096), (8192, 8192, 8192)
"""M, N, K of a short prompt, whose tiles are too few, and of a large product."""
ODD_N, FOURS, ODD_K = (8192, 8191, 8192), (8192, 8192, 8196), (8192, 8192, 8191)
"""What TMA cannot take: rows of the result; rows of the operands that are whole units of 4 or 8 bytes, and others."""
TMA = {"tma_load": True, "tma_store": True}
COPIES = {"cp_async16": True}


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def dense(m: int, n: int, k: int, *, dtype: torch.dtype = torch.bfloat16, **more: Any) -> object:
    a, b = meta(m, k, dtype=dtype), meta(n, k, dtype=dtype)
    return gemm_dense(a, b, **more)


def fp8(m: int, n: int, k: int, *, fast: bool = True, one: bool = False, config: Config | None = None) -> object:
    a, b = meta(m, k, dtype=torch.float8_e4m3fn), meta(n, k, dtype=torch.float8_e4m3fn)
    return gemm_fp8(a, b, meta(1 if one else m), meta(1 if one else n), fast_accumulation=fast, config=config)


def int8(m: int, n: int, k: int, *, one: bool = False, config: Config | None = None) -> object:
    a, b = meta(m, k, dtype=torch.int8), meta(n, k, dtype=torch.int8)
    return gemm_w8a8(a, b, meta(1 if one else m), meta(1 if one else n), config=config)


def block(m: int, n: int, k: int, *, by_column: bool = False, config: Config | None = None) -> object:
    blocks = -(-k // 128)
    a, b = meta(m, k, dtype=torch.float8_e4m3fn), meta(n, k, dtype=torch.float8_e4m3fn)
    scale_a = meta(blocks, m).T if by_column else meta(m, blocks)
    return gemm_fp8_block(a, b, scale_a, meta(-(-n // 128), blocks), config=config)


def case(kernel: str, arch: str, label: str, call: Call, shape: Shape, *expected: Expectations, **more: object) -> Case:
    expects = {name: value for part in expected for name, value in part.items()}
    size = "x".join(map(str, shape))
    return Case(kernel, arch, f"{label}, {size}", lambda: call(*shape, **more), expects)


def unit(arch: str, shape: str = "", *, int8: bool = False) -> Expectations:
    """The matrix instruction of an architecture, on Hopper with its shape; Triton 3.6 has no int8 by tcgen05."""
    if arch == "sm_80" or (arch == "sm_100" and int8):
        return {"mma_sync": True}
    if arch == "sm_90":
        return {"wgmma": True, "mma_sync": False, "shape": shape}
    return {"tcgen05": True, "mma_sync": False}


def small(kernel: str, arch: str, call: Call, shapes: Mapping[int, Expectations], **more: object) -> list[Case]:
    """Few rows: K split among the multiprocessors; and one wave of tiles, where the programs a row counts on must fit.

    shapes: for each number of rows the matrix instruction expected.
    """
    cases = []
    for m, expected in shapes.items():
        row = next(r for r in rows(kernel, arch) if r.when.get("m", (0, 0))[1] >= m)
        per_sm, tile = int(row.config.meta["per_sm"]), int(row.config.meta["BLOCK_N"])
        wave = (m, tile * per_sm * SM_COUNT[arch], 4096)
        cases += [
            case(kernel, arch, f"m<={m}, K split", call, (m, 4096, 4096), expected, COPIES, **more),
            case(kernel, arch, f"m<={m}", call, wave, expected, COPIES, {"blocks_per_sm": per_sm}, **more),
        ]
    return cases


def fallback(kernel: str, arch: str, call: Call, expected: Expectations, odd: Expectations) -> list[Case]:
    """What TMA cannot take: loads are asynchronous all the same while rows are whole units of 4 bytes."""
    return [
        case(kernel, arch, "odd N", call, ODD_N, expected, COPIES),
        case(kernel, arch, "K a multiple of 4", call, FOURS, expected, {"cp_async": True}),
        case(kernel, arch, "odd K", call, ODD_K, odd),
        case(kernel, arch, "odd K, K split", call, (16, 4096, 4095), odd),
    ]


def dense_cases(arch: str) -> list[Case]:
    name, tiles = "gemm_dense", unit(arch, "m64n128k16")
    few = (16, 64) if arch == "sm_80" else (16, 32, 64)
    cases = [
        *small(name, arch, dense, {m: unit(arch, f"m64n{m}k16") for m in few}),
        *fallback(name, arch, dense, tiles, unit(arch, "m64n64k16")),
        case(name, arch, "fp16, m<=16", dense, (16, 4096, 4096), unit(arch, "m64n16k16"), dtype=torch.float16),
        case(name, arch, "few tiles", dense, PROMPT, tiles, COPIES),
    ]
    if arch == "sm_80":
        return [*cases, case(name, arch, "128x128", dense, SQUARE, tiles, COPIES)]
    full = {**unit(arch, "m64n256k16"), **TMA}
    warps = {"setmaxnreg": True, "warps": 12 if arch == "sm_90" else 8}
    return [
        *cases,
        case(name, arch, "persistent", dense, SQUARE, full),
        case(name, arch, "persistent, fp16", dense, SQUARE, full, dtype=torch.float16),
        case(name, arch, "persistent, warp-specialized", dense, SQUARE, full, warps, warp_specialized=True),
    ]


def fp8_cases(arch: str) -> list[Case]:
    name, tiles = "gemm_fp8", unit(arch, "m64n128k32")
    few = {m: unit(arch, f"m64n{m}k32") for m in (16, 32, 64)}
    exact = {"fast": False}
    cases = [
        *small(name, arch, fp8, few),
        *fallback(name, arch, fp8, tiles, unit(arch, "m64n64k32")),
        case(name, arch, "few tiles", fp8, PROMPT, tiles, COPIES),
        case(name, arch, "persistent", fp8, SQUARE, unit(arch, "m64n256k32"), TMA),
        case(name, arch, "persistent, one scale", fp8, SQUARE, unit(arch, "m64n256k32"), TMA, one=True),
    ]
    if arch == "sm_100":
        return cases
    return [
        *cases,
        *(case(name, arch, f"m<={m}, exact", fp8, (m, 4096, 4096), few[m], COPIES, **exact) for m in few),
        case(name, arch, "few tiles, exact", fp8, PROMPT, tiles, COPIES, **exact),
        case(name, arch, "persistent, exact", fp8, SQUARE, tiles, TMA, **exact),
    ]


def int8_cases(arch: str) -> list[Case]:
    name, tiles = "gemm_w8a8", unit(arch, "m64n128k32", int8=True)
    few = (16, 32, 64) if arch == "sm_90" else (16, 64)
    cases = [
        *small(name, arch, int8, {m: unit(arch, f"m64n{m}k32", int8=True) for m in few}),
        *fallback(name, arch, int8, tiles, unit(arch, "m64n64k32", int8=True)),
        case(name, arch, "few tiles", int8, PROMPT, tiles, COPIES),
    ]
    if arch == "sm_80":
        return [*cases, case(name, arch, "128x128", int8, SQUARE, tiles, COPIES)]
    return [
        *cases,
        case(name, arch, "persistent", int8, SQUARE, tiles, TMA),
        case(name, arch, "persistent, one scale", int8, SQUARE, tiles, TMA, one=True),
    ]


def block_cases(arch: str) -> list[Case]:
    name, tiles = "gemm_fp8_block", unit(arch, "m64n128k32")
    few = {16: unit(arch, "m64n16k32"), **({32: unit(arch, "m64n32k32")} if arch == "sm_90" else {}), 64: tiles}
    return [
        *small(name, arch, block, few),
        *fallback(name, arch, block, tiles, unit(arch, "m64n32k32")),
        case(name, arch, "few tiles", block, PROMPT, tiles, COPIES),
        case(name, arch, "persistent", block, SQUARE, tiles, TMA),
        case(name, arch, "persistent, scales by column", block, SQUARE, tiles, TMA, by_column=True),
    ]


CASES = [
    *(case for arch in ("sm_80", "sm_90", "sm_100") for case in (*dense_cases(arch), *int8_cases(arch))),
    *(case for arch in ("sm_90", "sm_100") for case in (*fp8_cases(arch), *block_cases(arch))),
]


def work(config: Config, shape: Shape, element_size: int, math: str, sm_count: int) -> Work:
    """Tiles multiply their padding too, and read through the L2; parts of K write fp32 results there and read them."""
    m, n, k = shape
    block_m, block_n, block_k = (int(config.meta[f"BLOCK_{axis}"]) for axis in "MNK")
    tiles, k_tiles = ceil_div(m, block_m) * ceil_div(n, block_n), ceil_div(k, block_k)
    parts = ceil_div(k_tiles, per_split(m, n, k, element_size, sm_count, config))
    result = 2.0 * m * n + (8.0 * m * n * parts if parts > 1 else 0.0)
    return Work(
        blocks=tiles * parts,
        hbm_bytes=float((m + n) * k * element_size + 2 * m * n),
        l2_bytes=tiles * (block_m + block_n) * float(k * element_size) + result,
        flops=2.0 * tiles * block_m * block_n * k_tiles * block_k,
        math=math,
    )


def candidates(
    kernel: str, arch: str, label: str, shape: Shape, call: Call, math: str, **given: Sequence[int | bool]
) -> Candidates:
    """Tiles of the sizes `given`, else 64 or 128 bytes along K; 4 or 8 warps, 3 or 4 stages; 4 warps only if registers
    could hold the sums."""
    size = 2 if math == "bf16" else 1
    whole = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128, 256), "BLOCK_K": (64 // size, 128 // size), "GROUP_M": (8,)}
    return Candidates(
        kernel,
        arch,
        f"{label}, {'x'.join(map(str, shape))}",
        {**whole, **given},
        (4, 8),
        (3, 4),
        lambda config: call(*shape, config=config),
        lambda config: work(config, shape, size, math, SM_COUNT[arch]),
        lambda config: config.num_warps == 8 or int(config.meta["BLOCK_M"]) * int(config.meta["BLOCK_N"]) <= 128 * 128,
    )


Choices = Mapping[str, Sequence[int | bool]]

BY_TMA: Choices = {"tma": (True,), "HALVES": (False, True), "FLATTEN": (True,)}
FEW: Choices = {"BLOCK_M": (16,), "BLOCK_N": (64, 128), "SWAP": (False, True), "per_sm": (1, 2, 3)}
FEW_BF16: Choices = {**FEW, "BLOCK_K": (64, 128)}
FEW_FP8: Choices = {**FEW, "BLOCK_K": (128, 256)}
BLOCKED: Choices = {**BY_TMA, "BLOCK_N": (64, 128), "BLOCK_K": (128,)}
FEW_BLOCKED: Choices = {**FEW, "BLOCK_K": (128,)}
DECODE = (16, 28672, 8192)
RECENT = ("sm_90", "sm_100")

CANDIDATES = [
    candidates("gemm_dense", "sm_80", "large", SQUARE, dense, "bf16"),
    *(candidates("gemm_dense", arch, "large", SQUARE, dense, "bf16", **BY_TMA) for arch in RECENT),
    *(candidates("gemm_dense", arch, "m<=16", DECODE, dense, "bf16", **FEW_BF16) for arch in SM_COUNT),
    *(candidates("gemm_fp8", arch, "large", SQUARE, fp8, "fp8", **BY_TMA) for arch in RECENT),
    *(candidates("gemm_fp8", arch, "m<=16", DECODE, fp8, "fp8", **FEW_FP8) for arch in RECENT),
    *(candidates("gemm_fp8_block", arch, "large", SQUARE, block, "fp8", **BLOCKED) for arch in RECENT),
    *(candidates("gemm_fp8_block", arch, "m<=16", DECODE, block, "fp8", **FEW_BLOCKED) for arch in RECENT),
    candidates("gemm_w8a8", "sm_80", "large", SQUARE, int8, "int8"),
    candidates("gemm_w8a8", "sm_90", "large", SQUARE, int8, "int8", **BY_TMA),
]
