"""Fits that several GPUs share, and how well they predict a GPU that they did not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.calibrated.form import Form
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.validate import fit_cells
from perfmodel.validate.fit import Fitted, figures, fit_log
from perfmodel.validate.fit_data import Cell

Array = NDArray[np.float64]

#: Rows of a cell that take part in a joint fit: every n-th of more.
JOINT_ROWS = 500


@dataclass(frozen=True)
class Transfer:
    """Predictions of one GPU by parameters fitted on others.

    Attributes
    ----------
    seen : tuple[str, ...]
    target : Cell
    predicted : dict[str, Array]
        By form: ``full``, ``simple``. [s]
    """

    seen: tuple[str, ...]
    target: Cell
    predicted: dict[str, Array]

    def scores(self) -> dict[str, dict[str, float]]:
        """Figures by form."""
        return {name: figures(p, self.target.measured) for name, p in self.predicted.items()}


def usable(cell: Cell, most: int | None = None) -> Cell:
    """The rows that are not faster than the bound, at most about ``most`` of them, evenly spaced."""
    rows = np.flatnonzero(cell.bound <= cell.measured)
    return cell.take(rows[:: max(1, -(-len(rows) // most))] if most else rows)


def predict(form: Form, params: Mapping[str, float], cell: Cell, facts: dict[str, Any]) -> Array:
    """Times of a cell's rows by the full or the simple form, at least the bound. [s]"""
    shape = cell.simple if form is SIMPLE else cell.shape
    return np.maximum(form.time(params, shape, cell.chip, facts), cell.bound)


def known(cell: Cell) -> dict[str, Any]:
    """Facts about the engine of a cell."""
    return fit_cells.facts(cell.kind, cell.chip.architecture, cell.engine, cell.fmt)


def joint_fit(cells: Sequence[Cell], form: Form, prior: float = 0.1) -> Fitted:
    """One set of parameters for the rows of all cells together."""
    sets = [(usable(cell, JOINT_ROWS), known(cell)) for cell in cells]
    measured = np.concatenate([cell.measured for cell, _ in sets])
    fixed: set[str] = set(form.start)
    for cell, facts in sets:
        fixed &= set(fit_cells.fixed(cell.kind, facts)) if form is not SIMPLE else set()

    def model(p: dict[str, float]) -> Array:
        return np.concatenate([predict(form, p, cell, facts) for cell, facts in sets])

    return fit_log(
        model,
        form.start,
        measured,
        fixed=tuple(sorted(fixed)),
        prior=prior,
        reach=3.0,
        pulls={p.name: p.pull for p in form.params},
    )


def pooled(cells: Iterable[Cell], kind: str, gpus: Sequence[str]) -> list[Cell]:
    """The cells that a simple fit of a kind rests on: all engines of some GPUs, in 16 bits where that was measured."""
    found = [cell for cell in cells if cell.kind == kind and cell.gpu in gpus]
    return [cell for cell in found if cell.fmt == "bf16"] or found


def transfers(cells: Iterable[Cell]) -> list[Transfer]:
    """Every GPU of an engine, kind and format predicted from the others together, and from each alone.

    The full form from the same engine and format, the simple one from all engines.
    """
    listed = list(cells)
    by: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in listed:
        by.setdefault((cell.kind, cell.fmt, cell.engine), []).append(cell)
    found = []
    for members in by.values():
        for target in members:
            others = [cell for cell in members if cell.gpu != target.gpu]
            for seen in [others, *([c] for c in others if len(others) > 1)]:
                if seen:
                    found.append(_transfer(seen, usable(target), listed))
    return found


def _transfer(seen: list[Cell], target: Cell, listed: list[Cell]) -> Transfer:
    gpus = tuple(cell.gpu for cell in seen)
    full = fit_cells.form(target.kind, target.fmt)
    simple = pooled(listed, target.kind, gpus) if target.kind != "collective" else seen
    fits = {"full": (full, joint_fit(seen, full)), "simple": (SIMPLE, joint_fit(simple, SIMPLE))}
    return Transfer(
        gpus, target, {name: predict(f, fit.params, target, known(target)) for name, (f, fit) in fits.items()}
    )
