"""How long the command line takes to say what it can do, and that it loads nothing heavy for that.

`pytest -n 0 tests/benchmarks` prints the times; the aim is under 150 ms.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Libraries that are slow to import and that a screen of help does not need.
HEAVY = ("matplotlib", "numpy", "pandas", "pydantic", "torch")


def test_help_startup(benchmark: Any) -> None:
    """`perfmodel --help` as a user starts it, a new process from start to exit, names its commands."""
    command = shutil.which("perfmodel", path=str(Path(sys.executable).parent))
    assert command is not None
    run = {"capture_output": True, "text": True, "check": True}
    done = benchmark.pedantic(subprocess.run, args=([command, "--help"],), kwargs=run, rounds=10, warmup_rounds=1)
    assert {"roofline", "estimate", "list"} <= set(done.stdout.split())


def test_help_loads_nothing_heavy() -> None:
    """What that process has loaded when the help is printed: none of the slow libraries."""
    code = (
        "import sys; from perfmodel.cli import main; main(['--help'], standalone_mode=False); "
        f"print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["loaded:"]
