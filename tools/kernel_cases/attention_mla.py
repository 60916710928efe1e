"""MLA decode: a case for each row of the table, and for other types and pages."""

from __future__ import annotations

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.attention.mla import Latents, mla_decode
from perfmodel.kernels.table import Config

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
LENGTH, SEQUENCES = 8192, 64


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def decode(heads: int, page: int, dtype: torch.dtype, sequences: int, q_len: int = 1, **options: object) -> object:
    cache = meta(sequences * LENGTH // page, page, 576, dtype=dtype)
    table, lengths = meta(sequences, LENGTH // page, dtype=torch.int32), meta(sequences, dtype=torch.int32)
    latents = Latents(cache, table, lengths, meta(1) if dtype == FP8 else None)
    q = meta(sequences, q_len, heads, 576, dtype=BF16)
    return mla_decode(q, latents, 192**-0.5, **options)  # type: ignore[arg-type]


def matrix_unit(arch: str, heads: int, dtype: torch.dtype) -> str:
    if heads <= 16 or arch == "sm_80" or (arch == "sm_100" and dtype == FP8):
        return "mma_sync"
    return "wgmma" if arch == "sm_90" else "tcgen05"


SPILL = "two addresses, in a turn of some 700 instructions"


def case(
    arch: str, label: str, heads: int, page: int, dtype: torch.dtype, *, spill: int = 0, **expects: bool | str
) -> Case:
    # Enough sequences that nothing is cut: the merge is among the cases of decode attention.
    sequences = 512 if heads <= 16 else 256

    def call() -> object:
        return decode(heads, page, dtype, sequences)

    units = {matrix_unit(arch, heads, dtype): True, "cp_async16": True, "atomics": False}
    return Case("attention_mla", arch, label, call, {**units, **expects}, spill, SPILL if spill else "")


def cases(arch: str) -> list[Case]:
    wide = {"shape": "m64n256k16"} if arch == "sm_90" else {}
    return [
        case(arch, "heads 16", 16, 64, BF16),
        case(arch, "heads 16 page 16", 16, 16, BF16),
        case(arch, "heads 16 fp8", 16, 64, FP8),
        case(arch, "heads 128", 128, 64, BF16, **wide),
        case(arch, "heads 128 page 16", 128, 16, BF16, **wide),
        case(arch, "heads 128 fp8", 128, 64, FP8, spill=16 if arch == "sm_90" else 0),
        case(arch, "heads 128 page 16 fp8", 128, 16, FP8),
        Case("attention_mla", arch, "heads 128 split", lambda: decode(128, 64, BF16, 1), {"cp_async16": True}),
    ]


def candidates(arch: str, heads: int, dtype: torch.dtype) -> Candidates:
    def call(config: Config) -> object:
        return decode(heads, 64, dtype, SEQUENCES, config=config)

    def work(config: Config) -> Work:
        tile = int(config.meta["BLOCK_M"])
        row_blocks = -(-heads // tile)
        cache = 576.0 * SEQUENCES * LENGTH * dtype.itemsize
        scores = float(SEQUENCES * row_blocks * tile * LENGTH)
        return Work(SEQUENCES * row_blocks, cache, cache * row_blocks, 2 * scores * (576 + 512), exp=scores)

    meta: dict[str, list[int | str | bool]] = {
        "BLOCK_M": [tile for tile in (16, 32, 64) if tile <= heads],
        "BLOCK_N": [16, 32, 64],
        "TWO_LOOPS": [False, True],
        "RESIDENT": [1],
    }
    label = f"heads {heads}{' fp8' if dtype == FP8 else ''}"
    return Candidates("attention_mla", arch, label, meta, (4, 8), (2, 3), call, work)


CANDIDATES = [candidates(a, heads, dtype) for a in ARCHITECTURES for heads in (16, 128) for dtype in (BF16, FP8)]
CASES = [one for arch in ARCHITECTURES for one in cases(arch)]
