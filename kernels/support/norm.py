"""RMS normalisation, with the residual addition before it in the same pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_number, check_range, check_tensor
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32)
"""Types of activations; the kernels compute in float32."""


@triton.jit
def _summed(x, residual, total, at, mask, RESIDUAL: tl.constexpr):
    """The numbers to normalise, in float32 but rounded to the type that later layers read; the sum is stored."""
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        rounded = (value + tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=mask)
        value = rounded.to(tl.float32)
    return value


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, total, H, eps, RESIDUAL: tl.constexpr, WHOLE: tl.constexpr, BLOCK_H: tl.constexpr
):
    """One row: held in registers where it fits one block, else read once more."""
    base = tl.program_id(0).to(tl.int64) * H
    column = tl.arange(0, BLOCK_H)
    if WHOLE:
        mask = column < H
        value = _summed(x, residual, total, base + column, mask, RESIDUAL)
        scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
        gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + base + column, (value * scale * gain).to(out.dtype.element_ty), mask=mask)
    else:
        squares = tl.zeros((BLOCK_H,), tl.float32)
        for start in range(0, H, BLOCK_H):
            mask = start + column < H
            value = _summed(x, residual, total, base + start + column, mask, RESIDUAL)
            squares += value * value
        scale = tl.rsqrt(tl.sum(squares, 0) / H + eps)
        source = total if RESIDUAL else x
        for start in range(0, H, BLOCK_H):  # other threads may have written the sums: those of the squares wait for all
            mask = start + column < H
            value = tl.load(source + base + start + column, mask=mask, other=0.0).to(tl.float32)
            gain = tl.load(weight + start + column, mask=mask, other=0.0).to(tl.float32)
            tl.store(out + base + start + column, (value * scale * gain).to(out.dtype.element_ty), mask=mask)


@entry
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h / sqrt(mean(h^2) + eps) * weight for each row, h = x + residual.

    x: [T, H], bfloat16, float16 or float32, contiguous. weight: [H], of any of these types. residual: as x, or None for
    h = x. eps: from 2^-120 to 2^120. The sum is rounded to the type of x before it is normalised; mean and product are
    float32: the sum of a row's squares must stay below 3.4e38, so |h| below 1.8e19 / sqrt(H), or the row becomes 0.
    T up to 2^31 - 1, H 1 to 2^17. config: instead of the table's.

    Returns the normalised rows and h (x itself without a residual), of x's shape and type. Bytes moved: 2 T H of the
    type, 4 T H with a residual, and the weight. Raises KernelInputError.
    """
    check_tensor("x", x, (None, None), ACTIVATIONS)
    tokens, hidden = x.shape
    check_range("the number of rows", tokens, 1, 2**31 - 1)
    check_range("the hidden size", hidden, 1, 2**17)
    check_tensor("weight", weight, (hidden,), ACTIVATIONS, like=x)
    check_number("eps", eps)
    if residual is not None:
        check_tensor("residual", residual, (tokens, hidden), (x.dtype,), like=x)
    config = configured("support_rms_norm", x, config, hidden=hidden)
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    _rms_norm_kernel[(tokens,)](
        x, x if residual is None else residual, weight, out, total, hidden, eps, RESIDUAL=residual is not None,
        WHOLE=hidden <= int(config.meta["BLOCK_H"]), **config.options(),
    )  # fmt: skip
    return out, total


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 torch, but for the rounding of h; the normalised rows are float64."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    h = total.double()
    return h / torch.sqrt(h.square().mean(dim=-1, keepdim=True) + eps) * weight.double(), total
