"""Crossover maps as heat maps: the speedup in colour and as a number, with the line at which it breaks even.

The colours diverge from white at 1 to blue where it pays and to orange where it costs, which stay apart under the
common colour-vision deficiencies; hatched cells do not fit; over draft lengths, rings mark the best of each column. The
picture is the same each time.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.reports import roofline_plot
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.speculation_plot import BOLD, CHARACTER, EDGE, NOTE, TITLE, WIDE, _head
from perfmodel.reports.speculation_plot import save as save
from perfmodel.reports.speculation_tables import map_notes, map_title
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme
from perfmodel.roofline.speculative.crossover import CrossoverMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches: height of a row, axes from the left, below, and to the right (the colour bar).
ROW, LEFT, BELOW, RIGHT = 0.42, 0.95, 0.62, 1.05
#: Speedups at the ends of the colours, either way.
END = 4.0
NAMES = {
    "batch": "batch (sequences)", "context": "context (tokens in the cache)", "alpha": "acceptance of every position",
    "gamma": "gamma (drafted tokens a round)",
}  # fmt: skip
#: Costs to gains on light and on dark.
LIGHT_COLOURS = ("#a64900", "#e69f00", "#ffffff", "#56b4e9", "#005f95")
DARK_COLOURS = ("#f0a030", "#8a5a10", "#2c3138", "#1f6f9f", "#6cc4ff")


def draw(found: CrossoverMap, theme: str = "light") -> Figure:
    """Draw a map.

    Parameters
    ----------
    theme : str
        ``light`` or ``dark``.

    Raises
    ------
    UsageError
        For an unknown theme.
    """
    colours = named_theme(theme)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title = textwrap.wrap(map_title(found), int((WIDE - 2 * EDGE) / BOLD))
    notes = textwrap.wrap(_said(found), int((WIDE - 2 * EDGE) / CHARACTER))
    head = EDGE + len(title) * TITLE + len(notes) * NOTE + 0.12
    high = head + len(found.ys) * ROW + BELOW
    with _settings(colours):
        figure = Figure(figsize=(WIDE, high), dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label("\n".join([" ".join(title), " ".join(notes)]))
        box = (LEFT / WIDE, BELOW / high, (WIDE - LEFT - RIGHT) / WIDE, len(found.ys) * ROW / high)
        axes = figure.add_axes(box)
        _cells(figure, axes, found, theme, colours)
        _line(axes, found, colours)
        _best(axes, found, colours)
        _frame(axes, found, colours)
        _head(figure, title, notes, colours)
    return figure


def _said(found: CrossoverMap) -> str:
    """The notes of the table, less its list of ends, which the line shows."""
    kept = [note for note in map_notes(found) if not note.startswith(("pays, of", "?:"))]
    kept.append("line: break even")
    if found.y == "gamma":
        kept.append("ring: best gamma, where one pays")
    if not found.fits.all():
        kept.append("hatched: does not fit, hypothetical")
    return "; ".join(kept)


def _norm() -> Any:
    from matplotlib.colors import LogNorm

    return LogNorm(1 / END, END, clip=True)


def _cells(figure: Figure, axes: Axes, found: CrossoverMap, theme: str, colours: Theme) -> None:
    """One rectangle a point, with its number where there is room."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    palette = DARK_COLOURS if theme == "dark" else LIGHT_COLOURS
    scale = ScalarMappable(_norm(), LinearSegmentedColormap.from_list("speedup", palette))
    room = (WIDE - LEFT - RIGHT) / len(found.xs)
    for (i, j), value in np.ndenumerate(found.speedup):
        fill = scale.to_rgba(np.array([float(value)]))[0]
        unfit = not found.fits[i, j]
        axes.add_patch(Rectangle(
            (j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor=colours.faint if unfit else colours.grid,
            linewidth=0.4, hatch="///" if unfit else None, gid=f"cell:{i}:{j}",
        ))  # fmt: skip
        if room > 0.36:
            ink = "#16191d" if _bright(fill) else "#ffffff"
            box = {"facecolor": fill, "edgecolor": "none", "pad": 0.8} if unfit else None
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink, zorder=5, bbox=box)
    side = figure.add_axes((
        (WIDE - RIGHT + 0.2) / WIDE, axes.get_position().y0, 0.16 / WIDE, axes.get_position().height
    ))  # fmt: skip
    bar = figure.colorbar(scale, cax=side, ticks=[0.25, 0.5, 1, 2, 4])
    bar.ax.set_yticklabels(["¼x", "½x", "1x", "2x", "4x"], fontsize=8, color=colours.muted)
    bar.ax.tick_params(length=0)
    bar.minorticks_off()
    bar.outline.set_visible(False)


def _bright(colour: Any) -> bool:
    red, green, blue = colour[:3]
    return bool(0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45)


def _line(axes: Axes, found: CrossoverMap, colours: Theme) -> None:
    """The break-even line: edges between cells that pay and cells that do not."""
    pays = found.speedup > 1
    rows, columns = pays.shape
    style: Any = {"color": colours.text, "linewidth": 2.2, "zorder": 6, "solid_capstyle": "butt"}
    for i in range(rows):
        for j in range(columns):
            if j + 1 < columns and pays[i, j] != pays[i, j + 1]:
                axes.plot([j + 0.5, j + 0.5], [i - 0.5, i + 0.5], gid=f"edge:{i}:{j}:x", **style)
            if i + 1 < rows and pays[i, j] != pays[i + 1, j]:
                axes.plot([j - 0.5, j + 0.5], [i + 0.5, i + 0.5], gid=f"edge:{i}:{j}:y", **style)


def _best(axes: Axes, found: CrossoverMap, colours: Theme) -> None:
    """A ring around the best draft length of each column in which one pays."""
    from matplotlib.patches import Rectangle

    if found.y != "gamma":
        return
    for j, i in enumerate(np.argmax(found.speedup, axis=0)):
        if found.speedup[i, j] > 1:
            axes.add_patch(Rectangle(
                (j - 0.4, i - 0.38), 0.8, 0.76, fill=False, edgecolor=colours.text, linewidth=1.3, zorder=6,
                gid=f"best:{i}:{j}",
            ))  # fmt: skip


def _frame(axes: Axes, found: CrossoverMap, colours: Theme) -> None:
    axes.set_xlim(-0.5, len(found.xs) - 0.5)
    axes.set_ylim(-0.5, len(found.ys) - 0.5)
    axes.set_xticks(range(len(found.xs)), [f"{x:,g}" for x in found.xs])
    axes.set_yticks(range(len(found.ys)), [f"{y:,g}" for y in found.ys])
    axes.tick_params(length=0, labelsize=8, labelcolor=colours.muted)
    axes.set_xlabel(NAMES[found.x], fontsize=9, color=colours.text)
    axes.set_ylabel(NAMES[found.y], fontsize=9, color=colours.text)
    for spine in axes.spines.values():
        spine.set_visible(False)
