"""The wheel is the checkout: the same packages, the same files, one top-level name, and no warning on the way."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ignore = Callable[[str, list[str]], set[str]]


def in_wheel(path: Path, rooms: dict[str, str]) -> str | None:
    """The name that a file of the checkout has in the wheel; None for a file that lies in no room."""
    for package, folder in rooms.items():
        if path.is_relative_to(folder):
            return "/".join([*package.split("."), *path.relative_to(folder).parts])
    return None


@pytest.fixture(scope="module")
def built(root: Path, ignored: Ignore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A wheel built from a source distribution of a copy of the checkout, and what the build printed."""
    copy, out = tmp_path_factory.mktemp("copy") / "perfmodel", tmp_path_factory.mktemp("dist")
    shutil.copytree(root, copy, ignore=ignored)
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.fixture(scope="module")
def names(built: tuple[Path, str]) -> set[str]:
    """The names of the wheel's files."""
    with zipfile.ZipFile(built[0]) as wheel:
        return {name for name in wheel.namelist() if not name.endswith("/")}


def test_every_folder_with_code_is_declared(setuptools_config: dict[str, Any], project_files: list[Path]) -> None:
    """A sub-package that pyproject.toml does not list works when editable and would be missing from the wheel."""
    rooms = setuptools_config["package-dir"]
    folders = {path.parent for path in project_files if path.name == "__init__.py" and path.parts[0] != "tools"}
    found = {in_wheel(folder, rooms) or f"{folder} in no room" for folder in folders}
    assert found == {package.replace(".", "/") for package in setuptools_config["packages"]}


def test_wheel_holds_the_files_of_the_checkout(
    names: set[str], setuptools_config: dict[str, Any], project_files: list[Path]
) -> None:
    """Code, specs, templates and recorded tables: what lies in a room is in the wheel, and nothing else is."""
    rooms = setuptools_config["package-dir"]
    expected = {in_wheel(path, rooms) for path in project_files} - {None}
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_wheel_has_one_top_level_name(names: set[str]) -> None:
    """The rooms are not installed as `kernels`, `validate` or `reports`, which belong to other distributions."""
    assert {name.split("/")[0].split("-")[0] for name in names} == {"perfmodel"}


def test_wheel_carries_its_licence_and_its_command(built: tuple[Path, str], names: set[str]) -> None:
    """The licence text, the type marker and the `perfmodel` command travel with the wheel."""
    info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
    assert {f"{info}/licenses/LICENSE", "perfmodel/py.typed"} <= names
    with zipfile.ZipFile(built[0]) as wheel:
        assert "perfmodel = perfmodel.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_build_is_free_of_warnings(built: tuple[Path, str]) -> None:
    """setuptools frames what it objects to (a missing file, an undeclared package, a deprecation) in `!!` lines."""
    lines = [line for line in built[1].splitlines() if "!!" in line or "cannot be found" in line or "absent" in line]
    assert lines == []
