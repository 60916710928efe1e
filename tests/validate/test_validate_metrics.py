"""Figures of merit, by hand arithmetic."""

import random

import pytest

from perfmodel.validate.metrics import figures, grouped
from perfmodel.validate.rows import Comparison, Skip, measured, printed, whole


def us(measured: float, predicted: float, **more: float) -> Comparison:
    return Comparison("latency_us", measured, predicted, "", **more)


def test_figures_by_hand() -> None:
    """Errors 10 %, 50 %, 20 %: mean 80/3 %, median 20 %, largest 50 %; ratios 1.1, 1.5, 0.8: median 1.1, bias 10 %."""
    found = figures([us(100, 110), us(4, 6), us(50, 40)])
    assert found["n"] == 3
    assert found["mape"] == pytest.approx(0.8 / 3)
    assert found["median_ape"] == pytest.approx(0.2)
    assert found["max_ape"] == pytest.approx(0.5)
    assert found["bias"] == pytest.approx(0.1)


def test_times_below_10_us_count_apart() -> None:
    """Of 100, 4 and 10 us the 4 is left out of mape_10us and 10 is in: (10 % + 30 %) / 2."""
    found = figures([us(100, 110), us(4, 6), us(10, 13)], microseconds=1.0)
    assert found["mape_10us"] == pytest.approx(0.2)


def test_unit_of_a_time_counts() -> None:
    """0.02 ms are 20 us, above the limit; without the unit a metric is no time and has no such figure."""
    assert figures([us(0.02, 0.03)], microseconds=1000.0)["mape_10us"] == pytest.approx(0.5)
    assert figures([us(0.02, 0.03)])["mape_10us"] is None


def test_physics_is_without_the_residual_model() -> None:
    """Physics 150 of 100 and, without one of its own, 110 of 100: (50 % + 10 %) / 2."""
    found = figures([us(100, 105, physics=150), us(100, 110)], microseconds=1.0)
    assert found["physics_mape_10us"] == pytest.approx(0.3)
    assert found["mape"] == pytest.approx(0.075)


def test_coverage_is_of_rows_with_an_interval() -> None:
    """Two of four rows have an interval and one of them holds the measurement, at its edge: one half."""
    compared = [us(100, 110, low=100, high=120), us(100, 110, low=101, high=120), us(1, 1), us(1, 1, low=0.5)]
    assert figures(compared)["coverage80"] == 0.5
    assert figures([us(1, 1)])["coverage80"] is None


def test_exact_is_to_the_printed_digit() -> None:
    """72.9140625 is printed as 72.91 and not as 72.92."""
    for text, exact in (("72.91", 1.0), ("72.92", 0.0)):
        number = printed(text)
        assert number is not None
        compared = Comparison("k_mem", number.value, 72.9140625, "", half_unit=number.half_unit)
        assert figures([compared])["exact"] == exact


def test_nothing_has_no_figures() -> None:
    """Without comparisons n is 0 and every other figure undefined, not 0."""
    found = figures([])
    assert found.pop("n") == 0
    assert set(found.values()) == {None}


def test_groups_are_sorted_and_complete() -> None:
    """Every comparison is in one group, groups in the order of their values."""
    rows = [({"gpu": g}, us(10, 10 + i)) for i, g in enumerate(["b", "a", "b"])]
    found = grouped(rows)
    assert [(group["gpu"], group["n"]) for group in found] == [("a", 1), ("b", 2)]
    assert found[1]["mape"] == pytest.approx(0.1)  # (0 % + 20 %) / 2


def test_order_changes_no_bit() -> None:
    """Sums are exact, so that a thousand ill-conditioned errors give the same figures in any order."""
    rng = random.Random(7)
    compared = [us(10.0 ** rng.uniform(-3, 6), 10.0 ** rng.uniform(-3, 6)) for _ in range(1000)]
    first = figures(compared, 1.0)
    rng.shuffle(compared)
    assert figures(compared, 1.0) == first


@pytest.mark.parametrize(
    ("text", "value", "half"), [("15", 15, 0.5), ("127626.0", 127626, 0.05), ("0.25", 0.25, 0.005), ("1e3", 1000, 500)]
)
def test_printed_numbers_know_their_last_digit(text: str, value: float, half: float) -> None:
    """A number stands for all that are rounded to it."""
    found = printed(text)
    assert found is not None
    assert (found.value, found.half_unit) == (value, pytest.approx(half))


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-inf", "0", "-2.14", "1_000", "1e999", "12x", "0x10", "１２", "9" * 50]
)
def test_what_is_no_number_above_zero(text: str) -> None:
    """Nothing else is taken for a measured number: no NaN, no infinity, no sign, no digits of other scripts."""
    assert printed(text) is None


def test_a_wrong_cell_is_a_reason_to_skip() -> None:
    """An empty measured cell is no comparison; a wrong one names its column; a count must be whole."""
    assert measured({"kv_tokens": " "}, "kv_tokens") is None
    with pytest.raises(Skip, match="kv_tokens is no number above zero"):
        measured({"kv_tokens": "nan"}, "kv_tokens")
    with pytest.raises(Skip, match="tp is no whole number above zero"):
        whole({"tp": "1.5"}, "tp")
    with pytest.raises(Skip, match="tp is missing"):
        whole({}, "tp")
    assert whole({}, "tp", 1) == 1
