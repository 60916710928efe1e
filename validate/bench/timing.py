"""Honest timing: interleaved samples until the median is known well enough, on buffers that no cache still holds.

A call is timed in batches that are long against the clock's resolution. Callables that stand beside each other (a
kernel, a library, another kernel) take turns, so that a drift of the machine meets all of them. The median is reported
with the 20th and 80th percentile; sampling stops when the 95 % confidence interval of the median, from order
statistics, is narrower than a stated share, or when the time allowed is spent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, sqrt
from typing import Protocol

import numpy as np

from perfmodel.base.errors import UsageError

#: A timed batch lasts at least so long. [s]
BATCH = 2e-3
#: Half-width of the median's confidence interval, over the median, at which sampling stops.
PRECISE = 0.01
#: Samples of each callable at least, and at most.
FEWEST, MOST = 9, 400

Call = Callable[[], object]


class Stopwatch(Protocol):
    """How a device's time is taken."""

    name: str

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        """Seconds a call of ``repeats`` calls, going round through ``calls``, from an idle device to an idle device."""


class WallClock:
    """The processor's own clock, for work that is done when the call returns."""

    name = "perf_counter"

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        """See ``Stopwatch``."""
        count = len(calls)
        start = time.perf_counter()
        for i in range(repeats):
            calls[i % count]()
        return (time.perf_counter() - start) / repeats


@dataclass(frozen=True)
class Timing:
    """What a callable took. [s]

    Attributes
    ----------
    median, p20, p80 : float
    precision : float
        Half-width of the median's 95 % confidence interval, over the median.
    samples, repeats : int
        Batches, and calls in each.
    clock : str
        How the time was taken.
    """

    median: float
    p20: float
    p80: float
    precision: float
    samples: int
    repeats: int
    clock: str

    @property
    def noise(self) -> float:
        """Spread of single batches: ``(p80 - p20) / median``."""
        return (self.p80 - self.p20) / self.median if self.median else 0.0


def median_precision(samples: Sequence[float]) -> float:
    """Half-width of the 95 % confidence interval of the median over the median, from order statistics.

    The interval runs from the k-th smallest to the k-th largest with ``k = floor(n/2 - 0.98 sqrt(n))``; with fewer than
    nine samples from the smallest to the largest.

    >>> median_precision([1.0] * 20)
    0.0
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    k = max(floor(n / 2 - 0.98 * sqrt(n)), 0)
    middle = float(np.median(ordered))
    return float(ordered[n - 1 - k] - ordered[k]) / 2 / middle if middle else 0.0


def summary(samples: Sequence[float], repeats: int, clock: str) -> Timing:
    """Figures of a list of samples. [s]"""
    p20, median, p80 = (float(v) for v in np.percentile(np.asarray(samples), [20, 50, 80]))
    return Timing(median, p20, p80, median_precision(samples), len(samples), repeats, clock)


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection in between."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def batch_size(watch: Stopwatch, calls: Sequence[Call], batch: float = BATCH) -> int:
    """Calls that together last as long as a batch should; warms up on the way.

    At least one round of the buffers, unless the stopwatch goes on where its last batch ended (``goes_on``).
    """
    repeats = 1 if getattr(watch, "goes_on", False) else len(calls)
    watch.seconds(calls, repeats)
    while True:
        took = watch.seconds(calls, repeats) * repeats
        if took >= batch or repeats >= 1 << 20:
            return repeats
        repeats = min(max(2 * repeats, int(1.2 * repeats * batch / max(took, 1e-9))), 1 << 20)


def interleaved(
    watch: Stopwatch, candidates: Mapping[str, Sequence[Call]], *, budget: float = 2.0, precise: float = PRECISE,
    fewest: int = FEWEST, most: int = MOST, batch: float = BATCH,
) -> dict[str, Timing]:  # fmt: skip
    """Time callables side by side.

    Parameters
    ----------
    watch : Stopwatch
    candidates : mapping
        Name -> the same call on different buffers, which are gone through in turn.
    budget : float
        Time for all of them together, warm-up included; each still gets ``fewest`` samples. [s]
    precise : float
        Precision of the median at which one is done.
    fewest, most : int
        Samples.
    batch : float
        Length of a timed batch. [s]

    Raises
    ------
    UsageError
        When a candidate has no call.
    """
    for name, calls in candidates.items():
        if not calls:
            raise UsageError(f"{name} has no call to time")
    end = time.perf_counter() + budget
    with quiet():
        repeats = {name: batch_size(watch, calls, batch) for name, calls in candidates.items()}
        samples: dict[str, list[float]] = {name: [] for name in candidates}
        open_names = list(candidates)
        while open_names:
            for name in list(open_names):
                samples[name].append(watch.seconds(candidates[name], repeats[name]))
                n = len(samples[name])
                settled = n >= fewest and median_precision(samples[name]) <= precise
                if settled or n >= most or (n >= fewest and time.perf_counter() > end):
                    open_names.remove(name)
    return {name: summary(samples[name], repeats[name], watch.name) for name in candidates}


def process_noise(seconds: float = 0.2) -> float:
    """Spread of a fixed piece of work on this machine: ``(p80 - p20) / median`` of a loop in the interpreter."""

    def spin() -> int:
        total = 0
        for i in range(20_000):
            total += i
        return total

    return interleaved(WallClock(), {"spin": [spin]}, budget=seconds, precise=0.0, most=200)["spin"].noise


def rotation(bytes_touched: float, cache_bytes: float, most_bytes: float, factor: float = 3.0) -> int:
    """Copies of a working set that together are past the last-level cache: ``ceil(factor cache / bytes) + 1``.

    1 where the set is past it by itself, and no more than ``most_bytes`` hold.
    """
    if bytes_touched >= factor * cache_bytes:
        return 1
    wanted = int(-(-factor * cache_bytes // max(bytes_touched, 1.0))) + 1
    return max(1, min(wanted, int(most_bytes // max(bytes_touched, 1.0)), 4096))
