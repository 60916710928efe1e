"""Spread between deployments from a table of closed loops."""

from __future__ import annotations

import importlib.util
import sys
from math import log
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deployment_spread", ROOT / "tools" / "deployment_spread.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def row(**changes: str) -> dict[str, str]:
    usual = {
        "gpu": "h100_sxm", "framework": "trtllm", "version": "1.0", "model": "Qwen/Qwen3-32B", "gemm_dtype": "fp8",
        "tp": "2.0", "isl": "1024", "osl": "101", "concurrency": "4", "ttft_ms": "200", "tpot_ms": "10",
    }  # fmt: skip
    return usual | changes


def test_a_run(tool: ModuleType) -> None:
    """The measured rate is one over the time of a request; slower runs raise predicted over measured by as much."""
    one, slower = tool.run(row()), tool.run(row(ttft_ms="400", tpot_ms="20"))
    assert one.measured == pytest.approx(1 / (0.2 + 100 * 0.01))
    assert one.low < one.rate < one.high
    assert slower.log_ratio - one.log_ratio == pytest.approx(log(2))


def test_deployments_and_their_list(tool: ModuleType) -> None:
    """Deployments with rows enough are kept; models with prediction layers and split attention are left out."""
    rows = [row(tpot_ms=str(10 + i % 5)) for i in range(20)] + [row(version="2.0", tpot_ms="20")] * 20
    rows += [row(version="3.0")] * 19 + [row(model="deepseek-ai/DeepSeek-R1")] * 30 + [row(attention_dp="8")] * 30
    found = tool.deployments(rows)
    assert [key[2] for key in found] == ["1.0", "2.0"]
    lines = tool.lines(found)
    assert lines[1] == "deployments:"
    assert len(lines) == 4
    assert all("model: qwen3-32b, rows: 20, log_ratio: " in line for line in lines[2:])
    inside = [float(one) for one in lines[0].partition("[")[2].rstrip("]").split(",")]
    assert 0 <= inside[0] <= inside[1] <= 1
