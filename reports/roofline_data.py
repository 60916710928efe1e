"""What a roofline picture shows, as numbers and words: roofs, slopes, ridges, points and the labels of points.

The coordinates of an operator are its arithmetic intensity (FLOP per byte of device memory) and the FLOP/s it reaches
in its predicted time. At bound fidelity that is the bound, where a point is below the roof if something else than
memory or matrix units limits it; at another one it lies below the place of its bound, which is drawn too. Its FLOPs are
those of the matrix units where it uses them: their roof it is that it stands under, and vector work beside them (the
softmax in attention) would lift it above. Operators of vector work alone count that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfmodel.base.units import engineering
from perfmodel.reports.words import (
    clip,
    format_name,
    intensity,
    limiter_words,
    memory_name,
    one_line,
    percent,
    unit_name,
    vector_format,
)

if TYPE_CHECKING:
    from perfmodel.hwspecs.schema import Gpu
    from perfmodel.roofline.analysis import Analysis
    from perfmodel.roofline.phases import OpResult, Phase

#: Operators below this share of their phase's time are points without a label; a note names them.
MINOR = 0.005

#: In a label of several operators, those below this share run on in one line.
NAMED = 0.02

#: What one device of a kind is called; of other kinds, a device.
_NOUNS = {"gpu": "GPU", "cpu": "CPU"}

_RESOURCES = {"hbm": "memory", "matrix": "matrix"}


@dataclass(frozen=True)
class Slope:
    """A memory level: attainable FLOP/s = bandwidth x intensity."""

    name: str
    bandwidth: float
    main: bool

    @property
    def label(self) -> str:
        """Name and bandwidth."""
        return f"{self.name} {engineering(self.bandwidth, 'B/s')}"


@dataclass(frozen=True)
class Roof:
    """Units that share a peak rate. [FLOP/s]

    Attributes
    ----------
    name : str
        ``BF16, FP16 tensor``.
    peak : float
    used : tuple[str, ...]
        The number formats of it that the operators use: it is then drawn strong, with its ridge.
    """

    name: str
    peak: float
    used: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name and peak."""
        return f"{self.name}\n{engineering(self.peak, 'FLOP/s')}"


@dataclass(frozen=True)
class Point:
    """An operator of a phase; layer classes in which it is the same are one point.

    Attributes
    ----------
    phase, op : str
    layers : tuple[str, ...]
    x, y : float
        Intensity [FLOP/byte] and rate in the predicted time [FLOP/s].
    top : float
        Rate at the bound. [FLOP/s]
    seconds, low, high : float
        Predicted time of all its runs in a step, and its 80 % interval. [s]
    share : float
        Of the phase's time.
    limiter : str
        In words.
    resource : str
        ``memory`` or ``matrix`` where device memory or the matrix units limit it, so that it is on the roof; else
        ``other``.
    """

    phase: str
    op: str
    layers: tuple[str, ...]
    x: float
    y: float
    share: float
    limiter: str
    resource: str
    top: float = 0.0
    seconds: float = 0.0
    low: float = 0.0
    high: float = math.inf

    @property
    def on_roof(self) -> bool:
        """Whether its bound lies on the roof."""
        return self.resource != "other"

    @property
    def below(self) -> bool:
        """Whether it is slower than its bound, to the eye."""
        return self.top > 1.02 * self.y

    @property
    def sentence(self) -> str:
        """All there is to say, for a tooltip."""
        where = f" ({', '.join(layer for layer in self.layers if layer)})" if any(self.layers) else ""
        times = ""
        if math.isfinite(self.high):
            ends = f"80 %: {engineering(self.low, 's')} to {engineering(self.high, 's')}"
            times = f" in {engineering(self.seconds, 's')} ({ends}), {percent(self.y / self.top)} of its bound"
        return one_line(
            f"{self.phase} {self.op}{where}: {intensity(self.x)} FLOP/byte, {engineering(self.y, 'FLOP/s')}{times}, "
            f"{percent(self.share)} of the time, limited by {self.limiter}"
        )


