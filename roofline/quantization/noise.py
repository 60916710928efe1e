"""Formulas of quantization error: scales, steps, rounding, clipping, what GPTQ's blocks save.

For people and for the claims about a textbook chapter; what is measured on weights is in ``validate.quantizers``.
"""

from __future__ import annotations

from math import erfc, exp, pi, sqrt

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.formats import Format


def symmetric_scale(largest: float, bits: int) -> float:
    """``max|x| / (2^(b-1) - 1)``: the step of a grid whose integers are -(2^(b-1) - 1) to 2^(b-1) - 1.

    With twice the range over ``2^b - 1`` instead, the largest value would be clipped: that divides the range among one
    integer more than there are.

    >>> round(symmetric_scale(8.0, 8), 3), round(symmetric_scale(8.0, 4), 3)
    (0.063, 1.143)
    """
    if bits < 2:
        raise UsageError(f"{bits} bits; a symmetric grid needs 2 at least")
    return float(largest / (2 ** (bits - 1) - 1))


def asymmetric_scale(low: float, high: float, bits: int) -> float:
    """``(max - min) / (2^b - 1)``.

    >>> round(asymmetric_scale(-1.0, 2.0, 4), 3)
    0.2
    """
    return float((high - low) / (2**bits - 1))


def steps_a_side(value: float, scale: float) -> float:
    """Steps between 0 and a value: how many levels it has on its side.

    >>> round(steps_a_side(0.5, symmetric_scale(8.0, 8)), 1)
    7.9
    """
    return value / scale


def metadata_bits(fmt: Format) -> float:
    """Bits an element that a format's scales and zero points take: of a group, over its elements.

    >>> from perfmodel.modelspecs.formats import FORMATS
    >>> metadata_bits(FORMATS["int4"])
    0.15625
    """
    group = fmt.group[1] if fmt.group else 0
    return (fmt.scale_bits + fmt.zero_bits) / group if group else 0.0


def normal_rounding(step: float) -> float:
    """Squared error of rounding a normal density of deviation 1 to multiples of a step, exactly.

    ``s^2/12 (1 + 12/pi^2 sum of (-1)^k/k^2 exp(-2 pi^2 k^2 / s^2))``; from a step of two deviations on ``s^2/12`` is
    too much.

    >>> round(normal_rounding(0.5) / (0.5**2 / 12), 6), round(normal_rounding(8.0), 3)
    (1.0, 1.0)
    """
    total = sum((-1.0) ** k / k**2 * exp(-2 * pi**2 * k**2 / step**2) for k in range(1, 400))
    return step**2 / 12 * (1 + 12 / pi**2 * total)


def normal_clipping(end: float) -> float:
    """Squared error of taking a normal density's values beyond ``+-end`` to the nearest end.

    ``2 integral beyond end of (x - end)^2 p(x) = 2 ((1 + end^2) Q(end) - end phi(end))``.

    >>> round(normal_clipping(2.0), 4)
    0.0115
    """
    tail, density = erfc(end / sqrt(2)) / 2, exp(-(end**2) / 2) / sqrt(2 * pi)
    return 2 * ((1 + end**2) * tail - end * density)


def normal_second_moment_beyond(end: float) -> float:
    """``2 integral beyond end of x^2 p(x)``: what is lost when such values are set to 0, not clipped.

    >>> round(normal_second_moment_beyond(2.0), 3)
    0.261
    """
    tail, density = erfc(end / sqrt(2)) / 2, exp(-(end**2) / 2) / sqrt(2 * pi)
    return 2 * (end * density + tail)


def gptq_flops(rows: int, columns: int) -> float:
    """FLOPs of GPTQ's updates: each column's error times a row of the factor into all later columns.

    ``2 rows sum of (columns - i)``, whatever the block: blocks do the same sums later.

    >>> gptq_flops(1, 4)
    12.0
    """
    return float(rows * columns * (columns - 1))


def gptq_traffic(rows: int, columns: int, block: int, width: int = 4) -> float:
    """Bytes of weights that GPTQ's updates read and write from memory, with blocks that stay in a cache. [bytes]

    Column by column every later column is read and written each time; with blocks each block is once, and what follows
    it once a block.

    >>> gptq_traffic(1, 4, 1, 1), gptq_traffic(1, 4, 2, 1)
    (20.0, 12.0)
    """
    if not 1 <= block <= columns:
        raise UsageError(f"a block of {block} columns of {columns}; give 1 to {columns}")
    starts = np.arange(0, columns, block)
    touched = columns - starts  # the block itself, and all that follows it
    return float(2 * width * rows * touched.sum())


def smoothing_gap(rows: int = 64, inputs: int = 128, outputs: int = 96) -> float:
    """Largest relative difference of a smoothed product from the plain one, FP64, fixed draws with outliers."""
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(rows, inputs)), draw.normal(size=(outputs, inputs))
    x[:, ::17] *= 50
    s = np.abs(x).max(0) ** 0.5 / np.abs(w).max(0) ** 0.5
    plain = x @ w.T
    return float(np.abs((x / s) @ (w * s).T - plain).max() / np.abs(plain).max())


def smoothing_spread(alpha: float, inputs: int = 128, outputs: int = 96) -> float:
    """Largest over smallest smoothing factor ``max|X|^a / max|W|^(1-a)`` of fixed draws; 1 would smooth nothing."""
    draw = np.random.default_rng(1)
    x, w = draw.normal(size=(64, inputs)), draw.normal(size=(outputs, inputs)) * draw.uniform(0.5, 2, inputs)
    s = np.abs(x).max(0) ** alpha / np.abs(w).max(0) ** (1 - alpha)
    return float(s.max() / s.min())


def salient_error(factor: float, bits: int = 4, rows: int = 2000) -> float:
    """Error of a column whose weights are multiplied by a factor before rounding, over its error without.

    Fixed draws: groups of 128 normal weights, the column's among them, symmetric grid; the factor is divided out again.
    About ``1 / factor`` squared while the column does not set the group's scale.
    """
    w = np.random.default_rng(2).normal(size=(rows, 128))
    errors = []
    for f in (1.0, factor):
        scaled = w.copy()
        scaled[:, 0] *= f
        step = np.abs(scaled).max(1, keepdims=True) / (2 ** (bits - 1) - 1)
        q = np.round(scaled / step) * step
        errors.append(float((((q[:, 0] / f) - w[:, 0]) ** 2).sum()))
    return errors[1] / errors[0]
