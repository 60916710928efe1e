"""What a sweep over sizes says: time at no bytes, bandwidth of the memory, and that of each cache, seen as steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Stream:
    """One point of a sweep.

    Attributes
    ----------
    op : str
        ``copy``, ``read`` or ``triad``.
    held : float
        Bytes of all buffers: what a cache would have to hold.
    moved : float
        Bytes read and written, as STREAM counts them: without what a write allocates.
    seconds : float
        Median; ``fast`` is the fastest fifth (p20).
    fast : float
    noise : float
        Spread of the batches: ``(p80 - p20) / median``.
    """

    op: str
    held: float
    moved: float
    seconds: float
    fast: float
    noise: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second, by the median."""
        return self.moved / self.seconds

    @property
    def best(self) -> float:
        """Bytes a second, by the fastest fifth."""
        return self.moved / self.fast


@dataclass(frozen=True)
class Line:
    """``t = t0 + bytes / bandwidth``.

    Attributes
    ----------
    start : float
        Time at no bytes. [s]
    bandwidth : float
        [bytes/s]
    error : float
        Largest relative error of a point.
    points : int
    """

    start: float
    bandwidth: float
    error: float
    points: int


def line(moved: Sequence[float], seconds: Sequence[float]) -> Line:
    """Least relative squares of ``t0 + bytes / bandwidth`` with neither below zero.

    Raises
    ------
    ValueError
        Without a point.

    >>> found = line([1e6, 2e6, 4e6], [2e-6 + b / 1e11 for b in (1e6, 2e6, 4e6)])
    >>> round(found.start * 1e6, 6), round(found.bandwidth / 1e11, 6)
    (2.0, 1.0)
    """
    b, t = np.asarray(moved, float), np.asarray(seconds, float)
    if not len(b):
        raise ValueError("a line needs a point")
    rows = np.stack([1 / t, b / t], 1)
    start, slope = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)[0] if len(b) > 1 else (0.0, t[0] / b[0])
    if start < 0 or slope <= 0:  # through the origin: the larger of the two is then a constant share
        start, slope = 0.0, float((b / t) @ np.ones(len(t)) / ((b / t) @ (b / t)))
    fitted = start + slope * b
    return Line(float(start), float(1 / slope), float(np.abs(fitted / t - 1).max()), len(b))


def beyond(points: Sequence[Stream], cache: float, factor: float = 4.0) -> list[Stream]:
    """Points whose buffers are past a cache by a factor; the largest one where none is."""
    found = [p for p in points if p.held >= factor * cache]
    return found or [max(points, key=lambda p: p.held)]


def memory_line(points: Sequence[Stream], cache: float) -> dict[str, Line]:
    """The line of each operation past the last-level cache."""
    by: dict[str, list[Stream]] = {}
    for p in points:
        by.setdefault(p.op, []).append(p)
    return {
        op: line([p.moved for p in far], [p.seconds for p in far])
        for op, far in ((op, beyond(some, cache)) for op, some in by.items())
    }


def steps(points: Sequence[Stream], caches: Mapping[str, float]) -> dict[str, Stream]:
    """The fastest point of each cache: buffers that it holds and the one below it does not.

    Parameters
    ----------
    caches : Mapping
        Name -> capacity, the smallest first. [bytes]
    """
    found, below = {}, 0.0
    for name, capacity in caches.items():
        inside = [p for p in points if below < p.held <= 0.75 * capacity]
        if inside:
            found[name] = max(inside, key=lambda p: p.best)
        below = capacity
    return found


def sizes(most: float, least: float = 2**16, factor: int = 4) -> list[int]:
    """Sizes of a buffer from 64 KiB up to ``most`` by factors of 4. [bytes]

    >>> sizes(5e6)
    [65536, 262144, 1048576, 4194304]
    """
    found, size = [], int(least)
    while size <= most:
        found.append(size)
        size *= factor
    return found
