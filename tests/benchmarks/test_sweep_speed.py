"""How fast sweeps, single estimates and graphs are at bound fidelity.

The aims: a million decode configurations in under a second; a single estimate in milliseconds. The assertions leave
room for a busy machine; the printed table has the figures.
"""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import perfmodel.roofline.analysis as analysis
from perfmodel.modelspecs.tensors import tensors
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import decode
from perfmodel.roofline.sweep import decode_times, step_time, sweep

MILLION = 10**6


def fastest(benchmark: Any) -> float:
    """Seconds of the fastest round; 0 where benchmarks are run as plain tests (``--benchmark-disable``)."""
    return float(benchmark.stats.stats.min) if benchmark.stats else 0.0


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3", "gpt-oss-120b"])
def test_a_million_pairs(benchmark: Any, model: str) -> None:
    """10^6 unrelated (batch, context) pairs, one decode step each."""
    ready = setup(model, "h100", tp=8)
    rng = np.random.default_rng(0)
    batch, context = (rng.integers(1, top, MILLION).astype(float) for top in (1024, 131072))
    times = benchmark.pedantic(decode_times, args=(ready, batch, context), rounds=3, warmup_rounds=1)
    assert times.shape == (MILLION,)
    assert fastest(benchmark) < 1.0


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_a_grid_of_a_million(benchmark: Any, model: str) -> None:
    """1000 batches x 1000 contexts: what depends on one axis alone is evaluated once an axis."""
    ready = setup(model, "h100", tp=8)
    batch, context = np.arange(1.0, 1001.0)[:, None], np.linspace(1, 131072, 1000)[None, :]
    times = benchmark.pedantic(decode_times, args=(ready, batch, context), rounds=3, warmup_rounds=1)
    assert times.shape == (1000, 1000)
    assert fastest(benchmark) < 1.0


def test_a_frame_of_a_million(benchmark: Any) -> None:
    """The public sweep: 4 TP degrees x 2 cache formats x 500 batches x 250 contexts as one table."""
    options = {
        "batch": list(range(1, 501)), "context": [float(x) for x in np.linspace(1, 131072, 250).astype(int)],
        "tp": [1, 2, 4, 8], "kv": ["bf16", "fp8"],
    }  # fmt: skip
    frame = benchmark.pedantic(sweep, args=("llama3-70b", "h100"), kwargs=options, rounds=3, warmup_rounds=1)
    assert len(frame) == MILLION
    assert fastest(benchmark) < 1.5


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_building_a_graph(benchmark: Any, model: str) -> None:
    """The operators of one decode step and their costs, the inventory in its cache."""
    ready = setup(model, "h100", tp=8)
    ops = benchmark(lambda: [op.cost() for op in graph(ready.model, decode(8.0, 4096.0), ready.plan, ready.topology)])
    assert len(ops) > 10
    assert fastest(benchmark) < 0.02


def test_one_step(benchmark: Any) -> None:
    """The bound of one decode step, hot."""
    ready = setup("llama3-70b", "h100", tp=8)
    assert benchmark(step_time, ready, decode(8.0, 4096.0)) > 0
    assert fastest(benchmark) < 0.02


def test_one_estimate(benchmark: Any) -> None:
    """A whole estimate: setup, memory, prefill and the mean of 255 decode steps, with an empty inventory cache."""

    def once() -> float:
        tensors.cache_clear()
        return analysis.estimate("llama3-70b", "h100", tp=4, batch=8, input=2048, output=256).tpot_s

    assert benchmark(once) > 0
    assert fastest(benchmark) < 0.1


def test_a_cold_estimate(benchmark: Any) -> None:
    """A new process that imports what it needs, reads the specs and estimates once."""
    code = "from perfmodel.roofline.analysis import estimate; print(estimate('llama3-70b', 'h100', tp=4).tpot_s)"
    run = {"capture_output": True, "text": True, "check": True}
    done = benchmark.pedantic(
        subprocess.run, args=([sys.executable, "-c", code],), kwargs=run, rounds=3, warmup_rounds=1
    )
    assert float(done.stdout) == pytest.approx(0.0104, abs=1e-3)
    assert fastest(benchmark) < 1.5
