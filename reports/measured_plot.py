"""Measured points under the roofs of a GPU: numbered by their time, named in a list beside the picture.

Unlike the picture of an analysis, which places labels among a dozen known operators, this one takes whatever kernels a
profiler saw, with names of any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.base.units import engineering
from perfmodel.reports import roofline_plot
from perfmodel.reports.frame import ticks
from perfmodel.reports.roofline_data import roofs, slopes
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme
from perfmodel.reports.words import clip, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.hwspecs.schema import Gpu

#: More than these are points without a number.
MOST_NUMBERED = 18
#: Characters of a name in the list, and of a line of the title.
NAME, LINE = 44, 110
#: Fractions of the picture: the axes, and where the list begins.
AXES, LIST = (0.075, 0.09, 0.545, 0.76), 0.645
SHAPES = {"memory": "o", "matrix": "D", "vector": "s"}


@dataclass(frozen=True)
class Point:
    """A measured kernel.

    Attributes
    ----------
    name, text : str
        What it is called; what the list says beside the name.
    x, y, top : float
        Intensity [FLOP/byte], rate reached, and the rate at the roof above it [FLOP/s].
    roof : str
        ``memory``, ``matrix`` or ``vector``.
    share : float
        Of the time of all.
    """

    name: str
    text: str
    x: float
    y: float
    top: float
    roof: str
    share: float


def draw(gpu: Gpu, points: Sequence[Point], used: set[str], title: str, theme: str = "light") -> Figure:
    """Draw points, the largest first.

    Parameters
    ----------
    used : set of str
        Formats whose roofs are drawn strong.

    Raises
    ------
    UsageError
        When there is nothing to draw: no point has operations and bytes.
    """
    shown = [p for p in points if p.x > 0 and p.y > 0 and p.top > 0]
    if not shown:
        raise UsageError("no picture: no kernel made operations and moved bytes, so that there is no point to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = named_theme(theme)
    with _settings(colours):
        figure = Figure(figsize=roofline_plot.SIZE, dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label(f"{one_line(title)}\n" + "\n".join(f"{one_line(p.name)}: {p.text}" for p in shown))
        axes = figure.add_axes(AXES, facecolor=colours.background)
        _lines(axes, gpu, shown, used, colours)
        _marks(axes, shown, colours)
        _words(figure, shown, clip(title, LINE), colours)
    return figure


def _lines(axes: Axes, gpu: Gpu, points: Sequence[Point], used: set[str], theme: Theme) -> None:
    """Slope of the device memory and roofs, with their names."""
    found, memory = roofs(gpu, used), slopes(gpu)[0]
    xs = [p.x for p in points] + [roof.peak / memory.bandwidth for roof in found]
    ys = [v for p in points for v in (p.y, p.top)] + [roof.peak for roof in found]
    left, right, low, high = min(xs) / 5, max(xs) * 8, min(ys) / 5, max(ys) * 3
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    ticks(axes, theme)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of device memory)", fontsize=9.5)
    axes.set_ylabel("FLOP/s", fontsize=9.5)
    top = max((roof.peak for roof in found if roof.used), default=found[0].peak)
    axes.plot([left, top / memory.bandwidth], [left * memory.bandwidth, top], color=theme.line, linewidth=1.8, zorder=2)
    start = max(left, low / memory.bandwidth)
    axes.annotate(
        memory.label, (start, start * memory.bandwidth), xytext=(8, 14), textcoords="offset points", fontsize=8,
        color=theme.muted, rotation=_angle(axes), rotation_mode="anchor", va="bottom", parse_math=False,
    )  # fmt: skip
    for peak in dict.fromkeys(roof.peak for roof in found):
        same = [roof for roof in found if roof.peak == peak]
        strong = any(roof.used for roof in same)
        style: dict[str, Any] = {"color": theme.line if strong else theme.faint, "linewidth": 1.8 if strong else 0.9}
        axes.plot([peak / memory.bandwidth, right], [peak] * 2, zorder=2, **style)
        names = f"{', '.join(roof.name for roof in same)} {engineering(peak, 'FLOP/s')}"
        axes.annotate(
            names, (right, peak), xytext=(-2, 3), textcoords="offset points", fontsize=7.5,
            ha="right", color=theme.text if strong else theme.muted, parse_math=False,
        )  # fmt: skip


def _angle(axes: Axes) -> float:
    """Of a line of slope 1 on the picture. [degrees]"""
    import math

    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _marks(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    colours = {"memory": theme.prefill, "matrix": theme.decode, "vector": theme.muted}
    for number, p in enumerate(points, 1):
        colour, size = colours[p.roof], 4.0 + 10.0 * p.share**0.5
        axes.plot([p.x, p.x], [p.y, p.top], color=colour, linewidth=0.9, alpha=0.8, zorder=2.5)
        axes.plot(
            [p.x], [p.y], marker=SHAPES[p.roof], markersize=size, color=colour, linestyle="none", alpha=0.9,
            zorder=5 - p.share, gid=f"point:{number}", label=one_line(f"{p.name}: {p.text}"),
        )  # fmt: skip
        if number <= MOST_NUMBERED:
            axes.annotate(
                str(number), (p.x, p.y), xytext=(size / 2 + 1, 3), textcoords="offset points", fontsize=8,
                color=theme.text, zorder=6,
            )  # fmt: skip


def _words(figure: Figure, points: Sequence[Point], title: str, theme: Theme) -> None:
    """Title and the list of names."""
    style: dict[str, Any] = {"va": "top", "parse_math": False}
    figure.text(0.02, 0.97, title, fontsize=13, fontweight="bold", color=theme.text, **style)
    note = "Circle: under the memory slope; diamond: tensor cores; square: vector units. Line: up to its roof."
    figure.text(0.02, 0.925, note, fontsize=8.5, color=theme.muted, **style)
    top = 0.88
    for number, p in enumerate(points[:MOST_NUMBERED], 1):
        figure.text(LIST, top, f"{number}  {clip(p.name, NAME)}", fontsize=8, color=theme.text, **style)
        figure.text(LIST + 0.018, top - 0.018, p.text, fontsize=7.5, color=theme.muted, **style)
        top -= 0.043
    if len(points) > MOST_NUMBERED:
        rest = f"and {len(points) - MOST_NUMBERED:,} more, without a number"
        figure.text(LIST, top, rest, fontsize=8, color=theme.muted, **style)
