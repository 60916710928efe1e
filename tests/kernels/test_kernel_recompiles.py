"""A server's batch and lengths change all the time: its kernels must not be compiled anew for them, at seconds each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "lengths_varied.py"

pytestmark = pytest.mark.aot


def repeated(*arguments: str) -> list[str]:
    """Calls and kernels that Triton compiles more than once, found in a process that does not interpret them."""
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_lengths_and_batch_compile_nothing_anew() -> None:
    """Whatever batch, length, table width, number of pieces or of drafts, each kernel is compiled once a constant."""
    assert repeated() == []


def test_what_is_exempted_would_be_compiled_anew() -> None:
    """Were no argument exempted, kernels of every call would be: the sizes that are tried tell them apart."""
    calls = {name.partition(":")[0] for name in repeated("all")}
    assert calls >= {"decode", "tree", "mla", "merge", "prefill", "prefill_packed", "dense", "fp8_block", "w4a16"}
    assert calls >= {"chain", "sampled_tree", "compact"}
