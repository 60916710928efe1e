"""The width of each tensor under a budget: exact, within the budget, never worse with more room."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DoesNotFit, UsageError
from perfmodel.roofline.quantization.budget import Choice, Option, allocate, whole_units

BITS = (2, 3, 4, 8, 16)


def tensor(name: str, elements: int, weight: float) -> Choice:
    """A tensor whose error falls fourfold a bit, as rounding noise does."""
    return Choice(name, tuple(Option(f"{b} bits", elements * b / 8, weight * elements * 4.0**-b) for b in BITS))


def brute_force(choices: list[Choice], budget: float) -> float:
    """Least error over every combination."""
    return min(
        sum(o.error for o in combination)
        for combination in itertools.product(*(c.options for c in choices))
        if sum(Fraction(o.bytes) for o in combination) <= Fraction(budget)
    )


@settings(max_examples=60)
@given(
    parts=st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 10)), min_size=1, max_size=6),
    room=st.floats(0, 1),
)
@example(parts=[(1, 1.0)], room=0.9999999999999999)
@example(parts=[(50, 1.0), (49, 0.1), (1, 10.0)], room=0.9999999999999999)
def test_equals_brute_force(parts: list[tuple[int, float]], room: float) -> None:
    """No combination of widths within the budget has less error."""
    choices = [tensor(f"t{i}", 8 * n, w) for i, (n, w) in enumerate(parts)]
    least, most = (sum(pick(o.bytes for o in c.options) for c in choices) for pick in (min, max))
    budget = least + room * (most - least)
    got = allocate(choices, budget)
    assert got.bytes <= budget
    assert got.error == pytest.approx(brute_force(choices, budget), rel=1e-9)
    assert got.proven


@pytest.mark.parametrize("seed", range(40))
def test_a_byte_decides(seed: int) -> None:
    """Sizes of up to 10^12 bytes without a divisor, and a budget that an allocation meets or misses by a byte: it is
    never overdrawn, no better allocation is below the stated limit, and what is called proven is the least.
    """
    draw = random.Random(seed)
    size, choices = draw.choice([1e3, 1e6, 1e9, 1e12]), []
    for i in range(draw.randint(2, 4)):
        elements = draw.randint(8, int(size))
        options = (
            Option(f"{b}", elements * b // 8 + draw.choice([0, 1, 2.5, 3.125]), draw.uniform(0.1, 10) * 4.0**-b)
            for b in BITS
        )
        choices.append(Choice(f"t{i}", tuple(options)))
    some = sum(draw.choice(c.options[1:]).bytes for c in choices)
    least = sum(min(o.bytes for o in c.options) for c in choices)
    budget = max(some - draw.choice([0, 0.125, 1]), least)
    got, best = allocate(choices, budget), brute_force(choices, budget)
    assert sum(Fraction(o.bytes) for o in got.chosen) <= Fraction(budget)
    assert got.least_error <= best * (1 + 1e-8)
    if got.proven:
        assert got.error == pytest.approx(best, rel=1e-8)


def test_whole_units() -> None:
    """The unit is the largest that divides all sizes; the budget is rounded down to it, however near it is."""
    assert whole_units([12.0, 20.0], 32.0) == ([3, 5], 8)
    assert whole_units([12.0, 20.0], np.nextafter(32.0, 0.0)) == ([3, 5], 7)
    assert whole_units([0.0], 5.0) == ([0], 5)


def test_two_hundred_tensors() -> None:
    """200 tensors with five widths each are solved to proof."""
    rng = np.random.default_rng(0)
    choices = [
        tensor(f"t{i}", int(n), w)
        for i, (n, w) in enumerate(zip(rng.integers(10**6, 10**8, 200), rng.lognormal(size=200), strict=True))
    ]
    budget = sum(c.options[-1].bytes for c in choices) * 4.25 / 16
    got = allocate(choices, budget)
    assert got.proven
    assert 0.999 * budget < got.bytes <= budget


def test_more_room_is_never_worse() -> None:
    """The error falls with the budget, down to that of the widest options."""
    choices = [tensor(f"t{i}", 1000 * (i + 1), 1.0 / (i + 1)) for i in range(12)]
    widest = sum(c.options[-1].bytes for c in choices)
    errors = [allocate(choices, widest * share).error for share in (0.2, 0.3, 0.5, 0.8, 1.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(sum(c.options[-1].error for c in choices))


def test_equal_tensors_favour_the_first() -> None:
    """Of equal tensors the earlier ones get the wider formats."""
    got = allocate([tensor("w", 800, 1.0)] * 4, 4 * 300 + 100.0)
    sizes = [o.bytes for o in got.chosen]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("choices", "budget", "error", "message"),
    [
        ([tensor("w", 8, 1.0)], 1.0, DoesNotFit, "the narrowest widths take"),
        ([tensor("w", 8, 1.0)], float("inf"), UsageError, "a budget of inf bytes"),
        ([tensor("w", 8, 1.0)], float("nan"), UsageError, "a budget of nan bytes"),
        ([Choice("w", ())], 1.0, UsageError, "w has no option"),
        ([Choice("w", (Option("x", float("nan"), 0.0),))], 1.0, UsageError, "w as x: nan bytes"),
        ([Choice("w", (Option("x", 1.0, -1.0),))], 1.0, UsageError, "with error -1"),
    ],
)
def test_bad_input(choices: list[Choice], budget: float, error: type[Exception], message: str) -> None:
    """What cannot be allocated is refused with the numbers."""
    with pytest.raises(error, match=message):
        allocate(choices, budget)
