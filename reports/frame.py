"""What is around the roofline: title, settings, legend, warning, axes, notes. Laid out from top and bottom inwards."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from perfmodel.base.units import engineering
from perfmodel.reports.roofline_data import (
    MINOR,
    basis,
    device_noun,
    points,
    undrawn,
    unlabelled,
)
from perfmodel.reports.words import bounds_only, clip, common_settings, fidelity, keys, one_line, share_list, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.reports.roofline_text import Label
    from perfmodel.reports.theme import Theme
    from perfmodel.roofline.analysis import Analysis

#: Pixels at the layout's resolution: left of the axes, around the picture, and between blocks.
LEFT, EDGE, GAP = 74, 18, 8

#: Height of the row of ridge labels above the axes, and of the gap where the legend has them.
ROW, NO_ROW = 46, 10


#: Where a point is.
BOUND_WORDS = "Each is where its bound puts it: no kernel that reads its inputs from device memory is higher."
DROP_WORDS = "Each is where its predicted time puts it; the line above it ends at its bound."


def labelled_share(analyses: int) -> float:
    """Least share of the time that an operator needs for a label: more analyses leave room for fewer labels."""
    return MINOR if analyses == 1 else 0.05 if analyses == 2 else 0.1


class Frame:
    """Everything but the data."""

    def __init__(self, figure: Figure, analyses: Sequence[Analysis], theme: Theme) -> None:
        self.figure, self.analyses, self.theme = figure, analyses, theme
        self.width, self.height = figure.get_size_inches() * figure.dpi
        self.renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        self.axes: Axes

    def compose(
        self, legend: Sequence[tuple[tuple[Any, ...], str]], roofs: Mapping[tuple[str, float], tuple[str, bool]],
        row: int = ROW,
    ) -> None:  # fmt: skip
        """Place the blocks, and make the axes between them, with room for the names of the roofs to their right.

        Parameters
        ----------
        legend : sequence of (handles, text)
        roofs : mapping
            Of each roof its label, and whether it is strong.
        row : int
            Pixels to keep free above the axes.
        """
        heading = title(self.analyses)
        top = self.height - EDGE
        top = self._block(heading, top, fontsize=13, fontweight="bold", color=self.theme.text) - 3
        top = self._block(self._subtitle(), top, fontsize=9.5, color=self.theme.muted) - GAP
        top = self._legend(legend, top) - GAP
        for notice in self._notices():
            top = self._notice(notice, top) - GAP
        bottom = EDGE - 4.0
        for note in reversed(self._notes()):
            bottom = self._block(note, bottom, upwards=True, fontsize=8, color=self.theme.muted) + 3
        bottom += 48
        width, height = self.width - LEFT - self._column(roofs), max(top - row - bottom, 120)
        self.axes = self.figure.add_axes(
            (LEFT / self.width, bottom / self.height, width / self.width, height / self.height),
            facecolor=self.theme.background,
        )
        self.axes.set_xscale("log")
        self.axes.set_yscale("log")
        self.axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)", fontsize=9.5)
        self.axes.set_ylabel(f"FLOP/s of one {device_noun(self.analyses)}", fontsize=9.5)
        self.figure.set_label("\n".join([heading, self._description()]))

    def _column(self, roofs: Mapping[tuple[str, float], tuple[str, bool]]) -> float:
        """Width of the column of roof names."""
        widths = [0.0]
        for text, strong in roofs.values():
            artist = Text(0, 0, text, fontsize=8.5, fontweight="bold" if strong else "normal", parse_math=False)
            artist.set_figure(self.figure)
            widths.append(float(artist.get_window_extent(self.renderer).width))
        return float(min(max(widths) * 1.03 + 20 + EDGE / 2, self.width / 3))

    def leave_out(self, labels: Sequence[Label]) -> None:
        """Name under the picture what found no room in it."""
        if labels:
            text = "No room for: " + ", ".join(" ".join(label.lines) for label in labels)
            self._block(text, 2, upwards=True, fontsize=7, color=self.theme.muted)

    def _subtitle(self) -> str:
        settings = common_settings(self.analyses)
        return f"{settings}. " * bool(settings) + f"Fidelity: {fidelity(self.analyses)}."

    def _notices(self) -> list[str]:
        """What does not fit: each with its remedies; more than two in one sentence."""
        named = zip(keys(self.analyses), self.analyses, strict=True)
        misfits = {clip(key, 40): a.notice for key, a in named if a.notice}
        if len(misfits) <= 2:
            return [f"{key}: {notice}" if key else notice for key, notice in misfits.items()]
        return [f"Does not fit, so that its times are hypothetical: {', '.join(misfits)}. The table says what would."]

    def _description(self) -> str:
        notices = " ".join(f"{one_line(a.notice)}." for a in self.analyses if a.notice)
        return f"Roofline. {self._subtitle()} {notices}".strip()

    def _notes(self) -> list[str]:
        """How to read the picture, and what it does not show."""
        measured = basis(self.analyses)
        remarks = ["Area of a point: share of its phase's time."]
        if bounds_only(self.analyses):
            remarks.append(measured or BOUND_WORDS)
        else:
            remarks += [measured, DROP_WORDS]
        if any(a.setup.plan.gpus > 1 for a in self.analyses):
            remarks.append(f"Work, bytes and rates are one {device_noun(self.analyses)}'s.")
        if len(self.analyses) > 1:
            least = f"{100 * labelled_share(len(self.analyses)):.0f} %"
            remarks.append(f"Labelled from {least} on, where there is room beside the point: the table has the rest.")
        return [note for note in (" ".join(filter(None, remarks)), self._small(), self._undrawn()) if note]

    def _small(self) -> str:
        """The operators of a single analysis whose points are too small for a label."""
        small = unlabelled(points(self.analyses[0])) if len(self.analyses) == 1 else {}
        listed = "; ".join(f"in {phase} {names}" for phase, names in small.items())
        return f"Below {100 * MINOR:g} % of the time and without a label, at FLOP/byte: {listed}." if listed else ""

    def _undrawn(self) -> str:
        """The operators that are no points."""
        if len(self.analyses) > 1:
            listed = ", ".join(
                dict.fromkeys(name for a in self.analyses for shares in undrawn(a).values() for name in shares)
            )
        else:
            found = undrawn(self.analyses[0])
            listed = "; ".join(f"in {phase} {share_list(shares)}" for phase, shares in found.items() if shares)
        return f"Not drawn, for want of FLOPs: {listed}." if listed else ""

    def _block(self, text: str, y: float, upwards: bool = False, x: float = EDGE, **style: Any) -> float:
        """Wrapped text from ``y`` down (or up); returns where it ends."""
        artist = self.figure.text(
            x / self.width, y / self.height, "", va="bottom" if upwards else "top", linespacing=1.25, parse_math=False,
            **style,
        )  # fmt: skip
        artist.set_text("\n".join(self._wrap(artist, one_line(text).replace(" %", "\u00a0%"), self.width - x - EDGE)))
        extent = artist.get_window_extent(self.renderer)
        return float(extent.y1 if upwards else extent.y0)

    def _wrap(self, artist: Any, text: str, width: float) -> list[str]:
        """Lines that are no wider than ``width`` pixels; at most eight."""

        def measure(line: str) -> float:
            artist.set_text(line)
            return float(artist.get_window_extent(self.renderer).width) * 1.02

        columns = max(8, int(len(text) * width / max(measure(text), 1.0)))
        while True:
            lines = textwrap.wrap(text, columns) or [""]
            if columns <= 8 or all(measure(line) <= width for line in lines):
                return lines if len(lines) <= 8 else [*lines[:7], lines[7][: columns - 2] + " …"]
            columns -= max(1, columns // 40)

    def _legend(self, rows: Sequence[tuple[tuple[Any, ...], str]], top: float) -> float:
        texts = [row[1] for row in rows]
        handles: Any = [row[0] for row in rows]
        single = len(self.analyses) == 1
        legend = self.figure.legend(
            handles, texts, loc="upper left", bbox_to_anchor=((EDGE - 2) / self.width, top / self.height),
            ncols=len(rows) if single else 1, frameon=False, borderaxespad=0, borderpad=0, fontsize=9.5,
            handlelength=1.2 if single else 8, columnspacing=2.2, handletextpad=0.7, labelcolor=self.theme.text,
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0.6)},
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        return float(legend.get_window_extent(self.renderer).y0)

    def _notice(self, text: str, top: float) -> float:
        """A warning in a box."""
        bottom = self._block(text, top - 6, x=EDGE + 10, fontsize=9.5, color=self.theme.notice, fontweight="bold")
        edge = FancyBboxPatch(
            (EDGE / self.width, (bottom - 6) / self.height), (self.width - 2 * EDGE) / self.width,
            (top - bottom + 6) / self.height, boxstyle="square,pad=0", transform=self.figure.transFigure,
            facecolor=self.theme.notice_surface, edgecolor=self.theme.notice, linewidth=1.0, zorder=-1,
        )  # fmt: skip
        self.figure.add_artist(edge)
        return bottom - 6


def ticks(axes: Axes, theme: Theme) -> None:
    """Decades, with SI prefixes, and a quiet grid."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        powers = range(math.ceil(math.log10(limits[0])), math.floor(math.log10(limits[1])) + 1)
        axis.set_major_locator(FixedLocator([10.0**p for p in powers]))
        axis.set_minor_locator(NullLocator())
        shown = [_tick(10.0**p, axis is axes.yaxis) for p in powers]
        axis.set_major_formatter(FixedFormatter(shown))
        axis.grid(True, color=theme.grid, linewidth=0.8, zorder=0)
        axis.set_tick_params(length=0, labelsize=8.5, labelcolor=theme.muted, pad=5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _tick(value: float, rate: bool) -> str:
    if rate:
        return engineering(value, "FLOP/s").replace("FLOP/s", "").strip()
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"1e{round(math.log10(value))}"
