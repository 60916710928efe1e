"""What a device reaches at best: rates and latencies that were measured on it, each with its method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from perfmodel.base.units import engineering
from perfmodel.validate.bench.streams import Line, Stream, beyond, memory_line, steps
from perfmodel.validate.bench.timing import Timing

#: Operation of a sweep -> what is said of it.
STREAMS = {"copy": "copy", "read": "read (sum)", "triad": "triad (STREAM: a + 3 b)"}


@dataclass(frozen=True)
class Ceiling:
    """One number.

    Attributes
    ----------
    value : float
        The rate of the fastest fifth of the batches (p20 of the time), or the median of a latency; SI.
    unit : str
    method : str
        How it was measured.
    noise : float
        Spread of the batches: ``(p80 - p20) / median``.
    """

    value: float
    unit: str
    method: str
    noise: float = 0.0

    @property
    def text(self) -> str:
        """With its unit, to four digits."""
        return engineering(self.value, self.unit, 4)


@dataclass(frozen=True)
class Ceilings:
    """All of a device.

    Attributes
    ----------
    items : Mapping[str, Ceiling]
        ``memory``, ``l2``, ``l3`` [bytes/s]; ``peak:<format>`` and ``fma`` [FLOP/s]; ``exp`` [op/s]; ``launch``,
        ``launch:graph`` and ``t0`` [s].
    sweep : tuple[Stream, ...]
    states : tuple
        Clocks, power and load before and after.
    """

    items: Mapping[str, Ceiling]
    sweep: tuple[Stream, ...] = ()
    states: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=({}, {}))

    def __getitem__(self, name: str) -> float:
        return self.items[name].value

    def get(self, name: str, default: float = 0.0) -> float:
        """The value of a ceiling, or a default."""
        return self.items[name].value if name in self.items else default

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats whose peak was measured."""
        return tuple(name.removeprefix("peak:") for name in self.items if name.startswith("peak:"))

    def peak(self, fmt: str) -> float:
        """Peak of a format. [FLOP/s]"""
        return self.items[f"peak:{fmt}"].value

    @property
    def noise(self) -> float:
        """Median spread of the batches behind them."""
        return statistics.median(c.noise for c in self.items.values()) if self.items else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the store keeps it."""
        return {
            "items": {name: asdict(c) for name, c in self.items.items()},
            "sweep": [asdict(p) for p in self.sweep], "states": [dict(s) for s in self.states],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ceilings:
        """From what ``to_dict`` gave."""
        before, after = data.get("states", [{}, {}])
        return cls(
            {name: Ceiling(**c) for name, c in data["items"].items()}, tuple(Stream(**p) for p in data["sweep"]),
            (before, after),
        )  # fmt: skip


def rate(work: float, t: Timing, unit: str, what: str, where: str) -> Ceiling:
    """A rate by the fastest fifth of the batches.

    Parameters
    ----------
    work : float
        Of one call.
    what, where : str
        The call; and what it ran on.
    """
    method = f"measured here: {what}, {where}; fastest fifth of {t.samples} batches of {t.repeats} calls"
    return Ceiling(work / t.p20, unit, method, t.noise)


def latency(t: Timing, what: str, where: str) -> Ceiling:
    """A latency by the median."""
    return Ceiling(t.median, "s", f"measured here: {what}, {where}; median of {t.samples} batches", t.noise)


def best(found: Sequence[Ceiling]) -> Ceiling:
    """The highest rate of several ways to reach one ceiling."""
    return max(found, key=lambda c: c.value)


def memory_items(points: Sequence[Stream], caches: Mapping[str, float], where: str) -> dict[str, Ceiling]:
    """Ceilings of the memory hierarchy from a sweep.

    ``memory`` is the highest bandwidth of a size past the last cache, over copy, read and triad; ``t0`` the median time
    at no bytes of their lines; each cache's is that of its best size.

    Parameters
    ----------
    caches : Mapping
        Name -> capacity, the smallest first. [bytes]
    """
    last = max(caches.values(), default=0.0)
    lines = memory_line(points, last)
    top = max(beyond(points, last), key=lambda p: p.best)
    found = {"memory": Ceiling(top.best, "B/s", _memory_method(top, lines, where), top.noise)}
    start = statistics.median(found_line.start for found_line in lines.values())
    text = f"measured here: median t0 of the lines t0 + bytes / bandwidth past the caches, {where}"
    found["t0"] = Ceiling(start, "s", text)
    for name, p in steps(points, caches).items():
        text = f"measured here: {STREAMS[p.op]} of {p.held / 2**20:.3g} MiB held in it, {where}"
        found[name] = Ceiling(p.best, "B/s", text, p.noise)
    return found


def _memory_method(top: Stream, lines: Mapping[str, Line], where: str) -> str:
    fits = "; ".join(
        f"{op}: {engineering(one.start, 's')} + bytes / {engineering(one.bandwidth, 'B/s')} within {one.error:.0%}"
        for op, one in lines.items()
    )
    what = f"{STREAMS[top.op]} over buffers of {top.held / 2**20:.4g} MiB, {where}, bytes as STREAM counts them"
    return f"measured here: {what}; lines: {fits}"
