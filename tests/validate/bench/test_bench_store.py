"""The store: rows are on the disk at once, runs resume, and what goes wrong is said."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfmodel.base.errors import OutputError, SpecError
from perfmodel.validate.bench.store import Result, Store, data_folder

MACHINE = {"device": "a test", "versions": {"torch": "2"}}


def result(name: str, median: float = 1e-3) -> Result:
    return Result(name, "gemm", "torch-cpu", "fp32", {"m": 1, "n": 2}, median, median, median, 0.0, 9, {"error": 0.0})


def test_round_trip(tmp_path: Path) -> None:
    """What is added is what is read, in order, and a case measured again replaces itself."""
    with Store(tmp_path / "s.sqlite") as store:
        run = store.start("a test", "cpu", "quick", MACHINE)
        for name in ("b", "a"):
            store.add(run, result(name))
        store.add(run, result("b", 2e-3))
        got = store.results(run)
        assert sorted((r.name, r.median) for r in got) == [("a", 1e-3), ("b", 2e-3)]
        assert got[0].shape == {"m": 1, "n": 2}
        assert store.runs() == [run]


def test_an_unfinished_run_is_resumed(tmp_path: Path) -> None:
    """The newest run without an end is found again in the same environment and not in another; an ended one is not."""
    with Store(tmp_path / "s.sqlite") as store:
        run = store.start("a test", "cpu", "quick", MACHINE)
        assert store.unfinished("a test", "quick", MACHINE) == run
        assert store.unfinished("a test", "quick", {**MACHINE, "versions": {"torch": "3"}}) is None
        assert store.unfinished("a test", "full", MACHINE) is None
        store.finish(run)
        assert store.unfinished("a test", "quick", MACHINE) is None


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Rows that were added are there after the process is killed in the middle."""
    path = tmp_path / "s.sqlite"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from perfmodel.validate.bench.store import Result, Store\n"
        "s = Store(Path(sys.argv[1])); run = s.start('a test', 'cpu', 'quick', {})\n"
        "for i in range(10**6):\n"
        "    s.add(run, Result(f'case {i}', 'gemm', 'e', 'fp32', {}, 1.0, 1.0, 1.0, 0.0, 1, {}))\n"
        "    print(i, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-P", "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(5):
        seen = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with Store(path) as store:
        names = [r.name for r in store.results(store.runs()[0])]
    assert names[: seen + 1] == [f"case {i}" for i in range(seen + 1)]


def test_a_locked_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that another process holds is an error that says so, after a short wait."""
    monkeypatch.setattr("perfmodel.validate.bench.store.PATIENCE", 0.1)
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        run = store.start("a test", "cpu", "quick", MACHINE)
        holder = sqlite3.connect(path)
        holder.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        with pytest.raises(OutputError, match="locked; another perfmodel is writing"):
            store.add(run, result("a"))
        assert time.monotonic() - start < 3
        holder.rollback()
        store.add(run, result("a"))


def test_a_full_disk(tmp_path: Path) -> None:
    """When there is no room the error says what to do, and finished rows stay."""
    with Store(tmp_path / "s.sqlite") as store:
        run = store.start("a test", "cpu", "quick", MACHINE)
        store.add(run, result("a"))
        store._base.execute(f"PRAGMA max_page_count = {store._base.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(OutputError, match="full; make room on the disk"):
            store.add(run, result("b" * 10**6))
        assert "a" in [r.name for r in store.results(run)]


def test_not_a_store(tmp_path: Path) -> None:
    """A file that is no database, one of another layout, and a run that is not there, are refused."""
    junk = tmp_path / "junk.sqlite"
    junk.write_bytes(b"no database at all, just bytes" * 100)
    with pytest.raises(OutputError, match="not a database; move it away"):
        Store(junk)
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(SpecError, match="run 7: is not there"):
        store.run(7)
    base = sqlite3.connect(tmp_path / "s.sqlite")
    base.execute("UPDATE layout SET version = 99")
    base.commit()
    with pytest.raises(SpecError, match="is 99, this version reads 1"):
        Store(tmp_path / "s.sqlite")


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is the one that is chosen, else the user's data folder."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("PERFMODEL_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_folder() == tmp_path / "data" / "perfmodel"
