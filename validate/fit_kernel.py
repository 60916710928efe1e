"""From the rows of a cell to a kernel: parameters, correction, cross-validation, intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.calibrated.form import Form
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.validate import fit_cells
from perfmodel.validate.fit import Fitted, figures, fit_log, group_folds
from perfmodel.validate.fit_data import Cell
from perfmodel.validate.fit_residual import fit_residual, helps

Array = NDArray[np.float64]

#: Fewest rows with which a family gets parameters of its own, and how firmly they are held near the common ones.
FAMILY_ROWS, FAMILY_PRIOR = 60, 0.1
#: Upper ends of the regimes of predicted time that have intervals of their own. [s]
REGIMES = (20e-6, 100e-6, np.inf)
#: Share of the measurements that an interval is meant to hold.
LEVEL = 0.8


@dataclass(frozen=True)
class Checked:
    """A kernel with what is known about its errors.

    Attributes
    ----------
    kernel : Kernel
    fitted : Fitted
        Of the common parameters.
    physics, predicted : Array
        Of each row, by a fit that did not see its shape group. [s]
    fold : Array
    cell : Cell
        The rows that were used.
    excluded : int
        Rows that are faster than the bound.
    """

    kernel: Kernel
    fitted: Fitted
    physics: Array
    predicted: Array
    fold: NDArray[np.int64]
    cell: Cell
    excluded: int


def _fit(form: Form, cell: Cell, facts: dict[str, Any], start: dict[str, float], prior: float = 0.03) -> Fitted:
    fixed = fit_cells.fixed(cell.kind, facts)
    return fit_log(
        lambda p: form.time(p, cell.shape, cell.chip, facts),
        start,
        cell.measured,
        fixed=fixed,
        evaluations=30,
        prior=prior,
        pulls={p.name: p.pull for p in form.params},
    )


def families_of(form: Form, cell: Cell, facts: dict[str, Any]) -> Array:
    """The kernel family of every row, by name."""
    return np.broadcast_to(np.asarray(form.family(cell.shape, facts)), cell.measured.shape)


def fit_kernel(cell: Cell) -> tuple[Kernel, Fitted]:
    """Fit the form of a cell on all its rows."""
    form, facts = (
        fit_cells.form(cell.kind, cell.fmt, cell.engine),
        fit_cells.facts(cell.kind, cell.chip.architecture, cell.engine, cell.fmt),
    )
    common = _fit(form, cell, facts, form.start)
    names, families = families_of(form, cell, facts), {}
    kinds, counts = np.unique(names, return_counts=True)
    if len(kinds) > 1:
        facts["family"] = str(kinds[counts.argmax()])
        for name, count in zip(kinds, counts, strict=True):
            if count >= FAMILY_ROWS:
                part = cell.take(np.flatnonzero(names == name))
                families[str(name)] = _fit(form, part, facts, common.params, FAMILY_PRIOR).params
    kernel = Kernel(cell.kind, cell.fmt, form, common.params, facts, families)
    return with_residual(kernel, cell), common


def with_residual(kernel: Kernel, cell: Cell) -> Kernel:
    """Add the smooth correction where it helps on shape groups that were not seen."""
    if cell.kind == "collective" or len(np.unique(cell.groups, axis=0)) < 10:
        return kernel
    ratio = np.log(cell.measured / np.maximum(kernel.physics(cell.shape, cell.chip), cell.bound))
    features = kernel.form.features(cell.shape, cell.chip, kernel.facts)
    values: dict[str, Array] = {k: np.broadcast_to(v, ratio.shape) for k, v in features.items()}
    return replace(kernel, residual=fit_residual(values, ratio)) if helps(values, ratio, cell.groups) else kernel


def check(cell: Cell, folds: int = 5) -> Checked:
    """Fit a cell, and predict each of its shape groups by a fit on the others.

    Rows faster than the bound are left out and counted: no prediction can meet them.
    """
    usable = cell.bound <= cell.measured
    cell = cell.take(np.flatnonzero(usable))
    fold = group_folds(cell.groups, folds)
    physics, predicted = np.empty(len(fold)), np.empty(len(fold))
    for j in range(folds):
        new = np.flatnonzero(fold == j)
        kernel, _ = fit_kernel(cell.take(np.flatnonzero(fold != j)))
        part = cell.take(new)
        physics[new] = np.maximum(kernel.physics(part.shape, part.chip), part.bound)
        predicted[new] = kernel.time(part.shape, part.chip, part.bound)
    kernel, fitted = fit_kernel(cell)
    shared, own = spread(np.log(cell.measured / predicted), cell.groups)
    kernel = replace(kernel, regimes=regimes(predicted, cell.measured), shared=shared, own=own)
    return Checked(kernel, fitted, physics, predicted, fold, cell, int((~usable).sum()))


def regimes(predicted: Array, measured: Array, widen: float = 1.0) -> tuple[Regime, ...]:
    """Split-conformal 80 % intervals of measured over predicted, by regime of predicted time.

    The ends are the quantiles of the left-out log errors, taken outwards for the number of rows n: those of ranks
    ``(n+1) 0.1`` and ``(n+1) 0.9``. A regime of under 20 rows joins the next one.

    Parameters
    ----------
    widen : float
        Factor on the log errors.
    """
    error = np.log(measured / predicted) * widen
    found: list[Regime] = []
    for below in REGIMES:
        lower = found[-1].below if found else 0.0
        rows = (predicted >= lower) & (predicted < below)
        left = int((predicted >= below).sum())
        if below < np.inf and (rows.sum() < 20 or 0 < left < 20):
            continue
        low, high = conformal(error[rows] if rows.sum() >= 20 else error)
        end = below if left else np.inf
        found.append(Regime(float(end), float(np.exp(low)), float(np.exp(high)), int(rows.sum())))
        if not left:
            break
    return tuple(found)


def conformal(error: Array, level: float = LEVEL) -> tuple[float, float]:
    """Ends of a two-sided split-conformal interval of given errors.

    >>> conformal(np.arange(1.0, 10.0))
    (1.0, 9.0)
    """
    n, tail = len(error), (1 - level) / 2
    order = np.sort(error)
    low = int(np.floor((n + 1) * tail)) - 1
    high = int(np.ceil((n + 1) * (1 - tail))) - 1
    return float(order[max(low, 0)]), float(order[min(high, n - 1)])


def coverage(checked: Checked) -> float:
    """Share of rows inside the interval that the other folds' errors give."""
    inside = np.zeros(len(checked.fold), bool)
    measured, predicted = checked.cell.measured, checked.predicted
    for j in np.unique(checked.fold):
        others, rows = checked.fold != j, checked.fold == j
        kernel = replace(checked.kernel, regimes=regimes(predicted[others], measured[others]))
        low, high = kernel.interval(predicted[rows], checked.cell.bound[rows])
        inside[rows] = (measured[rows] >= low) & (measured[rows] <= high)
    return float(inside.mean())


