"""A small, smooth correction of a physical form: a ridge-regularised quadratic in the logarithms of physical features.

    factor = exp(clip(constant + sum_i a_i z_i + sum_{i<=j} b_ij z_i z_j))

``z_i`` are the standardised logarithms of the features (shape, waves, work an SM, cache size), clipped to the range
that was fitted, so that it never extrapolates. It holds a few dozen numbers a cell and no row of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num

#: Largest correction, as a logarithm.
LIMIT = 0.7


@dataclass(frozen=True)
class Residual:
    """The correction of one cell.

    Attributes
    ----------
    features : tuple[str, ...]
    mean, scale, low, high : NDArray
        Of the features' logarithms: mean, standard deviation and range.
    constant : float
    weights : NDArray
        First the linear ones, then the upper triangle of the products.
    """

    features: tuple[str, ...]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    constant: float
    weights: NDArray[np.float64]

    def factor(self, values: Mapping[str, Num]) -> Num:
        """What to multiply a time with, between ``exp(-0.7)`` and ``exp(0.7)``."""
        z = [
            (np.minimum(np.maximum(np.log(values[name]), self.low[i]), self.high[i]) - self.mean[i]) / self.scale[i]
            for i, name in enumerate(self.features)
        ]
        total: Any = self.constant
        at = len(z)
        for i, zi in enumerate(z):
            inner: Any = self.weights[i]
            for zj in z[i:]:
                inner = inner + self.weights[at] * zj
                at += 1
            total = total + zi * inner
        found: Num = np.exp(np.minimum(np.maximum(total, -LIMIT), LIMIT))
        return found
