"""The checkout as the packaging tests see it."""

import fnmatch
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def setuptools_config() -> dict[str, Any]:
    """The `[tool.setuptools]` table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.fixture(scope="session")
def ignored() -> Callable[[str, list[str]], set[str]]:
    """Which names in a folder do not belong to the project: git's own folder and what .gitignore names.

    The form is that of `shutil.copytree`'s `ignore`.
    """
    lines = (ROOT / ".gitignore").read_text().split()
    patterns = [".git", *(line.rstrip("/") for line in lines)]

    def of(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}

    return of


@pytest.fixture(scope="session")
def project_files(ignored: Callable[[str, list[str]], set[str]]) -> list[Path]:
    """Every file of the project, relative to the root."""

    def walk() -> Iterator[Path]:
        for folder, folders, files in os.walk(ROOT):
            out = ignored(folder, folders + files)
            folders[:] = [name for name in folders if name not in out]
            yield from (Path(folder, name).relative_to(ROOT) for name in files if name not in out)

    return sorted(walk())
