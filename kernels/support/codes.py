"""Eight-bit codes: the range of each, and how a number becomes one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import require
from perfmodel.kernels.device import target

CODES = (torch.int8, torch.float8_e4m3fn)
"""Types of codes."""

LIMIT = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest code of each; int8 is used symmetrically, without -128."""

SMALLEST = 1e-10
"""A group of numbers that are all smaller is coded as if its largest were this, so that no scale is 0."""


def check_code(name: str, dtype: torch.dtype, like: torch.Tensor) -> None:
    """Refuse a type that is no code, and FP8 where the GPU cannot convert to it."""
    require(dtype in CODES, f"{name} is {str(dtype).removeprefix('torch.')}, int8 or float8_e4m3fn is needed")
    able = dtype == torch.int8 or target(like).fp8
    require(able, f"{name} is float8_e4m3fn, which GPUs before sm_89 cannot convert to; use int8 there")


@triton.jit
def _scale_of(largest, LIMIT: tl.constexpr):
    """Scale of a group whose largest magnitude this is, and the factor that codes it; both correctly rounded."""
    largest = tl.maximum(largest, 1e-10)  # SMALLEST
    return tl.div_rn(largest, LIMIT), tl.div_rn(LIMIT, largest)


@triton.jit
def _encode(x, factor, code: tl.constexpr, LIMIT: tl.constexpr):
    """Codes of x * factor, to nearest even, limited to +-LIMIT."""
    y = tl.minimum(tl.maximum(x * factor, -LIMIT), LIMIT)
    if code == tl.int8:  # adding 1.5 * 2^23 leaves the nearest integer in the low bits
        return (y + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        return y.to(code)


def encode_reference(x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of x * factor in torch; the product is rounded to float32, as the kernels' is."""
    limit = LIMIT[dtype]
    y = (x.float() * factor.float()).clamp(-limit, limit)
    return (y.round() if dtype == torch.int8 else y).to(dtype)


def scale_reference(largest: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale of groups whose largest magnitudes these are, and the factor that codes them, in float32."""
    largest = largest.float().clamp_min(SMALLEST)
    limit = torch.full_like(largest, LIMIT[dtype])
    return largest / limit, limit / largest
