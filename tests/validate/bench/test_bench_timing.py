"""Timing: the median and its precision, taking turns, batches, rotation; with a clock whose readings are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.validate.bench import timing


class Played:
    """A clock that reads prepared times: the arithmetic of sampling is what is under test here."""

    name = "played"

    def __init__(self, times: dict[object, list[float]]) -> None:
        self.times = {call: itertools.cycle(values) for call, values in times.items()}
        self.order: list[object] = []

    def seconds(self, calls, repeats):  # type: ignore[no-untyped-def]
        self.order.append(calls[0])
        return next(self.times[calls[0]])


def one() -> None:
    """A call."""


def other() -> None:
    """Another."""


def test_median_of_what_the_clock_reads() -> None:
    """Steady readings give their median, no spread, and the fewest samples."""
    got = timing.interleaved(Played({one: [0.01]}), {"a": [one]}, budget=10)["a"]
    assert (got.median, got.p20, got.p80, got.precision) == (0.01, 0.01, 0.01, 0.0)
    assert got.samples == timing.FEWEST
    assert got.clock == "played"


def test_candidates_take_turns() -> None:
    """Two callables are sampled one after the other, so that a drift meets both."""
    watch = Played({one: [0.01, 0.02], other: [0.03, 0.01]})
    timing.interleaved(watch, {"a": [one], "b": [other]}, budget=0, fewest=4)
    assert watch.order[-8:] == [one, other] * 4


def test_noise_takes_more_samples() -> None:
    """Readings that scatter are repeated until the median is known to a per cent, or the most that is allowed."""
    rng = np.random.default_rng(0)
    noisy = list(0.01 * (1 + 0.05 * rng.standard_normal(400)))
    got = timing.interleaved(Played({one: noisy}), {"a": [one]}, budget=100)["a"]
    assert timing.FEWEST < got.samples <= timing.MOST
    assert got.precision <= timing.PRECISE or got.samples == timing.MOST
    assert got.noise == pytest.approx(2 * 0.8416 * 0.05, rel=0.35)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60))
def test_interval_holds_the_median(samples: list[float]) -> None:
    """The median lies between its percentiles and its precision is not negative."""
    got = timing.summary(samples, 1, "x")
    assert got.p20 <= got.median <= got.p80
    assert got.precision >= 0


def test_precision_covers() -> None:
    """The 95 % interval of the median holds the true one in nine cases of ten at least."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        samples = np.sort(1 + 0.1 * rng.standard_normal(25))
        half = timing.median_precision(samples) * np.median(samples)
        hits += abs(np.median(samples) - 1) <= 2 * half
    assert hits > 360


def test_batches_are_long_enough() -> None:
    """A call of a microsecond is repeated until a batch lasts two milliseconds."""
    calls = [lambda: sum(range(50))]
    repeats = timing.batch_size(timing.WallClock(), calls)
    assert timing.WallClock().seconds(calls, repeats) * repeats > timing.BATCH / 4


@pytest.mark.parametrize(
    ("touched", "cache", "most", "copies"),
    [(1e6, 30e6, 1e12, 91), (100e6, 30e6, 1e12, 1), (1e6, 30e6, 20e6, 20), (1.0, 30e6, 1e12, 4096)],
)
def test_rotation(touched: float, cache: float, most: float, copies: int) -> None:
    """Copies go past three times the last-level cache, as memory and 4096 copies allow; one where it is past it."""
    assert timing.rotation(touched, cache, most) == copies


def test_nothing_to_time() -> None:
    """A candidate without a call is refused by name."""
    with pytest.raises(UsageError, match="a has no call"):
        timing.interleaved(timing.WallClock(), {"a": []})
