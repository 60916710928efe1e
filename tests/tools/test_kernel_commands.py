"""tools/kernels.py as a program, and the table of instructions a weight on the page that it writes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

pytest.importorskip("triton")

from kernel_aot import page  # noqa: E402
from kernel_cases.case import Case  # noqa: E402

REPORT = "import os, sys; print(os.environ.get('TRITON_INTERPRET'), 'triton' in sys.modules); "


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the tools on the path, in an environment that asks for the interpreter."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "tools")}
    env.pop("TRITON_CACHE_DIR", None)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env)


def test_importing_the_tool_changes_nothing() -> None:
    """The environment is as it was, and Triton not imported: tests of the same process interpret kernels as before."""
    done = run("import kernels; " + REPORT)
    assert done.stdout.split() == ["1", "False"], done.stderr


def test_a_command_compiles_whatever_the_environment_says() -> None:
    """Before Triton is imported the tool has the interpreter switched off, and a cache of its own."""
    done = run("import kernels; kernels.prepare(); " + REPORT + "print(os.environ['TRITON_CACHE_DIR'])")
    variable, imported, cache = done.stdout.split()
    assert (variable, imported) == ("None", "False"), done.stderr
    assert Path(cache).parent == ROOT / "build"


def test_a_process_that_interprets_is_told_so() -> None:
    """Where Triton was imported to interpret, nothing is compiled, rather than interpreted kernels judged."""
    done = run("import triton, kernels; kernels.prepare()")
    assert "RuntimeError: Triton was imported to interpret kernels; run this in a process of its own" in done.stderr


def launch(cost: float | None) -> dict[str, object]:
    return {"kernel": "_k"} | ({} if cost is None else {"instructions_per_weight": cost})


def test_instructions_a_weight_have_a_table() -> None:
    """A line a call and a column an architecture that has any, the limit beside; launches without a count, as the
    merging of parts, are left out, and so is the table where nothing was counted or was to be."""
    expects = {"instructions_per_weight": 4.2}
    cases = [
        Case("k", "sm_80", "m<=16, group 32, 16x64x128", lambda: None, loop_weights=64),
        Case("k", "sm_90", "m<=16, group 32, 16x32x128", lambda: None, expects, loop_weights=64),
        Case("k", "sm_90", "m<=64, group 32, 64x32x128", lambda: None, expects, loop_weights=64),
        Case("k", "sm_100", "K split, group 32, 16x32x128", lambda: None, loop_weights=64),
    ]
    records = {
        case.name: {"launches": [launch(cost), launch(None)]}
        for case, cost in zip(cases, (3.375, 3.6, 4.0, None), strict=True)
    }
    text = page.weight_costs(cases, records)
    assert text.startswith("SASS instructions that the main loop spends on a weight")
    assert text.strip().splitlines()[-4:] == [
        "| call | sm_80 | sm_90 |",
        "| --- | --- | --- |",
        "| m<=16, group 32 | 3.38 | 3.60 (at most 4.2) |",
        "| m<=64, group 32 |  | 4.00 (at most 4.2) |",
    ]
    assert page.weight_costs(cases[3:], records) == ""
    assert page.weight_costs([replace(case, loop_weights=0) for case in cases], records) == ""
