"""Predicted against measured: one log-log panel a measured column, with the line of equality and the 80 % intervals.

Points are told apart by one grouping column, in colour and in shape; a table of times has a panel for each value of the
first one (the GPU), and the others tell the points apart. With many points, a band shows where the measurements behind
a prediction are expected, instead of a bar at each. Text in the picture is never interpreted, and the picture is the
same each time.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.base.units import engineering
from perfmodel.reports import roofline_plot
from perfmodel.reports.check_text import fraction
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme
from perfmodel.reports.words import clip, one_line
from perfmodel.validate.metrics import figures
from perfmodel.validate.rows import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.validate.check import Check, Result

#: Inches: side of a panel by the number of columns; around it to the left, below and to the right; edge of the picture.
SIDES, LEFT, BELOW, RIGHT, EDGE = {1: 4.8, 2: 3.5, 3: 3.0}, 0.74, 0.62, 0.22, 0.18
#: Inches of a line of the title, of small text and of the legend, and of an average character of each.
TITLE, SMALL, ROW, CHARACTER, BOLD = 0.21, 0.17, 0.21, 0.073, 0.104
#: More panels and groups than this nobody can read; the rest is said in words, or is one group.
MOST_PANELS, MOST_GROUPS = 9, 6
#: More points than this are drawn without tooltips and bars; the band then has so many steps.
MOST_TOOLTIPS, STEPS = 2000, 40

#: Colours of the groups on light and on dark, from Okabe and Ito's palette, darkened to 3:1 on white; and their shapes.
COLOURS = {
    "light": ("#0072b2", "#c04a00", "#00795a", "#a8558a", "#7a5c00", "#16191d"),
    "dark": ("#56b4e9", "#e69f00", "#3ac79b", "#d89abf", "#f0e442", "#eceef0"),
}
SHAPES = "osD^vP"


def draw(check: Check, theme: str = "light") -> Figure:
    """Draw a check.

    Parameters
    ----------
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: nothing to close. ``save`` writes it.

    Raises
    ------
    UsageError
        When nothing was compared, or for an unknown theme.
    """
    colours = named_theme(theme)
    names = [name for name in check.kind.metrics if any(_drawn(r) for r in check.of(name))]
    if not names:
        raise UsageError(f"{check.sentence}: there is nothing to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(check, names)
    shown = panels[:MOST_PANELS]
    columns = min(len(shown), 3)
    side, rows = SIDES[columns], math.ceil(len(shown) / columns)
    wide = columns * (LEFT + side + RIGHT) + EDGE
    head = _Head(check, [panel.name for panel in panels], wide, theme)
    high = rows * (side + BELOW) + head.high + EDGE
    with _settings(colours):
        figure = Figure(figsize=(wide, high), dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label(_description(check, [name for name in names if name in {p.metric for p in shown}]))
        head.draw(figure, colours)
        for index, panel in enumerate(shown):
            row, column = divmod(index, columns)
            left = column * (LEFT + side + RIGHT) + LEFT
            bottom = (rows - row - 1) * (side + BELOW) + BELOW
            axes = figure.add_axes((left / wide, bottom / high, side / wide, side / high))
            _panel(axes, check, panel, head, colours)
    return figure


def save(picture: Figure, path: str | Path) -> None:
    """Write a picture whole or not at all, as ``.png`` or ``.svg``.

    Raises
    ------
    UsageError
        For another ending.
    OutputError
        When the file cannot be written.
    """
    roofline_plot.save(picture, path)


def _description(check: Check, names: Sequence[str]) -> str:
    """Title and description of the picture for those who do not see it."""
    lines = [f"Predicted against measured: {one_line(check.sentence)}"]
    for name in names:
        found = check.metrics[name]["overall"]
        lines.append(f"{one_line(name)}: {found['n']:,} points, mean error {fraction(found['mape'])}")
    return "\n".join(lines)


def _drawn(result: Result) -> bool:
    return result.comparison.predicted > 0 and result.comparison.measured > 0


OTHER = "others"


@dataclass(frozen=True)
class _Panel:
    """What one panel shows: points of a measured column, all of them or those of one group."""

    name: str
    metric: str
    results: tuple[Result, ...]


def _differing(check: Check) -> list[str]:
    """Grouping columns by which the results differ."""
    return [name for name in check.results[0].group if len({r.group.get(name) for r in check.results}) > 1]


def _facet(check: Check) -> str:
    """The column whose values get a panel each; empty when all points of a measured column share one."""
    name = next(iter(_differing(check)), "")
    if not name or not check.kind.times or len(check.kind.metrics) > 1:
        return ""
    return name if len({r.group.get(name) for r in check.results}) <= MOST_PANELS else ""


def _panels(check: Check, names: Sequence[str]) -> list[_Panel]:
    facet = _facet(check)
    if not facet:
        return [_Panel(name, name, tuple(r for r in check.of(name) if _drawn(r))) for name in names]
    values: dict[str, list[Result]] = {}
    for r in check.results:
        if _drawn(r):
            values.setdefault(r.group.get(facet) or "not stated", []).append(r)
    return [_Panel(f"{names[0]}, {clip(v, 30)}", names[0], tuple(found)) for v, found in sorted(values.items())]


def _by(check: Check) -> tuple[str, ...]:
    """The grouping columns that tell points apart: the first that differs, or those that differ within the panels."""
    names, facet = _differing(check), _facet(check)
    return tuple(name for name in names if name != facet) if facet else tuple(names[:1])


def _group(result: Result, by: tuple[str, ...]) -> str:
    return clip(", ".join(result.group.get(name) or "not stated" for name in by), 44) if by else "all"


class _Head:
    """Title, notes and legend of a picture, laid out from the top."""

    def __init__(self, check: Check, names: Sequence[str], wide: float, theme: str) -> None:
        self.by = _by(check)
        self.styles = self._styles(check, theme)
        self.title = textwrap.wrap(one_line(check.sentence), int((wide - 2 * EDGE) / BOLD))
        self.notes = textwrap.wrap("; ".join(self._notes(check, names)), int((wide - 2 * EDGE) / CHARACTER))
        entry = max(len(name) for name in self.styles) * CHARACTER + 0.4
        self.columns = max(1, min(len(self.styles), int((wide - 2 * EDGE) / entry)))
        self.legend = (math.ceil(len(self.styles) / self.columns) + 1) * ROW if len(self.styles) > 1 else 0.0
        self.high = EDGE + len(self.title) * TITLE + len(self.notes) * SMALL + self.legend + 0.3

    def _styles(self, check: Check, theme: str) -> dict[str, dict[str, Any]]:
        """Name of a group -> style of its points; the smallest groups together when there are many."""
        counts = Counter(_group(r, self.by) for r in check.results)
        names = sorted(counts, key=lambda name: (-counts[name], name))
        if len(names) > MOST_GROUPS:
            names = [*names[: MOST_GROUPS - 1], OTHER]
        return {name: {"marker": SHAPES[i], "color": COLOURS[theme][i]} for i, name in enumerate(names)}

    def _notes(self, check: Check, names: Sequence[str]) -> list[str]:
        mark = "bars" if len(check.results) <= MOST_TOOLTIPS else "band"
        parts = [f"predicted against measured, each in the unit of its column; line: equal; {mark}: 80 % interval"]
        if len(names) > MOST_PANELS:
            parts.append(f"not drawn: {', '.join(one_line(name) for name in names[MOST_PANELS:])}")
        if hidden := sum(not _drawn(r) for r in check.results):
            parts.append(f"{hidden} not above zero and not drawn")
        return parts

    def style(self, result: Result) -> dict[str, Any]:
        """Style of a point."""
        return self.styles.get(_group(result, self.by)) or self.styles[OTHER]

    def draw(self, figure: Figure, theme: Theme) -> None:
        """Put it on the picture."""
        from matplotlib.lines import Line2D

        wide, high = figure.get_size_inches()
        top = high - EDGE
        bold: dict[str, Any] = {"fontsize": 11.5, "fontweight": "bold", "color": theme.text}
        small: dict[str, Any] = {"fontsize": 8.5, "color": theme.muted}
        for lines, step, style in ((self.title, TITLE, bold), (self.notes, SMALL, small)):
            for line in lines:
                figure.text(EDGE / wide, top / high, line, va="top", parse_math=False, **style)
                top -= step
        if len(self.styles) < 2:
            return
        title = one_line(", ".join(self.by).replace("_", " "))
        handles = [Line2D([], [], linestyle="none", markersize=6, **style) for style in self.styles.values()]
        legend = figure.legend(
            handles, list(self.styles), title=title, loc="upper left", fontsize=8.5,
            bbox_to_anchor=(EDGE / wide, (top - 0.04) / high), ncols=self.columns, frameon=False, handletextpad=0.3,
            labelcolor=theme.text, borderaxespad=0, borderpad=0, alignment="left", title_fontsize=8.5,
        )  # fmt: skip
        legend.get_title().set_color(theme.muted)
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_parse_math(False)


def _panel(axes: Axes, check: Check, panel: _Panel, head: _Head, theme: Theme) -> None:
    from matplotlib.lines import Line2D

    low, high = _limits(panel.results)
    axes.set_facecolor(theme.background)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    _ticks(axes, low, high, theme)
    axes.add_line(Line2D((low, high), (low, high), color=theme.line, linewidth=1.0, zorder=5))
    if len(check.results) <= MOST_TOOLTIPS:
        _few(axes, panel, head, theme, (low, high))
    else:
        _many(axes, panel, head, theme)
    found = figures([r.comparison for r in panel.results])
    text = f"{one_line(panel.name)}\nn {found['n']:,}, mean error {fraction(found['mape'] or 0)}"
    axes.text(
        0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=9, color=theme.text, parse_math=False, zorder=6,
        linespacing=1.35,
    )  # fmt: skip
    axes.set_xlabel("measured", fontsize=8.5, labelpad=2)
    axes.set_ylabel("predicted", fontsize=8.5, labelpad=2)


def _few(axes: Axes, panel: _Panel, head: _Head, theme: Theme, limits: tuple[float, float]) -> None:
    """Each point with a tooltip and the bar of its interval."""
    from matplotlib.lines import Line2D

    for number, r in enumerate(panel.results):
        c, style = r.comparison, head.style(r)
        if c.low is not None and c.high is not None and c.low > 0:
            axes.add_line(Line2D(
                (c.measured,) * 2, (max(c.low, limits[0]), min(c.high, limits[1])), color=style["color"],
                linewidth=1.2, alpha=0.5, zorder=3,
            ))  # fmt: skip
        axes.add_line(Line2D(
            [c.measured], [c.predicted], linestyle="none", markersize=5.5, alpha=0.85, zorder=4,
            markeredgecolor=theme.background, markeredgewidth=0.5, gid=f"point:{panel.name}:{number}", label=_tip(r),
            **style,
        ))  # fmt: skip


def _many(axes: Axes, panel: _Panel, head: _Head, theme: Theme) -> None:
    """One mark of many points a group, and a band from the median ends of the intervals."""
    from matplotlib.lines import Line2D

    groups: dict[str, list[Result]] = {}
    for r in panel.results:
        groups.setdefault(_group(r, head.by), []).append(r)
    for number, (_, found) in enumerate(sorted(groups.items(), key=lambda item: -len(item[1]))):
        axes.add_line(Line2D(
            [r.comparison.measured for r in found], [r.comparison.predicted for r in found], linestyle="none",
            markersize=2.6, alpha=0.55, zorder=4, markeredgewidth=0, gid=f"points:{panel.name}:{number}",
            **head.style(found[0]),
        ))  # fmt: skip
    if edges := band([r.comparison for r in panel.results]):
        predicted, low, high = zip(*edges, strict=True)
        axes.fill_betweenx(predicted, low, high, color=theme.muted, alpha=0.2, linewidth=0, zorder=2)
        for edge in (low, high):
            axes.add_line(Line2D(edge, predicted, color=theme.text, linewidth=0.6, alpha=0.7, zorder=5))


def band(compared: Sequence[Comparison]) -> list[tuple[float, float, float]]:
    """Predictions by rising size in steps of equal count, with the median ends of their 80 % intervals.

    >>> band([Comparison("x", 1, 10, "", low=8, high=12)])
    [(10, 8.0, 12.0)]
    """
    held = sorted((c.predicted, c.low / c.predicted, c.high / c.predicted) for c in compared if c.low and c.high)
    size = max(1, math.ceil(len(held) / STEPS))
    found: list[tuple[float, float, float]] = []
    for start in range(0, len(held), size):
        part = held[start : start + size]
        low, high = statistics.median(p[1] for p in part), statistics.median(p[2] for p in part)
        ends = {part[0][0], part[-1][0]} if len(held) > size else {part[0][0]}
        found += [(end, end * low, end * high) for end in sorted(ends)]
    return found


def _tip(result: Result) -> str:
    c = result.comparison
    return (
        f"{clip(result.model, 80)}, line {result.line}: {c.metric} measured {c.measured:,.10g}, predicted "
        f"{c.predicted:,.10g} ({fraction(c.ratio - 1)}). {clip(c.explanation, 200)}"
    )


def _limits(found: Sequence[Result]) -> tuple[float, float]:
    """Limits that hold all points, the same for both axes, with a margin of a twelfth."""
    values = [value for r in found for value in (r.comparison.measured, r.comparison.predicted)]
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max((high - low) / 12, 0.03)
    return 10 ** (low - margin), 10 ** (high + 2 * margin)


def _ticks(axes: Axes, low: float, high: float, theme: Theme) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    values = nice_ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(values))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FixedFormatter([_number(value) for value in values]))
        axis.grid(True, color=theme.grid, linewidth=0.8, zorder=0)
        axis.set_tick_params(length=0, labelsize=8, labelcolor=theme.muted, pad=4)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _number(value: float) -> str:
    return engineering(value, "").strip() if value >= 1000 or value < 1e-3 else f"{value:g}"


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between limits for a logarithmic axis: decades, or finer where the limits are close.

    >>> nice_ticks(0.5, 2000)
    [1.0, 10.0, 100.0, 1000.0]
    >>> nice_ticks(13, 31)
    [15.0, 20.0, 25.0, 30.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for step in range(1, len(powers) + 1):
        decades = [10.0**p for p in powers if p % step == 0 and low <= 10.0**p <= high]
        if 3 <= len(decades) <= most:
            return decades
    found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if 3 <= len(found) <= most:
        return found
    step_size = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(step_size))
    nice = next(m * unit for m in (1, 2, 5, 10) if m * unit >= step_size)
    first = math.ceil(low / nice)
    return [k * nice for k in range(first, math.floor(high / nice) + 1)]
