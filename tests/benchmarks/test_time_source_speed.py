"""How fast step times are for a simulator: a model's in under 1 ms, a table's in under 5 us, hot.

`pytest -n 0 tests/benchmarks` prints the times; `tools/performance.py` writes them to docs/performance.md. The
assertions leave room for a busy machine.
"""

from itertools import count
from typing import Any

import pytest

from perfmodel.roofline.batch import Batch
from perfmodel.roofline.tabulated import TabulatedSource
from perfmodel.roofline.time_source import model_source


def fastest(benchmark: Any) -> float:
    """Seconds of the fastest round; 0 where benchmarks are run as plain tests (``--benchmark-disable``)."""
    return float(benchmark.stats.stats.min) if benchmark.stats else 0.0


@pytest.mark.benchmark(group="step time")
@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_a_model_s_step(benchmark: Any, model: str) -> None:
    """Decodes with a context that was not asked before: the linear layers are remembered, attention is computed."""
    source = model_source(model, "h200", tp=8, fidelity="calibrated", engine="vllm", resolution=0)
    context = count(2000)
    source.step_time(Batch(64, 1000))
    assert benchmark(lambda: source.step_time(Batch(64, next(context)))).seconds > 0
    assert fastest(benchmark) < 0.01


@pytest.mark.benchmark(group="step time")
@pytest.mark.parametrize("batch", [Batch(64, 3000.5), Batch(64, 3000.5, 2, 224.0, 1200.0)], ids=["decodes", "mixed"])
def test_a_table_s_step(benchmark: Any, batch: Batch) -> None:
    """Rows of the table that were asked for before: a handful of list look-ups."""
    source = TabulatedSource(model_source("llama3-70b", "h200", tp=8, fidelity="calibrated", engine="vllm"))
    assert benchmark(source.step_time, batch) == source.step_time(batch)
    assert fastest(benchmark) < 50e-6
