"""Where labels go: each at the free place nearest to what it names, never over another label, a point or a strong line.

A ``Board`` is a grid of small cells over the drawing area. What is drawn blocks cells; a summed-area table then tells
in one pass every position at which a box of a given size is free. Among these the nearest one is chosen whose leader
line crosses least. The search is exhaustive and its order fixed: the same picture always gets the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Cost of a leader in pixels of distance: per pixel over text, a point, another leader, and a line.
OVER_TEXT, OVER_MARK, OVER_LEADER, OVER_LINE = 1000.0, 60.0, 150.0, 2.0

#: Cost of a label in pixels of distance: per cell of a thin line that it covers.
COVERS = 2.0

#: Cost of a label for which nothing is free.
NOWHERE = 1e5

#: Of the free positions, from the nearest on, every so many-th is tried; leaders are compared so many at a time.
STRIDE, COMPARED = 8, 100

#: So many labels, those with the highest costs, choose again, each with so many neighbours; below a cost none does.
AGAIN, NEIGHBOURS, CONTENT = 8, 4, 40.0


@dataclass(frozen=True)
class Box:
    """A rectangle, in pixels."""

    x0: float
    y0: float
    x1: float
    y1: float

    def grown(self, by: float) -> Box:
        """The box with a margin."""
        return Box(self.x0 - by, self.y0 - by, self.x1 + by, self.y1 + by)

    def overlaps(self, other: Box) -> bool:
        """Whether the insides meet."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the box nearest to a point."""
        return min(max(x, self.x0), self.x1), min(max(y, self.y0), self.y1)


@dataclass(frozen=True)
class Wish:
    """What a label asks for.

    Attributes
    ----------
    x, y : float
        What it names.
    width, height : float
        Of its text.
    gap : float
        Least distance from (x, y): the radius of the point.
    pull : tuple[float, float]
        Preferred direction; a place on the other side costs up to 1.5 times its distance.
    ring : float
        Distance around (x, y) within which its leader may cross points: they are the ones it names.
    reach : float
        Greatest distance from (x, y). Where it is finite, the leader crosses no text, other point or leader either:
        there is rather no label.
    """

    x: float
    y: float
    width: float
    height: float
    gap: float = 4.0
    pull: tuple[float, float] = (0.0, 0.0)
    ring: float = 6.0
    reach: float = math.inf


