"""Merging attention over pieces of the keys: partial outputs weighted by the softmax mass of their pieces."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import MOST, check_apart, check_range, check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .softmax_blocks import FLOOR, LOG2E, finish, weigh

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128, 256, 512)


@triton.jit(do_not_specialize=["pieces"])
def merge_kernel(
    partial_ptr, lse_ptr, out_ptr, merged_ptr, pieces,
    D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, blocks of columns). BLOCK_S pieces are read at a time, weights and values without waiting."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    peak = tl.full((1,), FLOOR, tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, BLOCK_D), tl.float32)
    for first in tl.range(0, pieces, BLOCK_S):
        piece = first + tl.arange(0, BLOCK_S)
        at = row * pieces + piece
        mass = tl.load(lse_ptr + at, mask=piece < pieces, other=-float("inf"))
        values = tl.load(partial_ptr + at[:, None] * D + columns[None, :], mask=(piece < pieces)[:, None], other=0.0)
        peak, total, weights, rescale = weigh(peak, total, mass[None, :], LOG2E)
        # A piece without a key has no values: what lies there, NaN perhaps, is not looked at.
        values = tl.where((mass > -float("inf"))[:, None], values.to(tl.float32), 0.0)
        acc = acc * rescale[:, None] + tl.sum(values * tl.reshape(weights, (BLOCK_S, 1)), 0)[None, :]
    out, merged = finish(peak, total, acc)
    tl.store(out_ptr + row * D + columns[None, :], out.to(out_ptr.dtype.element_ty))
    tl.store(merged_ptr + row + tl.arange(0, 1), merged)


@entry
def merge_attention(
    partial: torch.Tensor,
    lse: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over all keys from attention over pieces of them.

    Parameters
    ----------
    partial : [..., pieces, head_dim], the output over each piece; float32, float16 or bfloat16, contiguous; head_dim is
        64, 128, 256 or 512. Up to 2^31 - 1 rows and 2^30 pieces. Values whose lse is -inf do not count, NaN or not.
    lse : [..., pieces] float32, the natural log-sum-exp of each piece's scores; -inf for a piece without a key.
    dtype : of the result; that of `partial` unless given.
    out : tensors to write instead of new ones; contiguous, as returned, apart from the others.
    config : launch configuration instead of the table's.

    Returns
    -------
    Output [..., head_dim] and lse [...] in float32. A row without a key in any piece has output 0 and lse -inf,
    one with an lse of NaN or inf has NaN in both.

    Raises
    ------
    KernelInputError
        Naming the argument that does not fit.

    Notes
    -----
    lse = ln(sum_i exp(lse_i)); out = sum_i exp(lse_i - lse) out_i. Summed in FP32.
    """
    require(partial.dim() >= 2, f"partial has shape {tuple(partial.shape)}, [..., pieces, head_dim] is needed")
    check_tensor("partial", partial, [None] * partial.dim(), DTYPES)
    check_tensor("lse", lse, partial.shape[:-1], [torch.float32], like=partial, align=4)
    pieces, head_dim = partial.shape[-2:]
    check_range("the number of pieces", pieces, 1, 2**30)
    require(head_dim in HEAD_DIMS, f"head_dim is {head_dim}, {', '.join(map(str, HEAD_DIMS))} are supported")
    dtype = partial.dtype if dtype is None else dtype
    require(dtype in DTYPES, f"dtype is {dtype}, float32, float16 or bfloat16 is needed")
    if out is None:
        merged = torch.empty((*partial.shape[:-2], head_dim), dtype=dtype, device=partial.device)
        mass = torch.empty(partial.shape[:-2], dtype=torch.float32, device=partial.device)
    else:
        merged, mass = out
        check_tensor("out[0]", merged, (*partial.shape[:-2], head_dim), [dtype], like=partial)
        check_tensor("out[1]", mass, partial.shape[:-2], [torch.float32], like=partial, align=4)
        check_apart("out[0]", merged, {"out[1]": mass, "partial": partial, "lse": lse})
        check_apart("out[1]", mass, {"partial": partial, "lse": lse})
    rows = mass.numel()
    check_range("the number of rows", rows, 0, MOST)
    if rows == 0:
        return merged, mass
    config = configured("attention_merge", partial, config, head_dim=head_dim, pieces=pieces)
    columns = config.meta["BLOCK_D"]
    fits = isinstance(columns, int) and head_dim % columns == 0
    require(fits, f"config.meta['BLOCK_D'] is {columns}, a divisor of head_dim, {head_dim}, is needed")
    merge_kernel[(rows, head_dim // int(config.meta["BLOCK_D"]))](
        partial, lse, merged, mass, pieces, D=head_dim, **config.options()
    )
    return merged, mass


def merge_reference(partial: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `merge_attention` returns, computed by plain torch in float64."""
    mass = torch.where(torch.isposinf(lse), math.nan, lse.double())
    merged = torch.logsumexp(mass, -1)
    some = ~torch.isneginf(mass)
    weights = torch.where(some, torch.exp(mass - torch.where(torch.isneginf(merged), 0.0, merged)[..., None]), 0.0)
    values = torch.where(some[..., None], partial.double(), 0.0)
    return (weights[..., None] * values).sum(-2), merged
