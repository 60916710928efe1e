"""Dense product of 16-bit operands."""

from __future__ import annotations

import torch

from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .launch import check_operands, choose, multiply


@entry
def gemm_dense(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    warp_specialized: bool = False,
    config: Config | None = None,
) -> torch.Tensor:
    """The product a b^T, accumulated in fp32, rounded once.

    out[m, n] = sum over k of a[m, k] b[n, k]

    a: activations [M, K], bf16 or fp16. b: weights [N, K] of the same type, laid out as in `torch.nn.Linear`. out:
    [M, N], the same type; made if not given, apart from the others. All contiguous, 16-byte aligned. M, N >= 0 and
    K >= 1 up to `launch`'s limits (MOST_ROWS, LONGEST): K a multiple of 8 loads 16 bytes at a time, others an element
    at a time.

    Few rows, or too few tiles for the multiprocessors, are computed in parts along K that a second kernel sums in
    a fixed order: equal calls give equal bits. warp_specialized: loads and products in warps of their own, where the
    table has such a row (sm_90, sm_100) and TMA takes the operands; otherwise it changes nothing.
    Raises KernelInputError for what does not fit.
    """
    out = check_operands(a, b, out, [torch.bfloat16, torch.float16])
    config = choose("gemm_dense", a, b, out, (128, 256), config, specialized=int(warp_specialized))
    return multiply(a, b, out, config)


def gemm_dense_reference(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The same by torch in `dtype`, which is also the type of the result."""
    return a.to(dtype) @ b.to(dtype).T
