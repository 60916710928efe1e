"""Tree attention: a case for each row of the table, and for other types and pages."""

from __future__ import annotations

import torch

from kernel_cases.case import Case
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.attention.tree import tree_attention

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SEQUENCES, KV_HEADS, LENGTH = 64, 8, 4096
TREES = {16: (4, 4), 32: (4, 8), 64: (4, 16), 128: (8, 64)}
"""Query heads of a key head and tree nodes, by rows of the launch."""


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def attend(rows: int, head_dim: int, page: int, dtype: torch.dtype, **options: object) -> object:
    group, nodes = TREES[rows]
    k, v = (meta(SEQUENCES * LENGTH // page, page, KV_HEADS, head_dim, dtype=dtype) for _ in "kv")
    table, lengths = meta(SEQUENCES, LENGTH // page, dtype=torch.int32), meta(SEQUENCES, dtype=torch.int32)
    scale = meta(1) if dtype == FP8 else None
    q = meta(SEQUENCES, nodes, KV_HEADS * group, head_dim, dtype=BF16)
    cache = Paged(k, v, table, lengths, scale, scale)
    return tree_attention(q, cache, meta(SEQUENCES, nodes, dtype=torch.int64), **options)  # type: ignore[arg-type]


def case(arch: str, label: str, rows: int, head_dim: int, page: int, dtype: torch.dtype) -> Case:
    unit = "mma_sync" if rows < 64 or arch == "sm_80" else "wgmma" if arch == "sm_90" else "tcgen05"

    def call() -> object:
        return attend(rows, head_dim, page, dtype)

    return Case("attention_tree", arch, label, call, {"cp_async16": True, unit: True, "atomics": False})


def cases(arch: str) -> list[Case]:
    shapes = [(d, rows) for d in (64, 128, 256) for rows in TREES if (d, rows) != (256, 128)]
    listed = [case(arch, f"D{d} rows {rows}", rows, d, 64, BF16) for d, rows in shapes]
    listed.append(case(arch, "D128 rows 64 page 16", 64, 128, 16, BF16))
    listed.append(case(arch, "D128 rows 64 fp8", 64, 128, 64, FP8))
    return listed


CASES = [one for arch in ARCHITECTURES for one in cases(arch)]