def slopes(gpu: Gpu) -> list[Slope]:
    """Bandwidths of the memory hierarchy, device memory first."""
    found = [Slope(memory_name(gpu), gpu.bandwidth, True)]
    for name, level in (("L3", gpu.memory.l3), ("L2", gpu.memory.l2), ("shared memory", gpu.memory.shared)):
        if level is not None and level.bandwidth is not None:
            found.append(Slope(name, level.bandwidth.value, False))
    return found


def used_formats(analysis: Analysis) -> set[str]:
    """Number formats in which the operators use matrix units."""
    return {
        unit.removeprefix("matrix:")
        for phase in (analysis.prefill, analysis.decode)
        for result in phase.ops
        for unit, amount in result.cost.ops.items()
        if unit.startswith("matrix:") and float(amount) > 0
    }


def roofs(gpu: Gpu, used: set[str]) -> list[Roof]:
    """Peaks of the matrix units, formats with one peak together, and of the vector units; highest first."""
    peaks: dict[float, list[str]] = {}
    for math_, rate in gpu.compute.tensor.items():
        peaks.setdefault(rate.value, []).append(math_)
    found = []
    for peak, formats in peaks.items():
        kind = unit_name(formats[0], gpu).split(" ", 1)[1]
        named = ", ".join(format_name(f) for f in sorted(formats, key=lambda f: f not in used))
        found.append(Roof(f"{named} {kind}", peak, tuple(f for f in formats if f in used)))
    on_vector: dict[float, list[str]] = {}
    for fmt, rate in gpu.compute.vector.items():
        if fmt == vector_format(gpu) or (fmt in used and fmt not in gpu.compute.tensor):
            on_vector.setdefault(rate.value, []).append(fmt)
    for peak, formats in on_vector.items():
        named = ", ".join(format_name(f) for f in sorted(formats, key=lambda f: f not in used))
        found.append(Roof(f"vector {named}", peak, tuple(f for f in formats if f in used)))
    return sorted(found, key=lambda roof: -roof.peak)


def points(analysis: Analysis) -> list[Point]:
    """Every operator that has FLOPs and memory traffic, largest share first."""
    found: list[Point] = []
    for phase in (analysis.prefill, analysis.decode):
        for result in phase.ops:
            point = _point(phase, result, analysis)
            if point is not None:
                _merge(found, point)
    return sorted(found, key=lambda p: (-p.share, p.phase, p.op, p.layers))


def _point(phase: Phase, result: OpResult, analysis: Analysis) -> Point | None:
    cost, time = result.cost, float(result.time.predicted)
    flops, moved = float(cost.matrix_flops) or float(cost.flops), float(cost.bytes)
    if not (flops > 0 and moved > 0 and time > 0):
        return None
    limiter = result.time.limiter
    return Point(
        phase.name, result.op.name, (result.op.layer,), flops / moved, flops / time, result.share,
        limiter_words(limiter, analysis.setup), _RESOURCES.get(limiter.split(":")[0], "other"),
        flops / float(result.time.bound), time, float(result.time.low), float(result.time.high),
    )  # fmt: skip


def _merge(found: list[Point], new: Point) -> None:
    """Add a point, or its share to that of the same operator in another layer class where the two coincide."""
    for i, old in enumerate(found):
        same = (old.phase, old.op, old.limiter) == (new.phase, new.op, new.limiter)
        if same and math.isclose(old.x, new.x, rel_tol=0.02) and math.isclose(old.y, new.y, rel_tol=0.02):
            sums = {n: getattr(old, n) + getattr(new, n) for n in ("share", "layers", "seconds", "low", "high")}
            found[i] = replace(old, **sums)
            return
    found.append(new)


def undrawn(analysis: Analysis) -> dict[str, dict[str, float]]:
    """Phase -> operators without FLOPs or memory traffic -> their share of the time, largest first."""
    table: dict[str, dict[str, float]] = {}
    for phase in (analysis.prefill, analysis.decode):
        shares: dict[str, float] = {}
        for result in phase.ops:
            if _point(phase, result, analysis) is None:
                shares[result.op.name] = shares.get(result.op.name, 0.0) + result.share
        table[phase.name] = dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))
    return table


