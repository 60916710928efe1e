"""The number type of the library: a float or an array of floats, handled by the same code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Num = float | NDArray[np.float64]


def as_num(value: object) -> Num:
    """Turn a Python or NumPy number, or a sequence of them, into ``Num`` (float64: int64 FLOPs overflow).

    >>> as_num(3)
    3.0
    >>> as_num([1, 2])
    array([1., 2.])
    """
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array
