"""Product of FP8 operands with a scale a tensor, a row or a channel."""

from __future__ import annotations

import torch

from perfmodel.kernels.checks import require
from perfmodel.kernels.device import target
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .launch import check_operands, choose, multiply
from .scales import check_scales


def require_fp8(a: torch.Tensor) -> None:
    """KernelInputError on a GPU that takes the configurations of sm_80, among which there are none for FP8."""
    arch = target(a).arch
    require(arch != "sm_80", f"FP8 products need sm_90 or sm_100, this takes {arch}'s; use gemm_w8a8 or gemm_dense")


@entry
def gemm_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    fast_accumulation: bool = True,
    config: Config | None = None,
) -> torch.Tensor:
    """The product a b^T of e4m3 numbers, in fp32, times the scales, rounded once to bf16.

    out[m, n] = scale_a[m] scale_b[n] sum over k of a[m, k] b[n, k]

    a: activations [M, K], b: weights [N, K], both float8_e4m3fn. scale_a: fp32, one number ([] or [1]) or one a row
    [M]. scale_b: fp32, one number or one an output channel [N]. out: [M, N] bf16, made if not given, apart from the
    others. All contiguous; a, b and out 16-byte aligned. M, N >= 0 and K >= 1 up to `launch`'s limits (MOST_ROWS,
    LONGEST); K a multiple of 16 is fast.

    fast_accumulation: leave sums to the tensor cores, which on Hopper keep about 14 bits (DeepSeek-V3 technical report,
    arXiv 2412.19437, section 3.3.2: up to 2 % off for K = 4096); if False they are added to fp32 registers every 128 of
    K. On sm_100 there is one way, the tensor cores'.
    Raises KernelInputError for what does not fit, and on sm_80, which has no FP8.
    """
    out = check_operands(a, b, out, [torch.float8_e4m3fn], torch.bfloat16)
    require_fp8(a)
    scales = check_scales(scale_a, scale_b, out)
    config = choose("gemm_fp8", a, b, out, (128, 256), config, fast=int(fast_accumulation))
    return multiply(a, b, out, config, scales=scales)


def gemm_fp8_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The same by torch in `dtype`, which is also the type of the result."""
    product = a.to(dtype) @ b.to(dtype).T
    return product * scale_a.to(dtype).reshape(-1, 1) * scale_b.to(dtype).reshape(1, -1)
