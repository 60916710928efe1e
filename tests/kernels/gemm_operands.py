"""What the tests of matrix products share: guarded operands and results, small configurations, sampled comparison."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from numeric import Guarded, guarded, poisoned, random

from perfmodel.kernels.device import target
from perfmodel.kernels.table import Config

E4M3 = torch.float8_e4m3fn

SHAPES = [(1, 136, 200), (5, 67, 101), (16, 130, 256), (33, 72, 136), (200, 264, 80)]
"""M, N, K: one row, few, a full small tile, a tail in M, several tiles; tails in N and K, odd N, odd K, whole tiles."""

PRODUCTION = [
    (1, 4096, 14336),
    (16, 28672, 8192),
    (32, 4096, 4096),
    (64, 6144, 4096),
    (257, 4096, 4096),
    (2048, 28672, 4096),
    (8192, 8192, 8192),
    (777, 4096, 4104),
    (777, 4097, 4095),
]
"""M, N, K of projections in common models; and rows that TMA cannot take, in units of 8 and of 1."""


def small(m: int = 64, n: int = 64, k: int = 32, *, warps: int = 4, stages: int = 2, **more: int | bool) -> Config:
    """A configuration with small tiles: few operations to interpret, and tails in every direction."""
    return Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **more}, warps, stages)


@dataclass(frozen=True)
class Operands:
    """a [M, K], b [N, K] and a place for the result [M, N], NaN to begin with; each between guard bands."""

    a: Guarded
    b: Guarded
    out: Guarded

    def check_guards(self) -> None:
        for each in (self.a, self.b, self.out):
            each.check()


def operands(
    m: int, n: int, k: int, dtype: torch.dtype, device: str, out: torch.dtype = torch.bfloat16, seed: int = 0
) -> Operands:
    a = random(m, k, dtype=dtype, device=device, seed=2 * seed)
    b = random(n, k, dtype=dtype, device=device, seed=2 * seed + 1)
    return Operands(guarded(a), guarded(b), guarded(poisoned((m, n), out, device)))


def scales(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    """Scales from 0.1 to about 10: far enough apart that the wrong one shows."""
    return random(*shape, dtype=torch.float32, device=device, seed=seed).clamp(-2.3, 2.3).exp()


def needs(device: str, *, tma: bool = False, fp8: bool = False) -> None:
    """Skip the test on a GPU that has no TMA, or no FP8."""
    if device == "cuda" and (tma or fp8) and target(torch.empty(0, device="cuda")).arch == "sm_80":
        pytest.skip("the GPU has no TMA" if tma else "the GPU has no FP8")


def sampled(m: int, count: int = 48) -> torch.Tensor:
    """Some rows of a large result: the first, the last, and others."""
    chosen = torch.randperm(m, generator=torch.Generator().manual_seed(0))[:count]
    chosen[-1], chosen[0] = m - 1, 0
    return chosen
