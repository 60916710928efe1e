"""Copies of modules with a fault put in on purpose, for tests that must catch it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def faulty(module: ModuleType, fault: tuple[str, str], folder: Path) -> ModuleType:
    """A copy of a module, loaded from `folder`, in which one text that occurs once is replaced by another."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert source.count(fault[0]) == 1, f"{fault[0]} occurs {source.count(fault[0])} times"
    path = folder / "faulty.py"
    path.write_text(source.replace(*fault).replace("from .", f"from {module.__package__}."))
    spec = importlib.util.spec_from_file_location("faulty", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
