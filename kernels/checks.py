"""Input checks shared by the kernels: a wrong argument is refused by name, with its value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .device import interpreted


class KernelInputError(ValueError):
    """An argument a kernel cannot take."""


def require(condition: bool, message: str) -> None:
    """Raise KernelInputError with `message` unless `condition`."""
    if not condition:
        raise KernelInputError(message)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    *,
    like: torch.Tensor | None = None,
    contiguous: bool = True,
    align: int = 16,
) -> None:
    """Check one tensor argument.

    shape: the lengths it must have, None where any will do. dtypes: those allowed. like: a tensor on whose device it
    must be. contiguous: rows packed in order. align: bytes its first element must be aligned to.
    Raises KernelInputError naming what is wrong.
    """
    require(isinstance(tensor, torch.Tensor), f"{name} is {type(tensor).__name__}, a torch tensor is needed")
    wanted = ", ".join("any" if n is None else str(n) for n in shape)
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape, strict=True))
    require(fits, f"{name} has shape {tuple(tensor.shape)}, ({wanted}) is needed")
    names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    require(tensor.dtype in dtypes, f"{name} is {str(tensor.dtype).removeprefix('torch.')}, {names} is needed")
    _check_place(name, tensor, like)
    if contiguous:
        require(tensor.is_contiguous(), f"{name} is not contiguous (strides {tensor.stride()}); call .contiguous()")
    if tensor.device.type != "meta" and tensor.numel():
        offset = tensor.data_ptr() % align
        require(offset == 0, f"{name} starts {offset} bytes off a multiple of {align}; copy it with .clone()")


def _check_place(name: str, tensor: torch.Tensor, like: torch.Tensor | None) -> None:
    if like is not None:
        require(tensor.device == like.device, f"{name} is on {tensor.device}, the others are on {like.device}")
    allowed = ("cpu", "meta") if interpreted() else ("cuda", "meta")
    where = "the interpreter takes CPU tensors" if interpreted() else "a CUDA tensor is needed (or TRITON_INTERPRET=1)"
    require(tensor.device.type in allowed, f"{name} is on {tensor.device}; {where}")


def check_multiple(name: str, value: int, of: int) -> None:
    """Check that a length is a positive multiple."""
    require(value > 0 and value % of == 0, f"{name} is {value}, a positive multiple of {of} is needed")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Check that an integer lies in [low, high]."""
    require(low <= value <= high, f"{name} is {value}, {low} to {high} is supported")
