"""Measured steps for ``MeasuredSource``: from a CSV table, or from the lines that vLLM logs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from perfmodel.base.errors import SpecError
from perfmodel.base.text import printable
from perfmodel.roofline.measured.steps import Steps
from perfmodel.validate import csvfile
from perfmodel.validate.iteration_times import step_times
from perfmodel.validate.logs_vllm_iterations import IterationLog
from perfmodel.validate.logs_vllm_iterations import read as read_log

#: Columns of a table of steps; the last one may be missing.
COLUMNS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens", "elapsed_ms")
CONTEXT = "mean_context"


def measured_steps(path: str | Path) -> Steps:
    """Read measured steps.

    Parameters
    ----------
    path : str or Path
        A ``.csv`` with the columns context_requests, context_tokens, generation_requests, generation_tokens, elapsed_ms
        and perhaps mean_context; any other file is read as a log of vLLM with ``--enable-logging-iteration-details``.

    Raises
    ------
    SpecError
        For a file that is neither, a row that is no step, or no row at all.
    """
    path = Path(path)
    return _table(path) if path.suffix.casefold() == ".csv" else of_log(read_log(path))


def of_log(log: IterationLog) -> Steps:
    """The steps of vLLM's log; steps for other ranks and with images are left out.

    Contexts are known where the log says how full the cache is and how much it holds.
    """
    used = [i for i in log.iterations if not (i.dummy or i.encoder) and i.context_requests + i.generation_requests]
    if not used:
        raise SpecError(log.path, "", "holds no step with requests")
    seconds = step_times(used).seconds
    fields = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
    arrays = [np.array([getattr(i, name) for i in used], np.float64) for name in fields]
    usage = np.array([np.nan if i.usage is None else i.usage for i in used])
    context = None
    if log.pool and np.isfinite(usage).all():
        context = np.maximum(usage * log.pool / np.maximum(arrays[0] + arrays[2], 1), 1.0)
    return Steps(arrays[0], arrays[1], arrays[2], arrays[3], seconds, context)


def _table(path: Path) -> Steps:
    content = csvfile.read(path)
    if lacks := [name for name in COLUMNS if name not in content.header]:
        raise SpecError(path, "", f"is no table of steps: it lacks the columns {', '.join(lacks)}")
    names = [*COLUMNS, *([CONTEXT] if CONTEXT in content.header else [])]
    rows = [[_number(path, line, name, len(content.header)) for name in names] for line in content.lines]
    columns = np.array(rows, np.float64).T
    context = columns[5] if len(names) > len(COLUMNS) else None
    return Steps(columns[0], columns[1], columns[2], columns[3], columns[4] * 1e-3, context)


def _number(path: Path, line: csvfile.Line, name: str, fields: int) -> float:
    where = f"line {line.number}"
    if line.fields != fields:
        raise SpecError(path, where, "has another number of fields than the header")
    try:
        value = float(line.cells[name])
    except ValueError:
        value = math.nan
    least = 0.0 if name in COLUMNS[:4] else 1e-9
    if not least <= value < 1e12:
        raise SpecError(path, where, f"{name} is {printable(line.cells[name], 40)!r}, no number from {least:g} on")
    return value
