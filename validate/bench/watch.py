"""How time is taken: on a processor that others use too, and on a GPU.

A batch on a processor is disturbed when the system let one of its threads wait for a processor meanwhile; Linux counts
that time for each thread. A disturbed batch is repeated. With one thread the wait is taken off what remains; with
several the least disturbed batch counts. What is left of the noise is in the percentiles.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfmodelError
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.timing import Call, quiet

#: Share of a batch's time, and time, that may be lost to other processes before it counts as disturbed. [1, s]
LOST_SHARE, LOST = 0.01, 30e-6
#: With several threads a reading is spoiled when the least disturbed batch has lost more than this share.
SPOILED = 0.1
#: Readings that are looked back on, and the share of them that may be spoiled.
RECENT, CROWDED = 40, 0.25
#: Batches that are taken for one reading at most, and the pause before the next: a thread that slept is run first. [s]
TRIES, PAUSE = 2, 2e-3

_TASKS = Path("/proc/self/task")


def waited(thread: int | None = None) -> float:
    """Time that a thread of this process, or all of them, waited for a processor; 0 where the system does not tell.
    [s]"""
    names = [str(thread)] if thread is not None else _threads()
    return sum(_waited(name) for name in names) * 1e-9


def _threads() -> list[str]:
    try:
        return [path.name for path in _TASKS.iterdir()]
    except OSError:
        return []


def _waited(name: str) -> int:
    try:
        return int((_TASKS / name / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # no such counter, or the thread has ended
        return 0


class Crowded(PerfmodelError):
    """Other processes keep the cores busy: with so many threads nothing can be measured now."""


class CpuWatch:
    """The processor's clock, and an eye on the scheduler. Each batch goes on with the buffers after the last one's, so
    that a batch may be shorter than a round of them.

    Parameters
    ----------
    threads : int
        That the timed work runs on.

    Attributes
    ----------
    batches, disturbed : int
        Taken so far, and those that other processes disturbed.
    readings, spoiled : int
        Given so far, and those that had to be taken from a disturbed batch whose wait cannot be told apart.

    Raises
    ------
    Crowded
        By ``seconds``, when more than a quarter of the last forty readings were spoiled.
    """

    goes_on = True

    def __init__(self, threads: int) -> None:
        self.threads, self.batches, self.disturbed, self.readings, self.spoiled = threads, 0, 0, 0, 0
        self._next: dict[int, int] = {}
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self.name = "perf_counter less the wait for a processor" if threads == 1 else "perf_counter, least disturbed"

    @property
    def disturbed_share(self) -> float:
        """Share of the batches that were disturbed."""
        return self.disturbed / self.batches if self.batches else 0.0

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        """Seconds a call of ``repeats`` calls, going round through ``calls``."""
        taken = []
        self.readings += 1
        for attempt in range(TRIES if self.threads == 1 else 3 * TRIES):
            if attempt:
                time.sleep(PAUSE * attempt)
            elapsed, lost = self._batch(calls, repeats)
            self.batches += 1
            if lost <= LOST + LOST_SHARE * elapsed:
                self._note(False)
                return elapsed / repeats
            self.disturbed += 1
            taken.append((lost / elapsed, elapsed - lost if self.threads == 1 else elapsed))
        share, best = min(taken)
        self._note(self.threads > 1 and share > SPOILED)
        return max(best, 1e-9) / repeats

    def _note(self, spoiled: bool) -> None:
        self.spoiled += spoiled
        self._recent.append(spoiled)
        if sum(self._recent) > CROWDED * RECENT:
            count = f"{sum(self._recent)} of the last {len(self._recent)} readings were spoiled"
            raise Crowded(f"other processes keep the cores busy ({count}): wait, or use fewer --threads")

    def _batch(self, calls: Sequence[Call], repeats: int) -> tuple[float, float]:
        """Time of a batch, and the part of it that was lost. [s]"""
        own, count = threading.get_native_id() if self.threads == 1 else None, len(calls)
        first = self._next.get(id(calls), 0)
        self._next[id(calls)] = (first + repeats) % count
        before = waited(own)
        start = time.perf_counter()
        for i in range(first, first + repeats):
            calls[i % count]()
        elapsed = time.perf_counter() - start
        return elapsed, waited(own) - before

    def forget(self) -> None:
        """Let go of where it was: before other calls are timed."""
        self._next.clear()


class CudaWatch:
    """CUDA events around the work; short calls are captured in a graph, so that launches cost nothing.

    Short is what takes less than 100 us on the device, or less than twice the time in which the host issues it: such
    calls one after another would keep the device waiting. The capture walks over all buffers. A spinning kernel goes
    first, so that the host is ahead of the device. What cannot be captured is timed as it is.
    """

    #: Calls that take less are timed in a graph. [s]
    GRAPH_BELOW = 100e-6
    #: And those that take less than so many times the host's time to issue them.
    AHEAD = 2.0
    #: Cycles of the spinning kernel at least, about a millisecond, in which the host queues the rest; and in a second.
    SPIN, CYCLES = 2_000_000, 2e9
    #: Calls that are tried to tell whether one is short; a single one where it takes longer than this. [1, s]
    TRIED, SLOW = 3, 5e-3
    name = "CUDA events, in a graph where calls are short"

    def __init__(self) -> None:
        self.torch: Any = import_torch()
        self.stream = self.torch.cuda.Stream()
        self._graphs: dict[tuple[int, int], Any] = {}
        self._short: dict[int, bool] = {}

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        """Seconds a call of ``repeats`` calls, going round through ``calls``."""
        if id(calls) not in self._short:
            self._short[id(calls)] = self._is_short(calls)
        key = (id(calls), repeats)
        if self._short[id(calls)] and key not in self._graphs:
            self._short[id(calls)] = self._capture(calls, repeats)
        if not self._short[id(calls)]:
            return self._timed(self._block(calls, repeats)) / repeats
        return self._timed(self._graphs[key].replay) / repeats

    def forget(self) -> None:
        """Let the captured graphs go, with the memory that they hold: before other calls are timed."""
        self._graphs.clear()
        self._short.clear()

    def launch(self, call: Call, repeats: int = 200) -> float:
        """Time on the host to issue a call, without waiting for it. [s]"""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        elapsed = time.perf_counter() - start
        self.torch.cuda.synchronize()
        return elapsed / repeats

    def _is_short(self, calls: Sequence[Call]) -> bool:
        start = time.perf_counter()
        self.launch(calls[0], 1)
        tried = self.TRIED if time.perf_counter() - start < self.SLOW else 1
        host = self.launch(self._block(calls, tried), 1) / tried
        spin = max(self.SPIN, int(2 * host * tried * self.CYCLES))
        return self._timed(self._block(calls, tried), spin) / tried < max(self.GRAPH_BELOW, self.AHEAD * host)

    @staticmethod
    def _block(calls: Sequence[Call], repeats: int) -> Call:
        def block() -> None:
            for i in range(repeats):
                calls[i % len(calls)]()

        return block

    def _timed(self, block: Call, spin: int = SPIN) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(spin)
        start.record()
        block()
        end.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _capture(self, calls: Sequence[Call], repeats: int) -> bool:
        """Capture so many calls and replay them once; false where they cannot be captured.

        A few calls on the capturing stream go first: libraries set themselves up for it.
        """
        cuda = self.torch.cuda
        before = cuda.current_stream()
        self.stream.wait_stream(before)
        with cuda.stream(self.stream):
            for call in (*calls[: self.TRIED], calls[-1]):
                call()
        before.wait_stream(self.stream)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        try:
            with quiet(), cuda.graph(graph, stream=self.stream):  # collecting another graph would end the capture
                self._block(calls, repeats)()
        except RuntimeError:
            cuda.set_stream(before)  # torch leaves the capturing one where the capture fails
            cuda.synchronize()
            return False
        graph.replay()
        cuda.synchronize()
        self._graphs[id(calls), repeats] = graph
        return True
