"""How fast calibrated times are: under 2 us a configuration (one step) in a sweep of a million, a step in milliseconds.

The assertions leave room for a busy machine; the printed table has the figures.
"""

from typing import Any

import numpy as np
import pytest

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.calibrated.times import total
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, decode

MILLION = 10**6


def fastest(benchmark: Any) -> float:
    """Seconds of the fastest round; 0 where benchmarks are run as plain tests (``--benchmark-disable``)."""
    return float(benchmark.stats.stats.min) if benchmark.stats else 0.0


def predicted(ready: Setup, step: Step) -> Num:
    """Calibrated time of a step, nothing remembered from before."""
    model = Calibrated(ready.gpu, load(ready.gpu, "vllm"), ready.topology)
    seconds: Num = 0.0
    for op in graph(ready.model, step, ready.plan, ready.topology):
        seconds = seconds + model.time(op).predicted
    return seconds


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3", "gpt-oss-120b"])
def test_a_million_calibrated_steps(benchmark: Any, model: str) -> None:
    """10^6 unrelated (batch, context) pairs, one decode step each, on one core."""
    ready = setup(model, "h100", tp=8)
    rng = np.random.default_rng(0)
    batch, context = (rng.integers(1, top, MILLION).astype(float) for top in (1024, 131072))
    times = benchmark.pedantic(predicted, args=(ready, decode(batch, context)), rounds=2)
    assert np.shape(times) == (MILLION,)
    assert fastest(benchmark) < 8.0


def test_a_calibrated_grid(benchmark: Any) -> None:
    """1000 batches x 1000 contexts: what depends on one axis alone is evaluated once an axis."""
    ready = setup("llama3-70b", "h100", tp=8)
    step = decode(np.arange(1.0, 1001.0)[:, None], np.linspace(1, 131072, 1000)[None, :])
    times = benchmark.pedantic(predicted, args=(ready, step), rounds=2)
    assert np.shape(times) == (1000, 1000)
    assert fastest(benchmark) < 2.0


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_one_calibrated_step(benchmark: Any, model: str) -> None:
    """All operators of one step with their intervals, every shape new: under 5 ms hot."""
    ready = setup(model, "h100", tp=8)
    efficiency, step = load(ready.gpu, "vllm"), decode(8.0, 4096.0)
    ops = graph(ready.model, step, ready.plan, ready.topology)

    def once() -> float:
        fresh = Calibrated(ready.gpu, efficiency, ready.topology)
        return float(total(fresh.time(op) for op in ops).predicted)

    assert benchmark(once) > 0
    assert fastest(benchmark) < 0.05
