"""Numbers that remember their formula: they compute as floats do, and their text means what they computed."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.trace import Traced, show

NAMES = ("a", "b", "c")
FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max, "min": min, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "neg": lambda x: -x, "mod": np.mod, "where": lambda c, a, b: a if c else b,
}  # fmt: skip


def evaluate(text: str, names: dict[str, float]) -> float:
    python = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("·", "*").replace("^", "**")
    return float(eval(python, {"__builtins__": {}}, {**FUNCTIONS, **names}))


#: Operations on two numbers, as cost formulas write them.
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x ** (y - 3),
    np.maximum, np.minimum, np.mod, np.add, np.multiply, lambda x, y: np.where(x > y, x, y), lambda x, y: -x + y,
    lambda x, y: np.ceil(x / y), lambda x, y: np.floor(x) - 2 / y, lambda x, y: 2 * x + 0.5 * y,
]  # fmt: skip


@st.composite
def expressions(draw: st.DrawFn) -> Callable[[dict[str, Any]], Any]:
    """A function of named numbers: a tree of operations with names and constants at its leaves."""
    depth = draw(st.integers(0, 4))

    def build(level: int) -> Callable[[dict[str, Any]], Any]:
        if level == 0 or draw(st.booleans()):
            name = draw(st.sampled_from([*NAMES, None]))
            constant = draw(st.sampled_from([1.0, 2.0, 0.5, 128.0, 8192.0, -3.0]))
            return (lambda names: names[name]) if name else (lambda names: constant)
        op, left, right = draw(st.sampled_from(BINARY)), build(level - 1), build(level - 1)
        return lambda names: op(left(names), right(names))

    inner = build(depth)
    return lambda names: inner(names) + names["a"]  # at least one name is in it


@given(expressions(), st.lists(st.integers(1, 4096), min_size=3, max_size=3))
def test_any_formula_computes_and_reads_as_with_floats(
    formula: Callable[[dict[str, Any]], Any], values: list[int]
) -> None:
    """For random trees of operations: the traced value is the float's, and both texts evaluate to it."""
    plain = dict(zip(NAMES, map(float, values), strict=True))
    with np.errstate(all="ignore"):
        try:
            expected = float(formula(plain))
        except (ZeroDivisionError, OverflowError):
            return
        if not np.isfinite(expected) or abs(expected) > 1e100:
            return
        try:
            traced = formula({name: Traced.named(name, value) for name, value in plain.items()})
        except (ZeroDivisionError, OverflowError):
            return
        assert traced.value == expected or np.isclose(traced.value, expected, rtol=1e-12)
        try:
            read = evaluate(traced.symbols(), plain)
        except (ZeroDivisionError, OverflowError):
            return  # an inner step that NumPy forgives and Python does not
        assert np.isclose(read, traced.value, rtol=1e-9, atol=1e-9), traced.symbols()


@pytest.mark.parametrize(
    ("formula", "symbols", "numbers"),
    [
        (lambda a, b, c: 2 * a * (b + 1), "2·a·(b + 1)", "2·2·(3 + 1)"),
        (lambda a, b, c: (a**b) ** c, "(a^b)^c", "(2^3)^4"),
        (lambda a, b, c: a ** (b**c), "a^(b^c)", "2^(3^4)"),
        (lambda a, b, c: a - (b - c), "a - (b - c)", "2 - (3 - 4)"),
        (lambda a, b, c: a - b - c, "a - b - c", "2 - 3 - 4"),
        (lambda a, b, c: a / (b / c), "a/(b/c)", "2/(3/4)"),
        (lambda a, b, c: a / b / c, "a/b/c", "2/3/4"),
        (lambda a, b, c: a * np.mod(b, c), "a·mod(b, c)", "2·mod(3, 4)"),
        (lambda a, b, c: (a + b) * c, "(a + b)·c", "(2 + 3)·4"),
        (lambda a, b, c: -a + b, "neg(a) + b", "neg(2) + 3"),
        (lambda a, b, c: a + (-3.0) * b, "a + (-3)·b", "2 + (-3)·3"),
        (lambda a, b, c: 1 - (1 - a / b) ** c, "1 - (1 - a/b)^c", "1 - (1 - 2/3)^4"),
        (lambda a, b, c: np.maximum(a, b) + np.ceil(c / a), "max(a, b) + ceil(c/a)", "max(2, 3) + ceil(4/2)"),
        (lambda a, b, c: np.where(a > b, a, c), "where(0, a, c)", "where(0, 2, 4)"),
    ],
)
def test_how_formulas_are_written(formula: Callable[..., Any], symbols: str, numbers: str) -> None:
    """Parentheses stand where the order of evaluation needs them, and nowhere else."""
    a, b, c = (Traced.named(name, value) for name, value in zip(NAMES, (2.0, 3.0, 4.0), strict=True))
    found = formula(a, b, c)
    assert (found.symbols(), found.numbers()) == (symbols, numbers)


def test_negative_inputs_are_shown_in_parentheses() -> None:
    """2 - (-3) and (-3)^2, not 2 - -3 and -3^2."""
    x = Traced.named("x", -3.0)
    assert (2 - x).numbers() == "2 - (-3)"
    assert (x**2).numbers() == "(-3)^2"
    assert (x**2).value == 9


def test_adding_nothing_and_multiplying_by_one_is_not_shown() -> None:
    """A sum that starts at 0 and a factor of 1 explain nothing; a named 1 does."""
    a, one = Traced.named("a", 5.0), Traced.named("one", 1.0)
    assert (0.0 + a).symbols() == (a + 0).symbols() == (1 * a).symbols() == (a * 1.0).symbols() == "a"
    assert (a * one).symbols() == "a·one"
    assert (a - 0).symbols() == "a - 0"


def test_comparisons_and_truth_are_those_of_the_value() -> None:
    """Formulas may ask which of two is larger, and whether a flag is set."""
    a, b = Traced.named("a", 2.0), Traced.named("b", 3.0)
    assert a < b
    assert a <= b
    assert b > a
    assert b >= 3
    assert a < 2.5
    assert float(a) == 2.0
    assert bool(Traced.named("on", 1.0))
    assert not Traced.named("off", 0.0)


def test_what_is_not_traced_is_an_error_not_a_wrong_number() -> None:
    """A NumPy function that the text could not show is refused."""
    a = Traced.named("a", 2.0)
    with pytest.raises(TypeError):
        np.sin(a)
    with pytest.raises(TypeError):
        np.add.reduce(a)
    with pytest.raises(TypeError):
        np.concatenate([a])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1"), (8192.0, "8,192"), (999_999_999.0, "999,999,999"), (1e9, "1e+09"),
        (3.35e12, "3.35e+12"), (0.5, "0.5"), (1 / 3, "0.3333"), (-2.0, "-2"), (-8192.0, "-8,192"), (1e30, "1e+30"),
        (1.5e-7, "1.5e-07"), (float("inf"), "inf"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_how_numbers_are_written(value: float, text: str) -> None:
    """Whole numbers in full up to 10^9, with thousands separators; others to four digits."""
    assert show(value) == text
