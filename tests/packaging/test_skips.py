"""A skipped test is counted aloud."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_on_gpu(n): pass

def test_other(): pytest.skip("needs a quiet room")

def test_runs(): pass
"""


def test_skips_are_counted_by_reason(root: Path, tmp_path: Path) -> None:
    """Without a CUDA device the closing lines say how many GPU tests did not run, also when run in parallel."""
    shutil.copy(root / "tests/conftest.py", tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert "2 GPU tests skipped: no CUDA device" in done.stdout
    assert "1 tests skipped: needs a quiet room" in done.stdout
    assert "1 passed, 3 skipped" in done.stdout
