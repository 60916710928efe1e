"""What a form is: named parameters with units, and a function from a shape to the parts of a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip

Params = Mapping[str, float]
Shape = Mapping[str, Any]
Facts = Mapping[str, Any]
Parts = dict[str, Num]


@dataclass(frozen=True)
class Param:
    """A fitted parameter.

    Attributes
    ----------
    name : str
    start : float
        Where the fit starts, and what a parameter that the rows do not identify stays near; SI.
    unit : str
        ``s`` or ``1``.
    meaning : str
    pull : float
        How firmly the fit holds it near ``start``, relative to the other parameters: more for what makes one kernel
        differ from the others, so that a kernel without rows is like them.
    """

    name: str
    start: float
    unit: str
    meaning: str
    pull: float = 1.0


@dataclass(frozen=True)
class Form:
    """A physical form of one operator kind.

    Attributes
    ----------
    name : str
    params : tuple[Param, ...]
    parts : Callable
        ``(params, shape, chip, facts) -> {part: seconds}``; the parts add up to the time.
    features : Callable, optional
        ``(shape, chip, facts) -> {feature: Num}``: positive physical quantities, of whose logarithms a residual may be
        a smooth function.
    family : Callable, optional
        ``(shape, facts) -> name`` or an array of names: which of several kernels of the engine runs, where they have
        parameters of their own.
    """

    name: str
    params: tuple[Param, ...]
    parts: Callable[[Params, Shape, Chip, Facts], Parts]
    features: Callable[[Shape, Chip, Facts], dict[str, Num]]
    family: Callable[[Shape, Facts], Any] = lambda shape, facts: ""

    @property
    def start(self) -> dict[str, float]:
        """Starting values."""
        return {p.name: p.start for p in self.params}

    def time(self, params: Params, shape: Shape, chip: Chip, facts: Facts) -> Num:
        """The time of one call. [s]"""
        total: Num = 0.0
        for seconds in self.parts(params, shape, chip, facts).values():
            total = total + seconds
        return total


def cdiv(a: Num, b: Num) -> Num:
    """Whole parts of size ``b`` that hold ``a``.

    >>> float(cdiv(129.0, 64.0)), float(cdiv(128.0, 64.0))
    (3.0, 2.0)
    """
    return np.ceil(a / b - 1e-9)


def smax(a: Num, b: Num, q: float) -> Num:
    """Smooth maximum ``(a^q + b^q)^(1/q)``: ``q = 1`` adds (no overlap), large ``q`` takes the longer one.

    >>> float(smax(3.0, 4.0, 2.0)), float(smax(3.0, 4.0, 1.0))
    (5.0, 7.0)
    """
    hi, lo = np.maximum(a, b), np.minimum(a, b)
    found: Num = hi * (1 + (lo / np.maximum(hi, 1e-300)) ** q) ** (1 / q)
    return found


def waves(blocks: Num, slots: float, whole: float) -> Num:
    """Rounds that ``blocks`` equal blocks take on ``slots`` places: between ``blocks/slots`` and its ceiling.

    ``s ceil(x) + (1-s) x`` with ``s = whole/(1+whole)``, at least 1. ``whole`` is the odds that a partial last round
    costs a whole one; persistent and stream-K kernels lower it.

    >>> float(waves(150.0, 100.0, 1.0)), float(waves(50.0, 100.0, 1.0))
    (1.75, 1.0)
    """
    s = whole / (1 + whole)
    x = blocks / slots
    found: Num = np.where(x > 1, s * np.ceil(x - 1e-9) + (1 - s) * x, 1.0)
    return found


def cached(size: Num, capacity: float, sharpness: float) -> Num:
    """Share of a warm working set that the L2 still holds: ``1/(1 + (size/capacity)^sharpness)``."""
    return 1 / (1 + (size / capacity) ** sharpness)
