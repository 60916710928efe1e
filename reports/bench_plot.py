"""The picture of a run: measured and predicted points under the measured roofs, and predicted against measured times.

On the roofline a filled point is what was measured and a hollow one what is predicted, joined by a line. Beside it each
case stands with the 80 % interval of its prediction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.base.units import engineering
from perfmodel.reports import roofline_plot
from perfmodel.reports.frame import ticks
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.scatter_plot import COLOURS, SHAPES, nice_ticks
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme
from perfmodel.reports.words import clip, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.validate.bench.compare import Compared
    from perfmodel.validate.bench.report import Report

#: Inches of the picture; its two axes as fractions: left, bottom, width, height.
SIZE = (13.0, 6.6)
ROOFLINE, SCATTER = (0.06, 0.095, 0.46, 0.70), (0.60, 0.095, 0.355, 0.70)
#: More families share one colour.
MOST = len(SHAPES)
OTHERS = "others"
#: Families that always have a colour of their own.
FIRST = ("gemm", "prefill", "decode", "experts")


def draw(report: Report, theme: str = "light") -> Figure:
    """Draw a run.

    Returns
    -------
    matplotlib.figure.Figure
        ``roofline_plot.save`` writes it.

    Raises
    ------
    UsageError
        When no case was measured.
    """
    if not report.compared:
        raise UsageError("no case was measured: there is nothing to draw; the table has the ceilings")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = named_theme(theme)
    with _settings(colours):
        figure = Figure(figsize=SIZE, dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label(_description(report))
        styles = _styles(report.compared, theme)
        left, right = (figure.add_axes(place, facecolor=colours.background) for place in (ROOFLINE, SCATTER))
        _roofline(left, report, styles, colours)
        _scatter(right, report, styles, colours)
        _head(figure, report, styles, colours)
    return figure


def _description(report: Report) -> str:
    lines = [one_line(f"Measured and predicted: {report.sentence}")]
    lines += [f"{f.name}: {f.n} cases, median error {f.error:.1%}" for f in report.families]
    return "\n".join(lines)


def _styles(compared: Sequence[Compared], theme: str) -> dict[str, dict[str, Any]]:
    """Family -> marker and colour: products and attention first; the small families share one."""
    counts = Counter(c.family for c in compared)
    names = sorted(counts, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), -counts[name]))
    if len(names) > MOST:
        names = [*names[: MOST - 1], OTHERS]
    return {name: {"marker": SHAPES[i], "color": COLOURS[theme][i]} for i, name in enumerate(names)}


def _style(c: Compared, styles: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return styles.get(c.family) or styles[OTHERS]


def _head(figure: Figure, report: Report, styles: dict[str, dict[str, Any]], theme: Theme) -> None:
    from matplotlib.lines import Line2D

    total = report.families[-1]
    title = clip(f"{report.device}: measured and predicted", 100)
    shapes = "shapes that the fit has not seen" if report.fit else "cases"
    lines = [
        clip(f"Prediction: {report.columns[0].words}", 150),
        f"{total.n} {shapes}: median error {total.error:.1%}, noise of the measurement {total.noise:.1%}; "
        "filled: measured; hollow: predicted; bars: 80 % interval",
    ]
    figure.text(0.02, 0.965, title, fontsize=12, fontweight="bold", color=theme.text, va="top", parse_math=False)
    for number, line in enumerate(lines):
        figure.text(0.02, 0.925 - 0.028 * number, line, fontsize=8.8, color=theme.muted, va="top", parse_math=False)
    handles = [Line2D([], [], linestyle="none", markersize=6.5, **style) for style in styles.values()]
    figure.legend(
        handles, list(styles), loc="upper left", bbox_to_anchor=(0.012, 0.868), ncols=len(styles), frameon=False,
        fontsize=8.8, handletextpad=0.2, columnspacing=1.4, labelcolor=theme.text,
    )  # fmt: skip


def _roofline(axes: Axes, report: Report, styles: dict[str, dict[str, Any]], theme: Theme) -> None:
    points = []
    for c in report.compared:
        cost = c.op.cost()
        flops, moved = float(cost.flops), float(cost.bytes)
        if flops > 0 and moved > 0:
            points.append((c, flops / moved, flops / c.measured, flops / c.predicted))
    axes.set_xscale("log")
    axes.set_yscale("log")
    if not points:  # nothing computes: only times can be shown
        axes.set_xlim(0.1, 1000)
        axes.set_ylim(1e9, 1e12)
    else:
        _limits(axes, report, points)
    ticks(axes, theme)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of memory)", fontsize=9.2)
    axes.set_ylabel("FLOP/s", fontsize=9.2)
    _roofs(axes, report, theme)
    for number, (c, x, measured, predicted) in enumerate(points):
        style = _style(c, styles)
        axes.plot([x, x], [measured, predicted], color=style["color"], linewidth=0.9, alpha=0.7, zorder=3)
        axes.plot(
            [x], [predicted], linestyle="none", markersize=5.5, markerfacecolor=theme.background,
            markeredgecolor=style["color"], markeredgewidth=1.0, marker=style["marker"], zorder=4,
        )  # fmt: skip
        axes.plot(
            [x], [measured], linestyle="none", markersize=5.5, zorder=5, alpha=0.9, markeredgewidth=0,
            gid=f"point:roofline:{number}", label=_tip(c), **style,
        )  # fmt: skip


def _limits(axes: Axes, report: Report, points: Sequence[tuple[Any, float, float, float]]) -> None:
    xs, ys = [p[1] for p in points], [y for p in points for y in p[2:]]
    peaks = [report.ceilings.peak(fmt) for fmt in report.ceilings.formats] or [max(ys)]
    axes.set_xlim(min(xs) / 3, max([*xs, *(p / report.ceilings["memory"] for p in peaks)]) * 8)
    axes.set_ylim(min(ys) / 3, max([*peaks, *ys]) * 2)


def _roofs(axes: Axes, report: Report, theme: Theme) -> None:
    """The measured memory bandwidth and peaks, with their names."""
    (left, right), (low, _), memory = axes.get_xlim(), axes.get_ylim(), report.ceilings["memory"]
    used = {c.result.dtype for c in report.compared}
    peaks = {fmt: report.ceilings.peak(fmt) for fmt in report.ceilings.formats if fmt in used}
    top = max(peaks.values(), default=memory * right)
    axes.plot([left, top / memory], [left * memory, top], color=theme.line, linewidth=1.6, zorder=2)
    start = max(left, low / memory)
    axes.annotate(
        f"memory {engineering(memory, 'B/s')}", (start, start * memory), xytext=(14, 24), textcoords="offset points",
        fontsize=8, color=theme.muted, rotation=_angle(axes), rotation_mode="anchor", va="bottom", parse_math=False,
    )  # fmt: skip
    for fmt, peak in peaks.items():
        axes.plot([peak / memory, right], [peak, peak], color=theme.line, linewidth=1.3, zorder=2)
        axes.annotate(
            f"{fmt.upper()} {engineering(peak, 'FLOP/s')}", (right, peak), xytext=(-2, 3), textcoords="offset points",
            fontsize=7.8, ha="right", color=theme.text, parse_math=False, zorder=6,
        )  # fmt: skip


def _angle(axes: Axes) -> float:
    """Of a line of slope 1 on the picture. [degrees]"""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _scatter(axes: Axes, report: Report, styles: dict[str, dict[str, Any]], theme: Theme) -> None:
    values = [v * 1e6 for c in report.compared for v in (c.measured, c.predicted)]
    low, high = min(values) / 1.6, max(values) * 1.6
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    _time_ticks(axes, low, high, theme)
    axes.plot((low, high), (low, high), color=theme.line, linewidth=1.1, zorder=2)
    for number, c in enumerate(report.compared):
        style, p = _style(c, styles), c.predictions[c.judged]
        ends = max(p.low * 1e6, low), min(p.high * 1e6, high)
        axes.plot([c.measured * 1e6] * 2, ends, color=style["color"], linewidth=1.0, alpha=0.35, zorder=3)
        axes.plot(
            [c.measured * 1e6], [c.predicted * 1e6], linestyle="none", markersize=5.5, alpha=0.9, zorder=4,
            markeredgewidth=0, gid=f"point:scatter:{number}", label=_tip(c), **style,
        )  # fmt: skip
    axes.set_xlabel("measured (us)", fontsize=9.2)
    axes.set_ylabel("predicted (us)", fontsize=9.2)


def _time_ticks(axes: Axes, low: float, high: float, theme: Theme) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    values = nice_ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(values))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FixedFormatter([f"{value:,g}" for value in values]))
        axis.grid(True, color=theme.grid, linewidth=0.8, zorder=0)
        axis.set_tick_params(length=0, labelsize=8.5, labelcolor=theme.muted, pad=5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _tip(c: Compared) -> str:
    return clip(
        f"{c.result.name}: measured {engineering(c.measured, 's')}, predicted {engineering(c.predicted, 's')} "
        f"({c.ratio - 1:+.0%}), {c.attained:.0%} of the ceiling; above the bound: {c.gap}", 300,
    )  # fmt: skip
