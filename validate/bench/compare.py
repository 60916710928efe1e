"""Measured beside predicted: the error of each case, what limits it, and where the time above the bound goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.form import smax
from perfmodel.roofline.calibrated.shapes import ask
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.op import Op
from perfmodel.roofline.times import HBM
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.operators import family, pack, unpack
from perfmodel.validate.bench.predict import CEILINGS, FITTED, Column, Prediction, bound, predict
from perfmodel.validate.bench.store import Result

#: Largest median error of a family that passes without `--tolerance`, where this machine's fit is judged and where the
#: default column is. The latter takes shares of the ceilings from elsewhere: 75 % is a factor of four when too short.
TOLERANCES: Mapping[str, Mapping[str, float]] = {
    FITTED: {"gemm": 0.25, "prefill": 0.3, "decode": 0.4, "experts": 0.35, "": 0.35},
    CEILINGS: {"gemm": 0.5, "": 0.75},
}
#: Sets of shapes: those that are fitted, and those that the fit is judged on.
FIT_SET, FRESH = "fit", "fresh"


@dataclass(frozen=True)
class Compared:
    """A case.

    Attributes
    ----------
    result : Result
    op : Op
    family : str
    predictions : Mapping[str, Prediction]
        By column.
    judged : str
        The column that counts.
    bound : float
        At the measured ceilings. [s]
    limiter : str
        What sets it.
    terms : Mapping[str, float]
        Where the time goes, in seconds that add up to the measured ones: see ``gap_terms``.
    beside : Mapping[str, float]
        Library -> its time. [s]
    """

    result: Result
    op: Op
    family: str
    predictions: Mapping[str, Prediction]
    judged: str
    bound: float
    limiter: str
    terms: Mapping[str, float]
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> float:
        """[s]"""
        return self.result.median

    @property
    def noise(self) -> float:
        """Spread of the batches: ``(p80 - p20) / median``."""
        return (self.result.p80 - self.result.p20) / self.result.median

    @property
    def predicted(self) -> float:
        """By the column that counts. [s]"""
        return self.predictions[self.judged].predicted

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.ratio - 1)

    @property
    def attained(self) -> float:
        """Share of the ceiling: bound over measured."""
        return self.bound / self.measured

    @property
    def inside(self) -> bool:
        """Whether the measured time is in the 80 % interval."""
        p = self.predictions[self.judged]
        return p.low <= self.measured <= p.high

    @property
    def set(self) -> str:
        """Which set of shapes it belongs to."""
        return str(self.result.more.get("set", FIT_SET))

    @property
    def gap(self) -> str:
        """The largest parts of the time above the bound, in words."""
        parts = {n: s / self.measured for n, s in self.terms.items() if n != "bound"}
        shown = sorted((n for n in parts if abs(parts[n]) >= 0.03), key=lambda n: -abs(parts[n]))[:3]
        return ", ".join(f"{n} {parts[n]:.0%}" for n in shown) or "at the bound"

    def to_dict(self) -> dict[str, Any]:
        """The case, ready for JSON."""
        cost = self.op.cost()
        return {
            "case": self.result.name, "kind": self.op.kind, "inputs": pack(self.op), "family": self.family,
            "engine": self.result.engine, "format": self.result.dtype,
            "set": self.set, "measured_s": self.measured, "p20_s": self.result.p20, "p80_s": self.result.p80,
            "precision": self.result.precision, "samples": self.result.samples, "noise": self.noise,
            "predicted_s": self.predicted, "judged": self.judged, "ratio": self.ratio,
            "predictions": {n: [p.predicted, p.low, p.high] for n, p in self.predictions.items()},
            "bound_s": self.bound, "limiter": self.limiter, "attained": self.attained, "terms_s": dict(self.terms),
            "gap": self.gap, "beside_s": dict(self.beside), "flops": float(cost.flops), "bytes": float(cost.bytes),
            "error_of_result": self.result.more.get("error"),
        }  # fmt: skip


def compare(
    results: Sequence[Result], columns: Sequence[Column], spec: Gpu, found: Ceilings, engine: str
) -> list[Compared]:
    """Each case of an engine beside what the columns predict; the first column counts.

    Parameters
    ----------
    spec : Gpu
        With the ceilings of the run.
    """
    beside: dict[str, dict[str, float]] = {}
    for r in results:
        if r.engine != engine:
            beside.setdefault(r.name, {})[r.engine] = r.median
    mine = [r for r in results if r.engine == engine and r.operator not in ("ceilings", "step")]
    return [_compared(r, columns, spec, found, beside.get(r.name, {})) for r in mine]


def _compared(
    r: Result, columns: Sequence[Column], spec: Gpu, found: Ceilings, beside: Mapping[str, float]
) -> Compared:
    op = unpack(r.operator, r.shape)
    least, limiter, needs = bound(spec, op)
    predictions = {c.name: predict(c, op) for c in columns}
    known = shares(columns[0], op)
    terms = gap_terms(r.median, least, needs, found.get("t0"), known, r.more.get("detail", {}), spec)
    return Compared(r, op, family(op), predictions, columns[0].name, least, limiter, terms, beside)


def shares(column: Column, op: Op) -> Mapping[str, float]:
    """The four numbers of the simple form by which a column predicts an operator."""
    asked, efficiency = ask(op), column.clock.efficiency
    kernel = efficiency.kernel(asked.kind, asked.formats) if asked.kind else efficiency.other(op)
    return kernel.member(str(SIMPLE.family(asked.shape, {}))).params


def gap_terms(
    measured: float, least: float, needs: Mapping[str, float], start: float, p: Mapping[str, float],
    detail: Mapping[str, Any], spec: Gpu,
) -> dict[str, float]:  # fmt: skip
    """Where a measured time goes: terms that add up to it, the last one what nothing explains. [s]

    Parameters
    ----------
    least : float
        The bound.
    needs : Mapping
        Seconds of each resource.
    start : float
        t0 of the memory's line. [s]
    p : Mapping
        Numbers of the simple form.
    detail : Mapping
        ``padding``: computed over needed work of the tiles, ``programs``: blocks that the kernel starts, ``resident``
        of them on a multiprocessor.

    Returns
    -------
    dict
        ``bound``; ``launch``; ``overlap``: arithmetic and memory that do not hide one another; ``slow arithmetic`` or
        ``slow memory``: the share of its ceiling that the kernel is known to reach; ``ramp``: t0, where memory limits
        and is large; ``tiles``: padded work; ``tail``: the last, partly filled wave over the multiprocessors; ``rest``.
    """
    compute = max((s for n, s in needs.items() if n not in (HBM, "scale_up")), default=0.0)
    stream = needs.get(HBM, 0.0)
    at_best = float(smax(compute, stream, p["overlap"]))
    slower, slowed = compute / p["matrix"], stream / p["memory"]
    terms = {"bound": least, "launch": p["launch"], "overlap": at_best - max(compute, stream)}
    what = "slow arithmetic" if slower >= slowed else "slow memory"
    terms[what] = float(smax(slower, slowed, p["overlap"])) - at_best
    if spec.kind != "cpu":
        if stream >= compute:
            terms["ramp"] = start
        padding, programs = float(detail.get("padding", 1.0)), float(detail.get("programs", 0.0))
        terms["tiles"] = max(compute * padding, stream) - max(compute, stream)
        slots = (spec.compute.sms.value if spec.compute.sms else 1.0) * float(detail.get("resident", 1.0))
        if programs:
            terms["tail"] = max(compute, stream) * (-(-programs // slots) * slots / programs - 1)
    return {**terms, "rest": measured - sum(terms.values())}


@dataclass(frozen=True)
class Family:
    """Errors of the cases of a family.

    Attributes
    ----------
    name : str
    n : int
    error, worst : float
        Median and largest error.
    bias : float
        Median of predicted over measured, less 1.
    noise : float
        Median spread of the batches.
    covered : float
        Share inside the 80 % interval.
    allowed : float
    """

    name: str
    n: int
    error: float
    worst: float
    bias: float
    noise: float
    covered: float
    allowed: float

    @property
    def outside(self) -> bool:
        """Whether the median error is above what is allowed."""
        return self.error > self.allowed


def families(compared: Iterable[Compared], tolerance: Mapping[str, float] | None = None) -> list[Family]:
    """Errors by family, in the order in which they come; the last one, ``all``, over all cases.

    Parameters
    ----------
    tolerance : Mapping, optional
        Family -> largest median error; ``""`` for all that are not named. Defaults stand in ``TOLERANCES``.
    """
    listed = list(compared)
    by: dict[str, list[Compared]] = {}
    for one in listed:
        by.setdefault(one.family, []).append(one)
    every = [("all", listed)] if listed else []
    return [_family(name, some, tolerance or {}) for name, some in (*by.items(), *every)]


def _family(name: str, some: Sequence[Compared], tolerance: Mapping[str, float]) -> Family:
    usual = TOLERANCES.get(some[0].judged, TOLERANCES[CEILINGS])
    allowed = tolerance.get(name, tolerance.get("", usual.get(name, usual[""])))
    return Family(
        name, len(some), statistics.median(c.error for c in some), max(c.error for c in some),
        statistics.median(c.ratio for c in some) - 1, statistics.median(c.noise for c in some),
        sum(c.inside for c in some) / len(some), allowed,
    )  # fmt: skip
