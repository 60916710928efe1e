"""Run what is in this checkout without installing it: ``python checkout.py perfmodel|pytest|targets ARGUMENTS``.

The folders at the top level are sub-packages of ``perfmodel``; here its search path is given the checkout.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What measuring with the package imports besides torch, and what only its picture needs.
NEEDED, PICTURE = ("numpy", "click", "pydantic", "yaml", "psutil"), ("matplotlib",)
#: Set for the stages of a dry run.
DRY_RUN = "ON_GPU_DRY_RUN"


def missing(names: Sequence[str]) -> list[str]:
    """The modules that this interpreter does not have."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def use() -> None:
    """Let ``import perfmodel`` find this checkout, whatever else is installed."""
    sys.path.insert(0, str(ROOT / "src"))
    package = importlib.import_module("perfmodel")
    package.__path__ = [str(ROOT / "src/perfmodel"), str(ROOT)]


def pytest_configure() -> None:
    """A hook of pytest, whose plugin this module is: its worker processes find the checkout as well."""
    use()


def hurry() -> None:
    """For a dry run, which measures nothing: ceilings from small buffers and products in a moment."""
    ceilings = importlib.import_module("perfmodel.validate.bench.ceilings_cpu")
    streams = importlib.import_module("perfmodel.validate.bench.streams")
    changed = {
        "EACH": 0.005, "SIDES": {"fp32": (256,), "bf16": (256,), "int8": (256,)}, "NEAR": 1 << 12,
        "sizes": lambda most: streams.sizes(2.0**22),
    }  # fmt: skip
    for name, value in changed.items():
        if not hasattr(ceilings, name):
            raise AttributeError(f"ceilings_cpu has no {name} any more")
        setattr(ceilings, name, value)


def main(argv: Sequence[str]) -> int:
    """Run one of the programs; returns its exit code."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    use()
    program, *arguments = argv
    if os.environ.get(DRY_RUN):
        hurry()
    if program == "pytest":
        import pytest

        sys.path.insert(0, str(ROOT / "tools"))  # which workers inherit
        return int(pytest.main(["-p", "on_gpu.checkout", *arguments]))
    if program == "targets":
        sys.path.insert(0, str(ROOT / "tools"))
        targets = importlib.import_module("on_gpu.targets")
        return int(targets.main(arguments))
    cli = importlib.import_module("perfmodel.cli")
    return int(cli.main(arguments, prog_name="perfmodel") or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
