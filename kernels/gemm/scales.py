"""Scales of the operands of a product, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import check_apart, check_tensor, require


@dataclass(frozen=True)
class Scales:
    """Scales of the rows (activations) and the columns (weights): fp32, one number or one a row or column, or None."""

    row: torch.Tensor | None = None
    column: torch.Tensor | None = None

    def kinds(self) -> dict[str, int]:
        """The compile-time constants that say which they are: 0 none, 1 one number, 2 one each."""
        return {"ROW_SCALE": _kind(self.row), "COLUMN_SCALE": _kind(self.column)}


NO_SCALES = Scales()


def _kind(scale: torch.Tensor | None) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


def check_scales(scale_a: torch.Tensor, scale_b: torch.Tensor, out: torch.Tensor) -> Scales:
    """Check the scales of a result [M, N]: fp32, contiguous, one number ([] or [1]) or [M] and [N], apart from it.

    Raises KernelInputError.
    """
    for name, scale, length in (("scale_a", scale_a, out.shape[0]), ("scale_b", scale_b, out.shape[1])):
        _check_scale(name, scale, length, out)
    check_apart("out", out, {"scale_a": scale_a, "scale_b": scale_b})
    return Scales(scale_a, scale_b)


def _check_scale(name: str, scale: torch.Tensor, length: int, like: torch.Tensor) -> None:
    known = tuple(scale.shape) in {(), (1,), (length,)}
    require(known, f"{name} has shape {tuple(scale.shape)}; one number or ({length},) is needed")
    check_tensor(name, scale, tuple(scale.shape), [torch.float32], like=like, align=4)
