"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What a module may need that the `test` extra does not bring: Triton has no build for a machine without a GPU.
OPTIONAL = {"triton"}


def modules() -> Iterator[str]:
    """The dotted name of every module of every room; `__main__` runs the command line, so it is no module to import."""
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for package, folder in rooms.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if parts[-1] != "__main__":
                yield ".".join([package, *(part for part in parts if part != "__init__")])


@pytest.mark.parametrize("name", sorted(modules()))
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module imports, and each example in it gives the output printed under it (files go to a folder of its own)."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL:
            pytest.skip(f"needs {error.name}")
        raise
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
