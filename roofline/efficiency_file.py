"""The files of fitted efficiencies: what is in them, and how they become kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfmodel.base.errors import SpecError
from perfmodel.base.units import parse
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.roofline.calibrated.forms import FORMS
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.calibrated.residual import Residual
from perfmodel.roofline.efficiency_step import StepFit, StepSpec, step_fit


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IntervalSpec(_Strict):
    """An 80 % interval of measured over predicted, for predictions below a time."""

    below: str | None = Field(None, description="a time; the last one has none")
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    rows: int = 0

    def regime(self) -> Regime:
        """As the kernels take it."""
        return Regime(parse(self.below, "s") if self.below else float("inf"), self.low, self.high, self.rows)


class ResidualSpec(_Strict):
    """Numbers of the smooth correction."""

    features: list[str]
    mean: list[float]
    scale: list[float]
    low: list[float]
    high: list[float]
    constant: float
    weights: list[float]

    def build(self) -> Residual:
        """As the kernels take it.

        Raises
        ------
        ValueError
            When the numbers do not match the features.
        """
        n = len(self.features)
        lists = (self.mean, self.scale, self.low, self.high)
        if any(len(x) != n for x in lists) or len(self.weights) != n + n * (n + 1) // 2:
            raise ValueError(f"the residual's lists do not match its {n} features")
        mean, scale, low, high, weights = (np.array(x, np.float64) for x in (*lists, self.weights))
        return Residual(tuple(self.features), mean, scale, low, high, self.constant, weights)


class KernelSpec(_Strict):
    """One fitted operator kind."""

    kind: str
    format: str
    form: str
    version: str = ""
    kernels: str = Field("", description="as the engine names them")
    table: str = ""
    rows: int = 0
    excluded: int = Field(0, description="rows faster than the bound")
    parameters: dict[str, str | float]
    sigma: dict[str, float] = Field({}, description="standard error of the logarithm of each parameter")
    correlation: list[list[float]] = Field([], description="of the logarithms, lower triangle, in the order of sigma")
    facts: dict[str, Any] = {}
    families: dict[str, dict[str, str | float]] = {}
    simple: dict[str, str | float] | None = Field(None, description="the simple form, for other architectures")
    residual: ResidualSpec | None = None
    intervals: list[IntervalSpec] = []
    spread: dict[str, float] = {}
    scores: dict[str, float] = {}

    @field_validator("form")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in FORMS:
            raise ValueError(f"{name!r} is not a form; there are {', '.join(FORMS)}")
        return name


class FitSpec(_Strict):
    """A file of fitted efficiencies."""

    title: str
    gpu: str
    engine: str
    date: str
    source: str
    licence: str = ""
    machine: str = Field("", description="the very machine that was measured, as its system names it")
    kernels: list[KernelSpec] = []
    step: StepSpec | None = Field(None, description="times of whole steps, fitted to an engine's log")

    @model_validator(mode="after")
    def _something(self) -> FitSpec:
        if not self.kernels and self.step is None:
            raise ValueError("it holds neither kernels nor a step: nothing is fitted in it")
        return self


class TransferSpec(_Strict):
    """How a kind transfers to another architecture."""

    form: str
    mape: float
    rows: int
    pairs: list[str] = []
    coverage80: float | None = None
    intervals: list[IntervalSpec]
    spread: dict[str, float] = {}


class TransfersSpec(_Strict):
    """The file of transfers."""

    title: str
    date: str
    kinds: dict[str, dict[str, TransferSpec]] = Field(description="kind -> newer or older -> how it transfers")


@dataclass(frozen=True)
class Fit:
    """The kernels of one file.

    Attributes
    ----------
    gpu, engine : str
    kernels : dict
        (kind, format) -> kernel.
    simple : dict
        (kind, format) -> parameters of the simple form.
    versions : dict
        (kind, format) -> version of the engine.
    gap : float
        Launch of its fastest GEMM kernel; 0 without any. [s]
    step : StepFit, optional
        Times of whole steps.
    machine : str
        The very machine that was measured, where it is one.
    remark : str
        What to add where its parameters are said to come from.
    file : str
        Name of the user's file that it was read from; empty for a shipped one.
    place : str
        The other processor on which its shares were recorded, where it is that.
    """

    gpu: str
    engine: str
    kernels: dict[tuple[str, str], Kernel]
    simple: dict[tuple[str, str], dict[str, float]]
    versions: dict[tuple[str, str], str]
    gap: float
    step: StepFit | None = None
    machine: str = ""
    remark: str = ""
    file: str = ""
    place: str = ""

    def version(self, kernel: Kernel) -> str:
        """Of the engine that a kernel was measured with."""
        return self.versions[kernel.kind, kernel.fmt]


@dataclass(frozen=True)
class Transferred:
    """How a kind transfers: the form, and the intervals and spreads of such predictions."""

    form: str
    regimes: tuple[Regime, ...]
    shared: float
    own: float


def read_fit(path: Path) -> Fit:
    """Read a file of fitted efficiencies.

    Raises
    ------
    SpecError
        When it is not one, or lacks a parameter.
    """
    return as_fit(load_yaml(path), path)


def as_fit(data: dict[str, Any], path: Path) -> Fit:
    """The content of a file as a fit; ``path`` is for messages.

    Raises
    ------
    SpecError
    """
    spec = build(FitSpec, data, path)
    kernels = {(k.kind, k.format): _kernel(k, path) for k in spec.kernels}
    simple = {(k.kind, k.format): _values(k.simple, "simple", path) for k in spec.kernels if k.simple}
    versions = {(k.kind, k.format): k.version for k in spec.kernels}
    gap = min((k.params["launch"] for k in kernels.values() if k.kind == "gemm"), default=0.0)
    step = step_fit(spec.step, spec.gpu, spec.engine, path) if spec.step else None
    remark = f", measured on this machine on {spec.date}" if spec.machine else ""
    return Fit(spec.gpu, spec.engine, kernels, simple, versions, gap, step, spec.machine, remark)


def read_transfer(path: Path) -> dict[tuple[str, str], Transferred]:
    """Read the file of transfers: (kind, ``newer`` or ``older``) -> how it transfers."""
    spec = build(TransfersSpec, load_yaml(path), path)
    return {
        (kind, way): Transferred(
            t.form, tuple(i.regime() for i in t.intervals), t.spread.get("shared", 0.0), t.spread.get("own", 0.0)
        )
        for kind, ways in spec.kinds.items()
        for way, t in ways.items()
    }


def _kernel(spec: KernelSpec, path: Path) -> Kernel:
    where = f"kernels: {spec.kind} {spec.format}"
    params = _values(spec.parameters, spec.form, path)
    if missing := [p.name for p in FORMS[spec.form].params if p.name not in params]:
        raise SpecError(path, where, f"lacks the parameters {', '.join(missing)} of the form {spec.form}")
    families = {name: _values(values, spec.form, path) for name, values in spec.families.items()}
    try:
        residual = spec.residual.build() if spec.residual else None
        regimes = tuple(i.regime() for i in spec.intervals)
    except ValueError as error:
        raise SpecError(path, where, str(error)) from error
    return Kernel(
        spec.kind, spec.format, FORMS[spec.form], params, spec.facts, families, residual, regimes,
        spec.spread.get("shared", 0.0), spec.spread.get("own", 0.0),
    )  # fmt: skip


def _values(given: dict[str, str | float] | None, form: str, path: Path) -> dict[str, float]:
    """Parameters in SI: times are written with their unit."""
    units = {p.name: p.unit for p in FORMS[form].params}
    found: dict[str, float] = {}
    for name, value in (given or {}).items():
        if name not in units:
            raise SpecError(path, name, f"is not a parameter of the form {form}; it has {', '.join(units)}")
        try:
            found[name] = parse(value, "s") if units[name] == "s" else float(value)
        except ValueError as error:
            raise SpecError(path, name, str(error)) from error
    return found
