"""Kernels are tested twice: in Triton's interpreter on CPU tensors, and on a GPU where there is one."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# The modules that the tests of this folder share: `interp_shim` and `numeric`.
sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


def interpreted() -> bool:
    """Whether kernels are interpreted in this process; Triton is not imported before that is settled."""
    from perfmodel.kernels import device

    return device.interpreted()


@pytest.fixture(scope="session", autouse=True)
def _corrected_interpreter() -> None:
    """The interpreter computes as the GPU does."""
    if interpreted():
        import interp_shim

        interp_shim.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this process cannot do: kernels are interpreted or compiled from the moment they are defined."""
    if item.get_closest_marker("gpu"):
        if interpreted():
            pytest.skip("kernels are interpreted in this run; pytest -m gpu runs them on the GPU")
    elif item.get_closest_marker("interpreter") and not interpreted():
        pytest.skip("kernels are compiled in this run; without -m gpu they are interpreted")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End a worker process whose GPU answers no more: all its later tests would fail, and xdist begins another."""
    if item.get_closest_marker("gpu") and "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        if not torch.cuda.is_initialized():  # nothing ran on a GPU: it was skipped
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"{item.nodeid}: {error}", file=sys.stderr, flush=True)
            os._exit(1)


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.interpreter, id="interpreter"),
        pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    """The device of the test's tensors: `cpu` in the interpreter, `cuda` on a GPU."""
    return str(request.param)
