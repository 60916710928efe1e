"""One decode step beside two peers in one run, as ratios. Skipped, and counted, where the peers are not installed.

    pip install --no-deps genz-llm llm-analysis && pip install fire ipython paretoset plotly seaborn tqdm
    pytest -n 0 --benchmark-group-by=group tests/benchmarks/test_peers_speed.py

pytest-benchmark prints each time and its ratio to the fastest; `tools/performance.py` writes docs/performance.md.
"""

import sys
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import performance

lacking = performance.missing()
if lacking:
    pytest.skip(f"peers are not installed: {', '.join(lacking)}", allow_module_level=True)

STEPS = {
    "perfmodel, bound": lambda: performance.ours("bound"),
    "perfmodel, calibrated": lambda: performance.ours("calibrated"),
    "GenZ": performance.genz,
    "llm-analysis": performance.llm_analysis,
}


@pytest.mark.benchmark(group="one decode step of a 70B model on 4 H100")
@pytest.mark.parametrize("name", STEPS)
def test_a_decode_step(benchmark: Any, name: str) -> None:
    """Each answers the same question: within a factor of two of the roofline bound (10.9 ms)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, contexts = STEPS[name](), cycle(range(1024, 4000))
        found = benchmark(lambda: step(performance.BATCH, next(contexts)))
    assert 0.5 < found / 10.9e-3 < 2
