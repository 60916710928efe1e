"""Input checks shared by the kernels: a wrong argument is refused by name, with its value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .device import ahead_of_time, interpreted

MOST = 2**31 - 1
"""The largest 32-bit integer: the limit of programs in a grid, and of lengths that kernels count in 32 bits."""


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
    require(tensor.layout == torch.strided, f"{name} is {tensor.layout}; call .to_dense()")
    names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    require(tensor.dtype in dtypes, f"{name} is {str(tensor.dtype).removeprefix('torch.')}, {names} is needed")
    check_place(name, tensor, like)
    if contiguous:
        require(tensor.is_contiguous(), f"{name} is not contiguous (strides {tensor.stride()}); call .contiguous()")
    if tensor.device.type != "meta" and tensor.numel():
        offset = tensor.data_ptr() % align
        require(offset == 0, f"{name} starts {offset} bytes off a multiple of {align}; copy it with .clone()")


def check_place(name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
    """Check that a tensor lies where kernels run, and with `like` that it lies where that one does.

    Tensors on the meta device hold nothing and are taken where launches are only compiled (`device.assume`).
    """
    if like is not None:
        require(tensor.device == like.device, f"{name} is on {tensor.device}, the others are on {like.device}")
    if tensor.device.type == "meta" and ahead_of_time():
        return
    allowed = "cpu" if interpreted() else "cuda"
    where = "the interpreter takes CPU tensors" if interpreted() else "a CUDA tensor is needed (or TRITON_INTERPRET=1)"
    require(tensor.device.type == allowed, f"{name} is on {tensor.device}; {where}")


def check_multiple(name: str, value: int, of: int) -> None:
    """Check that a length is a positive multiple."""
    require(value > 0 and value % of == 0, f"{name} is {value}, a positive multiple of {of} is needed")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Check that an integer lies in [low, high]."""
    require(low <= value <= high, f"{name} is {value}, {low} to {high} is supported")


SMALLEST, LARGEST = 2.0**-120, 2.0**120
"""Limits of numbers that kernels are given: they and small multiples of them are normal float32 numbers."""


def check_number(name: str, value: float, *, other: str = "") -> None:
    """Check a positive number that a kernel takes as float32: SMALLEST to LARGEST; `other`, what else would do."""
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 2**64 else value
    limits = f"a number above 0{other} is needed, from 2^-120 to 2^120"
    require(SMALLEST <= value <= LARGEST, f"{name} is {shown}, {limits}")


def check_written(name: str, tensor: torch.Tensor) -> None:
    """Check that no two elements of a tensor that is written lie in one place, as they do once it is expanded."""
    held = sorted((stride, n) for stride, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    reach = 1
    for stride, n in held:
        apart = tensor.numel() == 0 or stride >= reach
        require(apart, f"{name} has strides {tensor.stride()}: elements that are written overlap; call .contiguous()")
        reach += stride * (n - 1)


def check_apart(name: str, written: torch.Tensor, others: Mapping[str, torch.Tensor | None]) -> None:
    """Check that a tensor that is written shares no memory with others, by name; None is passed over."""
    for other, tensor in others.items():
        if tensor is not None and _share(written, tensor):
            raise KernelInputError(f"{name} shares memory with {other}; pass another tensor, or a .clone()")


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory of two tensors overlaps; slices of one tensor whose rows alternate do not."""
    if one.device.type == "meta" or 0 in (one.numel(), other.numel()):
        return False
    (first, size), (second, width) = sorted((_span(one), _span(other)))
    if first + size <= second:
        return False
    pitch = one.stride(0) * one.element_size()
    if one.dim() != other.dim() or pitch == 0 or pitch != other.stride(0) * other.element_size():
        return True
    (first, size), (second, width) = ((t.data_ptr(), _span(t[0])[1]) for t in (one, other))
    ahead = (second - first) % pitch
    return not size <= ahead <= pitch - width


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of a tensor's first byte and how many it reaches over."""
    last = sum(stride * (n - 1) for stride, n in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()
