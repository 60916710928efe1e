"""What the tests of 4-bit weights share: quantized weights with every integer and zero point, and their references."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfmodel.kernels.gemm.w4_packing import W4Weight, from_integers
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16_reference


@dataclass(frozen=True)
class Quantized:
    """Integers [K, N], scales and zero points [groups, N], and the group of each input if it is not k // group."""

    q: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group: int
    g_idx: torch.Tensor | None = None

    def weight(self) -> W4Weight:
        return from_integers(self.q, self.scales, self.zeros, self.g_idx, group=self.group)

    def times(self, x: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """x W in `dtype`; in the type of x this is what torch makes of a dequantized weight."""
        return gemm_w4a16_reference(x, self.q, self.scales, self.zeros, self.group, self.g_idx, dtype)


def quantized(
    k: int,
    n: int,
    group: int,
    device: str = "cpu",
    *,
    seed: int = 0,
    scale_dtype: torch.dtype = torch.float16,
    act_order: bool = False,
) -> Quantized:
    """Uniform integers, zero points with 0 and 15 among them, positive scales of about 1/50."""
    source = torch.Generator().manual_seed(seed)
    groups = 1 if group == -1 else -(-k // group)
    q = torch.randint(0, 16, (k, n), generator=source)
    zeros = torch.randint(0, 16, (groups, n), generator=source)
    zeros[0, 0], zeros[-1, -1] = 0, 15
    scales = (torch.rand(groups, n, generator=source) * 0.03 + 0.005).to(scale_dtype)
    g_idx = None
    if act_order:
        of_input = torch.arange(k) // (k if group == -1 else group)
        g_idx = of_input[torch.randperm(k, generator=source)].to(torch.int32).to(device)
    return Quantized(q.to(torch.uint8).to(device), scales.to(device), zeros.to(torch.uint8).to(device), group, g_idx)
