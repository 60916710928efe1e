"""Eager mode: what launches cost, a plain speed that nobody fitted, and where the device takes over."""

from dataclasses import replace

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.roofline.clock import clock
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.speculative.eager import METHODS, TRANSFORMERS, EagerRound, eager_method, round_seconds


def ready(name: str, gpu: str = "a100-sxm") -> Setup:
    """A model in float16."""
    return setup(name, gpu, weights="fp16")


def timed(target: Setup, method: str) -> EagerRound:
    """A round at calibrated device times."""
    return round_seconds(target, clock(target, "calibrated"), eager_method(method))


def test_the_plain_speed_behind_the_constant() -> None:
    """Vicuna 7B on an A100 decodes at 40.24 tokens/s (hemingkx/Spec-Bench issue 4): the host limits it."""
    assert 1 / timed(ready("vicuna-7b"), "pld").plain == pytest.approx(40.24, rel=0.001)


@pytest.mark.parametrize(("layers", "published"), [(24, 54.09), (32, 40.93), (40, 32.22)])
def test_plain_speeds_of_another_model(layers: int, published: float) -> None:
    """Qwen's README on an A100: 24, 32 and 40 layers of 65 calls (50 kernels), within 10 %; they were not fitted."""
    seconds = TRANSFORMERS.call * (layers * 65 + TRANSFORMERS.outside)
    assert 1 / seconds == pytest.approx(published, rel=0.10)


def test_a_round_by_hand() -> None:
    """PLD on a host-bound model: 80 calls of 12.6 us beside a step of the same calls as a plain one."""
    r = timed(ready("vicuna-7b"), "pld")
    assert r.round - r.plain == pytest.approx(80 * TRANSFORMERS.call, rel=1e-6)
    assert r.host_share == 1.0
    assert r.speedup(1.0) < 1 < r.speedup(1.5)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_is_timed(method: str) -> None:
    """A round costs more than a plain step, and less than its verified tokens one by one."""
    r = timed(ready("vicuna-7b"), method)
    assert r.plain < r.round < METHODS[method].tokens * r.plain
    assert "verification" in r.words


def test_a_fast_host_leaves_the_device() -> None:
    """With a host a hundred times as fast the device decides: a 33B model's step is then its weights' time."""
    target = ready("vicuna-33b")
    fast = replace(TRANSFORMERS, call=TRANSFORMERS.call / 100)
    r = round_seconds(target, clock(target, "calibrated"), eager_method("recycling"), host=fast)
    assert r.host_share < 0.1
    assert r.plain > 65e9 / target.gpu.memory.hbm.bandwidth.value


def test_refusals() -> None:
    """A method that was not counted, and more GPUs than one, are refused."""
    with pytest.raises(UsageError, match="not counted"):
        eager_method("magic")
    two = setup("vicuna-7b", "a100-sxm", weights="fp16", tp=2)
    with pytest.raises(UsageError, match="one GPU"):
        round_seconds(two, clock(two, "calibrated"), eager_method("medusa"))
