"""Timers and statistics: how a call is timed, on a GPU or on the CPU, and how its samples are summarised.

On a GPU a call of 100 us or more is timed by a pair of CUDA events. A shorter one is captured ten times or more into a
CUDA graph that walks over all the buffer sets, and a replay is timed. A spinning kernel goes first, so that the
host is ahead of the device and its launches cost nothing in the timed part.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Summary:
    """Samples of one call in seconds: median, 20th and 80th percentile, minimum, and the median's uncertainty."""

    median_s: float
    p20_s: float
    p80_s: float
    minimum_s: float
    repeats: int
    half_width: float


@dataclass(frozen=True)
class Limits:
    """How long and how often to time; times in seconds. ``half_width`` is relative and stops the sampling early."""

    seconds: float = 0.2
    warm_s: float = 0.03
    batch_s: float = 0.05
    min_repeats: int = 10
    max_repeats: int = 2000
    half_width: float = 0.01
    graph_below_s: float = 100e-6
    graph_s: float = 200e-6
    min_calls: int = 10
    issue_calls: int = 200


@dataclass(frozen=True)
class Measurement:
    """A summary a call, the method, the calls in a timed block, and a note when something was not as planned."""

    summary: Summary
    method: str
    calls: int
    note: str = ""


class Timer(Protocol):
    """What ``measure`` needs of a device."""

    event_method: str
    graph_method: str

    def synchronize(self) -> None: ...

    def time(self, block: Call, repeats: int) -> list[float]: ...

    def capture(self, block: Call) -> Call: ...


class CpuTimer:
    """The same interface on the CPU: the performance counter, and a plain loop in place of a graph."""

    event_method = "perf_counter"
    graph_method = "perf_counter_loop"

    def synchronize(self) -> None:
        """Return at once: CPU calls are finished when they return."""

    def time(self, block: Call, repeats: int) -> list[float]:
        """Return the seconds of each of ``repeats`` runs of ``block``."""
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            block()
            samples.append(time.perf_counter() - start)
        return samples

    def capture(self, block: Call) -> Call:
        """Return ``block`` itself."""
        return block


class CudaTimer:
    """CUDA events and CUDA graphs on the current device."""

    event_method = "cuda_events"
    graph_method = "cuda_graph"
    spin_cycles = 2_000_000  # about 1 ms: time for the host to queue a batch

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def time(self, block: Call, repeats: int) -> list[float]:
        """Return the seconds of each of ``repeats`` runs of ``block``, all queued behind a spinning kernel."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        torch.cuda.synchronize()
        spin = getattr(torch.cuda, "_sleep", None)
        if spin is not None:
            spin(self.spin_cycles)
        for start, end in events:
            start.record()
            block()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in events]

    def capture(self, block: Call) -> Call:
        """Capture ``block`` into a graph, after a warm-up on the stream that captures, and return its replay."""
        before = torch.cuda.current_stream()
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            block()
        before.wait_stream(self.stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        collected = gc.isenabled()
        gc.disable()  # collecting another graph would end the capture
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                block()
        finally:
            torch.cuda.set_stream(before)  # torch leaves the capturing one where the capture fails
            if collected:
                gc.enable()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Interpolate linearly at ``fraction`` (0 to 1) of an ordered sequence."""
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def summarise(samples: Sequence[float]) -> Summary:
    """Summarise seconds; ``half_width`` is half the 95 % confidence interval of the median over the median.

    The interval lies between the order statistics (n - 1)/2 -+ 0.98 sqrt(n) (normal approximation of the binomial);
    with fewer than six samples it is infinite. Raises ValueError for no samples, or one that is not a positive number.
    """
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        raise ValueError(f"the {len(samples)} samples must be positive finite seconds: {list(samples)[:5]}")
    ordered = sorted(samples)
    last = len(ordered) - 1
    median = percentile(ordered, 0.5)
    reach = 0.98 * math.sqrt(len(ordered))
    low, high = math.floor(last / 2 - reach), math.ceil(last / 2 + reach)
    half_width = math.inf if low < 0 or high > last else (ordered[high] - ordered[low]) / 2 / median
    return Summary(median, percentile(ordered, 0.2), percentile(ordered, 0.8), ordered[0], len(ordered), half_width)


def sample(timer: Timer, block: Call, limits: Limits, estimate: float) -> list[float]:
    """Time ``block`` in batches until its median is known well enough, or time or repeats run out."""
    fits = max(3, int(limits.seconds / estimate))
    least, most = min(limits.min_repeats, fits), min(limits.max_repeats, fits)
    samples: list[float] = []
    while len(samples) < most:
        batch = max(least, int(limits.batch_s / estimate))
        samples += timer.time(block, min(batch, most - len(samples)))
        if len(samples) >= limits.min_repeats and summarise(samples).half_width < limits.half_width:
            break
    return samples


def graph_calls(sets: int, estimate: float, limits: Limits) -> int:
    """Return the calls of a graph: at least ``min_calls`` and ``graph_s`` long, a multiple of the buffer sets."""
    calls = max(limits.min_calls, math.ceil(limits.graph_s / estimate))
    return math.ceil(calls / sets) * sets


def measure(timer: Timer, call: Callable[[int], object], sets: int, limits: Limits) -> Measurement:
    """Time ``call(i)`` for i rotating over ``sets`` buffer sets; see the module's text for how."""
    rotation = itertools.cycle(range(sets))

    def once() -> object:
        return call(next(rotation))

    first = max(summarise(timer.time(once, 3)).median_s, 1e-7)
    timer.time(once, max(1, min(1000, int(limits.warm_s / first))))
    estimate = max(summarise(timer.time(once, 5)).median_s, 1e-7)
    if estimate >= limits.graph_below_s:
        return Measurement(summarise(sample(timer, once, limits, estimate)), timer.event_method, 1)
    calls = graph_calls(sets, estimate, limits)

    def many() -> None:
        for i in range(calls):
            call(i % sets)

    block: Call = many
    method, note = timer.graph_method, ""
    try:
        block = timer.capture(many)
    except RuntimeError as error:
        timer.synchronize()
        method = timer.event_method + "_loop"
        note = f"not captured, launch gaps may be included: {error}"
    block_s = max(summarise(timer.time(block, 3)).median_s, 1e-7)
    samples = [seconds / calls for seconds in sample(timer, block, limits, block_s)]
    return Measurement(summarise(samples), method, calls, note)


def measure_host(timer: Timer, call: Call, wait: bool, limits: Limits) -> Measurement:
    """Time ``call`` on the host's clock: with ``wait`` one call and the wait for it, else the issue of many."""
    calls = 1 if wait else limits.issue_calls
    samples: list[float] = []
    for repeat in range(5 + limits.min_repeats * (10 if wait else 3)):
        timer.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if wait:
            timer.synchronize()
        elapsed = time.perf_counter() - start
        if repeat >= 5:  # the first five warm up
            samples.append(elapsed / calls)
    timer.synchronize()
    return Measurement(summarise(samples), "host_round_trip" if wait else "host_issue", calls)