def spread(error: Array, groups: Array) -> tuple[float, float]:
    """Standard deviations of log errors: shared by the rows of a shape group, and the rest (a variance decomposition).

    Errors are clipped to three robust standard deviations first.
    """
    width = 1.4826 * float(np.median(np.abs(error - np.median(error)))) * 3
    error = np.clip(error, np.median(error) - width, np.median(error) + width)
    group = np.unique(groups, axis=0, return_inverse=True)[1].ravel()
    count = np.bincount(group)
    mean = np.bincount(group, error) / count
    within = float(((error - mean[group]) ** 2).sum() / max(len(error) - len(count), 1))
    between = float((count * (mean - error.mean()) ** 2).sum() / max(len(count) - 1, 1))
    size = (len(error) - (count**2).sum() / len(error)) / max(len(count) - 1, 1)
    return float(np.sqrt(max(between - within, 0.0) / size)), float(np.sqrt(within))


def scores(checked: Checked) -> dict[str, float]:
    """Figures of the left-out predictions: see ``fit.figures``; with ``physics_`` for the form alone, and the naive
    bound."""
    cell = checked.cell
    found = figures(checked.predicted, cell.measured)
    alone, naive = figures(checked.physics, cell.measured), figures(cell.bound, cell.measured)
    return {
        **found, "physics_mape": alone["mape"], "physics_mape_10us": alone["mape_10us"],
        "naive_mape_10us": naive["mape_10us"], "coverage80": coverage(checked), "excluded": checked.excluded,
    }  # fmt: skip
