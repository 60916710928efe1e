"""The gated activation between the projections of an MLP."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_range, check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .norm import ACTIVATIONS


@triton.jit
def _gated(gate, up):
    """silu(gate) * up."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu_kernel(x, out, F, BLOCK_F: tl.constexpr):
    """A piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = column < F
    gate = tl.load(x + row * 2 * F + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * F + F + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * F + column, _gated(gate, up).to(out.dtype.element_ty), mask=mask)


@entry
def swiglu(x: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """silu(gate) * up, with silu(z) = z / (1 + exp(-z)); gate and up lie side by side.

    x: [T, 2 F], a row's gate before its up, bfloat16, float16 or float32, contiguous. T up to 2^31 - 1, F 1 to 2^20.
    config: instead of the table's. Returns [T, F] of the same type, computed in float32. Bytes moved: 3 T F of the
    type. Raises KernelInputError.
    """
    check_tensor("x", x, (None, None), ACTIVATIONS)
    tokens, both = x.shape
    require(both % 2 == 0, f"x has {both} columns, an even number is needed: gate and up side by side")
    check_range("the number of rows", tokens, 1, 2**31 - 1)
    check_range("the columns of the gate", both // 2, 1, 2**20)
    config = configured("support_swiglu", x, config, columns=both // 2)
    out = torch.empty((tokens, both // 2), dtype=x.dtype, device=x.device)
    grid = (tokens, triton.cdiv(both // 2, int(config.meta["BLOCK_F"])))
    _swiglu_kernel[grid](x, out, both // 2, **config.options())
    return out


def swiglu_reference(x: torch.Tensor) -> torch.Tensor:
    """The same in float64 torch."""
    gate, up = x.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
