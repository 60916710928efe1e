"""Widths under a budget are found in seconds."""

import time

import numpy as np
import pytest

from perfmodel.roofline.quantization.budget import Choice, Option, allocate
from perfmodel.roofline.quantization.widths import mixed


def choices(seed: int) -> list[Choice]:
    """200 tensors with five widths each, of sizes and sensitivities that all differ."""
    rng = np.random.default_rng(seed)
    sizes, weights = rng.integers(10**6, 10**8, 200), rng.lognormal(size=200)
    return [
        Choice(f"t{i}", tuple(Option(f"{b}", n * b / 8, w * n * 4.0**-b) for b in (2, 3, 4, 8, 16)))
        for i, (n, w) in enumerate(zip(sizes.tolist(), weights.tolist(), strict=True))
    ]


def test_two_hundred_tensors(benchmark) -> None:
    """200 tensors x 5 widths are solved to proof in under 5 s, at five budgets from tight to roomy."""
    found = benchmark.pedantic(lambda: [_timed(share) for share in (2.5, 3.25, 4.25, 6.0, 9.0)], rounds=1)
    assert all(proven for _, proven in found)
    assert max(seconds for seconds, _ in found) < 5


def _timed(share: float) -> tuple[float, bool]:
    listed = choices(int(share * 4))
    budget = sum(c.options[-1].bytes for c in listed) * share / 16
    start = time.process_time()
    proven = allocate(listed, budget).proven
    return time.process_time() - start, proven


@pytest.mark.parametrize(("name", "budget"), [("llama3-70b", 40e9), ("deepseek-v3", 300e9)])
def test_whole_models(benchmark, name, budget) -> None:
    """562 and 664 tensors, each layer with its own sensitivity, in under 10 s."""
    start = time.process_time()
    found = benchmark.pedantic(mixed, (name, budget), rounds=1)
    assert found.allocation.proven
    assert time.process_time() - start < 10
