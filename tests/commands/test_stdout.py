"""Where results go when stdout cannot take them."""

import os
import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-P", "-m", "perfmodel", "list", "gpus"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_stdout() -> None:
    """One line, exit code 2 and the remedy; no traceback."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(PROGRAM, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "perfmodel: cannot write to stdout: No space left on device; name a file with -o\n"


def test_a_closed_stdout() -> None:
    """One line, exit code 2 and the remedy; no traceback."""
    done = subprocess.run(
        f'"{sys.executable}" -P -m perfmodel list gpus >&-', shell=True, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "perfmodel: stdout is closed: name a file with -o\n"


def test_a_reader_that_has_gone() -> None:
    """`| head -1` is no error."""
    done = subprocess.run(
        f'"{sys.executable}" -P -m perfmodel list models | head -1', shell=True, capture_output=True, text=True
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
