"""Recorded operator tables as ``--fidelity measured`` takes them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import SpecError
from perfmodel.base.text import printable
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.chip import chip
from perfmodel.roofline.measured.look import SAME, SIZES
from perfmodel.roofline.measured.record import Recorded, Rows
from perfmodel.roofline.measured.scatter import APART
from perfmodel.validate import csvfile
from perfmodel.validate.fit_data import Cell, table_cells
from perfmodel.validate.kinds import kind_of
from perfmodel.validate.operator_rows import Operators, read, reason
from perfmodel.validate.table_operators import TABLES

FASTER = "measured faster than the roofline bound, which nothing beats: is it that GPU?"
#: No operator takes longer. [us]
LONGEST = 1e9


def measured(path: str | Path) -> Recorded:
    """Read a table of measured operator times, for ``estimate(..., fidelity="measured", measured=[table])``.

    Parameters
    ----------
    path : str or Path
        A CSV file with the header of an operator table: gemm, context_attention, generation_attention, mla_kernel, moe
        or nccl.

    Returns
    -------
    Recorded
        Rows that cannot be used are counted in ``skipped`` with the reason; among them those faster than the bound.

    Raises
    ------
    SpecError
        For a file that is no such table, or of which no row can be used.
    """
    path = Path(path)
    content = csvfile.read(path)
    kind = kind_of(content.header, path)
    if kind.name not in TABLES:
        raise SpecError(path, "", f"is a table of {kind.title}; measured times are in {', '.join(TABLES)}")
    table, name, skipped = TABLES[kind.name], printable(path.name, 80), Counter[str]()
    usable = []
    for line in content.lines:
        why = _problem(table, line.cells) if line.fields == len(content.header) else "a line of another length"
        if why:
            skipped[why] += 1
        else:
            usable.append(line.cells)
    rows: list[Rows] = []
    if usable:
        for cell in _cells(table, usable):
            fast = cell.measured < cell.bound
            skipped[FASTER] += int(fast.sum())
            rows += cell_rows(cell.take(np.flatnonzero(~fast)), name)
    skipped += Counter()  # without what is zero
    if not rows:
        why, count = skipped.most_common(1)[0]
        raise SpecError(path, "", f"has no row that can be used; {count:,} of {len(content.lines):,}: {why}")
    return Recorded(name, tuple(rows), dict(skipped), _notes(rows))


def _problem(table: Operators, cells: dict[str, str]) -> str:
    """Why a row cannot be used; ``""`` when it can."""
    if why := reason(table, cells):
        return why
    if float(cells["latency_us"]) > LONGEST:
        return "a time above 1000 s"
    return "" if _chip(cells["gpu"].strip()) else "the GPU's spec lacks its SMs, clock or L2"


@functools.lru_cache(maxsize=1024)
def _chip(gpu: str) -> bool:
    return chip(load_gpu(gpu)) is not None


def _cells(table: Operators, usable: list[dict[str, str]]) -> Iterator[Cell]:
    frame = read(table, usable)
    for _, part in frame.groupby([*table.words, "version"], sort=False):
        yield from table_cells(part, table.kind)


def _notes(rows: Sequence[Rows]) -> tuple[str, ...]:
    """Shapes that were measured more than once, with times far apart."""
    far = 0
    for r in rows:
        shapes = np.unique(np.stack(list(r.sizes.values()), 1), axis=0, return_inverse=True)[1].reshape(-1)
        times = np.split(np.log(r.seconds)[np.argsort(shapes, kind="stable")], np.cumsum(np.bincount(shapes))[:-1])
        far += sum(len(t) > 1 and bool(np.ptp(t) > APART) for t in times)
    if not far:
        return ()
    return (f"{far:,} shapes have times more than {APART:.0%} apart: the middle is taken, their interval holds them",)


def cell_rows(cell: Cell, name: str) -> Iterator[Rows]:
    """The rows of a cell, those with kernels of their own apart.

    Parameters
    ----------
    name : str
        Of the table, as the times' origin names it.
    """
    apart = SAME.get(cell.kind, ())
    values = {n: np.broadcast_to(cell.shape[n], cell.measured.shape) for n in apart}
    keys = np.stack([*values.values(), np.zeros(len(cell.measured))], 1)
    for key in np.unique(keys, axis=0):
        part = cell.take(np.flatnonzero((keys == key).all(1)))
        sizes: dict[str, Any] = {n: np.broadcast_to(part.shape[n], part.measured.shape) for n in SIZES[part.kind]}
        yield Rows(
            part.kind, part.fmt, part.gpu, part.engine, part.version, name, sizes,
            dict(zip(apart, map(float, key), strict=False)), part.shape, part.simple, part.measured, part.bound,
        )  # fmt: skip
