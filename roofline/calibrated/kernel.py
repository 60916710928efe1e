"""A fitted operator kind of one GPU and engine: its form, parameters, correction and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Params, Parts, Shape
from perfmodel.roofline.calibrated.residual import Residual


@dataclass(frozen=True)
class Regime:
    """80 % interval of predictions up to a time, as factors on them.

    Attributes
    ----------
    below : float
        Predictions under this belong here. [s]
    low, high : float
        Of measured over predicted, from rows that the fit did not see.
    rows : int
        How many.
    """

    below: float
    low: float
    high: float
    rows: int = 0


@dataclass(frozen=True)
class Kernel:
    """One fitted operator kind.

    Attributes
    ----------
    kind, fmt : str
        Such as ``decode`` and ``fp8``.
    form : Form
    params : Mapping
        In SI.
    facts : Mapping
        What is known about the engine's kernels.
    families : Mapping[str, Mapping]
        Parameters of kernels that differ from the others.
    residual : Residual, optional
    regimes : tuple[Regime, ...]
        By rising ``below``.
    shared, own : float
        Standard deviation of the log error that all shapes of one model share, and of the rest.
    origin : str
        Where the parameters come from, in words.
    """

    kind: str
    fmt: str
    form: Form
    params: Params
    facts: Facts = field(default_factory=dict)
    families: Mapping[str, Params] = field(default_factory=dict)
    residual: Residual | None = None
    regimes: tuple[Regime, ...] = ()
    shared: float = 0.0
    own: float = 0.0
    origin: str = ""

    def member(self, name: str) -> Kernel:
        """The kernel with the numbers of one of its families; itself where that has none."""
        return replace(self, params={**self.params, **self.families[name]}) if name in self.families else self

    def parts(self, shape: Shape, chip: Chip) -> Parts:
        """Named parts of the physical time of a shape of one family. [s]"""
        name = self.form.family(shape, self.facts)
        return self.form.parts({**self.params, **self.families.get(str(name), {})}, shape, chip, self.facts)

    def physics(self, shape: Shape, chip: Chip) -> Num:
        """Time by the physical form alone. [s]"""
        names = self.form.family(shape, self.facts)
        if not self.families or isinstance(names, str):
            chosen = self.families.get(names, {}) if isinstance(names, str) else {}
            return self.form.time({**self.params, **chosen}, shape, chip, self.facts)
        whole = np.broadcast_shapes(names.shape, *(np.shape(v) for v in shape.values() if not isinstance(v, str)))
        names, out = np.broadcast_to(names, whole), np.empty(whole)
        for name in np.unique(names):
            rows = names == name
            part = {
                k: v if isinstance(v, str) else np.broadcast_to(v, whole)[rows]
                for k, v in shape.items()
                if k != "family"
            }
            out[rows] = self.form.time({**self.params, **self.families.get(str(name), {})}, part, chip, self.facts)
        return out

    def correction(self, shape: Shape, chip: Chip) -> Num:
        """Factor of the smooth correction; 1 without one."""
        return 1.0 if self.residual is None else self.residual.factor(self.form.features(shape, chip, self.facts))

    def time(self, shape: Shape, chip: Chip, bound: Num = 0.0) -> Num:
        """Time of one call, never below ``bound``. [s]"""
        found: Num = np.maximum(self.physics(shape, chip) * self.correction(shape, chip), bound)
        return found

    def interval(self, predicted: Num, bound: Num = 0.0) -> tuple[Num, Num]:
        """80 % interval of a prediction, its lower end never below ``bound``. The prediction is in it. [s]"""
        low: Any = self.regimes[-1].low if self.regimes else 0.0
        high: Any = self.regimes[-1].high if self.regimes else np.inf
        for regime in reversed(self.regimes[:-1]):
            inside = predicted < regime.below
            low, high = np.where(inside, regime.low, low), np.where(inside, regime.high, high)
        bottom: Num = np.maximum(predicted * np.minimum(low, 1.0), bound)
        return bottom, predicted * np.maximum(high, 1.0)
