"""GPTQ: columns are rounded in turn, and each error is made good by the columns that are still to come.

For a layer ``y = W x`` with inputs ``X (n, in)`` the loss ``||(W - Q) X^T||^2`` has the Hessian ``H = 2 X^T X``, the
same for every row. Rounding column i with the error ``e`` and changing the later columns j by ``-e Hinv_ij / Hinv_ii``
keeps the loss least; the needed rows of ``Hinv``, restricted to the columns that are left, are those of its upper
Cholesky factor. Blocks of 128 columns gather the updates of later blocks: that saves memory traffic, not FLOPs.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv:2210.17323), algorithm 1.
"""

from __future__ import annotations

import torch

from perfmodel.base.errors import UsageError
from perfmodel.validate.quantizers.grid import Grid, Quantized, Scales, find_scales

#: Columns whose updates of later columns are gathered.
BLOCK = 128
#: Share of the Hessian's mean diagonal that is added to it.
DAMPING = 0.01


def hessian(x: torch.Tensor) -> torch.Tensor:
    """``2/n X^T X`` of calibration inputs ``(n, in)``."""
    return 2.0 / x.shape[0] * (x.T @ x)


def cholesky_of_inverse(h: torch.Tensor, damping: float = DAMPING) -> torch.Tensor:
    """Upper factor ``U`` with ``U^T U = (H + damping mean(diag H) I)^-1``.

    Raises UsageError for a Hessian that is not positive definite even so.
    """
    diagonal = torch.arange(h.shape[0])
    safe = h.clone()
    safe[diagonal, diagonal] += damping * float(h.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(safe)
    if int(failed):
        raise UsageError("the inputs' Hessian is not positive definite; give more inputs or more damping")
    inverse = torch.cholesky_inverse(factor)
    return torch.linalg.cholesky(inverse, upper=True)


def gptq(
    w: torch.Tensor, h: torch.Tensor, grid: Grid, *, act_order: bool = False, block: int = BLOCK,
    damping: float = DAMPING,
) -> Quantized:  # fmt: skip
    """Quantize a matrix with compensation.

    Parameters
    ----------
    w : torch.Tensor
        (out, in), float32 or float64.
    h : torch.Tensor
        From ``hessian``.
    grid : Grid
        A group's scale is set when its first column is reached, from the weights as they then are; a scale a channel or
        a tensor from the weights as they were.
    act_order : bool
        Whether columns are taken by falling diagonal of H; groups are then of columns in that order.

    Returns
    -------
    Quantized
    """
    inputs = w.shape[1]
    size = grid.columns(inputs)
    order = torch.argsort(h.diagonal(), descending=True) if act_order else None
    work = (w if order is None else w[:, order]).clone()
    ordered = h if order is None else h[order][:, order]
    dead = ordered.diagonal() == 0  # inputs that are always 0: their weights do not matter
    work[:, dead] = 0
    ordered = ordered.clone()
    ordered[dead, dead] = 1
    upper = cholesky_of_inverse(ordered, damping)
    fixed = find_scales(work, grid) if not grid.group else None
    scale = torch.empty(w.shape[0], inputs // size, dtype=w.dtype)
    zero, integers = torch.empty_like(scale), torch.empty_like(work)
    for start in range(0, inputs, block):
        stop = min(start + block, inputs)
        errors = torch.empty(w.shape[0], stop - start, dtype=w.dtype)
        for i in range(start, stop):
            if i % size == 0:
                part = work[:, i : i + size]
                if i + size > stop:  # columns of later blocks have not met this block's errors yet
                    part = part.clone()
                    part[:, stop - i :] -= errors[:, : i - start] @ upper[start:i, stop : i + size]
                found = fixed or find_scales(part, Grid(grid.bits, grid.symmetric, 0))
                scale[:, i // size], zero[:, i // size] = found.scale[:, 0], found.zero[:, 0]
            s, z, column = scale[:, i // size], zero[:, i // size], work[:, i]
            integers[:, i] = torch.clamp(torch.round(column / s) + z, grid.low, grid.high)
            error = (column - (integers[:, i] - z) * s) / upper[i, i]
            work[:, i:stop] -= error[:, None] * upper[i, i:stop][None, :]
            errors[:, i - start] = error
        work[:, stop:] -= errors @ upper[start:stop, stop:]
    if order is not None:
        back = torch.empty_like(order)
        back[order] = torch.arange(inputs)
        integers = integers[:, back]
    return Quantized("GPTQ, act-order" if act_order else "GPTQ", grid, integers, Scales(scale, zero), order)
