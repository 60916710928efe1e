"""Quantities: parsed in one place, printed in one place, and nothing without a unit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.units import ABSURD, UNITS, engineering, gb, gib, parse


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("3.35 TB/s", "bytes/s", 3.35e12),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("1 kB", "bytes", 1000),
        ("1 KiB", "bytes", 1024),
        ("227KiB", "bytes", 227 * 1024),
        ("0 B", "bytes", 0),
        ("989.4 TFLOP/s", "ops/s", 989.4e12),
        ("1979 TOP/s", "ops/s", 1979e12),
        ("3.9e12 op/s", "ops/s", 3.9e12),
        ("1_000 GFLOP/s", "ops/s", 1e12),
        ("1980 MHz", "Hz", 1.98e9),
        ("700 W", "W", 700),
        ("4.5 us", "s", 4.5e-6),
        ("4.5 µs", "s", 4.5e-6),
        ("30 ns", "s", 30e-9),
        ("2.5 USD/h", "USD/h", 2.5),
        ("128 B/clk", "bytes/clk", 128),
        ("132", "count", 132),
        (132, "count", 132),
    ],
)
def test_quantities_mean_their_si_value(text: object, dimension: str, value: float) -> None:
    """GB is 10^9 and GiB is 2^30 bytes; prefixes, underscores and exponents are understood."""
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["80", 80, 3.35e12, "3.35e12", "80 ", "1e3"])
@pytest.mark.parametrize("dimension", [d for d in UNITS if "" not in UNITS[d]])
def test_a_number_without_a_unit_is_refused(text: object, dimension: str) -> None:
    """Nobody knows what 80 means: the message lists the units that would do."""
    with pytest.raises(ValueError, match="has no unit; write one of"):
        parse(text, dimension)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GB", "bytes/s"),
        ("80 GB/s", "bytes"),
        ("989 TFLOPS", "ops/s"),
        ("80 gb", "bytes"),
        ("5 kelvin", "W"),
        ("7 x", "count"),
    ],
)
def test_a_unit_of_another_dimension_is_refused(text: str, dimension: str) -> None:
    """A bandwidth is no capacity, and units are written one way."""
    with pytest.raises(ValueError, match="has the unit"):
        parse(text, dimension)


@pytest.mark.parametrize(
    "text", ["-1 GB", "nan GB", "inf GB", "-inf GB", "1e30 GB", "1e400 GB", "9999999999999999999999 TB"]
)
def test_numbers_out_of_range_are_refused(text: str) -> None:
    """Negative, not finite and absurd quantities: the message names the limits."""
    with pytest.raises(ValueError, match="is out of range; it must be finite, at least 0 and at most 1e\\+25 in SI"):
        parse(text, "bytes")


@pytest.mark.parametrize(
    "text", ["", "fast", "GB", "1.2.3 GB", "--3 GB", "0x10 GB", None, True, [80], {"value": 1}, "1 GB 2 GB"]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    """Words, lists, booleans and mistyped numbers."""
    with pytest.raises(ValueError, match=r"is not a quantity; write a number and a unit such as|has the unit"):
        parse(text, "bytes")


def test_a_long_text_is_not_echoed() -> None:
    """A megabyte of junk makes a short message."""
    with pytest.raises(ValueError, match="is not a quantity") as caught:
        parse("x" * 10**6, "bytes")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.35e12, "3.35 TB/s"), (0.0, "0 B/s"), (999.4, "999 B/s"), (999.6, "1 kB/s"), (1e3, "1 kB/s"),
        (123456.0, "123 kB/s"), (-2e6, "-2 MB/s"), (1e21, "1 ZB/s"), (1e30, "1e+30 B/s"), (math.inf, "inf B/s"),
        (1e-40, "1e-40 B/s"), (1e-9, "1 nB/s"),
    ],
)  # fmt: skip
def test_engineering_text(value: float, text: str) -> None:
    """Three digits and the prefix that keeps them between 1 and 999; 999.6 rounds up to the next prefix."""
    assert engineering(value, "B/s") == text


@given(st.floats(1.0, ABSURD / 1e5))
def test_what_is_printed_parses_back(value: float) -> None:
    """Printing with seven digits and parsing again gives the number, to those digits."""
    assert parse(engineering(value, "B", digits=7), "bytes") == pytest.approx(value, rel=1e-6)


@given(st.floats(1e-12, 1e18))
def test_the_mantissa_stays_between_1_and_999(value: float) -> None:
    """Whatever the number, its text has one to three digits before the point."""
    assert 1 <= float(engineering(value, "s").split()[0]) < 1000


@given(st.integers(0, 10**9), st.sampled_from(sorted((d, u) for d, units in UNITS.items() for u in units if u)))
def test_every_unit_scales_by_its_factor(number: int, unit: tuple[str, str]) -> None:
    """Any unit of any dimension multiplies by its own factor, with or without a space."""
    dimension, name = unit
    expected = number * UNITS[dimension][name]
    if expected <= ABSURD:
        assert parse(f"{number} {name}", dimension) == parse(f"{number}{name}", dimension) == expected


def test_gb_and_gib_are_named() -> None:
    """The same bytes are 141.11 GB and 131.42 GiB."""
    assert (gb(141_107_412_992.0), gib(141_107_412_992.0)) == ("141.11 GB", "131.42 GiB")
