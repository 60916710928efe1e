"""Interpolation of scattered values from the nearest points, with its variance (ordinary local kriging, zero mean).

    value = w . y,   w = (exp(-D/length) + nugget I)^-1 exp(-d/length),   variance = 1 + nugget - w . exp(-d/length)

``d`` are distances from the query to its nearest points, ``D`` those between them, in natural logarithms of the
coordinates. Far from all points the value goes to zero and the variance to ``1 + nugget``: it never extrapolates a
trend. Source: Cressie, Statistics for Spatial Data (1993), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Points that a value is made of.
NEAREST = 20
#: Lengths (e-folds of a coordinate) and nuggets (variance at one place, of that far apart) to choose from.
LENGTHS, NUGGETS = (2.0, 4.0), (0.05, 0.3, 1.0, 4.0, 16.0)
#: Distances that are held in memory at a time.
HELD = 1 << 22
#: Points at which the choice, and the errors, are evaluated: of more, an even selection.
JUDGED = 1500


@dataclass(frozen=True)
class Field:
    """Values at points.

    Attributes
    ----------
    points : Array
        Coordinates, one row a point.
    values : Array
    length, nugget : float
        Of the covariance.
    """

    points: Array
    values: Array
    length: float = 4.0
    nugget: float = 0.05

    def at(self, queries: Array) -> tuple[Array, Array, NDArray[np.int64], Array]:
        """Values at other places.

        Returns
        -------
        value, variance : Array
            The variance in units of that of places far apart, without nugget.
        index : NDArray
            Numbers of the nearest points, by rising distance.
        distance : Array
            To the nearest one.
        """
        index, distance = nearest(self.points, queries, NEAREST)
        value, variance = self._solve(index, distance)
        return value, variance, index, distance[:, 0]

    def left_out(self, rows: NDArray[np.int64], group: NDArray[np.int64] | None = None) -> tuple[Array, Array, Array]:
        """Value, variance and least distance at some of its own points, each from the others or from other groups'."""
        group = np.arange(len(self.points)) if group is None else group
        index, distance = nearest(self.points, self.points[rows], NEAREST, (group[rows], group))
        return *self._solve(index, distance), distance[:, 0]

    def _solve(self, index: NDArray[np.int64], distance: Array) -> tuple[Array, Array]:
        near = self.points[index]
        apart = np.sqrt(((near[:, :, None, :] - near[:, None, :, :]) ** 2).sum(-1))
        within = np.exp(-apart / self.length) + (self.nugget + 1e-9) * np.eye(index.shape[1])
        to = np.exp(-distance / self.length)
        weight = np.linalg.solve(within, to[..., None])[..., 0]
        return (weight * self.values[index]).sum(1), np.clip(1 - (weight * to).sum(1), 0.0, 1.0)


def nearest(
    points: Array, queries: Array, count: int, apart: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
) -> tuple[NDArray[np.int64], Array]:
    """Numbers of the nearest points and their distances, by rising distance.

    Parameters
    ----------
    apart : (NDArray, NDArray), optional
        Groups of the queries and of the points: those of its own group are infinitely far from a query.
    """
    count, step = min(count, len(points)), max(1, HELD // len(points))
    numbers, distances = [], []
    for at in range(0, len(queries), step):
        some = queries[at : at + step]
        d = np.zeros((len(some), len(points)))
        for axis in range(points.shape[1]):
            d += (some[:, axis, None] - points[None, :, axis]) ** 2
        if apart is not None:
            d[apart[0][at : at + step, None] == apart[1][None, :]] = np.inf
        index = np.argpartition(d, count - 1, axis=1)[:, :count]
        taken = np.take_along_axis(d, index, 1)
        order = np.argsort(taken, axis=1, kind="stable")
        numbers.append(np.take_along_axis(index, order, 1))
        distances.append(np.sqrt(np.take_along_axis(taken, order, 1)))
    return np.concatenate(numbers), np.concatenate(distances)


def selection(count: int) -> NDArray[np.int64]:
    """Numbers of at most ``JUDGED`` of so many rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, JUDGED)).round().astype(np.int64))


def fitted(points: Array, values: Array) -> Field:
    """The field whose length and nugget predict points left out best, by mean error of ``exp(value)``.

    Rows that differ from the rest by a kernel of their own make a large nugget: values are then drawn towards zero.
    """
    if len(points) < 3:
        return Field(points, values)
    rows = selection(len(points))
    rows = rows[:: max(1, len(rows) // 500)]
    best, chosen = np.inf, Field(points, values)
    for length in LENGTHS:
        for nugget in NUGGETS:
            field = Field(points, values, length, nugget)
            error = float(np.abs(np.expm1(field.left_out(rows)[0] - values[rows])).mean())
            if error < best * (1 - 1e-9):
                best, chosen = error, field
    return chosen
