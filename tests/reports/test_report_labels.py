"""The label placer: nothing overlaps, everything is inside, the same every time."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.reports.labels import Board, Box, Wish, spread

BOUNDS = Box(0, 0, 600, 400)

wishes = st.builds(
    Wish,
    x=st.floats(0, 600), y=st.floats(0, 400), width=st.floats(10, 150), height=st.floats(8, 60), gap=st.floats(2, 20),
    pull=st.sampled_from([(0.0, 0.0), (0.7, -0.7), (-0.7, 0.7)]),
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(wishes, min_size=1, max_size=8), st.lists(st.tuples(st.floats(0, 600), st.floats(0, 400)), max_size=5))
def test_labels_are_free_and_inside(asked: list[Wish], marks: list[tuple[float, float]]) -> None:
    """Labels overlap neither each other nor a point nor a strong line, and stay inside."""
    board = Board(BOUNDS)
    board.block_line(0, 50, 600, 350)
    for x, y in marks:
        board.block_mark(x, y, 8)
    placed = [box for box in board.place_all(asked) if box is not None]
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= 600 and b.y1 <= 400 for b in placed)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(placed, 2))
    for x, y in marks:
        assert not any(b.overlaps(Box(x - 8, y - 8, x + 8, y + 8)) for b in placed)
    for b in placed:  # the line runs from (0, 50) to (600, 350): both ends of the box lie on one side
        heights = [b.y0 - (50 + b.x1 / 2), b.y1 - (50 + b.x0 / 2)]
        assert heights[0] > 0 or heights[1] < 0


def test_places_are_the_same_each_time() -> None:
    """The same wishes on the same board get the same places."""
    asked = [Wish(300 + 3 * i, 200, 90, 30, pull=(0.7, -0.7)) for i in range(6)]
    assert Board(BOUNDS).place_all(asked) == Board(BOUNDS).place_all(asked)


def test_a_label_is_near_what_it_names() -> None:
    """On an empty board a label is as near as its gap allows, on the side it is pulled to."""
    box = Board(BOUNDS).place(Wish(300, 200, 80, 20, gap=6, pull=(0.7, -0.7)))
    assert box is not None
    x, y = box.nearest(300, 200)
    assert 6 <= ((x - 300) ** 2 + (y - 200) ** 2) ** 0.5 <= 12
    assert (box.x0 + box.x1) / 2 > 300
    assert (box.y0 + box.y1) / 2 < 200


def test_no_room_is_said() -> None:
    """A label that is larger than the board, or finds it full, gets no place."""
    board = Board(BOUNDS)
    assert board.place(Wish(300, 200, 700, 20)) is None
    board.block_text(BOUNDS)
    assert board.place(Wish(300, 200, 50, 20)) is None


def test_a_leader_goes_around_text() -> None:
    """A place whose leader would cross another label loses to one a little farther off."""
    board = Board(BOUNDS)
    board.block_text(Box(310, 150, 330, 250))  # a wall right of the point
    board.block_text(Box(200, 230, 400, 260))  # and one above
    box = board.place(Wish(300, 200, 60, 20, gap=6, pull=(0.7, 0.7)))
    assert box is not None
    assert box.x1 < 310 or box.y1 < 150


def test_thin_lines_are_covered_only_at_need() -> None:
    """A label avoids a thin line where it can and covers it where it must."""
    board = Board(Box(0, 0, 120, 100))
    board.block_line(0, 60, 120, 60, thin=True)
    near = board.place(Wish(60, 50, 60, 20, gap=4))
    assert near is not None
    assert not board.covers(near)
    far = Board(Box(0, 0, 120, 40))
    for y in range(0, 40, 4):
        far.block_line(0, y, 120, y, thin=True)
    over = far.place(Wish(60, 20, 60, 12, gap=4))
    assert over is not None
    assert far.covers(over)


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(5, 30)), min_size=1, max_size=10))
def test_spread_never_overlaps(items: list[tuple[float, float]]) -> None:
    """Labels of a column keep their order and their distance, and stay between the ends where they fit."""
    wanted, sizes = [w for w, _ in items], [s for _, s in items]
    centres = spread(wanted, sizes, 0.0, 400.0)
    order = sorted(range(len(items)), key=lambda i: wanted[i])
    for a, b in itertools.pairwise(order):
        assert centres[b] - centres[a] >= (sizes[a] + sizes[b]) / 2 - 1e-9
    if sum(sizes) <= 400:
        assert min(c - s / 2 for c, s in zip(centres, sizes, strict=True)) >= -1e-9
        assert max(c + s / 2 for c, s in zip(centres, sizes, strict=True)) <= 400 + 1e-9


def test_spread_leaves_alone_what_is_apart() -> None:
    """Labels that do not touch stay where they want to be."""
    assert spread([10.0, 200.0, 90.0], [20.0, 20.0, 20.0], 0.0, 400.0) == pytest.approx([10.0, 200.0, 90.0])
