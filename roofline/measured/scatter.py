"""Ratios at scattered places, and between them: exact where there is a row, interpolated with an interval elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.measured.extent import Extent, extent, inside_others
from perfmodel.roofline.measured.kriging import Field, fitted, selection

Array = NDArray[np.float64]

#: Standard deviation of the logarithm of a time measured again, where a table has too few shapes twice to tell.
#: Assumed: repeated rows of one run differ by 0.3 to 1 %, runs on other days by more.
NOISE = 0.02
#: Shapes measured twice that tell the noise; rows that could have been interpolated, for an interval of their errors.
LEAST_TWICE, LEAST_ERRORS = 8, 20
#: Standard deviations from the middle to the end of an 80 % interval of a normal distribution.
TAIL = 1.2816
#: A place farther than this from all rows, as the root of the squares of logarithms of sizes, is not interpolated.
FAR = 3.0
#: Two places are one within this, in logarithms of sizes.
HERE = 1e-6
#: Repeated times that differ by more are counted.
APART = 0.1

#: Standard deviation of the logarithm where too few rows tell.
UNKNOWN = 0.1

EXACT, BETWEEN, OUTSIDE = 0, 1, 2


@dataclass(frozen=True)
class Found:
    """Logarithms of measured over calibrated time at some places.

    Attributes
    ----------
    value, low, high : Array
        With the ends of the 80 % interval.
    sigma : Array
        Standard deviation.
    state : NDArray
        ``EXACT``, ``BETWEEN`` or ``OUTSIDE``; the other fields mean nothing outside.
    """

    value: Array
    low: Array
    high: Array
    sigma: Array
    state: NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """Errors where the variance is 1: robust standard deviation, and the 80 % interval in units of it."""

    scale: float
    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float, float]:
        """Standard deviation, lower and upper end; zero is between them."""
        return self.scale, self.scale * min(self.low, 0.0), self.scale * max(self.high, 0.0)


class Scatter:
    """Ratios at scattered places.

    Parameters
    ----------
    points : Array
        Logarithms of sizes, one row a measurement.
    ratio : Array
        Logarithms of measured over modelled time.
    line : sequence of int
        Columns of the sizes that belong to a model: rows that agree in them are a line.
    tuned : bool
        Whether a line without rows is out of reach.
    """

    def __init__(self, points: Array, ratio: Array, line: Sequence[int] = (), tuned: bool = False) -> None:
        self.points, self.ratio, self.noise, self.twice = _together(points, ratio)
        self.tuned, self.columns, self.rows = tuned, list(line), len(self.ratio)
        self.reach: Extent | None = None
        if self.rows:
            self.reach, self.centre = extent(self.points), float(np.median(self.ratio))
            self.field: Field = fitted(self.points, self.ratio - self.centre)
            self.seen, self.new = self._errors()

    def _errors(self) -> tuple[Spread, Spread]:
        """Errors of rows left out in turn: each by itself, and with all others of the same model sizes."""
        able = np.flatnonzero(inside_others(self.points))
        able = able[selection(len(able))]
        if len(able) < LEAST_ERRORS:
            spread = Spread(max(float(np.std(self.ratio)), UNKNOWN), -TAIL, TAIL)
            return spread, spread
        seen = self._spread(able, np.arange(self.rows))
        line = np.unique(self.points[:, self.columns].round(9), axis=0, return_inverse=True)[1].reshape(-1)
        new = self._spread(able, line) if self.columns and line.max() else seen
        return seen, new if new.scale > seen.scale else seen

    def _spread(self, able: NDArray[np.int64], group: NDArray[np.int64]) -> Spread:
        value, variance, distance = self.field.left_out(able, group)
        error = (self.ratio[able] - self.centre - value) / np.sqrt(variance + self.field.nugget)
        near = distance <= FAR
        error = error[near] if near.sum() >= LEAST_ERRORS else error
        scale = max(1.4826 * float(np.median(np.abs(error))), 1e-3)
        return Spread(scale, *_ends(error / scale))

    def at(self, places: Array) -> Found:
        """Ratios at places, one row each, whose coordinates are logarithms of the sizes."""
        if self.reach is None:
            zero = np.zeros(len(places))
            return Found(zero, zero, zero, zero, np.full(len(places), OUTSIDE))
        value, variance, index, distance = self.field.at(places)
        exact, first = distance <= HERE, index[:, 0]
        apart = np.abs(self.points[index][:, :, self.columns] - places[:, None, self.columns])
        line = np.any(np.all(apart <= HERE, axis=2), axis=1)
        between = self.reach.holds(places) & (distance <= FAR) & (line | (not self.tuned))
        state = np.where(exact, EXACT, np.where(between, BETWEEN, OUTSIDE))
        root = np.sqrt(variance + self.field.nugget)
        wide, down, up = (np.where(line, a, b) * root for a, b in zip(self.seen.ends, self.new.ends, strict=True))
        noise = self.noise[first]
        value = np.where(exact, self.ratio[first], value + self.centre)
        low, high = np.where(exact, -TAIL * noise, down), np.where(exact, TAIL * noise, up)
        return Found(value, value + low, value + high, np.where(exact, noise, wide), state)

    def errors(self) -> tuple[Array, Array]:
        """Logarithmic errors of interpolation, each row from the others, and of the calibrated times of the same rows.

        Of rows that are in the range of the others: those outside are not interpolated.
        """
        able = np.flatnonzero(inside_others(self.points))
        if not len(able):
            return np.zeros(0), np.zeros(0)
        value, _, distance = self.field.left_out(able)
        near = distance <= FAR
        return (value + self.centre - self.ratio[able])[near], -self.ratio[able][near]


def _ends(error: Array) -> tuple[float, float]:
    """Quantiles of errors for an 80 % interval, taken outwards for their number (split-conformal)."""
    n, order = len(error), np.sort(error)
    low, high = int(np.floor((n + 1) * 0.1)) - 1, int(np.ceil((n + 1) * 0.9)) - 1
    return float(order[max(low, 0)]), float(order[min(high, n - 1)])


def _together(points: Array, ratio: Array) -> tuple[Array, Array, Array, int]:
    """Rows of one shape as one: places, medians, noise of each, and how many shapes have times far apart.

    The noise of a shape is that of the table, or its own spread where its times differ by more.
    """
    if not len(points):
        return points, ratio, ratio, 0
    distinct, back = np.unique(points.round(9), axis=0, return_inverse=True)
    back = back.reshape(-1)
    count = np.bincount(back)
    if count.max() == 1:
        order = np.argsort(back)
        return points[order], ratio[order], np.full(len(points), NOISE), 0
    middle, spread = np.empty(len(count)), np.zeros(len(count))
    order = np.argsort(back, kind="stable")
    for shape, rows in enumerate(np.split(order, np.cumsum(count)[:-1])):
        middle[shape] = np.median(ratio[rows])
        spread[shape] = np.ptp(ratio[rows]) / 2 if len(rows) > 1 else 0.0
    many = count > 1
    common = float(np.median(spread[many])) * 1.4826 * np.sqrt(2) if many.sum() >= LEAST_TWICE else NOISE
    common = max(common, 0.002)
    return distinct, middle, np.maximum(common, spread), int((spread > APART / 2).sum())
