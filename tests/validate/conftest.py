"""Excerpts of tables, and ways to change them."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from perfmodel.validate.check import Check, check

DATA = Path(__file__).parent / "data"
TABLES = ("param_counts", "param_counts_bulk", "vllm_capacity", "memory_logs")


@pytest.fixture(scope="session")
def excerpt() -> Callable[[str], Path]:
    """The file of an excerpt."""
    return lambda name: DATA / f"{name}.csv"


@pytest.fixture(scope="session")
def checked() -> dict[str, Check]:
    """The check of each excerpt, with built-in models alone."""
    return {name: check(DATA / f"{name}.csv") for name in TABLES}


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """A table made from rows of an excerpt, with other cells where asked; named so that the name says nothing."""

    def make(name: str, where: Callable[[dict[str, str]], bool] = lambda row: True, **cells: str) -> Path:
        rows = list(csv.DictReader(io.StringIO((DATA / f"{name}.csv").read_text())))
        path = tmp_path / "mine.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0].keys())
            writer.writeheader()
            writer.writerows({**row, **cells} for row in rows if where(row))
        return path

    return make
