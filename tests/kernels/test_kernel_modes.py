"""One run of pytest interprets kernels or compiles them, and skips with a reason what it cannot do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SUITE = """
import os
import pytest

def test_on(device):
    assert os.environ.get("TRITON_INTERPRET") == {"cpu": "1", "cuda": None}[device]
"""
TORCH = """
class cuda:
    is_available = staticmethod(lambda: CUDA)
"""


@pytest.mark.parametrize(
    ("cuda", "arguments", "expected"),
    [
        (False, [], ["1 passed, 1 skipped", "1 GPU tests skipped: no CUDA device"]),
        (False, ["-m", "gpu"], ["1 skipped, 1 deselected"]),
        (False, ["-m", "interpreter"], ["1 passed, 1 deselected"]),
        (True, [], ["1 passed, 1 skipped", "kernels are interpreted in this run; pytest -m gpu runs them on the GPU"]),
        (True, ["-m", "not gpu"], ["1 passed, 1 deselected"]),
        (True, ["-m", "gpu"], ["1 passed, 1 deselected"]),
        (True, ["-m", "gpu", "-n", "1"], ["1 passed"]),
        (True, ["-m", "gpu or interpreter"], ["1 passed, 1 skipped", "kernels are compiled in this run"]),
    ],
)
def test_modes(tmp_path, cuda, arguments, expected) -> None:
    """Kernels are interpreted unless `-m gpu` asks for the GPU and there is one (here a torch that says so)."""
    kernels = tmp_path / "suite" / "kernels"
    kernels.mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", tmp_path / "suite")
    conftest = (TESTS / "kernels" / "conftest.py").read_text()
    (kernels / "conftest.py").write_text(
        conftest.replace("interp_shim.install()", "pass").replace("import interp_shim", "pass")
    )
    (kernels / "test_suite.py").write_text(SUITE)
    markers = "[pytest]\nmarkers =\n    gpu: GPU\n    interpreter: CPU\n"
    (tmp_path / "suite" / "pytest.ini").write_text(markers)
    for name, text in {
        "torch.py": f"CUDA = {cuda}{TORCH}",
        "triton.py": "",
        "perfmodel/__init__.py": "",
        "perfmodel/kernels/__init__.py": "",
        "perfmodel/kernels/device.py": "import os\ndef interpreted(): return 'TRITON_INTERPRET' in os.environ\n",
    }.items():
        (tmp_path / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(tmp_path / "packages")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *arguments, "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "suite", env=env)
    for line in expected:
        assert line in done.stdout, done.stdout + done.stderr


def test_a_worker_whose_gpu_answers_no_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a test on a GPU the device is asked; an error ends the worker process, and only a worker's."""
    import importlib.util
    from types import SimpleNamespace

    import torch

    spec = importlib.util.spec_from_file_location("kernels_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ended: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", ended.append)
    item = SimpleNamespace(nodeid="a test", get_closest_marker=lambda name: name == "gpu")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conftest.pytest_runtest_teardown(item)
    assert ended == []
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    conftest.pytest_runtest_teardown(item)
    assert ended == []  # nothing ran on a GPU
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    conftest.pytest_runtest_teardown(item)
    assert ended == [1]
