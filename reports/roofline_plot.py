"""The roofline picture: every operator of prefill and decode under the roofs of its GPU, as PNG or SVG.

Log-log axes; a point's area is its share of its phase's time. Several analyses are overlaid: their GPUs differ in line
style, their points in shape and fill. The picture is the same each time, and text in it is never interpreted.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.reports import svg
from perfmodel.reports.files import write
from perfmodel.reports.theme import Theme
from perfmodel.reports.theme import theme as named_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.roofline.analysis import Analysis

#: Inches and dots an inch; a PNG is 1650 x 1140 pixels.
SIZE, LAYOUT_DPI, PNG_DPI = (11.0, 7.6), 100, 150

#: More than this and nobody can tell them apart.
MOST_ANALYSES = 6


@contextmanager
def _settings(theme: Theme) -> Iterator[None]:
    """Matplotlib's own defaults, whatever the user's are, with text as text: no mathematics, no LaTeX."""
    import matplotlib

    defaults: Any = matplotlib.rcParamsDefault
    own: Any = {
        **defaults, "text.parse_math": False, "text.usetex": False, "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"], "font.size": 8.5, "svg.fonttype": "none",
        "svg.hashsalt": "perfmodel", "text.color": theme.text, "axes.edgecolor": theme.grid,
        "xtick.color": theme.muted, "ytick.color": theme.muted, "axes.labelcolor": theme.text, "path.simplify": False,
        "axes.unicode_minus": False,
    }  # fmt: skip
    own.pop("backend", None)
    with matplotlib.rc_context(own), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # a name in another script: boxes, and no noise
        yield


def draw(analyses: Sequence[Analysis], theme: str = "light") -> Figure:
    """Draw analyses on one roofline.

    Parameters
    ----------
    analyses : sequence of Analysis
        One to six; the first one's roofs are solid.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: nothing to close. ``save`` writes it.

    Raises
    ------
    UsageError
        For no analysis, too many, or an unknown theme.

    Examples
    --------
    >>> from perfmodel.roofline.analysis import analyze
    >>> figure = draw([analyze("llama3-70b", "h100", tp=4)])
    """
    colours = named_theme(theme)
    if not 1 <= len(analyses) <= MOST_ANALYSES:
        raise UsageError(
            f"a picture shows 1 to {MOST_ANALYSES} analyses, not {len(analyses)}; give fewer GPUs or batches"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from perfmodel.reports.roofline_draw import Picture

    with _settings(colours):
        figure = Figure(figsize=SIZE, dpi=LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        Picture(figure, analyses, colours).compose()
    return figure


def save(picture: Figure | Sequence[Analysis], path: str | Path, theme: str = "light") -> None:
    """Write a picture, whole or not at all.

    Parameters
    ----------
    picture : Figure or sequence of Analysis
    path : str or Path
        Ending in ``.png`` or ``.svg``.

    Raises
    ------
    UsageError
        For another ending.
    OutputError
        When the file cannot be written.
    """
    kind = Path(path).suffix.casefold()
    if kind not in (".png", ".svg"):
        raise UsageError(f"a picture ends in .png or .svg, not {kind[:20]!r}; rename the output")
    write(path, _svg(_drawn(picture, theme)) if kind == ".svg" else png(picture, theme))


def png(picture: Figure | Sequence[Analysis], theme: str = "light") -> bytes:
    """The picture as PNG."""
    with _settings(named_theme(theme)):
        stream = io.BytesIO()
        _drawn(picture, theme).savefig(stream, format="png", dpi=PNG_DPI, metadata={"Software": "perfmodel"})
    return stream.getvalue()


def svg_text(picture: Figure | Sequence[Analysis], theme: str = "light", inline: bool = False) -> str:
    """The picture as SVG, with text as text.

    Parameters
    ----------
    inline : bool
        For a place inside an HTML page: without XML prolog, and with colours that follow the page's
        (``var(--text, #16191d)``), so that one picture serves light and dark.
    """
    return _svg(_drawn(picture, theme), named_theme(theme) if inline else None)


def _drawn(picture: Figure | Sequence[Analysis], theme: str) -> Figure:
    from matplotlib.figure import Figure

    return picture if isinstance(picture, Figure) else draw(picture, theme)


def _svg(figure: Figure, inline: Theme | None = None) -> str:
    stream = io.StringIO()
    with _settings(inline or named_theme("light")):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return svg.finish(stream.getvalue(), str(figure.get_label()), svg.tooltips(figure), inline)
