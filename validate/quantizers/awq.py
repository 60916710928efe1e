"""AWQ: columns that meet large inputs are magnified before rounding, so that they lose less.

``W' = W diag(s)`` is rounded and its inputs are divided by s: the product is the same but for rounding, and the error
of a magnified column shrinks by s as long as it does not set its group's largest value. ``s_j = (mean |x_j|)^a``, with
a searched on a grid of 0 to 1 for the least error of the layer's output.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization" (arXiv:2306.00978), section 3.2, and the search of its
repository (20 steps, s divided by the root of its largest times its smallest value).
"""

from __future__ import annotations

import torch

from perfmodel.validate.quantizers.grid import Grid, Quantized, find_scales, to_integers

#: Steps of the search.
STEPS = 20
#: Smallest mean input that counts, as in AWQ's repository.
LEAST = 1e-4


def column_factors(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """``s_j``, scaled so that its largest times its smallest value is 1.

    Parameters
    ----------
    x : torch.Tensor
        Calibration inputs (n, in).
    """
    s = x.abs().mean(dim=0).clamp(min=LEAST) ** alpha
    return s / (s.max() * s.min()).sqrt()


def with_factors(w: torch.Tensor, s: torch.Tensor, grid: Grid, method: str = "AWQ") -> Quantized:
    """A matrix rounded after its columns were multiplied by ``s``."""
    magnified = w * s
    scales = find_scales(magnified, grid)
    return Quantized(method, grid, to_integers(magnified, scales, grid), scales, columns=s)


def awq(w: torch.Tensor, x: torch.Tensor, grid: Grid, steps: int = STEPS) -> Quantized:
    """The best of ``steps`` exponents of 0 to 1 (0 is rounding to nearest) by the squared error of ``X W^T``."""
    gram = x.T @ x
    best, least = with_factors(w, torch.ones(w.shape[1], dtype=w.dtype), grid), float("inf")
    for step in range(steps):
        found = with_factors(w, column_factors(x, step / steps), grid)
        off = w - found.values()
        error = float(((off @ gram) * off).sum())
        if error < least:
            best, least = found, error
    return best
