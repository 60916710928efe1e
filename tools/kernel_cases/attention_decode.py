"""Paged decode attention and the merge of pieces: a case for each row of the tables, and for other types and pages."""

from __future__ import annotations

import functools

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.merge import merge_attention
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.table import Config

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
KV_HEADS, LENGTH = 8, 8192
ROWS = {16: (4, 1), 32: (8, 4), 64: (8, 8), 128: (16, 8)}
"""Rows of a key head: query heads that share it, and tokens."""


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def pages(sequences: int, head_dim: int, page: int, dtype: torch.dtype) -> Paged:
    k, v = (meta(sequences * LENGTH // page, page, KV_HEADS, head_dim, dtype=dtype) for _ in "kv")
    table = meta(sequences, LENGTH // page, dtype=torch.int32)
    scale = meta(KV_HEADS) if dtype == FP8 else None
    return Paged(k, v, table, meta(sequences, dtype=torch.int32), scale, scale)


def decode(rows: int, head_dim: int, page: int, dtype: torch.dtype, sequences: int = 64, **options: object) -> object:
    group, q_len = ROWS[rows]
    q = meta(sequences, q_len, KV_HEADS * group, head_dim, dtype=BF16)
    return paged_decode(q, pages(sequences, head_dim, page, dtype), **options)  # type: ignore[arg-type]


def merge(head_dim: int, rows: int, pieces: int) -> object:
    return merge_attention(meta(rows, pieces, head_dim), meta(rows, pieces), dtype=BF16)


def matrix_unit(arch: str, rows: int) -> str:
    return "mma_sync" if rows < 64 or arch == "sm_80" else "wgmma" if arch == "sm_90" else "tcgen05"


def case(arch: str, label: str, rows: int, head_dim: int, page: int, dtype: torch.dtype, **options: object) -> Case:
    expects: dict[str, bool | int] = {"cp_async16": True, matrix_unit(arch, rows): True, "atomics": False}
    if rows < 64 and (head_dim, rows) != (256, 32):
        expects["blocks_per_sm"] = 2

    def call() -> object:
        return decode(rows, head_dim, page, dtype, **options)

    return Case("attention_decode", arch, label, call, expects)


def cases(arch: str) -> list[Case]:
    listed = []
    for head_dim in (64, 128, 256):
        for rows in ROWS:
            if (head_dim, rows) != (256, 128):
                listed.append(case(arch, f"D{head_dim} rows {rows}", rows, head_dim, 64, BF16))
        listed.append(case(arch, f"D{head_dim} rows 16 fp8", 16, head_dim, 64, FP8))
    listed += [
        case(arch, "D128 rows 64 fp8", 64, 128, 64, FP8),
        case(arch, "D128 rows 16 page 16", 16, 128, 16, BF16),
        case(arch, "D128 rows 16 page 16 fp8", 16, 128, 16, FP8),
        case(arch, "D128 rows 16 split", 16, 128, 64, BF16, sequences=2),
        case(arch, "D64 rows 16 window sinks", 16, 64, 64, BF16, window=128, sinks=meta(KV_HEADS * 4)),
    ]
    return listed + [
        Case("attention_merge", arch, f"D{d}", functools.partial(merge, d, 64, 15), {"load_v4": True})
        for d in (64, 128, 512)
    ]


def candidates(arch: str, rows: int, head_dim: int) -> Candidates:
    sequences, width = 64, 2

    def call(config: Config) -> object:
        return decode(rows, head_dim, 64, BF16, config=config)

    def work(config: Config) -> Work:
        tile = int(config.meta["BLOCK_M"])
        row_blocks = -(-rows // tile)
        cache = 2.0 * sequences * LENGTH * KV_HEADS * head_dim * width
        scores = float(sequences * KV_HEADS * row_blocks * tile * LENGTH)
        return Work(sequences * KV_HEADS * row_blocks, cache, cache * row_blocks, 4 * scores * head_dim, exp=scores)

    tiles = [tile for tile in (16, 32, 64, 128) if tile <= rows]
    meta = {"BLOCK_M": tiles[-2:], "BLOCK_N": [32, 64], "RESIDENT": [1]}
    return Candidates("attention_decode", arch, f"D{head_dim} rows {rows}", meta, (4, 8), (2, 3, 4), call, work)


CANDIDATES = [candidates(a, rows, d) for a in ARCHITECTURES for d in (64, 128, 256) for rows in ROWS]
CASES = [one for arch in ARCHITECTURES for one in cases(arch)]
