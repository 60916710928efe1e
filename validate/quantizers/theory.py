"""What theory says of rounding errors, to be put beside what is measured.

Rounding to a grid of step s leaves an error that is uniform over a step where the density is locally flat: its variance
is ``s^2 / 12``. Clipping adds ``integral of (x - x_max)^2 p(x)`` beyond the ends. An error that is independent of the
inputs makes an output error of ``sum_j var_j E[x_j^2]`` a row, so channels with large inputs carry most of it.
"""

from __future__ import annotations

from math import log10

import torch

from perfmodel.validate.quantizers.grid import Grid, Quantized, Scales, find_scales


def rounding_variance(scales: Scales) -> float:
    """Mean of ``s^2 / 12`` over all weights: the predicted mean squared error of a matrix."""
    return float((scales.scale**2).mean()) / 12


def clipping_error(w: torch.Tensor, low: float, high: float) -> float:
    """Mean squared error of values beyond ``[low, high]``, taken to the nearest end."""
    over, under = (w - high).clamp(min=0), (low - w).clamp(min=0)
    return float((over**2 + under**2).mean())


def output_error(w: torch.Tensor, q: torch.Tensor, x: torch.Tensor) -> float:
    """Relative error of the layer's output: ``||X (W - Q)^T||^2 / ||X W^T||^2``."""
    return float(((x @ (w - q).T) ** 2).sum() / ((x @ w.T) ** 2).sum())


def predicted_output_error(w: torch.Tensor, grid: Grid, x: torch.Tensor) -> float:
    """The same from theory, for rounding to nearest: ``sum_rows sum_j s^2/12 E[x_j^2]`` over the output's power."""
    scales = find_scales(w, grid)
    size = w.shape[1] // scales.scale.shape[1]
    variance = (scales.scale**2 / 12).repeat_interleave(size, dim=1)
    return float((variance * (x**2).mean(dim=0)).sum() * x.shape[0] / ((x @ w.T) ** 2).sum())


def sqnr_db(w: torch.Tensor, q: torch.Tensor) -> float:
    """Signal to quantization noise of a matrix. [dB]"""
    noise = float(((w - q) ** 2).sum())
    return 10 * log10(float((w**2).sum()) / noise) if noise else float("inf")


def salience(x: torch.Tensor, share: float = 0.01) -> float:
    """Share of the predicted output error that the top ``share`` of channels carry, by their inputs; one at least."""
    power = (x**2).mean(dim=0)
    top = max(1, round(share * power.numel()))
    return float(power.topk(top).values.sum() / power.sum())


def clipped(q: Quantized) -> float:
    """Share of weights at either end of the grid; rounding to nearest from the largest value has few."""
    return float(((q.integers == q.grid.low) | (q.integers == q.grid.high)).double().mean())