class Board:
    """The drawing area, and what is taken of it."""

    def __init__(self, bounds: Box, cell: float = 4.0, margin: float = 2.0) -> None:
        self.bounds, self.cell, self.margin = bounds, cell, margin
        shape = (int((bounds.y1 - bounds.y0) / cell), int((bounds.x1 - bounds.x0) / cell))
        self._text, self._marks, self._leaders, self._lines, self._thin = (
            np.zeros(shape, dtype=bool) for _ in range(5)
        )

    def block_text(self, box: Box) -> None:
        """Take a box for text."""
        self._text[self._cells(box)] = True

    def block_mark(self, x: float, y: float, radius: float) -> None:
        """Take a box around a point."""
        self._marks[self._cells(Box(x - radius, y - radius, x + radius, y + radius))] = True

    def block_line(self, x0: float, y0: float, x1: float, y1: float, thin: bool = False) -> None:
        """Take the cells along a line segment; a thin one may be covered, at a cost."""
        (self._thin if thin else self._lines)[self._path(x0, y0, x1, y1)] = True

    def block_leader(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Take the cells along a leader; text may not cover it."""
        self._leaders[self._path(x0, y0, x1, y1)] = True

    def is_free(self, box: Box) -> bool:
        """Whether nothing is in the box, thin lines included, and it is inside."""
        b = self.bounds
        if box.x0 < b.x0 or box.y0 < b.y0 or box.x1 > b.x1 or box.y1 > b.y1:
            return False
        cells = self._cells(box)
        return not (self._taken()[cells].any() or self._thin[cells].any())

    def covers(self, box: Box) -> bool:
        """Whether the box lies over a thin line."""
        return bool(self._thin[self._cells(box)].any())

    def place(self, wish: Wish) -> Box | None:
        """Find and take the best free place, with its leader; ``None`` when there is none."""
        return self.place_all([wish])[0]

    def place_all(self, wishes: Sequence[Wish], rounds: int = 3) -> list[Box | None]:
        """Find and take places for labels together.

        They choose one after the other, in the order given and from left to right, both forth and back. Each time,
        every label in turn is then taken up and put down again, given the others, until none moves or ``rounds`` are
        over. The arrangement whose labels are nearest and whose leaders cross least is taken, and bettered where the
        worst of its labels find something by choosing before their neighbours.

        Returns
        -------
        list of Box or None
            ``None`` for a label for which nothing is free.
        """
        given = list(range(len(wishes)))
        by_x = sorted(given, key=lambda i: (wishes[i].x, wishes[i].y))
        orders = (given, given[::-1], by_x, by_x[::-1]) if len(given) > 1 else (given,)
        nothing: list[Box | None] = [None] * len(wishes)
        tried = [self._arrange(wishes, nothing, order, rounds) for order in orders]
        found, costs = min(tried, key=lambda result: sum(result[1]))
        found = self._improve(wishes, found, costs)
        for wish, box in zip(wishes, found, strict=True):
            self._take(wish, box)
        return found

    def _improve(self, wishes: Sequence[Wish], found: list[Box | None], costs: list[float]) -> list[Box | None]:
        """Let the worst-placed labels choose again, before their neighbours; what is not better is undone."""
        for i in sorted(range(len(wishes)), key=lambda i: -costs[i])[:AGAIN]:
            mine = wishes[i]
            if costs[i] < CONTENT:
                break
            near = sorted(range(len(wishes)), key=lambda j: math.hypot(wishes[j].x - mine.x, wishes[j].y - mine.y))
            freed = near[:NEIGHBOURS]
            start = [None if j in freed else box for j, box in enumerate(found)]
            again = self._arrange(wishes, start, [*freed, *near[NEIGHBOURS:]], 1)
            if sum(again[1]) < sum(costs) - 1e-6:
                found, costs = again
        return found

    def _arrange(
        self, wishes: Sequence[Wish], start: Sequence[Box | None], order: Sequence[int], rounds: int
    ) -> tuple[list[Box | None], list[float]]:
        """Places found in an order from a start on, and their costs; nothing is taken yet."""
        found = list(start)
        costs = [0.0] * len(wishes)
        text, leaders = self._text, self._leaders
        for _ in range(rounds + 1 if len(wishes) > 1 else 1):
            before = list(found)
            for i in order:
                self._text, self._leaders = text.copy(), leaders.copy()
                for j, other in enumerate(wishes):
                    if j != i:
                        self._take(other, found[j])
                found[i], costs[i] = self._best(wishes[i])
            if found == before:
                break
        self._text, self._leaders = text, leaders
        return found, costs

    def _take(self, wish: Wish, box: Box | None) -> None:
        if box is not None:
            self.block_text(box)
            self.block_leader(wish.x, wish.y, *box.nearest(wish.x, wish.y))

    def _best(self, wish: Wish) -> tuple[Box | None, float]:
        """The best free place and its cost, given what is taken."""
        lefts, bottoms, covered = self._free_corners(wish.width, wish.height)
        if not lefts.size:
            return None, NOWHERE
        dx = np.clip(wish.x, lefts, lefts + wish.width) - wish.x
        dy = np.clip(wish.y, bottoms, bottoms + wish.height) - wish.y
        distance = np.hypot(dx, dy)
        middle_x, middle_y = lefts + wish.width / 2 - wish.x, bottoms + wish.height / 2 - wish.y
        along = (middle_x * wish.pull[0] + middle_y * wish.pull[1]) / np.maximum(np.hypot(middle_x, middle_y), 1.0)
        off_centre = 0.02 * np.hypot(middle_x, middle_y)
        cost = (
            distance * (1.25 - 0.25 * along) + off_centre + COVERS * covered + np.where(distance < wish.gap, 1e6, 0.0)
        )
        best, least = -1, NOWHERE
        order = np.argsort(cost, kind="stable")
        order = order[distance[order] <= wish.reach][::STRIDE]
        for near in np.split(order, range(COMPARED, order.size, COMPARED)):
            if not near.size or cost[near[0]] >= least:  # the leader comes on top: nothing from here on is better
                break
            crossing, clear = self._leader_costs(wish, dx[near], dy[near])
            total = cost[near] + crossing
            if math.isfinite(wish.reach):
                total = np.where(clear, total, np.inf)
            if total.min() < least:
                best, least = int(near[np.argmin(total)]), float(total.min())
        if best < 0:
            return None, NOWHERE
        x, y = float(lefts[best]), float(bottoms[best])
        return Box(x, y, x + wish.width, y + wish.height), least

    def _taken(self) -> NDArray[np.bool_]:
        return self._text | self._marks | self._leaders | self._lines

    def _free_corners(self, width: float, height: float) -> tuple[Array, Array, Array]:
        """Lower left corners, in pixels, at which a box and its margin are free; and the thin cells it covers there."""
        columns = int(np.ceil((width + 2 * self.margin) / self.cell)) + 1
        rows = int(np.ceil((height + 2 * self.margin) / self.cell)) + 1
        if rows > self._text.shape[0] or columns > self._text.shape[1]:
            return np.empty(0), np.empty(0), np.empty(0)
        y, x = np.nonzero(_window_sums(self._taken(), rows, columns) == 0)
        covered = _window_sums(self._thin, rows, columns)[y, x].astype(np.float64)
        lefts = np.asarray(self.bounds.x0 + x * self.cell + self.margin, dtype=np.float64)
        bottoms = np.asarray(self.bounds.y0 + y * self.cell + self.margin, dtype=np.float64)
        return lefts, bottoms, covered

    def _leader_costs(self, wish: Wish, dx: Array, dy: Array) -> tuple[Array, NDArray[np.bool_]]:
        """What the straight lines from the point to each box cost, and which cross at most lines of the drawing."""
        longest = float(np.max(np.hypot(dx, dy), initial=1.0))
        steps = np.linspace(0.0, 1.0, max(2, int(2 * longest / self.cell)))
        x, y = wish.x + np.outer(dx, steps), wish.y + np.outer(dy, steps)
        rows, columns = self._index(x, y)
        outside = np.hypot(x - wish.x, y - wish.y) > wish.ring
        text, lines = self._text[rows, columns], self._lines[rows, columns]
        marks, leaders = outside & self._marks[rows, columns], outside & self._leaders[rows, columns]
        weight = OVER_TEXT * text + OVER_LINE * lines + OVER_MARK * marks + OVER_LEADER * leaders
        crossed = np.asarray((text | marks | leaders).any(axis=1), dtype=np.bool_)
        return np.asarray(weight.mean(axis=1) * np.hypot(dx, dy)), ~crossed

    def _index(self, x: Array, y: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        rows = np.clip(((y - self.bounds.y0) / self.cell).astype(np.intp), 0, self._text.shape[0] - 1)
        columns = np.clip(((x - self.bounds.x0) / self.cell).astype(np.intp), 0, self._text.shape[1] - 1)
        return rows, columns

    def _path(self, x0: float, y0: float, x1: float, y1: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        steps = np.linspace(0.0, 1.0, max(2, int(2 * np.hypot(x1 - x0, y1 - y0) / self.cell)))
        x, y = x0 + (x1 - x0) * steps, y0 + (y1 - y0) * steps
        b = self.bounds
        inside = (x >= b.x0) & (x < b.x1) & (y >= b.y0) & (y < b.y1)
        return self._index(x[inside], y[inside])

    def _cells(self, box: Box) -> tuple[slice, slice]:
        b, height, width = self.bounds, *self._text.shape
        rows = slice(
            int(np.clip(np.floor((box.y0 - b.y0) / self.cell), 0, height)),
            int(np.clip(np.ceil((box.y1 - b.y0) / self.cell), 0, height)),
        )
        columns = slice(
            int(np.clip(np.floor((box.x0 - b.x0) / self.cell), 0, width)),
            int(np.clip(np.ceil((box.x1 - b.x0) / self.cell), 0, width)),
        )
        return rows, columns


def _window_sums(cells: NDArray[np.bool_], rows: int, columns: int) -> NDArray[np.int32]:
    """How many cells are set in each window, by a summed-area table."""
    area = np.zeros((cells.shape[0] + 1, cells.shape[1] + 1), dtype=np.int32)
    np.cumsum(np.cumsum(cells, axis=0, dtype=np.int32), axis=1, out=area[1:, 1:])
    sums: NDArray[np.int32] = (
        area[rows:, columns:] - area[:-rows, columns:] - area[rows:, :-columns] + area[:-rows, :-columns]
    )
    return sums


def spread(wanted: list[float], sizes: list[float], low: float, high: float) -> list[float]:
    """Centres of labels in a column, as near to the wanted ones as they can be without overlapping.

    Neighbours that would overlap move as one block around their mean (pool adjacent violators); the column is kept
    between ``low`` and ``high`` where it fits.

    >>> spread([10.0, 12.0, 40.0], [6.0, 6.0, 6.0], 0.0, 100.0)
    [8.0, 14.0, 40.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[list[int], float]] = []  # members in order, and the lower edge of the first
    for i in order:
        members, edge = [i], min(max(wanted[i] - sizes[i] / 2, low), high - sizes[i])
        while blocks and blocks[-1][1] + sum(sizes[j] for j in blocks[-1][0]) > edge:
            members = blocks.pop()[0] + members
            edge = _edge(members, wanted, sizes, low, high)
        blocks.append((members, edge))
    centres = [0.0] * len(wanted)
    for members, edge in blocks:
        for i in members:
            centres[i], edge = edge + sizes[i] / 2, edge + sizes[i]
    return centres


def _edge(members: list[int], wanted: list[float], sizes: list[float], low: float, high: float) -> float:
    """Lower edge of a block whose members are on average where they want to be."""
    offset, total = 0.0, 0.0
    for i in members:
        total += wanted[i] - (offset + sizes[i] / 2)
        offset += sizes[i]
    return max(min(total / len(members), high - offset), low)
