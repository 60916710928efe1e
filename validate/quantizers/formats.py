"""Storage formats as quantizers: a matrix rounded to the nearest values that a format can hold, and the noise expected.

Integers take the grid of ``grid``; floats are scaled a channel, a block or a tensor and rounded to their elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.formats import Format, weight_format
from perfmodel.validate.quantizers.floats import (
    E2M1,
    E2M3,
    E4M3,
    Element,
    nearest_nf4,
    nf4_step,
    power_of_two,
)
from perfmodel.validate.quantizers.grid import Grid, find_scales, to_integers, to_values
from perfmodel.validate.quantizers.theory import spread_factor

#: From this share of the largest value on a weight is the one that set the scale: it loses nothing.
AT_END = 1 - 1e-6


@dataclass(frozen=True)
class Rounded:
    """A matrix rounded to a format.

    Attributes
    ----------
    values : torch.Tensor
        (out, in).
    variance : torch.Tensor
        ``s^2 / 12`` of each weight, with the step s that it met; broadcasts to (out, in).
    expected : torch.Tensor
        The same, corrected: for groups of integers whose values spread less than a step or two, and for what lies at
        the end of the range, which is exact, or beyond it, which is clipped.
    """

    values: torch.Tensor
    variance: torch.Tensor
    expected: torch.Tensor


def grid_of(fmt: str | Format) -> Grid | None:
    """The uniform grid of an integer format; ``None`` for other formats.

    >>> grid_of("int4").words
    '4-bit asymmetric, group 128'
    """
    found = weight_format(fmt)
    if not found.name.startswith(("int", "gptq", "awq", "w8a16")) or found.group is None:
        return None
    return Grid(int(found.bits), not found.zero_bits, found.group[1])


def has_quantizer(fmt: str | Format) -> bool:
    """Whether ``round_to`` takes a format."""
    found = weight_format(fmt)
    return grid_of(found) is not None or found.name in ("bf16", "fp16", "fp32", *_ROUNDERS)


def round_to(w: torch.Tensor, fmt: str | Format, largest: float | None = None) -> Rounded:
    """Round a matrix to a storage format.

    Parameters
    ----------
    w : torch.Tensor
        (out, in), float32 or float64.
    largest : float, optional
        Largest absolute weight of the whole tensor, where ``w`` is some rows of it; needed by one-scale formats.

    Raises
    ------
    UsageError
        For a format without a quantizer here (GGUF's types), or groups that do not divide the inputs.
    """
    found = weight_format(fmt)
    top = float(w.abs().max()) if largest is None else largest
    if (grid := grid_of(found)) is not None:
        return _integers(w, grid)
    if found.name in ("bf16", "fp16"):
        return _plain(w, torch.bfloat16 if found.name == "bf16" else torch.float16)
    if found.name == "fp32":
        return Rounded(w.clone(), torch.zeros(1, 1, dtype=w.dtype), torch.zeros(1, 1, dtype=w.dtype))
    if found.name in _ROUNDERS:
        return _ROUNDERS[found.name](w, top)
    known = ", ".join(["bf16", "fp16", *_ROUNDERS])
    raise UsageError(f"{found.name} has no quantizer here; there are int, gptq, awq and w8a16 formats, {known}")


def _integers(w: torch.Tensor, grid: Grid) -> Rounded:
    scales = find_scales(w, grid)
    size = w.shape[1] // scales.scale.shape[1]
    step = scales.scale.repeat_interleave(size, dim=1)
    variance = step**2 / 12
    expected = variance * spread_factor(w, scales).repeat_interleave(size, dim=1)
    if grid.symmetric:
        expected = torch.where(w.abs() >= step * grid.high * AT_END, torch.zeros_like(w), expected)
    return Rounded(to_values(to_integers(w, scales, grid), scales), variance, expected)


def _plain(w: torch.Tensor, dtype: torch.dtype) -> Rounded:
    values = w.to(dtype).to(w.dtype)
    bits = 7 if dtype == torch.bfloat16 else 10
    step = torch.ldexp(torch.ones_like(w), torch.frexp(w).exponent - 1 - bits) * (w != 0)
    return Rounded(values, step**2 / 12, step**2 / 12)


def _scaled(w: torch.Tensor, scale: torch.Tensor, element: Element) -> Rounded:
    """Rounded with a scale that broadcasts to the matrix."""
    x = w / scale
    variance = (element.step(x.clamp(-element.largest, element.largest)) * scale) ** 2 / 12
    beyond = ((x.abs() - element.largest) * scale) ** 2
    expected = torch.where(x.abs() >= element.largest * AT_END, beyond, variance)
    return Rounded(element.round(x) * scale, variance, expected)


def _blocks(w: torch.Tensor, rows: int, cols: int, scale_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Scale of each weight from the largest one of its block; edges may be smaller."""
    out, inputs = w.shape
    high, wide = -(-out // rows), -(-inputs // cols)
    padded = torch.zeros(high * rows, wide * cols, dtype=w.dtype)
    padded[:out, :inputs] = w.abs()
    most = padded.reshape(high, rows, wide, cols).amax(dim=(1, 3))
    scale = scale_of(torch.where(most > 0, most, torch.ones_like(most)))
    return scale.repeat_interleave(rows, dim=0)[:out].repeat_interleave(cols, dim=1)[:, :inputs]


def _fp8(w: torch.Tensor, top: float) -> Rounded:
    return _scaled(w, _blocks(w, 1, w.shape[1], lambda most: most / E4M3.largest), E4M3)


def _fp8_tensor(w: torch.Tensor, top: float) -> Rounded:
    return _scaled(w, torch.full((1, 1), (top or 1.0) / E4M3.largest, dtype=w.dtype), E4M3)


def _fp8_block(w: torch.Tensor, top: float) -> Rounded:
    return _scaled(w, _blocks(w, 128, 128, lambda most: most / E4M3.largest), E4M3)


def _fp8_block_e8m0(w: torch.Tensor, top: float) -> Rounded:
    return _scaled(w, _blocks(w, 128, 128, lambda most: power_of_two(most / E4M3.largest, up=True)), E4M3)


def _int8(w: torch.Tensor, top: float) -> Rounded:
    return _integers(w, Grid(8))


def _mx(element: Element) -> Callable[[torch.Tensor, float], Rounded]:
    """Groups of 32 with a power of two: ``2^(floor(log2 max) - largest exponent)``; what is beyond is clipped."""

    def rounder(w: torch.Tensor, top: float) -> Rounded:
        scale = _blocks(w, 1, 32, lambda most: power_of_two(most) * 2.0**-element.exponent)
        return _scaled(w, scale, element)

    return rounder


def _nvfp4(w: torch.Tensor, top: float) -> Rounded:
    """Groups of 16 with an E4M3 scale, and one FP32 scale that brings the largest of those to 448."""
    whole = (top or 1.0) / (E4M3.largest * E2M1.largest)

    def scale_of(most: torch.Tensor) -> torch.Tensor:
        least = 2.0 ** (E4M3.lowest - E4M3.mantissa)
        return E4M3.round(most / E2M1.largest / whole).clamp(min=least) * whole

    return _scaled(w, _blocks(w, 1, 16, scale_of), E2M1)


def _nf4(w: torch.Tensor, top: float, nested: bool = False) -> Rounded:
    """Blocks of 64 weights in the order of storage; their largest weight is 1 of the code."""
    flat = w.reshape(-1)
    blocks = -(-flat.numel() // 64)
    padded = torch.zeros(blocks * 64, dtype=w.dtype)
    padded[: flat.numel()] = flat
    parts = padded.reshape(blocks, 64)
    most = parts.abs().amax(dim=1, keepdim=True)
    if nested:
        most = _nested(most)
    scale = torch.where(most > 0, most, torch.ones_like(most))
    x = (parts / scale).clamp(-1, 1)
    values, variance = nearest_nf4(x) * scale, (nf4_step(x) * scale) ** 2 / 12
    cut = [t.reshape(-1)[: flat.numel()].reshape(w.shape) for t in (values, variance)]
    return Rounded(cut[0], cut[1], cut[1])


def _nested(most: torch.Tensor) -> torch.Tensor:
    """Largest weights of blocks less their mean in 8 bits, 256 of them to a range.

    bitsandbytes spaces its 8-bit code otherwise: the error of the scales is of the same order.
    """
    mean = most.mean()
    rest = torch.zeros(-(-most.numel() // 256) * 256, dtype=most.dtype)
    rest[: most.numel()] = (most - mean).reshape(-1)
    parts = rest.reshape(-1, 256)
    step = parts.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(most.dtype).tiny) / 127
    return (torch.round(parts / step) * step).reshape(-1)[: most.numel()].reshape(most.shape) + mean


_ROUNDERS: dict[str, Callable[[torch.Tensor, float], Rounded]] = {
    "int8": _int8, "fp8": _fp8, "fp8_tensor": _fp8_tensor, "fp8_block": _fp8_block,
    "fp8_block_e8m0": _fp8_block_e8m0, "mxfp4": _mx(E2M1), "mxfp6": _mx(E2M3), "mxfp8": _mx(E4M3), "nvfp4": _nvfp4,
    "nf4": _nf4, "nf4_dq": lambda w, top: _nf4(w, top, nested=True),
}  # fmt: skip
