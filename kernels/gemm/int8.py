"""Product of int8 operands with a scale a token and a channel (W8A8)."""

from __future__ import annotations

import torch
import triton.language as tl

from perfmodel.kernels.checks import check_range
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .launch import check_operands, choose, multiply
from .scales import check_scales

MOST_K = 131072
"""K up to which no int32 sum can overflow: 2^17 products of at most 2^14."""


@entry
def gemm_w8a8(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """The product a b^T of int8 numbers, exact in int32, times the scales in fp32, rounded to bf16.

    out[m, n] = scale_a[m] scale_b[n] sum over k of a[m, k] b[n, k]

    a: activations [M, K], b: weights [N, K], both int8. scale_a: fp32, one number ([] or [1]) or one a token [M].
    scale_b: fp32, one number or one an output channel [N]. out: [M, N] bf16, made if not given, apart from the others.
    All contiguous; a, b and out 16-byte aligned. M, N >= 0 up to `launch`'s limits (MOST_ROWS, LONGEST), 1 <= K <
    131072 (the sum of more could overflow); K a multiple of 16 is fast.
    Raises KernelInputError for what does not fit.
    """
    out = check_operands(a, b, out, [torch.int8], torch.bfloat16)
    check_range("K", a.shape[1], 1, MOST_K - 1)
    scales = check_scales(scale_a, scale_b, out)
    config = choose("gemm_w8a8", a, b, out, (128, 256), config)
    return multiply(a, b, out, config, scales=scales, acc=tl.int32)


def gemm_w8a8_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The same by torch: the sum exactly (in float64, which holds it), the scales and the result in `dtype`."""
    exact = (a.double() @ b.double().T).to(dtype)
    return exact * scale_a.to(dtype).reshape(-1, 1) * scale_b.to(dtype).reshape(1, -1)
