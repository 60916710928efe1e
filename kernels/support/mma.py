"""A loop of matrix instructions on operands that stay in shared memory: the ceiling of the matrix units."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_place, check_range, check_tensor, require
from perfmodel.kernels.device import target
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured, select

from .codes import check_code

TYPES = (torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)
SIDES = {f"BLOCK_{axis}": (16, 256) for axis in "MNK"}
"""Sides that a configuration may give its tile."""


@triton.jit
def _mma_kernel(
    a, b, out, passes, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """out = passes x a b^T, each program the same."""
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    left = tl.load(a + m[:, None] * BLOCK_K + k[None, :])
    right = tl.load(b + n[None, :] * BLOCK_K + k[:, None])
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for _ in range(0, tl.maximum(passes, 1)):
        total = tl.dot(left, right, total, out_dtype=ACC)
    base = tl.program_id(0).to(tl.int64) * BLOCK_M * BLOCK_N
    tl.store(out + base + m[:, None] * BLOCK_N + n[None, :], total)


@entry
def mma_loop(a: torch.Tensor, b: torch.Tensor, passes: int, config: Config | None = None) -> torch.Tensor:
    """passes x a b^T in every program, one matrix instruction after another without loads between them.

    a: [M, K], b: [N, K], of one type: bfloat16, float16, int8 or float8_e4m3fn (from sm_89 on), contiguous; M, N and K
    as `mma_tile` says. passes: 1 to 2^24. Returns float32 (int32 for int8, which may wrap) [programs, M, N]. FLOPs:
    programs x passes x 2 M N K. On sm_100 Triton 3.6 makes int8 products with mma.sync, not with the tensor memory's
    instruction (3.9 does), and that is what is measured. Raises KernelInputError.
    """
    check_tensor("a", a, (None, None), TYPES)
    if a.dtype == torch.float8_e4m3fn:
        check_code("a", a.dtype, a)
    config = configured("support_mma", a, config, limits=SIDES, itemsize=a.dtype.itemsize)
    m, n, k = (int(config.meta[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    check_tensor("a", a, (m, k), TYPES)
    check_tensor("b", b, (n, k), (a.dtype,), like=a)
    check_range("passes", passes, 1, 2**24)
    whole = a.dtype == torch.int8
    programs = int(config.meta["per_sm"]) * target(a).sm_count
    out = torch.empty((programs, m, n), dtype=torch.int32 if whole else torch.float32, device=a.device)
    _mma_kernel[(programs,)](
        a, b, out, passes, ACC=tl.int32 if whole else tl.float32, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out


@entry
def mma_tile(dtype: torch.dtype, like: torch.Tensor) -> tuple[int, int, int]:
    """M, N and K of the operands that `mma_loop` takes in this type on the device of `like`, any tensor.

    Raises KernelInputError.
    """
    check_place("like", like)
    require(dtype in TYPES, f"dtype is {str(dtype).removeprefix('torch.')}, which has no matrix loop")
    meta = select("support_mma", like, itemsize=dtype.itemsize).meta
    return int(meta["BLOCK_M"]), int(meta["BLOCK_N"]), int(meta["BLOCK_K"])


def mma_loop_reference(a: torch.Tensor, b: torch.Tensor, passes: int) -> torch.Tensor:
    """One program's result, in float64."""
    return passes * (a.double() @ b.double().T)
