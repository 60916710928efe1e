"""Run what is in this checkout without installing it: ``python checkout.py perfmodel|pytest|targets ARGUMENTS``.

The folders at the top level are sub-packages of ``perfmodel``; here its search path is given the checkout.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What measuring with the package imports besides torch, and what only its picture needs.
NEEDED, PICTURE = ("numpy", "click", "pydantic", "yaml", "psutil"), ("matplotlib",)


def missing(names: Sequence[str]) -> list[str]:
    """The modules that this interpreter does not have."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def use() -> None:
    """Let ``import perfmodel`` find this checkout, whatever else is installed."""
    sys.path.insert(0, str(ROOT / "src"))
    package = importlib.import_module("perfmodel")
    package.__path__ = [str(ROOT / "src/perfmodel"), str(ROOT)]


def main(argv: Sequence[str]) -> int:
    """Run one of the programs; returns its exit code."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    use()
    program, *arguments = argv
    if program == "pytest":
        import pytest

        return int(pytest.main(arguments))
    if program == "targets":
        sys.path.insert(0, str(ROOT / "tools"))
        targets = importlib.import_module("on_gpu.targets")
        return int(targets.main(arguments))
    cli = importlib.import_module("perfmodel.cli")
    return int(cli.main(arguments, prog_name="perfmodel") or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
