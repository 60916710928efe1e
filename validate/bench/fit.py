"""Fit this device: four numbers a kind and format, from what was measured in this run, with a conformal interval.

The simple form, ``launch + smax(compute / matrix, stream / memory; overlap)``, with the measured ceilings as rates: so
that shares stay below 1, and times add up at worst. Each row's error is that of a fit on the others. Products of one
row have numbers of their own where there are rows enough: libraries have other kernels for them.
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
from perfmodel.roofline.calibrated.simple import ONE_ROW, SIMPLE
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
#: Arithmetic, traffic, measured time and bound of a case [s], and its name.
Row = tuple[float, float, float, float, str]

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
    family : str
        ``ONE_ROW`` or ``""``.
    compute, stream, measured, bound : Array
        Seconds: arithmetic and traffic at the ceilings, the measured time, the roofline bound.
    names : tuple[str, ...]
    """

    kind: str
    fmt: str
    family: str
    compute: Array
    stream: Array
    measured: Array
    bound: Array
    names: tuple[str, ...]

    def take(self, rows: NDArray[np.int64]) -> Cell:
        """Some of the rows."""
        compute, stream, measured, bound = (getattr(self, n)[rows] for n in ("compute", "stream", "measured", "bound"))
        return Cell(
            self.kind, self.fmt, self.family, compute, stream, measured, bound, tuple(self.names[i] for i in rows)
        )


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
    """Results by kind, format and family; passes over activations also all together, for those that are not measured.

    Products of one row stand with the others where one of the two has too few rows.
    """
    rates, rows = Rates(spec), dict[tuple[str, str, str], list[Row]]()
    for r in results:
        op = unpack(r.operator, r.shape)
        row = (*seconds_of(op, rates), r.median, float(rates.bound(op.cost())), r.name)
        kind, fmt = key(op)
        one = ONE_ROW if kind == "gemm" and op.inputs["m"] == 1 else ""
        rows.setdefault((kind, fmt, one), []).append(row)
        if not fmt:
            rows.setdefault(("elementwise", "", ""), []).append(row)
    for kind, fmt, one in [k for k in rows if k[2]]:
        if min(len(rows[kind, fmt, one]), len(rows.get((kind, fmt, ""), ()))) < LEAST_ROWS:
            rows.setdefault((kind, fmt, ""), []).extend(rows.pop((kind, fmt, one)))
    found = []
    for names, some in sorted(rows.items(), key=lambda item: bool(item[0][2])):
        compute, stream, measured, bound = (np.array([row[i] for row in some], float) for i in range(4))
        found.append(Cell(*names, compute, stream, measured, bound, tuple(row[4] for row in some)))
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


def _record(fits: Sequence[tuple[Cell, Fitted, Array]], version: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The kernel of a kind and format as the file has it, and its lines, one a family; all share the interval."""
    (cell, fitted, _), *others = fits
    error = np.concatenate([np.log(c.measured / apart) for c, _, apart in fits])
    ends = dict(zip(("low", "high"), interval(error), strict=True))
    record = {
        "kind": cell.kind, "format": cell.fmt, "form": "simple", "version": version, "kernels": "", "rows": len(error),
        "parameters": values(SIMPLE, fitted.params), "sigma": {n: digits(s, 3) for n, s in fitted.sigma.items()},
        "facts": dict(FACTS), "families": {c.family: values(SIMPLE, found.params) for c, found, _ in others},
        "intervals": [{**{n: digits(float(np.exp(v)), 4) for n, v in ends.items()}, "rows": len(error)}],
        "spread": {"shared": digits(float(np.abs(np.median(error))), 3), "own": digits(float(error.std()), 3)},
        "scores": {name: digits(v, 6) for name, v in _scores(np.exp(-error)).items()},
    }  # fmt: skip
    return record, [_line(*one) for one in fits]


def _scores(ratio: Array) -> dict[str, float]:
    """Errors of rows left out, from predicted over measured."""
    off = np.abs(ratio - 1)
    found = {"median_ape": np.median(off), "mape": off.mean(), "bias": np.median(ratio) - 1, "rows": len(ratio)}
    return {name: float(value) for name, value in found.items()}


def _line(cell: Cell, fitted: Fitted, apart: Array) -> dict[str, Any]:
    kind = f"{cell.kind}, {cell.family}" if cell.family else cell.kind
    middle = _scores(apart / cell.measured)["median_ape"]
    return {"kind": kind, "format": cell.fmt, "rows": len(apart), **fitted.params, "median_error": middle}


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
    fits: dict[tuple[str, str], list[tuple[Cell, Fitted, Array]]] = {}
    for cell in cells(results, spec):
        if len(cell.measured) < LEAST_ROWS:
            skipped.append(f"{cell.kind} {cell.fmt}: {len(cell.measured)} rows, at least {LEAST_ROWS} are needed")
            continue
        one = (cell, fit_cell(cell, launch), left_out(cell, launch))
        fits.setdefault((cell.kind, cell.fmt), []).append(one)
    for some in fits.values():
        record, told = _record(some, version)
        kernels.append(record)
        lines += told
    if not kernels:
        raise UsageError(f"nothing could be fitted: {'; '.join(skipped) or 'nothing was measured'}")
    head = {"title": f"{spec.title} under {engine}: fitted to this machine", "gpu": spec.name, "engine": engine}
    tail = {"date": date.today().isoformat(), "source": source, "licence": "the user's own", "machine": spec.machine}
    return DeviceFit({**head, **tail, "kernels": kernels}, lines, skipped)
