"""What theory says of rounding errors, to be put beside what is measured.

Rounding to a grid of step s leaves an error that is uniform over a step where the density is locally flat: its variance
is ``s^2 / 12``. That holds where the values spread over a step or more: in a group whose step is set by an outlier most
weights round to 0, and lose less than that. For a normal density of deviation ``d`` the exact factor on ``s^2 / 12`` is

    1 + 12/pi^2 sum over k of (-1)^k / k^2 exp(-2 pi^2 k^2 d^2 / s^2)

(Widrow and Kollar, "Quantization Noise", 2008, chapter 4): within 1 % of 1 from ``d = 0.6 s`` on. Clipping adds
``integral of (x - x_max)^2 p(x)`` beyond the ends. An error that is independent of the inputs makes an output error of
``sum_j var_j E[x_j^2]`` a row, so channels with large inputs carry most of it.
"""

from __future__ import annotations

from math import log10, pi

import torch

from perfmodel.validate.quantizers.grid import Grid, Quantized, Scales, find_scales


def rounding_variance(scales: Scales) -> float:
    """Mean of ``s^2 / 12`` over all weights: the predicted mean squared error of a matrix."""
    return float((scales.scale**2).mean()) / 12


#: Least deviation of a group's values, in steps, from which ``s^2 / 12`` holds.
FLAT_FROM = 1 / 1.5
#: A normal distribution's deviation over its median absolute deviation.
NORMAL = 1.4826


def deviation(w: torch.Tensor, groups: int) -> torch.Tensor:
    """Deviation of each group's bulk from 0, (out, groups): by the median, so that an outlier does not count."""
    return NORMAL * w.reshape(w.shape[0], groups, -1).abs().median(dim=2).values


def flat_groups(w: torch.Tensor, scales: Scales) -> torch.Tensor:
    """Which groups spread enough for ``s^2 / 12`` to hold, (out, groups)."""
    return deviation(w, scales.scale.shape[1]) >= FLAT_FROM * scales.scale


def spread_factor(w: torch.Tensor, scales: Scales) -> torch.Tensor:
    """Factor on ``s^2 / 12`` of each group for the finite spread of its values, (out, groups)."""
    ratio = (deviation(w, scales.scale.shape[1]) / scales.scale) ** 2
    found = torch.ones_like(ratio)
    for k in range(1, 6):
        found += 12 / pi**2 * (-1) ** k / k**2 * torch.exp(-2 * pi**2 * k * k * ratio)
    return found.clamp(min=0)


def spread_variance(w: torch.Tensor, grid: Grid) -> float:
    """Mean squared error expected of a matrix, with the finite spread of each group's values."""
    scales = find_scales(w, grid)
    return float((scales.scale**2 / 12 * spread_factor(w, scales)).mean())


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
