"""The parts of the roofline picture, put together: frame, lines, points, labels."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from perfmodel.base.units import engineering
from perfmodel.reports.frame import NO_ROW, ROW, Frame, labelled_share, ticks
from perfmodel.reports.roofline_data import (
    Point,
    Roof,
    Slope,
    group_lines,
    groups,
    names,
    points,
    roofs,
    slopes,
    used_formats,
)
from perfmodel.reports.roofline_text import Label, Texts
from perfmodel.reports.words import between, clip, intensity, keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.hwspecs.schema import Gpu
    from perfmodel.reports.theme import Theme
    from perfmodel.roofline.analysis import Analysis

#: Line styles of the first, second, ... GPU, and shapes of the points of the first, second, ... analysis.
DASHES: tuple[Any, ...] = (
    "-", (0, (6, 2.5)), (0, (2, 1.6)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5, 1, 1.5, 1, 1.5)), (0, (1, 2.5)),
)  # fmt: skip
SHAPES = {"prefill": "sDph8P", "decode": "o^v<>X"}

#: Area of a point in square points: of a share of 1, and the least.
AREA, LEAST_AREA = 900.0, 14.0


#: Pixels between the axes and the column of roof labels.
COLUMN_GAP = 16

#: Points share a label within this distance in pixels, or within this part of the larger one's radius.
SAME_PLACE, INSIDE = 8.0, 0.6

#: Longest leader in pixels, by the number of analyses; above two, as with three.
REACH = {1: math.inf, 2: 130.0, 3: 70.0}

#: With more roofs than this their names are short: the formats in use, and no more lines than needed.
MANY_ROOFS = 8

#: With more GPUs than this the legend has their bandwidths and ridges, for want of room at the lines.
FEW_GPUS = 2


def marker_size(share: float) -> float:
    """Side or diameter in points; the area is in proportion to the share of time."""
    return math.sqrt(max(AREA * share, LEAST_AREA))


def balanced(text: str, columns: int) -> list[str]:
    """Wrap text in as few lines as fit, of about the same length.

    >>> balanced("one two three four five", 20)
    ['one two three', 'four five']
    """
    count = len(textwrap.wrap(text, columns))
    while columns > 8 and len(textwrap.wrap(text, columns - 1)) == count:
        columns -= 1
    return textwrap.wrap(text, columns) or [""]


class Picture:
    """One roofline picture in the making."""

    def __init__(self, figure: Figure, analyses: Sequence[Analysis], theme: Theme) -> None:
        self.figure, self.analyses, self.theme = figure, analyses, theme
        self.keys = keys(analyses)
        self.points = [points(a) for a in analyses]
        self.gpus: list[Gpu] = []
        for a in analyses:
            if a.setup.gpu not in self.gpus:
                self.gpus.append(a.setup.gpu)
        self.roofs = [self._chosen_roofs(gpu) for gpu in self.gpus]
        self.crowded = len(self.gpus) > FEW_GPUS

    def compose(self) -> None:
        """Draw everything, labels last."""
        frame = Frame(self.figure, self.analyses, self.theme)
        frame.compose(self._legend(), self._roof_names(), NO_ROW if self.crowded else ROW)
        self.axes = frame.axes
        self.x0, self.x1, self.y0, self.y1 = self._limits()
        self.axes.set_xlim(self.x0, self.x1)
        self.axes.set_ylim(self.y0, self.y1)
        ticks(self.axes, self.theme)
        self.texts = Texts(self.axes, self.theme)
        for gpu in self.gpus:
            self._lines(gpu)
        self._marks()
        if not self.crowded:
            self._slope_labels()
            self._ridge_labels()
        self._roof_labels()
        left_out = self.texts.place(self._point_labels())
        if len(self.analyses) == 1:
            frame.leave_out(left_out)

    # What is drawn

    def _limits(self) -> tuple[float, float, float, float]:
        """Axes that hold all points and roofs, and at least two decades, with room for labels on all sides."""
        every = [p for found in self.points for p in found]
        shown = [(gpu, roof) for gpu in self.gpus for roof in self._roofs(gpu)]
        ridges = [roof.peak / gpu.bandwidth for gpu, roof in [s for s in shown if s[1].used] or shown]
        peaks = [roof.peak for _, roof in shown]
        x0 = min([p.x for p in every] + [1.0]) / 6
        x1 = 3 * max([p.x for p in every] + [3 * r for r in ridges])
        y0 = min([p.y for p in every] + peaks) / 8
        return x0, max(x1, 1e3 * x0), min(y0, max(peaks) / 100), (5 if len(self.analyses) == 1 else 10) * max(peaks)

    def _roofs(self, gpu: Gpu) -> list[Roof]:
        return self.roofs[self.gpus.index(gpu)]

    def _chosen_roofs(self, gpu: Gpu) -> list[Roof]:
        """Roofs to draw: all of a single GPU; of several, those in use."""
        used = set().union(*(used_formats(a) for a in self.analyses if a.setup.gpu == gpu))
        found = roofs(gpu, used)
        strong = [roof for roof in found if roof.used]
        return found if len(self.gpus) == 1 or not strong else strong

    def _slopes(self, gpu: Gpu) -> list[Slope]:
        found = slopes(gpu)
        return found if len(self.gpus) == 1 else found[:1]

    def _owner(self, gpu: Gpu) -> str:
        """The GPU's name in front of what is its own, where there are several."""
        return f"{clip(gpu.name, 24)}: " if len(self.gpus) > 1 else ""

    # Lines and points

    def _line(self, xs: Sequence[float], ys: Sequence[float], strong: bool, **style: Any) -> None:
        colour, width = (self.theme.line, 1.8) if strong else (self.theme.faint, 0.9)
        self.axes.add_line(Line2D(xs, ys, **{"color": colour, "linewidth": width, "zorder": 2, **style}))
        ends = [self.texts.pixel(x, y) for x, y in zip(xs, ys, strict=True)]
        for (ax, ay), (bx, by) in itertools.pairwise(ends):
            self.texts.board.block_line(ax, ay, bx, by, thin=not strong)

    def _lines(self, gpu: Gpu) -> None:
        """Slopes up to the roofs, roofs from the slope of the device memory on; what lies beyond it thin or dotted."""
        levels, found, dash = self._slopes(gpu), self._roofs(gpu), DASHES[self.gpus.index(gpu)]
        fastest, top = max(s.bandwidth for s in levels), max(roof.peak for roof in found)
        strongest = max((roof.peak for roof in found if roof.used), default=top)
        for slope in levels:
            reach, name = strongest if slope.main else top, f"slope:{slope.name}:{self.gpus.index(gpu)}"
            xs, ys = (self.x0, reach / slope.bandwidth), (self.x0 * slope.bandwidth, reach)
            self._line(xs, ys, slope.main, linestyle=dash, gid=name)
            if top > reach:
                self._line((xs[1], top / slope.bandwidth), (reach, top), False)
        for roof in found:
            ridge, name = roof.peak / gpu.bandwidth, f"roof:{roof.name}:{self.gpus.index(gpu)}"
            self._line((ridge, self.x1), (roof.peak,) * 2, bool(roof.used), linestyle=dash, gid=name)
            if fastest > gpu.bandwidth:
                self._line((roof.peak / fastest, ridge), (roof.peak,) * 2, False, linestyle=(0, (1, 2)), zorder=1)

    def _marks(self) -> None:
        for gpu, roof, x in self._ridges():
            self._line((x, x), (self.y0, self.y1), False, linestyle=(0, (1, 3)), zorder=1)
            self.axes.add_line(Line2D(
                [x], [roof.peak], marker="o", markersize=6, color=self.theme.background, zorder=3,
                markeredgecolor=self.theme.line, markeredgewidth=1.4, gid=f"ridge:{roof.name}:{self.gpus.index(gpu)}",
            ))  # fmt: skip
            self.texts.board.block_mark(*self.texts.pixel(x, roof.peak), 5)
        for index, found in enumerate(self.points):
            for number, p in enumerate(found):
                self._drop(p, index, number)
                style = self._marker(p.phase, index, marker_size(p.share))
                gid = f"point:{index}:{p.phase}:{p.op}:{number}"
                self.axes.add_line(Line2D([p.x], [p.y], gid=gid, label=p.sentence, zorder=5 - p.share, **style))
                self.texts.board.block_mark(*self.texts.pixel(p.x, p.y), self._radius(p))

    def _drop(self, p: Point, index: int, number: int) -> None:
        """A line from a point up to its bound, with a bar across its end, where it is slower."""
        if not p.below:
            return
        style: dict[str, Any] = {"color": getattr(self.theme, p.phase), "linewidth": 0.9, "alpha": 0.8, "zorder": 2.5}
        self.axes.add_line(Line2D([p.x, p.x], [p.y, p.top], gid=f"drop:{index}:{p.phase}:{number}", **style))
        self.axes.add_line(Line2D([p.x], [p.top], marker="_", markersize=7, markeredgewidth=1.4, **style))
        low, high = self.texts.pixel(p.x, p.y), self.texts.pixel(p.x, p.top)
        self.texts.board.block_line(*low, *high, thin=True)

    def _marker(self, phase: str, index: int, size: float) -> dict[str, Any]:
        """Style of the points of a phase in the index-th analysis: those of the second, fourth, ... are hollow."""
        colour, hollow = getattr(self.theme, phase), index % 2 == 1
        fill, edge = (self.theme.background, colour) if hollow else (colour, getattr(self.theme, f"{phase}_text"))
        return {
            "linestyle": "none", "marker": SHAPES[phase][index], "markersize": size, "markerfacecolor": fill,
            "markeredgecolor": edge, "markeredgewidth": 1.3 if hollow else 0.8, "alpha": 0.9,
        }  # fmt: skip

    def _radius(self, point: Point) -> float:
        """Of a point, in pixels."""
        return marker_size(point.share) / 2 * float(self.figure.dpi) / 72 * 1.2

    def _legend(self) -> list[tuple[tuple[Line2D, ...], str]]:
        """Handles and texts: an entry a phase of a single analysis, else one an analysis."""
        rows: list[tuple[tuple[Line2D, ...], str]] = []
        for index, (a, key) in enumerate(zip(self.analyses, self.keys, strict=True)):
            prefill, decode = (Line2D([], [], **self._marker(phase, index, 8)) for phase in SHAPES)
            times = [engineering(seconds, "s") for seconds in (a.ttft_s, a.tpot_s)]
            ends = [
                f" ({between(e)})" * (a.fidelity != "bound" and not key) for e in (a.ttft_interval, a.tpot_interval)
            ]
            texts = f"prefill {times[0]}{ends[0]}", f"decode {times[1]} a token{ends[1]}"
            if not key:
                return [((prefill,), texts[0]), ((decode,), texts[1])]
            dash = DASHES[self.gpus.index(a.setup.gpu)]
            line = Line2D([], [], color=self.theme.line, linewidth=1.8, linestyle=dash)
            lines = self._lines_in_words(a.setup.gpu) if self.crowded else ""
            rows.append(((line, prefill, decode), f"{clip(key, 48)}: {', '.join(texts)}{lines}"))
        return rows

    def _lines_in_words(self, gpu: Gpu) -> str:
        """Bandwidth and ridges of one of many GPUs."""
        ridges = [
            f"{', '.join(f.upper() for f in roof.used)} {intensity(x)}" for g, roof, x in self._ridges() if g == gpu
        ]
        return f"; {self._slopes(gpu)[0].label}" + f", ridge {', '.join(ridges)} FLOP/B" * bool(ridges)

    # Labels

    def _roof_names(self) -> dict[tuple[str, float], tuple[str, bool]]:
        """(Name, peak) -> label and strength of every roof; one that GPUs share is named once."""
        owners: dict[Roof, list[str]] = {}
        for gpu in self.gpus:
            for roof in self._roofs(gpu):
                owners.setdefault(roof, []).append(self._owner(gpu).removesuffix(": "))
        short = len(owners) > MANY_ROOFS
        return {
            (roof.name, roof.peak): (self._roof_name(roof, ", ".join(names), short), bool(roof.used))
            for roof, names in owners.items()
        }

    def _roof_name(self, roof: Roof, owners: str, short: bool) -> str:
        if short and roof.used:
            formats = ", ".join(f.upper() for f in roof.used)
            return "\n".join(balanced(f"{owners} {formats} {engineering(roof.peak, 'FLOP/s')}".strip(), 32))
        return "\n".join([*filter(None, [owners]), roof.label])

    def _roof_labels(self) -> None:
        artists = []
        for text, strong in self._roof_names().values():
            colour, weight = (self.theme.text, "bold") if strong else (self.theme.muted, "normal")
            style = {"va": "center", "linespacing": 1.15, "fontsize": 8.5, "color": colour, "fontweight": weight}
            artists.append(self.texts.text(text, **style))
        heights = [self.texts.pixel(self.x1, peak)[1] for _, peak in self._roof_names()]
        self.texts.column(artists, heights, COLUMN_GAP)

    def _slope_labels(self) -> None:
        """Each bandwidth along its line, near the left end."""
        (ax, ay), (bx, by) = self.texts.pixel(self.x0, self.x0), self.texts.pixel(self.x0 * 10, self.x0 * 10)
        angle = math.atan2(by - ay, bx - ax)
        for gpu in self.gpus:
            for slope in self._slopes(gpu):
                start = self.texts.pixel(self.x0, self.x0 * slope.bandwidth)
                colour = self.theme.text if slope.main else self.theme.muted
                text = self._owner(gpu) + slope.label
                if not self.texts.along(text, start, angle, color=colour, fontsize=8.5):
                    x = 1.5 * self.x0
                    label = Label((text,), x, x * slope.bandwidth, 2.0, (0.7, -0.7), colour, self.theme.faint)
                    self.texts.place([label])

    def _ridges(self) -> list[tuple[Gpu, Roof, float]]:
        """GPU, roof and intensity of the ridge of every roof in use."""
        return [(g, roof, roof.peak / g.bandwidth) for g in self.gpus for roof in self._roofs(g) if roof.used]

    def _ridge_labels(self) -> None:
        """The value of each ridge, in a row above the axes."""
        texts = [
            f"{self._owner(gpu)}{', '.join(f.upper() for f in roof.used)}\nridge {intensity(x)} FLOP/B"
            for gpu, roof, x in self._ridges()
        ]
        style = {"fontsize": 8.5, "linespacing": 1.15, "color": self.theme.text, "ha": "center", "va": "bottom"}
        artists = [self.texts.text(text, **style) for text in texts]
        self.texts.row(artists, [self.texts.pixel(x, self.y1)[0] for _, _, x in self._ridges()], COLUMN_GAP)

    def _point_labels(self) -> list[Label]:
        """Labels of all but the small operators, largest share first."""
        wanted = []
        for index, found in enumerate(self.points):
            called = {point: clip(name, 60) for point, name in names(found).items()}
            shown = [p for p in found if p.share >= labelled_share(len(self.points))]
            for number, group in enumerate(groups(shown, self._in_one_place)):
                label = self._point_label(index, group_lines(group, called), group.anchor, number)
                wanted.append(((-group.share, index), label))
        return [label for _, label in sorted(wanted, key=lambda item: item[0])]

    def _in_one_place(self, large: Point, small: Point) -> bool:
        """Whether two points are one to the eye."""
        (ax, ay), (bx, by) = self.texts.pixel(large.x, large.y), self.texts.pixel(small.x, small.y)
        return math.hypot(ax - bx, ay - by) <= max(SAME_PLACE, INSIDE * self._radius(large))

    def _point_label(self, index: int, lines: Sequence[str], anchor: Point, number: int) -> Label:
        wrapped = [part for line in lines for part in balanced(line, 44)]
        heading = [clip(self.keys[index], 40)] if self.keys[index] else []
        up, left = (-1 if anchor.phase == "decode" else 1), (0 if anchor.resource == "matrix" else -1)
        return Label(
            (*heading, *wrapped), anchor.x, anchor.y, self._radius(anchor), (0.7 * up * left, 0.7 * up),
            getattr(self.theme, f"{anchor.phase}_text"), getattr(self.theme, anchor.phase),
            reach=REACH[min(len(self.analyses), 3)], least=1 + len(heading),
            gid=f"label:{index}:{anchor.phase}:{number}",
        )  # fmt: skip
