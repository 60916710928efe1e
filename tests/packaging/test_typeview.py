"""tools/typeview.py shows the rooms as one package."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def typeview(root: Path) -> ModuleType:
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("typeview", root / "tools/typeview.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_view_holds_every_declared_package(
    typeview: ModuleType, root: Path, tmp_path: Path, setuptools_config: dict[str, Any]
) -> None:
    """Each package of the distribution is a folder of the view, so type checker and import-linter see all code."""
    typeview.link(tmp_path / "perfmodel", typeview.wanted(root))
    missing = [
        p for p in setuptools_config["packages"] if not (tmp_path / p.replace(".", "/") / "__init__.py").is_file()
    ]
    assert missing == []


def test_view_follows_its_targets(typeview: ModuleType, tmp_path: Path) -> None:
    """A second run moves a link whose target changed, keeps the right ones and removes those no longer wanted."""
    view, old, new = tmp_path / "view", tmp_path / "old", tmp_path / "new"
    typeview.link(view, {"base": old, "gone": old, "same": old})
    typeview.link(view, {"base": new, "same": old})
    assert {path.name: path.readlink() for path in view.iterdir()} == {"base": new, "same": old}
