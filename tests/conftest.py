"""What all tests share: GPU tests run where a CUDA device is, kernels are interpreted, no skip goes unmentioned."""

import functools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
NO_CUDA = "no CUDA device"

# `python -m pytest` puts the checkout on the path, and then its rooms shadow other people's `kernels` and `validate`.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# No deadline: the machine may be busy. In CI the examples are the same each run, so that a failure can be repeated.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@functools.cache
def has_cuda() -> bool:
    """Whether torch sees a CUDA device; asked only once a test marked `gpu` is about to run."""
    import torch

    return torch.cuda.is_available()


def pytest_configure(config: pytest.Config) -> None:
    """Have Triton interpret kernels on the CPU, unless `-m gpu` asks for the GPU and there is one.

    Triton reads the variable when it is imported, so no conftest imports it at its top level.
    """
    # No fit of this machine's changes a test.
    os.environ["PERFMODEL_DATA"] = tempfile.mkdtemp(prefix="perfmodel-tests-")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = re.search(r"(?<!not )\bgpu\b", config.option.markexpr or "")
    if asked and has_cuda():
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the data folder of the tests."""
    shutil.rmtree(os.environ["PERFMODEL_DATA"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") and not has_cuda():
        pytest.skip(NO_CUDA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} {'GPU tests' if reason == NO_CUDA else 'tests'} skipped: {reason}")
