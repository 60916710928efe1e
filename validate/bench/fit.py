"""Fit this device: four numbers a kind and format, from what was measured in this run, with a conformal interval.

The simple form, ``launch + smax(compute / matrix, stream / memory; overlap)``, with the measured ceilings as rates: so
that shares stay below 1, and times add up at worst. Each row's error is that of a fit on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.cost import ISSUE
from perfmodel.roofline.dequantize import LEAST
from perfmodel.roofline.op import Op
from perfmodel.roofline.times import HBM, Rates
from perfmodel.validate.bench.operators import key, unpack
from perfmodel.validate.bench.predict import FACTS
from perfmodel.validate.bench.store import Result
from perfmodel.validate.fit import Fitted, fit_log
from perfmodel.validate.fit_kernel import conformal
from perfmodel.validate.fit_store import digits, values

Array = NDArray[np.float64]

#: Fewer rows do not fix the four numbers.
LEAST_ROWS = 4
#: Where a fit starts, but for the launch: what is usual on processors and GPUs alike.
START = {"matrix": 0.7, "memory": 0.7, "overlap": 1.3}
#: No interval is narrower: what a machine does from one hour to the next.
LEAST_WIDTH = 0.05
#: From here on the longer of the two hides the other.
MOST_OVERLAP = 8.0
#: Weight of the prior, most e-folds away from it, and the error at which a row counts linearly: see ``fit_log``.
PRIOR, REACH, SCALE = 0.02, 6.0, 0.3


@dataclass(frozen=True)
class Cell:
    """Rows of one kind and format.

    Attributes
    ----------
    kind, fmt : str
    compute, stream, measured, bound : Array
        Seconds: arithmetic and traffic at the ceilings, the measured time, the roofline bound.
    names : tuple[str, ...]
    """

    kind: str
    fmt: str
    compute: Array
    stream: Array
    measured: Array
    bound: Array
    names: tuple[str, ...]

    def take(self, rows: NDArray[np.int64]) -> Cell:
        """Some of the rows."""
        compute, stream, measured, bound = (getattr(self, n)[rows] for n in ("compute", "stream", "measured", "bound"))
        return Cell(self.kind, self.fmt, compute, stream, measured, bound, tuple(self.names[i] for i in rows))


@dataclass(frozen=True)
class DeviceFit:
    """What was fitted to a device.

    Attributes
    ----------
    content : dict
        The file, as ``roofline.efficiency_file`` reads it.
    lines : list[dict]
        By kind and format: rows, parameters, and errors of rows that were left out of the fit.
    skipped : list[str]
        What could not be fitted.
    """

    content: dict[str, Any]
    lines: list[dict[str, Any]]
    skipped: list[str]


def seconds_of(op: Op, rates: Rates) -> tuple[float, float]:
    """Arithmetic and traffic of an operator at the rates, as calibrated times hand them to the simple form. [s]"""
    terms = {name: float(seconds) for name, seconds in rates.terms(op.cost()).items()}
    if ISSUE in terms:  # the roofline counts the least of them
        terms[ISSUE] *= max(float(op.inputs.get("dequant") or 0.0) / LEAST, 1.0)
    return max((s for name, s in terms.items() if name != HBM), default=0.0), terms.get(HBM, 0.0)


def cells(results: Sequence[Result], spec: Gpu) -> list[Cell]:
    """Results by kind and format; passes over activations also all together, for those that are not measured."""
    rates, rows = Rates(spec), dict[tuple[str, str], list[tuple[float, float, float, float, str]]]()
    for r in results:
        op = unpack(r.operator, r.shape)
        row = (*seconds_of(op, rates), r.median, float(rates.bound(op.cost())), r.name)
        kind, fmt = key(op)
        rows.setdefault((kind, fmt), []).append(row)
        if not fmt:
            rows.setdefault(("elementwise", ""), []).append(row)
    found = []
    for (kind, fmt), some in rows.items():
        compute, stream, measured, bound = (np.array([row[i] for row in some], float) for i in range(4))
        found.append(Cell(kind, fmt, compute, stream, measured, bound, tuple(row[4] for row in some)))
    return found


def _physical(p: Mapping[str, float]) -> dict[str, float]:
    """Parameters within what they mean: shares of a ceiling, overlap between none and nearly all."""
    return {
        "launch": p["launch"], "matrix": min(p["matrix"], 1.0), "memory": min(p["memory"], 1.0),
        "overlap": min(max(p["overlap"], 1.0), MOST_OVERLAP),
    }  # fmt: skip


def predicted(p: Mapping[str, float], cell: Cell) -> Array:
    """Times of the rows, at least the bound. [s]"""
    shape: dict[str, Any] = {"compute": cell.compute, "stream": cell.stream}
    found: Array = np.maximum(SIMPLE.time(p, shape, None, {}), cell.bound)  # type: ignore[arg-type]
    return found


def fit_cell(cell: Cell, launch: float) -> Fitted:
    """The four numbers of a cell."""
    start = {"launch": max(2 * launch, 1e-7), **START}
    fitted = fit_log(
        lambda p: predicted(_physical(p), cell), start, cell.measured, prior=PRIOR, reach=REACH, scale=SCALE
    )
    return Fitted(_physical(fitted.params), fitted.sigma, fitted.correlation)


def left_out(cell: Cell, launch: float) -> Array:
    """Each row by a fit on the others. [s]"""
    every, found = np.arange(len(cell.measured)), np.empty(len(cell.measured))
    for i in every:
        fitted = fit_cell(cell.take(every[every != i]), launch)
        found[i] = predicted(fitted.params, cell.take(np.array([i])))[0]
    return found


def interval(error: Array) -> tuple[float, float]:
    """Ends of the 80 % interval of log errors of left-out rows: split-conformal; with fewer than nine rows, whose
    extremes hold less than that, stretched by ``1 + 4 / n`` (assumed), and never narrower than 5 % either way.

    >>> low, high = interval(np.linspace(-0.1, 0.1, 4))
    >>> round(low, 6), round(high, 6)
    (-0.2, 0.2)
    """
    low, high = conformal(error)
    stretch = 1 + 4 / len(error) if len(error) < 9 else 1.0
    return min(low * stretch, -LEAST_WIDTH), max(high * stretch, LEAST_WIDTH)


def _record(cell: Cell, fitted: Fitted, others: Array, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The kernel as the file has it, and its line."""
    error = np.log(cell.measured / others)
    low, high = interval(error)
    ratio = others / cell.measured
    middle, mean, bias = np.median(np.abs(ratio - 1)), np.abs(ratio - 1).mean(), np.median(ratio) - 1
    scores = {"median_ape": middle, "mape": mean, "bias": bias, "rows": float(len(error))}
    record = {
        "kind": cell.kind, "format": cell.fmt, "form": "simple", "version": version, "kernels": "", "rows": len(error),
        "parameters": values(SIMPLE, fitted.params), "sigma": {n: digits(s, 3) for n, s in fitted.sigma.items()},
        "facts": dict(FACTS), "intervals": [
            {"low": digits(float(np.exp(low)), 4), "high": digits(float(np.exp(high)), 4), "rows": len(error)}
        ],
        "spread": {"shared": digits(float(np.abs(np.median(error))), 3), "own": digits(float(error.std()), 3)},
        "scores": {name: digits(float(v), 6) for name, v in scores.items()},
    }  # fmt: skip
    line = {"kind": cell.kind, "format": cell.fmt, "rows": len(error), **fitted.params, "median_error": float(middle)}
    return record, line