@dataclass(frozen=True)
class Group:
    """Points of one phase and one limiter that are drawn in one place, so that one label names them."""

    points: tuple[Point, ...]

    @property
    def anchor(self) -> Point:
        """The point that the leader goes to: the largest."""
        return self.points[0]

    @property
    def share(self) -> float:
        """Of the phase's time, together."""
        return sum(p.share for p in self.points)


def groups(found: Sequence[Point], near: Callable[[Point, Point], bool]) -> list[Group]:
    """Split points into labels: what limits them is the same, and so is the place, to the eye.

    Points of two roofs never share a label, however near these are: the label stands for one of them.

    Parameters
    ----------
    found : sequence of Point
        Largest share first.
    near : (Point, Point) -> bool
        Whether the second is drawn in the place of the first, the group's largest.

    Returns
    -------
    list of Group
        Each point in one; the largest share of the time first.
    """
    runs: list[list[Point]] = []
    for point in found:
        for run in runs:
            if (run[0].phase, run[0].limiter) == (point.phase, point.limiter) and near(run[0], point):
                run.append(point)
                break
        else:
            runs.append([point])
    return sorted((Group(tuple(run)) for run in runs), key=lambda g: (-g.share, g.anchor.phase, g.anchor.x))


def names(found: Sequence[Point]) -> dict[Point, str]:
    """What each point is called: its operator, with the layer classes where points of one phase share a name."""
    counts: dict[tuple[str, str], int] = {}
    for point in found:
        counts[point.phase, point.op] = counts.get((point.phase, point.op), 0) + 1
    return {
        p: p.op if counts[p.phase, p.op] == 1 or not any(p.layers) else f"{p.op} ({', '.join(p.layers)})" for p in found
    }


def group_lines(group: Group, called: dict[Point, str]) -> list[str]:
    """The label: a line an operator with its share; the smaller ones run on, with their sum."""
    big = [p for i, p in enumerate(group.points) if p.share >= NAMED or i == 0]
    rest = [p for p in group.points if p not in big]
    if len(rest) == 1:
        big, rest = big + rest, []
    lines = [f"{called[p]} {percent(p.share)}" + ("" if p.on_roof else f", {p.limiter}") for p in big]
    if rest:
        lines.append(", ".join(called[p] for p in rest) + f" {percent(sum(p.share for p in rest))}")
    return [line.replace(" %", "\u00a0%").replace("< ", "<\u00a0") for line in lines]


def unlabelled(found: Sequence[Point]) -> dict[str, str]:
    """Phase -> its points below ``MINOR``, which get no label: ``rope 0.75, lm_head 1``, by intensity."""
    called, listed = names(found), {}
    for phase in dict.fromkeys(p.phase for p in found):
        small = sorted((p for p in found if p.phase == phase and p.share < MINOR), key=lambda p: (p.x, p.op))
        if small:
            listed[phase] = ", ".join(f"{clip(called[p], 60)} {intensity(p.x)}" for p in small)
    return dict(sorted(listed.items(), key=lambda item: item[0] != "prefill"))


# Whose numbers they are


def device_noun(analyses: Sequence[Analysis]) -> str:
    """What one of the devices is called: GPU, CPU, or device where they are something else or differ."""
    nouns = {_NOUNS.get(a.setup.gpu.kind, "device") for a in analyses}
    return nouns.pop() if len(nouns) == 1 else "device"


def detected(analyses: Sequence[Analysis]) -> list[str]:
    """Titles of the processors whose numbers are no datasheet's: peaks derived, bandwidth measured on this machine."""
    gpus = [a.setup.gpu for a in analyses]
    found = [g for g in gpus if g.kind == "cpu" and g.memory.hbm.bandwidth.source.startswith("measured")]
    return list(dict.fromkeys(clip(g.title) for g in found))


def basis(analyses: Sequence[Analysis]) -> str:
    """A sentence on the numbers of detected processors; nothing where all are documented."""
    if not (titles := detected(analyses)):
        return ""
    return (
        f"Peaks of {', '.join(titles)} are derived from cores, SIMD width and clock, and the memory bandwidth was "
        "measured here: a run beats its bound where these are too low."
    )
