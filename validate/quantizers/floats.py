"""Narrow floats: rounding to E4M3, E5M2, E2M1 and others, to NF4's sixteen values, and the steps between them.

A float of m mantissa bits has the step ``2^(e - m)`` in the binade ``[2^e, 2^(e+1))``, and that of the lowest normal
binade below it; values beyond the largest one are taken to it. Ties go to the even neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Element:
    """A narrow float.

    Attributes
    ----------
    name : str
    mantissa : int
        Explicit mantissa bits.
    lowest : int
        Exponent of the lowest normal binade.
    largest : float
    """

    name: str
    mantissa: int
    lowest: int
    largest: float

    @property
    def exponent(self) -> int:
        """Exponent of the largest value's binade."""
        return int(torch.tensor(self.largest).frexp().exponent) - 1

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Distance between neighbours around each value."""
        exponent = torch.frexp(x).exponent - 1
        exponent = torch.where(x == 0, self.lowest, exponent).clamp(self.lowest, self.exponent)
        return torch.ldexp(torch.ones_like(x), exponent - self.mantissa)

    def round(self, x: torch.Tensor) -> torch.Tensor:
        """Nearest value; beyond the largest one, that."""
        step = self.step(x)
        return (torch.round(x / step) * step).clamp(-self.largest, self.largest)


#: Sources: OCP 8-bit Floating Point Specification 1.0 (2023), E4M3 without infinities (``e4m3fn``); OCP Microscaling
#: Formats (MX) Specification 1.0 (2023).
E4M3 = Element("E4M3", 3, -6, 448.0)
E5M2 = Element("E5M2", 2, -14, 57344.0)
E2M1 = Element("E2M1", 1, 0, 6.0)
E2M3 = Element("E2M3", 3, 0, 7.5)
E3M2 = Element("E3M2", 2, -2, 28.0)

#: Quantiles of a normal distribution. Source: Dettmers et al., "QLoRA" (arXiv:2305.14314), appendix E.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def nearest_nf4(x: torch.Tensor) -> torch.Tensor:
    """The nearest of NF4's values to each number of [-1, 1]."""
    codes = torch.tensor(NF4, dtype=x.dtype)
    return codes[torch.bucketize(x, (codes[1:] + codes[:-1]) / 2)]


def nf4_step(x: torch.Tensor) -> torch.Tensor:
    """Width of the interval that is rounded to the same value of NF4; that of the outermost ends at it."""
    codes = torch.tensor(NF4, dtype=x.dtype)
    ends = (codes[1:] + codes[:-1]) / 2
    widths = torch.diff(torch.cat([codes[:1], ends, codes[-1:]]))
    return widths[torch.bucketize(x, ends)]


def power_of_two(x: torch.Tensor, up: bool = False) -> torch.Tensor:
    """The power of two at or below each positive number, or at or above it; 1 for 0."""
    mantissa, exponent = torch.frexp(torch.where(x > 0, x, torch.ones_like(x)))
    exact = mantissa == 0.5  # a power of two itself
    shift = torch.where(exact, 1, 0 if up else 1)
    return torch.ldexp(torch.ones_like(x), exponent - shift)
