"""Interpolation between scattered rows: exact at them, bounded between them, silent beyond them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.measured.extent import directions, extent, inside_others
from perfmodel.roofline.measured.kriging import Field, fitted, nearest, selection
from perfmodel.roofline.measured.scatter import BETWEEN, EXACT, NOISE, OUTSIDE, TAIL, Scatter

GRID = np.log(np.array([[a, b] for a in (1, 4, 16, 64, 256) for b in (128, 512, 2048, 8192)], float))


def smooth(points):
    """A smooth function of the coordinates: what a table's ratio to physics looks like."""
    return 0.02 * points[:, 0] - 0.01 * points[:, 1] + 0.1


def test_a_row_is_found_again():
    """At a row the ratio is the row's own, called exact, and its interval is the noise."""
    found = Scatter(GRID, smooth(GRID)).at(GRID)
    assert (found.state == EXACT).all()
    assert found.value == pytest.approx(smooth(GRID), abs=1e-12)
    assert found.high - found.value == pytest.approx(np.full(len(GRID), TAIL * NOISE))


def test_between_rows_a_smooth_function_is_met():
    """Between the rows of a grid the error of a smooth function is far below what the rows differ by (0.2)."""
    places = np.log(np.array([[2.0, 256.0], [100.0, 1000.0], [30.0, 5000.0]]))
    found = Scatter(GRID, smooth(GRID)).at(places)
    assert (found.state == BETWEEN).all()
    assert found.value == pytest.approx(smooth(places), abs=0.015)
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()


@pytest.mark.parametrize("place", [(0.5, 128), (512, 2048), (16, 100), (16, 8193 * 1.1)])
def test_beyond_the_range_nothing_is_said(place):
    """Half the least and twice the largest size are outside, whatever the other size is."""
    assert Scatter(GRID, smooth(GRID)).at(np.log(np.array([place], float))).state[0] == OUTSIDE


def test_a_corner_that_is_cut_off_is_outside():
    """Both sizes are in their ranges, but no row has as large a product."""
    cut = GRID[GRID.sum(1) <= np.log(64 * 2048)]
    assert cut[:, 0].max() == pytest.approx(np.log(256))
    assert cut[:, 1].max() == pytest.approx(np.log(8192))
    state = Scatter(cut, smooth(cut)).at(np.log(np.array([[250.0, 8000.0], [60.0, 2000.0]]))).state
    assert state.tolist() == [OUTSIDE, BETWEEN]


def test_a_hole_in_the_middle_is_outside():
    """In all ranges, but no row within three e-folds (a factor of 20)."""
    ring = np.log(np.array([[a, b] for a in (1e0, 1e4) for b in (1e0, 1e4)]))
    assert Scatter(ring, np.zeros(4)).at(np.log(np.array([[1e2, 1e2]]))).state[0] == OUTSIDE


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_are_found_and_nothing_else(rows):
    """No row answers for nothing, one or two for themselves."""
    points = GRID[:rows]
    found = Scatter(points, smooth(points)).at(GRID[:4])
    assert found.state[:rows].tolist() == [EXACT] * rows
    assert EXACT not in found.state[rows:]


def test_times_of_one_shape_that_differ_are_one_row_with_both_in_its_interval():
    """30 and 60 us for one shape: their middle, an interval that holds both, and it is counted."""
    times = np.log([30.0, 60.0, 10.0, 10.0])
    scatter = Scatter(np.array([[0.0], [0.0], [1.0], [2.0]]), times)
    found = scatter.at(np.array([[0.0]]))
    assert (scatter.rows, scatter.twice) == (3, 1)
    assert np.exp(found.value[0]) == pytest.approx(np.sqrt(30 * 60))
    assert np.exp(found.low[0]) < 30 < 60 < np.exp(found.high[0])


