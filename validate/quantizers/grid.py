"""Uniform grids: scales and zero points of a weight matrix, rounding to them, and the values they stand for.

Symmetric: ``s = max|w| / (2^(b-1) - 1)`` and integers of -(2^(b-1) - 1) to 2^(b-1) - 1, so that the largest weight is
represented. Asymmetric: ``s = (max - min) / (2^b - 1)``, ``z = round(-min / s)`` and integers of 0 to 2^b - 1, with the
range widened to hold 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfmodel.base.errors import UsageError


@dataclass(frozen=True)
class Grid:
    """A uniform grid of ``bits`` bits.

    Attributes
    ----------
    bits : int
        2 to 8.
    symmetric : bool
    group : int or None
        Inputs of a row that share a scale; 0: the whole row (a channel); None: the whole matrix (a tensor).
    """

    bits: int
    symmetric: bool = True
    group: int | None = 0

    def __post_init__(self) -> None:
        """Refuse widths and groups that cannot be."""
        if not 2 <= self.bits <= 8:
            raise UsageError(f"{self.bits} bits; 2 to 8 are possible")
        if self.group is not None and self.group < 0:
            raise UsageError(f"a group of {self.group}; give a positive number, 0 for a channel or None for a tensor")

    @property
    def low(self) -> int:
        """Smallest integer."""
        return 1 - (1 << (self.bits - 1)) if self.symmetric else 0

    @property
    def high(self) -> int:
        """Largest integer."""
        return (1 << (self.bits - 1)) - 1 if self.symmetric else (1 << self.bits) - 1

    @property
    def words(self) -> str:
        """Such as ``4-bit asymmetric, group 128``."""
        share = (
            "a scale a tensor" if self.group is None else f"group {self.group}" if self.group else "a scale a channel"
        )
        return f"{self.bits}-bit {'symmetric' if self.symmetric else 'asymmetric'}, {share}"

    def columns(self, inputs: int) -> int:
        """Inputs that share a scale, of a matrix with so many; raises UsageError when groups do not divide them."""
        size = self.group or inputs
        if inputs % size:
            raise UsageError(f"a group of {size} does not divide {inputs} inputs; choose a divisor")
        return size


@dataclass(frozen=True)
class Scales:
    """Scale and zero point of every group; both of shape (out, groups)."""

    scale: torch.Tensor
    zero: torch.Tensor


def find_scales(w: torch.Tensor, grid: Grid) -> Scales:
    """Scales of a matrix ``(out, in)`` from its largest values; a group of zeros gets the scale 1."""
    size = grid.columns(w.shape[1])
    parts = w.reshape(w.shape[0], -1, size)
    if grid.group is None:
        low, high = parts.min().expand(parts.shape[:2]), parts.max().expand(parts.shape[:2])
    else:
        low, high = parts.amin(dim=2), parts.amax(dim=2)
    if grid.symmetric:
        scale = torch.maximum(-low, high) / grid.high
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return Scales(scale, torch.zeros_like(scale))
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low) / grid.high
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return Scales(scale, torch.round(-low / scale))


def to_integers(w: torch.Tensor, scales: Scales, grid: Grid) -> torch.Tensor:
    """Integers of the grid nearest to a matrix, as floats of shape (out, in)."""
    s, z = _spread(scales, w.shape[1])
    return torch.clamp(torch.round(w / s) + z, grid.low, grid.high)


def to_values(q: torch.Tensor, scales: Scales) -> torch.Tensor:
    """What integers stand for: ``(q - z) s``."""
    s, z = _spread(scales, q.shape[1])
    return (q - z) * s


def _spread(scales: Scales, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = inputs // scales.scale.shape[1]
    return scales.scale.repeat_interleave(size, dim=1), scales.zero.repeat_interleave(size, dim=1)


@dataclass(frozen=True)
class Quantized:
    """A quantized matrix.

    Attributes
    ----------
    method : str
    grid : Grid
    integers : torch.Tensor
        (out, in), in the order of the columns.
    scales : Scales
        Of groups of columns in the order of ``order``.
    order : torch.Tensor or None
        Order in which columns were grouped (act-order); None: as they are.
    columns : torch.Tensor or None
        Factor of each column before quantization, to be divided out again (AWQ); None: 1.
    """

    method: str
    grid: Grid
    integers: torch.Tensor
    scales: Scales
    order: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    @property
    def group_index(self) -> torch.Tensor:
        """Group of each column: the ``g_idx`` of GPTQ checkpoints."""
        inputs, groups = self.integers.shape[1], self.scales.scale.shape[1]
        plain = torch.arange(inputs) // (inputs // groups)
        if self.order is None:
            return plain
        found = torch.empty_like(plain)
        found[self.order] = plain
        return found

    def values(self) -> torch.Tensor:
        """The matrix that it stands for."""
        index = self.group_index
        found = (self.integers - self.scales.zero[:, index]) * self.scales.scale[:, index]
        return found if self.columns is None else found / self.columns


def round_to_nearest(w: torch.Tensor, grid: Grid) -> Quantized:
    """Every weight to the nearest point of the grid."""
    scales = find_scales(w, grid)
    return Quantized("round to nearest", grid, to_integers(w, scales, grid), scales)
