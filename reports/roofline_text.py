"""Text in the drawing area of a picture: free labels with leaders, labels along lines, a column beside the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.text import Text

from perfmodel.reports.labels import Board, Box, Wish, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from perfmodel.reports.theme import Theme


@dataclass(frozen=True)
class Label:
    """A label that wants to be near a point.

    Attributes
    ----------
    lines : tuple[str, ...]
    x, y, gap : float
        What it names, in data coordinates; radius of that, in pixels.
    pull : tuple[float, float]
        Preferred direction.
    colour, leader : str
        Of the text, and of the line to the point.
    size : float
        Of the text, in points.
    reach : float
        Greatest length of the leader, in pixels; rather no label than a longer one.
    least : int
        Lines that it keeps where it is shortened.
    gid : str
        Of the text.
    """

    lines: tuple[str, ...]
    x: float
    y: float
    gap: float
    pull: tuple[float, float]
    colour: str
    leader: str
    size: float = 8.5
    reach: float = math.inf
    least: int = 1
    gid: str = ""

    def shorter(self) -> Label | None:
        """With half of its lines; ``None`` when nothing is left to drop."""
        kept = [line for line in self.lines if line != "…"]
        if len(kept) <= self.least:
            return None
        lines = (*kept[: max(len(kept) // 2, self.least)], "…")
        return replace(self, lines=lines)


class Texts:
    """Puts text where there is room. Positions are kept as fractions of the axes, so they hold at every resolution."""

    def __init__(self, axes: Axes, theme: Theme) -> None:
        self.axes, self.theme = axes, theme
        self.renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
        extent = axes.get_window_extent(self.renderer)
        self.area = Box(extent.x0, extent.y0, extent.x1, extent.y1)
        self.board = Board(self.area.grown(-4))

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is on the page."""
        px, py = self.axes.transData.transform((x, y))
        return float(px), float(py)

    def fraction(self, x: float, y: float) -> tuple[float, float]:
        """A place on the page as a fraction of the axes."""
        a = self.area
        return (x - a.x0) / (a.x1 - a.x0), (y - a.y0) / (a.y1 - a.y0)

    def text(self, text: str, **style: Any) -> Text:
        """A text that is not yet anywhere."""
        artist = Text(0, 0, text, parse_math=False, transform=self.axes.transAxes, zorder=8, clip_on=False, **style)
        artist.set_figure(self.axes.figure)
        return artist

    def measure(self, artist: Text) -> tuple[float, float]:
        """Width and height in pixels, with a little air: glyphs differ by a hair between resolutions."""
        extent = artist.get_window_extent(self.renderer)
        return float(extent.width) * 1.02 + 1, float(extent.height)

    def put(self, artist: Text, x: float, y: float) -> None:
        """Add a text at a pixel."""
        artist.set_position(self.fraction(x, y))
        self.axes.add_artist(artist)

    def _segment(self, x0: float, y0: float, x1: float, y1: float, **style: Any) -> None:
        (ax, ay), (bx, by) = self.fraction(x0, y0), self.fraction(x1, y1)
        line = Line2D([ax, bx], [ay, by], transform=self.axes.transAxes, linewidth=0.7, clip_on=False, **style)
        self.axes.add_line(line)

    # Free labels

    def place(self, wanted: Sequence[Label]) -> list[Label]:
        """Place labels together, each at the best free place; returns those for which there is none, even shortened."""
        made = [self._make(label) for label in wanted]
        boxes = self.board.place_all([wish for _, wish in made])
        left_out = []
        for label, (artist, wish), found in zip(wanted, made, boxes, strict=True):
            box, shorter = found, label.shorter()
            while box is None and shorter is not None:
                artist, wish = self._make(shorter)
                box, shorter = self.board.place(wish), shorter.shorter()
            if box is None:
                left_out.append(label)
            else:
                self._finish(label, artist, wish, box)
        return left_out

    def _make(self, label: Label) -> tuple[Text, Wish]:
        artist = self.text(
            "\n".join(label.lines), va="bottom", linespacing=1.2, color=label.colour, fontsize=label.size,
            gid=label.gid or None,
        )  # fmt: skip
        width, height = self.measure(artist)
        x, y = self.pixel(label.x, label.y)
        return artist, Wish(x, y, width, height, label.gap + 4, label.pull, label.gap + 4, label.reach)

    def _finish(self, label: Label, artist: Text, wish: Wish, box: Box) -> None:
        right_of_it = (box.x0 + box.x1) / 2 >= wish.x
        artist.set_horizontalalignment("left" if right_of_it else "right")
        if self.board.covers(box):  # a background where a thin line runs behind it
            artist.set_bbox({"facecolor": self.theme.background, "edgecolor": "none", "pad": 0.8})
        self.put(artist, box.x0 if right_of_it else box.x1, box.y0)
        to_x, to_y = box.nearest(wish.x, wish.y)
        length = math.hypot(to_x - wish.x, to_y - wish.y)
        if length > label.gap + 7:
            from_x, from_y = (
                wish.x + (to_x - wish.x) * label.gap / length,
                wish.y + (to_y - wish.y) * label.gap / length,
            )
            self._segment(
                from_x,
                from_y,
                to_x,
                to_y,
                color=label.leader,
                zorder=4,
                gid=f"leader:{len(self.axes.lines)}:{label.gid}",
            )

    # Labels along lines, and beside the axes

    def along(self, text: str, start: tuple[float, float], angle: float, **style: Any) -> bool:
        """Write along a line from ``start`` (pixels) on, above it where there is room, else below; whether there is."""
        artist = self.text(text, ha="center", va="center", rotation_mode="anchor", **style)
        width, height = self.measure(artist)
        right, up = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
        for side in (1, -1):
            for step in range(60):
                t, n = width / 2 + 8 + 6 * step, side * (height / 2 + 5)
                x, y = start[0] + t * right[0] + n * up[0], start[1] + t * right[1] + n * up[1]
                centres = [(x + s * right[0], y + s * right[1]) for s in (width * (i / 20 - 0.5) for i in range(21))]
                parts = [Box(cx - 4, cy - 4, cx + 4, cy + 4) for cx, cy in centres]
                if all(self.board.is_free(part) for part in parts):
                    artist.set_rotation(math.degrees(angle))
                    self.put(artist, x, y)
                    for part in parts:
                        self.board.block_text(part)
                    return True
        return False

    def column(self, artists: Sequence[Text], lines: Sequence[float], gap: float) -> None:
        """Labels to the right of the axes, each near its line (a height in pixels), with a connector."""
        heights = [self.measure(artist)[1] + 5 for artist in artists]
        for artist, y, line in zip(
            artists, spread(list(lines), heights, self.area.y0, self.area.y1), lines, strict=True
        ):
            self.put(artist, self.area.x1 + gap, y)
            self._segment(self.area.x1, line, self.area.x1 + gap - 3, y, color=self.theme.faint, zorder=2)

    def row(self, artists: Sequence[Text], lines: Sequence[float], gap: float) -> None:
        """Labels above the axes, each near its line (a distance from the left in pixels), with a connector."""
        widths = [self.measure(artist)[0] + 12 for artist in artists]
        for artist, x, line in zip(
            artists, spread(list(lines), widths, self.area.x0, self.area.x1), lines, strict=True
        ):
            self.put(artist, x, self.area.y1 + gap)
            self._segment(line, self.area.y1, x, self.area.y1 + gap - 2, color=self.theme.faint, zorder=2)