def test_repeated_rows_tell_the_noise():
    """Ten shapes measured twice, 1 % apart: half of that, robustly, is the noise of all rows."""
    rng = np.random.default_rng(0)
    points = np.repeat(np.arange(10.0)[:, None], 2, axis=0)
    ratio = np.tile([0.0, 0.01], 10) + rng.normal(0, 1e-6, 20)
    assert Scatter(points, ratio).noise == pytest.approx(np.full(10, 0.005 * 1.4826 * np.sqrt(2)), rel=0.01)


def test_intervals_hold_four_fifths_of_rows_that_were_left_out():
    """Noise of 5 % about a smooth function: 80 % intervals hold 70 to 90 % of 200 new rows."""
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 6, (600, 2))
    ratio = smooth(points) + rng.normal(0, 0.05, 600)
    found = Scatter(points[:400], ratio[:400]).at(points[400:])
    inside = (found.low <= ratio[400:]) & (ratio[400:] <= found.high)
    assert 0.7 <= inside[found.state == BETWEEN].mean() <= 0.9


def test_noise_makes_the_field_shrink_to_its_mean():
    """Pure noise is not interpolated: the chosen nugget is the largest, and values stay near zero."""
    rng = np.random.default_rng(2)
    points, noise = rng.uniform(0, 6, (300, 2)), rng.normal(0, 0.3, 300)
    field = fitted(points, noise)
    assert field.nugget == 16.0
    assert np.abs(field.left_out(np.arange(300))[0]).mean() < 0.1


def test_a_tuned_kind_is_not_interpolated_between_models():
    """Where each model has a kernel of its own, a model without a row is outside although it is in range."""
    places = np.log(np.array([[32.0, 1024.0], [32.0, 512.0]]))
    free, tuned = (Scatter(GRID, smooth(GRID), [1], strict).at(places).state.tolist() for strict in (False, True))
    assert free == [BETWEEN, BETWEEN]
    assert tuned == [OUTSIDE, BETWEEN]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=4, max_size=30, unique=True))
def test_every_point_is_in_the_extent_and_left_out_it_may_not_be(points):
    """A set of points is in its own ranges; ``inside_others`` says what taking each away and asking again says."""
    array = np.array(points)
    assert extent(array).holds(array).all()
    slow = [extent(np.delete(array, i, 0)).holds(array[i : i + 1])[0] for i in range(len(array))]
    assert inside_others(array).tolist() == slow


@given(st.integers(1, 6))
def test_directions_hold_sizes_products_and_ratios(count):
    """Each size, two directions a pair, and the product of all of more than two."""
    assert len(directions(count)) == count + count * (count - 1) + (count > 2)


def test_nearest_is_the_sorted_list():
    """The nearest five by brute force, and none of the query's own group."""
    rng = np.random.default_rng(3)
    points, queries = rng.normal(size=(50, 3)), rng.normal(size=(7, 3))
    index, distance = nearest(points, queries, 5)
    for q, row, d in zip(queries, index, distance, strict=True):
        true = np.sqrt(((points - q) ** 2).sum(1))
        assert row.tolist() == np.argsort(true, kind="stable")[:5].tolist()
        assert d == pytest.approx(np.sort(true)[:5])
    group = np.arange(50) % 5
    own, _ = nearest(points, points, 5, (group, group))
    assert not (group[own] == group[:, None]).any()


def test_the_selection_is_even_and_bounded():
    """All rows of a small table, 1500 of a large one."""
    assert selection(10).tolist() == list(range(10))
    chosen = selection(100_000)
    assert len(chosen) == 1500
    assert np.ptp(np.diff(chosen)) <= 1


def test_the_field_is_exact_at_its_points_without_nugget():
    """Kriging passes through the points when there is no noise, and its variance there is zero."""
    field = Field(GRID, smooth(GRID), nugget=0.0)
    value, variance, _, distance = field.at(GRID)
    assert value == pytest.approx(smooth(GRID), abs=1e-5)
    assert variance == pytest.approx(np.zeros(len(GRID)), abs=1e-5)
    assert distance == pytest.approx(np.zeros(len(GRID)))
