"""How long the command line takes to say what it can do; tests/packaging/test_imports.py is the gate."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def test_help_startup(benchmark: Any) -> None:
    """`perfmodel --help` as a user starts it: a new process, from start to exit. The aim is under 150 ms."""
    command = shutil.which("perfmodel", path=str(Path(sys.executable).parent))
    assert command is not None
    run = {"capture_output": True, "text": True, "check": True}
    done = benchmark.pedantic(subprocess.run, args=([command, "--help"],), kwargs=run, rounds=10, warmup_rounds=1)
    assert "roofline" in done.stdout
