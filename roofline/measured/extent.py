"""Where a table reaches: the range of each size in it, and of the products and ratios of any two and of all.

A decode table that holds batch 512 at short and context 128k at small batches does not reach batch 512 at 128k: the
product, which is the cache that is read, is out of its range although both sizes are in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A size is in range up to this part of itself beyond the ends: rounding, not reach.
SLACK = 1e-6


@dataclass(frozen=True)
class Extent:
    """The ranges of a set of points, whose coordinates are logarithms."""

    directions: Array
    low: Array
    high: Array

    def holds(self, queries: Array) -> NDArray[np.bool_]:
        """Whether each query is in all ranges."""
        along = queries @ self.directions.T
        found: NDArray[np.bool_] = np.all((along >= self.low - SLACK) & (along <= self.high + SLACK), axis=1)
        return found


def directions(count: int) -> Array:
    """Directions in ``count`` coordinates: each, the sum and difference of any two, and the sum of all.

    >>> directions(2).tolist()
    [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]]
    """
    found = [np.eye(count)[i] for i in range(count)]
    for i, j in combinations(range(count), 2):
        found += [np.eye(count)[i] + np.eye(count)[j], np.eye(count)[i] - np.eye(count)[j]]
    if count > 2:
        found.append(np.ones(count))
    return np.array(found)


def extent(points: Array) -> Extent:
    """Of one or more points."""
    ways = directions(points.shape[1])
    along = points @ ways.T
    return Extent(ways, along.min(0), along.max(0))


def inside_others(points: Array) -> NDArray[np.bool_]:
    """Whether each point is in the ranges of all the others: it could have been interpolated."""
    if len(points) < 3:
        return np.zeros(len(points), bool)
    along = points @ directions(points.shape[1]).T
    order = np.sort(along, axis=0)
    low = np.where(along <= order[0], order[1], order[0])
    high = np.where(along >= order[-1], order[-2], order[-1])
    found: NDArray[np.bool_] = np.all((along >= low - SLACK) & (along <= high + SLACK), axis=1)
    return found
