"""SmoothQuant: outlier channels of the inputs are divided down and the weights multiplied up, exactly.

``Y = X W^T = (X diag(s)^-1) (W diag(s))^T`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``: both factors can then be
rounded to 8 bits. ``a = 1`` moves all of the difficulty to the weights; ``a = 0`` makes every column of the weights
equally large whatever the inputs.

Source: Xiao et al., "SmoothQuant" (arXiv:2211.10438), equation 4.
"""

from __future__ import annotations

import torch

from perfmodel.base.errors import UsageError
from perfmodel.validate.quantizers.grid import Grid, find_scales, round_to_nearest, to_integers, to_values

#: Smallest largest value of a channel that counts.
LEAST = 1e-5


def smoothing(x_max: torch.Tensor, w: torch.Tensor, alpha: float = 0.5) -> torch.Tensor:
    """``s_j`` of each input channel.

    Parameters
    ----------
    x_max : torch.Tensor
        Largest absolute input of each channel (in,).
    w : torch.Tensor
        (out, in).
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha is {alpha:g}; it must be between 0 and 1")
    return x_max.clamp(min=LEAST) ** alpha / w.abs().amax(dim=0).clamp(min=LEAST) ** (1 - alpha)


def smoothed(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``X diag(s)^-1`` and ``W diag(s)``, whose product is that of X and W."""
    return x / s, w * s


def int8_product(x: torch.Tensor, w: torch.Tensor, per_token: bool = True) -> torch.Tensor:
    """``X W^T`` with both rounded to 8 bits: weights a scale a channel, inputs a scale a token (or one in all)."""
    grid = Grid(8, group=0 if per_token else None)
    inputs = to_values(to_integers(x, find_scales(x, grid), grid), find_scales(x, grid))
    return inputs @ round_to_nearest(w, Grid(8)).values().T
