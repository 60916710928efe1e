"""Fit the efficiencies of one GPU under one engine to recorded operator tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.validate import csvfile
from perfmodel.validate.fit_data import Cell, table_cells
from perfmodel.validate.fit_kernel import check, scores
from perfmodel.validate.fit_predict import table_kind, unknown
from perfmodel.validate.fit_store import record
from perfmodel.validate.fit_transfer import joint_fit, pooled
from perfmodel.validate.table_aiconfigurator import NOTICE, PREFIX, Table, tables

if TYPE_CHECKING:
    import pandas as pd

#: Fewer rows of a kind and format than this do not fix its parameters and their interval; more than so many add nothing
#: to the fit but time: a sample of them is taken. Collectives have message sizes alone: a few fix theirs.
LEAST_ROWS, LEAST_COLLECTIVE, MOST_ROWS = 60, 20, 3000
#: Shapes are left out by whole groups, a fifth of them at a time.
LEAST_GROUPS = 5


@dataclass(frozen=True)
class Calibration:
    """Fits of one GPU under one engine.

    Attributes
    ----------
    gpu, engine : str
    kernels : list
        A record a kind and format, as the file holds them.
    lines : list[dict]
        What each fit reached on rows that it did not see: ``kind, format, rows, mape_10us, mape, bias, coverage80``.
    skipped : list[str]
        What could not be fitted, with the reason.
    """

    gpu: str
    engine: str
    kernels: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    skipped: list[str]

    def content(self, source: str) -> dict[str, Any]:
        """The file that ``--efficiency`` takes."""
        title = f"{load_gpu(self.gpu).title} under {self.engine}: operator times fitted to measurements"
        head = {"title": title, "gpu": self.gpu, "engine": self.engine, "date": date.today().isoformat()}
        licence = f"fitted to tables of {NOTICE}" if PREFIX in source else "the user's own"
        return {**head, "source": source, "licence": licence, "kernels": self.kernels}


def fit_cell(cell: Cell, simple: dict[str, float]) -> tuple[dict[str, Any], dict[str, float]]:
    """Record and cross-validated scores of one cell; ``simple`` are the simple form's parameters."""
    checked = check(cell)
    found = scores(checked)
    return record(checked, found, simple), found


def calibrate(files: Sequence[str | Path], gpu: str | None = None, engine: str | None = None) -> Calibration:
    """Fit recorded tables; each fit is judged by five folds of whole shape groups.

    Parameters
    ----------
    files : sequence of paths
        CSV files with the headers of the operator tables (gemm, context_attention, generation_attention, mla_kernel,
        moe, nccl); or ``aiconfigurator:SYSTEM``, for those of an installed aiconfigurator-core.
    gpu, engine : str, optional
        Which to fit, when the tables hold several.

    Raises
    ------
    SpecError
        For a file that is no such table.
    UsageError
        When the tables hold several GPUs or engines and none is named, or too few rows.
    """
    skipped: list[str] = []
    listed = [cell for file in files for cell in _listed(str(file), engine, skipped)]
    name = load_gpu(gpu).name if gpu else None
    chosen = [c for c in listed if name in (None, c.gpu) and (engine or c.engine).lower() == c.engine]
    pairs = sorted({(c.gpu, c.engine) for c in chosen})
    if len(pairs) != 1:
        held = ", ".join(f"{g} under {e}" for g, e in sorted({(c.gpu, c.engine) for c in listed})) or "nothing usable"
        raise UsageError(
            f"one GPU and engine are fitted at a time; the tables hold {held}: choose by --gpu and --engine"
        )
    kernels, lines = [], []
    for cell in chosen:
        if problem := _too_few(cell):
            skipped.append(f"{cell.kind} {cell.fmt}: {problem}")
            continue
        cell = _sample(cell, skipped)
        kept, found = fit_cell(cell, joint_fit(pooled([cell], cell.kind, [cell.gpu]), SIMPLE).params)
        kernels.append(kept)
        lines.append({"kind": cell.kind, "format": cell.fmt, "rows": len(cell.measured), **found})
    if not kernels:
        raise UsageError(f"nothing could be fitted: {'; '.join(skipped)}")
    return Calibration(pairs[0][0], pairs[0][1], kernels, lines, skipped)


def _too_few(cell: Cell) -> str:
    """Why a cell cannot be fitted and judged; ``""`` when it can."""
    import numpy as np

    rows, usable = len(cell.measured), cell.bound <= cell.measured
    least = LEAST_COLLECTIVE if cell.kind == "collective" else LEAST_ROWS
    if rows < least:
        return f"{rows} rows; at least {least} are needed"
    if usable.sum() < least:
        return f"{int(usable.sum())} of {rows} rows are not faster than the bound; at least {least} are needed"
    groups = len(np.unique(cell.groups[usable], axis=0))
    return f"{groups} groups of shapes; at least {LEAST_GROUPS} are needed" if groups < LEAST_GROUPS else ""


def _sample(cell: Cell, skipped: list[str]) -> Cell:
    """At most ``MOST_ROWS`` of a cell, the same ones each time."""
    import numpy as np

    rows = len(cell.measured)
    if rows <= MOST_ROWS:
        return cell
    skipped.append(f"{cell.kind} {cell.fmt}: {MOST_ROWS:,} of {rows:,} rows were drawn: more would not change the fit")
    return cell.take(np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ROWS]))


def _listed(file: str, engine: str | None, skipped: list[str]) -> Iterator[Cell]:
    """The cells of a file, or of the tables of an installed package."""
    if file.startswith(PREFIX):
        for table in tables(file.removeprefix(PREFIX), engine):
            yield from _installed(table, skipped)
        return
    import pandas as pd

    path = Path(file)
    if path.suffix != ".gz":
        csvfile.read(path)  # says what is wrong with a table, and that a column is in it twice
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise SpecError(path, "", f"cannot be read as a table: {str(error)[:200]}") from error
    kind = table_kind(frame.columns)
    if kind is None:
        raise SpecError(path, "", "has the columns of no table of operator times; docs/validate.md lists them")
    yield from _cells(frame, kind, path.name, skipped)


def _installed(table: Table, skipped: list[str]) -> Iterator[Cell]:
    skipped.extend(f"{table.name}: {n:,} rows: {why}" for why, n in table.skipped.items())
    if len(table.frame):
        yield from _cells(table.frame, table.kind, table.name, skipped)


def _cells(frame: pd.DataFrame, kind: str, name: str, skipped: list[str]) -> Iterator[Cell]:
    import pandas as pd

    frame = frame.assign(**{column: "" for column in ("version", "kernel_source") if column not in frame.columns})
    problems = pd.Series(unknown(frame, kind), index=frame.index)
    for reason, count in problems[problems != ""].value_counts().items():
        skipped.append(f"{name}: {count} rows: {reason}")
    yield from table_cells(frame[problems == ""], kind)
