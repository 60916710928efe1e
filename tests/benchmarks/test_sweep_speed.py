"""How fast sweeps, single estimates and graphs are at bound fidelity, and that what was timed is right.

`pytest -n 0 tests/benchmarks` prints the times. The aims: a million decode configurations in under a second, a single
estimate in milliseconds. No time is asserted: it depends on the machine and on what else runs there. Several processes
(`-n 2`) time nothing and check the results.
"""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import perfmodel.roofline.analysis as analysis
from perfmodel.base.num import Num
from perfmodel.modelspecs.tensors import tensors
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import decode
from perfmodel.roofline.sweep import decode_times, step_time, sweep

MILLION = 10**6

#: Places of a million results that are evaluated again, one by one: the ends, and some between.
SAMPLE = (0, 1, 32767, 32768, 123_456, 500_000, 999_999)


def alone(ready: Setup, batch: float, context: float) -> float:
    """The bound of one decode step by plain numbers. [s]"""
    return float(step_time(ready, decode(float(batch), float(context))))


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3", "gpt-oss-120b"])
def test_a_million_pairs(benchmark: Any, model: str) -> None:
    """10^6 unrelated (batch, context) pairs, one decode step each, have the times of each pair alone."""
    ready = setup(model, "h100", tp=8)
    rng = np.random.default_rng(0)
    batch, context = (rng.integers(1, top, MILLION).astype(float) for top in (1024, 131072))
    times = benchmark.pedantic(decode_times, args=(ready, batch, context), rounds=3, warmup_rounds=1)
    assert times.shape == (MILLION,)
    for i in SAMPLE:
        assert times[i] == pytest.approx(alone(ready, batch[i], context[i]), rel=1e-13)


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_a_grid_of_a_million(benchmark: Any, model: str) -> None:
    """1000 batches x 1000 contexts, where what depends on one axis alone is evaluated once an axis: the same times."""
    ready = setup(model, "h100", tp=8)
    batch, context = np.arange(1.0, 1001.0)[:, None], np.linspace(1, 131072, 1000)[None, :]
    times = benchmark.pedantic(decode_times, args=(ready, batch, context), rounds=3, warmup_rounds=1)
    assert times.shape == (1000, 1000)
    for row, column in (divmod(i, 1000) for i in SAMPLE):
        assert times[row, column] == pytest.approx(alone(ready, batch[row, 0], context[0, column]), rel=1e-13)


def test_a_frame_of_a_million(benchmark: Any) -> None:
    """The public sweep, 4 TP degrees x 2 cache formats x 500 batches x 250 contexts: each row is that step alone."""
    options = {
        "batch": list(range(1, 501)), "context": [float(x) for x in np.linspace(1, 131072, 250).astype(int)],
        "tp": [1, 2, 4, 8], "kv": ["bf16", "fp8"], "hypothetical": True,
    }  # fmt: skip
    frame = benchmark.pedantic(sweep, args=("llama3-70b", "h100"), kwargs=options, rounds=3, warmup_rounds=1)
    assert len(frame) == MILLION
    for i in SAMPLE:
        row = frame.iloc[i]
        ready = setup("llama3-70b", "h100", tp=int(row["tp"]), kv=str(row["kv"]))
        assert row["time_s"] == pytest.approx(alone(ready, row["batch"], row["context"]), rel=1e-13)


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_building_a_graph(benchmark: Any, model: str) -> None:
    """The operators of one decode step and their costs, the inventory in its cache, cost what they cost in an array."""
    ready = setup(model, "h100", tp=8)

    def build(batch: Num, context: Num) -> list[Cost]:
        return [op.cost() for op in graph(ready.model, decode(batch, context), ready.plan, ready.topology)]

    costs = benchmark(build, 8.0, 4096.0)
    arrays = build(np.array([8.0]), np.array([4096.0]))
    assert len(costs) == len(arrays) > 10
    for one, many in zip(costs, arrays, strict=True):
        assert float(one.flops) == pytest.approx(np.asarray(many.flops).item(), rel=1e-13)
        assert float(one.bytes) == pytest.approx(np.asarray(many.bytes).item(), rel=1e-13)


def test_one_step(benchmark: Any) -> None:
    """The bound of one decode step, hot, is the one that a sweep has."""
    ready = setup("llama3-70b", "h100", tp=8)
    time = float(benchmark(step_time, ready, decode(8.0, 4096.0)))
    assert time == pytest.approx(float(decode_times(ready, np.array([8.0]), np.array([4096.0]))[0]), rel=1e-13)


def test_one_estimate(benchmark: Any) -> None:
    """A whole estimate, setup, memory, prefill and the decode steps, is the same with an empty inventory cache."""

    def once() -> float:
        tensors.cache_clear()
        return analysis.estimate("llama3-70b", "h100", tp=4, batch=8, input=2048, output=256).tpot_s

    cold = benchmark(once)
    assert cold == analysis.estimate("llama3-70b", "h100", tp=4, batch=8, input=2048, output=256).tpot_s


def test_a_cold_estimate(benchmark: Any) -> None:
    """A new process that reads the specs and estimates once says what this one says, without table or GPU libraries."""
    code = (
        "import sys; from perfmodel.roofline.analysis import estimate; "
        "print(repr(float(estimate('llama3-70b', 'h100', tp=4).tpot_s)), "
        "*[name for name in ('matplotlib', 'pandas', 'torch') if name in sys.modules])"
    )
    run = {"capture_output": True, "text": True, "check": True}
    done = benchmark.pedantic(
        subprocess.run, args=([sys.executable, "-c", code],), kwargs=run, rounds=3, warmup_rounds=1
    )
    assert done.stdout.split() == [repr(float(analysis.estimate("llama3-70b", "h100", tp=4).tpot_s))]
