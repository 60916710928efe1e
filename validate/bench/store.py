"""What was measured, kept: a small database in the user's data folder, a row at a time, so that nothing is lost.

Every finished case is committed before the next one starts. An interrupted run is resumed by its name: cases that it
already has are not measured again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfmodel.base.errors import OutputError, SpecError
from perfmodel.base.userdata import data_folder as data_folder

#: Version of the tables below.
LAYOUT = 1
#: How long another process may hold the database. [s]
PATIENCE = 5.0

_TABLES = """
CREATE TABLE IF NOT EXISTS layout (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY, started TEXT NOT NULL, device TEXT NOT NULL, kind TEXT NOT NULL, suite TEXT NOT NULL,
    machine TEXT NOT NULL, finished TEXT
);
CREATE TABLE IF NOT EXISTS result (
    run INTEGER NOT NULL REFERENCES run (id), name TEXT NOT NULL, operator TEXT NOT NULL, engine TEXT NOT NULL,
    dtype TEXT NOT NULL, shape TEXT NOT NULL, median REAL NOT NULL, p20 REAL NOT NULL, p80 REAL NOT NULL,
    precision REAL NOT NULL, samples INTEGER NOT NULL, more TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (run, name, engine)
);
"""


@dataclass(frozen=True)
class Result:
    """A measured case.

    Attributes
    ----------
    name : str
        Of the case.
    operator : str
        Kind of operator, such as ``gemm``.
    engine : str
        Whose code ran, such as ``torch-cpu``, ``triton`` or ``library``.
    dtype : str
    shape : Mapping
        Numbers of the case.
    median, p20, p80 : float
        [s]
    precision : float
        Of the median.
    samples : int
    more : Mapping
        What else is worth keeping: error of the result, clocks, bytes and FLOPs.
    """

    name: str
    operator: str
    engine: str
    dtype: str
    shape: Mapping[str, Any]
    median: float
    p20: float
    p80: float
    precision: float
    samples: int
    more: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A run of a suite on one device."""

    id: int
    started: str
    device: str
    kind: str
    suite: str
    machine: Mapping[str, Any]
    finished: str | None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Store:
    """The database of results.

    Parameters
    ----------
    path : Path, optional
        File; ``validate.sqlite`` in the user's data folder by default.

    Raises
    ------
    OutputError
        When the folder cannot be made, the file is no database, is held by another process or the disk is full.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_folder() / "validate.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make {self.path.parent}: {error.strerror}; set PERFMODEL_DATA") from error
        with self._guard():
            self._base = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            self._base.executescript(_TABLES)
            found = self._base.execute("SELECT version FROM layout").fetchone()
            if found is None:
                self._base.execute("INSERT INTO layout VALUES (?)", (LAYOUT,))
            elif found[0] != LAYOUT:
                raise SpecError(self.path, "layout", f"is {found[0]}, this version reads {LAYOUT}; use another folder")

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn what the database says into an error that names the file and the remedy."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            remedy = "set PERFMODEL_DATA to another folder"
            if "locked" in text or "busy" in text:
                remedy = "another perfmodel is writing to it; wait for it, or set PERFMODEL_DATA"
            elif "full" in text:
                remedy = "make room on the disk; what was finished before is kept"
            raise OutputError(f"{self.path}: {text}; {remedy}") from error
        except sqlite3.DatabaseError as error:
            raise OutputError(f"{self.path}: {error}; move it away or set PERFMODEL_DATA") from error

    def start(self, device: str, kind: str, suite: str, machine: Mapping[str, Any]) -> Run:
        """A new run."""
        text = json.dumps(dict(machine), sort_keys=True)
        with self._guard():
            cursor = self._base.execute(
                "INSERT INTO run (started, device, kind, suite, machine) VALUES (?, ?, ?, ?, ?)",
                (_now(), device, kind, suite, text),
            )
        assert cursor.lastrowid is not None
        return self.run(cursor.lastrowid)

    def unfinished(self, device: str, suite: str, machine: Mapping[str, Any]) -> Run | None:
        """The newest run of a suite on a device, in the same environment, that did not end; to be resumed."""
        text = json.dumps(dict(machine), sort_keys=True)
        with self._guard():
            row = self._base.execute(
                "SELECT id FROM run WHERE device = ? AND suite = ? AND machine = ? AND finished IS NULL "
                "ORDER BY id DESC",
                (device, suite, text),
            ).fetchone()
        return self.run(row[0]) if row else None

    def add(self, run: Run, result: Result) -> None:
        """Keep a result; it is on the disk when this returns. A case that is there already is replaced."""
        r = result
        with self._guard():
            self._base.execute(
                "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run.id, r.name, r.operator, r.engine, r.dtype, json.dumps(dict(r.shape), sort_keys=True), r.median,
                    r.p20, r.p80, r.precision, r.samples, json.dumps(dict(r.more), sort_keys=True), _now(),
                ),
            )  # fmt: skip

    def discard(self, run: Run) -> None:
        """Forget a run with all its results: what it measured was spoiled."""
        with self._guard():
            self._base.execute("DELETE FROM result WHERE run = ?", (run.id,))
            self._base.execute("DELETE FROM run WHERE id = ?", (run.id,))

    def finish(self, run: Run) -> None:
        """Mark a run as complete."""
        with self._guard():
            self._base.execute("UPDATE run SET finished = ? WHERE id = ?", (_now(), run.id))

    def run(self, number: int) -> Run:
        """A run by its number; raises SpecError for one that is not there."""
        with self._guard():
            row = self._base.execute(
                "SELECT id, started, device, kind, suite, machine, finished FROM run WHERE id = ?", (number,)
            ).fetchone()
        if row is None:
            raise SpecError(self.path, f"run {number}", "is not there; `perfmodel validate --history` lists them")
        return Run(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]), row[6])

    def runs(self, device: str | None = None) -> list[Run]:
        """All runs, of one device if asked, the newest first."""
        with self._guard():
            rows = self._base.execute("SELECT id, device FROM run ORDER BY id DESC").fetchall()
        return [self.run(row[0]) for row in rows if device in (None, row[1])]

    def results(self, run: Run) -> list[Result]:
        """What a run measured, in the order in which it did."""
        with self._guard():
            rows = self._base.execute(
                "SELECT name, operator, engine, dtype, shape, median, p20, p80, precision, samples, more FROM result "
                "WHERE run = ? ORDER BY rowid",
                (run.id,),
            ).fetchall()
        return [_result(row) for row in rows]


def _result(row: tuple[Any, ...]) -> Result:
    name, operator, engine, dtype, shape, median, p20, p80, precision, samples, more = row
    return Result(
        name, operator, engine, dtype, json.loads(shape), median, p20, p80, precision, samples, json.loads(more)
    )  # fmt: skip
