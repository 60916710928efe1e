"""What is loaded when: the command line starts without the heavy libraries, and physics never loads a GPU library."""

import subprocess
import sys

import pytest

#: Libraries that the first screen of help must not wait for.
HEAVY = [
    "jinja2",
    "matplotlib",
    "numpy",
    "pandas",
    "pydantic",
    "rich",
    "scipy",
    "torch",
    "transformers",
    "triton",
    "yaml",
]

#: Libraries that no formula needs: pandas and matplotlib belong to the border, torch and triton to the GPU.
BORDER = ["matplotlib", "pandas", "torch", "transformers", "triton"]

PHYSICS = """
import importlib, pkgutil
for room in ("base", "hwspecs", "modelspecs", "roofline"):
    package = importlib.import_module(f"perfmodel.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"perfmodel.{room}."):
        importlib.import_module(module.name)
"""

HELP = """
from perfmodel.cli import main
main(["--help"], standalone_mode=False)
"""


def loaded(code: str, names: list[str]) -> list[str]:
    """Which of `names` a fresh interpreter has loaded once it ran `code`."""
    code = f"{code}\nimport sys\nprint('loaded:', *[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("code", ["import perfmodel", HELP], ids=["import perfmodel", "perfmodel --help"])
def test_start_loads_nothing_heavy(code: str) -> None:
    """Importing the package and printing the help leave numpy, pandas, torch and the others unloaded."""
    assert loaded(code, HEAVY) == []


def test_physics_loads_no_gpu_or_table_library() -> None:
    """Every module below the measuring and reporting rooms imports without torch, triton, pandas or matplotlib."""
    assert loaded(PHYSICS, BORDER) == []


def test_loaded_sees_what_is_loaded() -> None:
    """The probe of these tests reports a library that was indeed imported."""
    assert loaded("import numpy", HEAVY) == ["numpy"]