def fit_device(
    results: Sequence[Result], spec: Gpu, engine: str, launch: float, version: str, source: str
) -> DeviceFit:  # fmt: skip
    """Fit all that was measured.

    Parameters
    ----------
    results : sequence of Result
        Of the device's own engine.
    spec : Gpu
        Whose rates the shares refer to, and which the fit is found by (its ``machine``).
    launch : float
        That was measured. [s]
    version : str
        Of the engine.
    source : str
        Where the rows are.

    Raises
    ------
    UsageError
        When no kind has rows enough, or without scipy.
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise UsageError("fitting needs scipy: install perfmodel[plan]") from error
    kernels, lines, skipped = [], [], []
    for cell in cells(results, spec):
        if len(cell.measured) < LEAST_ROWS:
            skipped.append(f"{cell.kind} {cell.fmt}: {len(cell.measured)} rows, at least {LEAST_ROWS} are needed")
            continue
        record, line = _record(cell, fit_cell(cell, launch), left_out(cell, launch), version)
        kernels.append(record)
        lines.append(line)
    if not kernels:
        raise UsageError(f"nothing could be fitted: {'; '.join(skipped) or 'nothing was measured'}")
    head = {"title": f"{spec.title} under {engine}: fitted to this machine", "gpu": spec.name, "engine": engine}
    tail = {"date": date.today().isoformat(), "source": source, "licence": "the user's own", "machine": spec.machine}
    return DeviceFit({**head, **tail, "kernels": kernels}, lines, skipped)
