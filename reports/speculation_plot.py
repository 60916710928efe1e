"""The speedup of speculation over the batch: a line a context or, of several methods, a line a method.

Above the break-even line it pays. Lines differ in colour and in marker; the band is the 80 % interval; hollow markers
are points that do not fit, whose speedup is hypothetical. The picture is the same each time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.reports import roofline_plot
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.speculation_text import BASES, alphas_words, fidelity_words, heading
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme
from perfmodel.reports.words import clip
from perfmodel.roofline.speculative.evaluate import Speculation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches: picture, edge, axes from the left and from below, legend to the right; lines of the title and of notes.
WIDE, HIGH, EDGE, LEFT, BELOW, LEGEND, TITLE, NOTE = 11.0, 6.4, 0.2, 0.72, 0.62, 3.3, 0.21, 0.17
#: Inches of an average character of title and note.
BOLD, CHARACTER = 0.104, 0.071
#: More lines than this nobody tells apart.
MOST_LINES = 20
MARKERS = "osD^vP<>X*"
#: Okabe and Ito's palette, dark enough on white, then the same with dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a8558a", "#8a6d00", "#3d8fc4", "#4d5560")
DARK_COLOURS = ("#56b4e9", "#e69f00", "#22b48a", "#d59ac0", "#f0e442", "#8fb8ff", "#a9b0b8")


@dataclass(frozen=True)
class Line:
    """One line of the picture."""

    name: str
    batch: NDArray[np.float64]
    speedup: NDArray[np.float64]
    low: NDArray[np.float64] | None
    high: NDArray[np.float64] | None
    fits: NDArray[np.bool_]


def lines(found: Sequence[Speculation]) -> list[Line]:
    """What is drawn: of one method the asked shape at each context; of several, each at its best shape."""
    if len(found) == 1:
        one = found[0]
        low, high = one.interval
        known = one.fidelity != "bound" or one.fitted is not None
        return [
            Line(
                f"{c:,g} tokens", one.batch, one.speedup[:, j], low[:, j] if known else None,
                high[:, j] if known else None, one.fits[:, j],
            )
            for j, c in enumerate(one.context)
        ]  # fmt: skip
    return [
        Line(clip(one.method.title, 34), one.batch, one.gains.max(axis=0)[:, 0], None, None, one.fits[:, 0])
        for one in found
    ]  # fmt: skip


def draw(found: Sequence[Speculation], theme: str = "light") -> Figure:
    """Draw the speedup over the batch.

    Parameters
    ----------
    found : sequence of Speculation
        One, or several methods with the same batches.
    theme : str
        ``light`` or ``dark``.

    Raises
    ------
    UsageError
        For nothing, too many lines, or an unknown theme.

    Examples
    --------
    >>> from perfmodel.roofline.speculative.evaluate import speculate
    >>> figure = draw([speculate("llama3-70b", "h100", tp=8, batch=[1, 8, 64])])
    """
    colours, drawn = named_theme(theme), lines(list(found))
    if not 1 <= len(drawn) <= MOST_LINES:
        raise UsageError(f"a picture shows 1 to {MOST_LINES} lines, not {len(drawn)}; give fewer contexts")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title, notes = _words(list(found), drawn)
    head = EDGE + len(title) * TITLE + len(notes) * NOTE + 0.12
    with _settings(colours):
        figure = Figure(figsize=(WIDE, HIGH + head), dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label("\n".join([" ".join(title), " ".join(notes), *map(_described, drawn)]))
        high = HIGH + head
        box = (LEFT / WIDE, BELOW / high, (WIDE - LEFT - LEGEND) / WIDE, (HIGH - BELOW) / high)
        axes = figure.add_axes(box)
        _frame(axes, drawn, colours)
        for i, line in enumerate(drawn):
            _line(axes, i, line, theme, colours)
        legend = axes.legend(
            loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=8.5, labelcolor=colours.text,
            borderaxespad=0, handlelength=2.4,
        )  # fmt: skip
        legend.set_zorder(6)
        _head(figure, title, notes, colours)
    return figure


def save(picture: Figure, path: str | Path) -> None:
    """Write a picture whole or not at all, as ``.png`` or ``.svg``."""
    roofline_plot.save(picture, path)


def _words(found: list[Speculation], drawn: Sequence[Line]) -> tuple[list[str], list[str]]:
    first = found[0]
    if len(found) == 1:
        title = f"Speedup of {heading(first)}"
        said = [f"acceptance by position {alphas_words(first.acceptance.alphas)} ({BASES[first.acceptance.basis]})"]
    else:
        target = heading(first).split(" for ", 1)[1].split(": ", 1)[0]
        title = f"Speedup of speculation for {target}, {first.context[0]:,g} tokens: each method at its best shape"
        said = ["acceptance of each method as published for its own models and task (perfmodel list methods)"]
    said.append(fidelity_words(first, False))
    if drawn[0].low is not None:
        said.append("band: 80 % interval")
    if not all(line.fits.all() for line in drawn):
        said.append("hollow: does not fit, hypothetical")
    return textwrap.wrap(title, int((WIDE - 2 * EDGE) / BOLD)), textwrap.wrap(
        "; ".join(part.rstrip(".") for part in said), int((WIDE - 2 * EDGE) / CHARACTER)
    )


def _described(line: Line) -> str:
    points = ", ".join(f"batch {b:,g} {s:.2f}x" for b, s in zip(line.batch, line.speedup, strict=True))
    return f"{line.name}: {points}"


def _frame(axes: Axes, drawn: Sequence[Line], theme: Theme) -> None:
    """Batch on a binary axis, speedup from 0, and the line at which nothing is gained."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    batch = drawn[0].batch
    axes.set_facecolor(theme.background)
    axes.set_xscale("log", base=2)
    axes.set_xlim(batch.min() / 1.15, batch.max() * 1.15)
    top = max(float(np.nanmax(line.speedup if line.high is None else line.high)) for line in drawn)
    axes.set_ylim(0, max(top, 1.0) * 1.08)
    axes.xaxis.set_major_locator(FixedLocator(list(batch)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}x"))
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axhspan(0, 1, color=theme.notice_surface, zorder=0, linewidth=0)
    axes.axhline(1, color=theme.notice, linewidth=1.2, zorder=3, gid="break-even")
    axes.text(
        0.995, 1.0, "break even ", transform=axes.get_yaxis_transform(), ha="right", va="top", fontsize=8,
        color=theme.notice, zorder=5,
    )  # fmt: skip
    axes.set_xlabel("batch (sequences of the deployment)", fontsize=9, color=theme.text)
    axes.set_ylabel("speedup over plain decoding", fontsize=9, color=theme.text)
    axes.tick_params(length=0, labelsize=8, labelcolor=theme.muted)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _line(axes: Axes, i: int, line: Line, theme: str, colours: Theme) -> None:
    palette = DARK_COLOURS if theme == "dark" else COLOURS
    colour, marker = palette[i % len(palette)], MARKERS[i % len(MARKERS)]
    style: Any = {"color": colour, "linewidth": 1.6, "linestyle": "-" if i < len(palette) else "--", "zorder": 4}
    if line.low is not None and line.high is not None:
        axes.fill_between(line.batch, line.low, line.high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    axes.plot(
        line.batch, line.speedup, marker=marker, markersize=5.5, markerfacecolor=colour, markeredgecolor=colour,
        label=line.name, gid=f"line:{i}", **style,
    )  # fmt: skip
    odd = ~line.fits
    axes.plot(
        line.batch[odd], line.speedup[odd], marker=marker, markersize=5.5, markerfacecolor=colours.background,
        markeredgecolor=colour, linestyle="none", zorder=5,
    )  # fmt: skip


def _head(figure: Figure, title: Sequence[str], notes: Sequence[str], theme: Theme) -> None:
    high = figure.get_size_inches()[1]
    top = high - EDGE
    bold: Any = {"fontsize": 11.5, "fontweight": "bold", "color": theme.text}
    small: Any = {"fontsize": 8.5, "color": theme.muted}
    for words, step, style in ((title, TITLE, bold), (notes, NOTE, small)):
        for one in words:
            figure.text(EDGE / WIDE, top / high, one, va="top", parse_math=False, **style)
            top -= step
