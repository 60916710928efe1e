"""Queries and paged caches for the decode tests, and their comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from allocations import guarded_allocations
from numeric import assert_close, paged, random

from perfmodel.kernels.attention.decode import decode_reference, paged_decode
from perfmodel.kernels.attention.mla import Latents
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.device import assume
from perfmodel.kernels.table import Config

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
LENGTHS = (1, 63, 64, 200)
FP8_TOLERANCE = 4e-3
"""Relative error over an FP8 cache, whose values are exact in fp16: that of a bf16 result."""


def blocks(m: int = 16, n: int = 32, **more: int | bool) -> Config:
    """A launch configuration with small blocks, of which few keys make many."""
    return Config({"BLOCK_M": m, "BLOCK_N": n, **more}, 4, 2)


@dataclass(frozen=True)
class Problem:
    """Queries [sequences, q_len, heads, head_dim] and where the keys and values of their sequences lie."""

    q: torch.Tensor
    cache: Paged


def problem(
    device: str,
    lengths: Sequence[int] = LENGTHS,
    *,
    kv_heads: int = 1,
    group: int = 4,
    q_len: int = 1,
    head_dim: int = 64,
    page: int = 16,
    dtype: torch.dtype = BF16,
    kv: torch.dtype | None = None,
    per_head: bool = True,
) -> Problem:
    """Pages in shuffled order, NaN in each slot that holds no token, and a table longer than needed."""
    q = random(len(lengths), q_len, kv_heads * group, head_dim, dtype=dtype, device=device, seed=1)
    k, v = (cached(device, lengths, (kv_heads, head_dim), page, kv or dtype, seed) for seed in (100, 200))
    scales = (None, None)
    if kv == FP8:
        count = kv_heads if per_head else 1
        scales = tuple(torch.linspace(low, 2 * low, count, device=device) for low in (0.3, 0.7))  # type: ignore[assignment]
    return Problem(q, Paged(k.cache, v.cache, k.table, k.lengths, *scales))


def cached(device: str, lengths: Sequence[int], width: tuple[int, ...], page: int, dtype: torch.dtype, seed: int):  # type: ignore[no-untyped-def]
    """Random rows of each sequence in pages; equal lengths and page give equal tables."""
    rows = [random(n, *width, dtype=dtype, device=device, seed=seed + i) for i, n in enumerate(lengths)]
    return paged(rows, page, seed=len(lengths), padding=1)


def latent_problem(
    device: str,
    lengths: Sequence[int] = LENGTHS,
    *,
    heads: int = 16,
    q_len: int = 1,
    page: int = 16,
    dtype: torch.dtype = BF16,
    kv: torch.dtype | None = None,
) -> tuple[torch.Tensor, Latents]:
    """As `problem`, for MLA."""
    q = random(len(lengths), q_len, heads, 576, dtype=dtype, device=device, seed=1)
    c = cached(device, lengths, (576,), page, kv or dtype, 100)
    return q, Latents(c.cache, c.table, c.lengths, torch.tensor([0.7], device=device) if kv == FP8 else None)


def decode_is_right(given: Problem, *, arch: str = "sm_90", tolerance: float | None = None, **options: object) -> None:
    """Compare `paged_decode` with its reference: output, log-sum-exp, nothing unwritten, nothing written outside."""
    with assume(arch, sm_count=4), guarded_allocations():
        out, lse = paged_decode(given.q, given.cache, **options)  # type: ignore[arg-type]
    scores = {k: v for k, v in options.items() if k in ("scale", "window", "softcap", "sinks")}
    compare(given, out, lse, tolerance, **scores)


def compare(
    given: Problem, out: torch.Tensor, lse: torch.Tensor, tolerance: float | None = None, **scores: object
) -> None:
    """Compare a result of `paged_decode` with what it should be."""
    right, mass = decode_reference(given.q, given.cache, **scores)  # type: ignore[arg-type]
    theirs, _ = decode_reference(given.q, given.cache, **scores, dtype=given.q.dtype)  # type: ignore[arg-type]
    assert_close(out, right, torch_result=theirs, tolerance=tolerance)
    assert_close(lse, mass)
