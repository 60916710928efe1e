"""Numbers that remember how they were made, so that a formula is written once and can still be shown.

``Traced`` behaves as a float in arithmetic and in the few NumPy functions that cost formulas use. ``explain`` calls
the same cost functions with traced inputs and prints what they did; nothing is written a second time.

>>> m, n = Traced.named("m", 8.0), Traced.named("n", 4.0)
>>> work = 2 * m * (n + 1)
>>> work.symbols(), work.numbers(), work.value
('2·m·(n + 1)', '2·8·(4 + 1)', 80.0)
>>> np.maximum(m, n).symbols()
'max(m, n)'
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_BINARY: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "+": (operator.add, 1),
    "-": (operator.sub, 1),
    "·": (operator.mul, 2),
    "/": (operator.truediv, 2),
    "^": (operator.pow, 3),
}
_UFUNCS = {
    np.add: "+", np.subtract: "-", np.multiply: "·", np.divide: "/", np.power: "^", np.mod: "mod",
    np.maximum: "max", np.minimum: "min", np.ceil: "ceil", np.floor: "floor", np.exp: "exp", np.log: "log",
    np.log1p: "log1p", np.expm1: "expm1", np.negative: "neg",
}  # fmt: skip
_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max, "min": min, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "neg": operator.neg, "mod": np.mod, "where": lambda c, a, b: a if c else b,
}  # fmt: skip


class Traced:
    """A float with the expression that made it: a name, a constant, or an operation on others."""

    __slots__ = ("args", "op", "value")

    def __init__(self, op: str, args: tuple[Any, ...], value: float) -> None:
        self.op, self.args, self.value = op, args, float(value)

    @classmethod
    def named(cls, name: str, value: float) -> Traced:
        """An input: shown by its name, or by its number."""
        return cls("name", (name,), value)

    def symbols(self) -> str:
        """The expression in names."""
        return _render(self, numbers=False)[0]

    def numbers(self) -> str:
        """The expression with its numbers filled in."""
        return _render(self, numbers=True)[0]

    def __float__(self) -> float:
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __add__(self, other: Any) -> Any:
        return _apply("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _apply("·", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply("·", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _apply("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _apply("/", other, self)

    def __pow__(self, other: Any) -> Any:
        return _apply("^", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _apply("^", other, self)

    def __neg__(self) -> Any:
        return _apply("neg", self)

    def __lt__(self, other: Any) -> bool:
        return self.value < float(other)

    def __le__(self, other: Any) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Any) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= float(other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and ufunc in _COMPARISONS:  # a NumPy number on the left asks its own ufunc
            return bool(ufunc(*(float(value) for value in inputs)))
        if method != "__call__" or kwargs or ufunc not in _UFUNCS:
            return NotImplemented
        return _apply(_UFUNCS[ufunc], *inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.where or kwargs:
            return NotImplemented
        return _apply("where", *args)


def _apply(op: str, *args: Any) -> Any:
    values = [a.value if isinstance(a, Traced) else float(a) for a in args]
    if len(args) == 2 and (kept := _unchanged(op, args, values)) is not None:
        return kept
    function = _BINARY[op][0] if op in _BINARY else _FUNCTIONS[op]
    return Traced(op, args, float(function(*values)))


#: Constants that leave the other operand as it is: what adds nothing, multiplies by one or limits nothing.
_NEUTRAL = {"+": 0.0, "·": 1.0, "min": float("inf"), "max": float("-inf")}


def _unchanged(op: str, args: tuple[Any, ...], values: list[float]) -> Any:
    """The operand that an operation with a neutral constant leaves, or nothing; a product with 0 is 0."""
    for constant, kept in ((0, 1), (1, 0)):
        if isinstance(args[constant], Traced):
            continue
        if op in _NEUTRAL and values[constant] == _NEUTRAL[op]:
            return args[kept]
        if op == "·" and values[constant] == 0.0 and math.isfinite(values[kept]):
            return 0.0
    return None


def show(value: float, digits: int = 4) -> str:
    """A number as one would write it: whole numbers with thousands separators, others to ``digits`` digits.

    >>> show(8192.0), show(3.35e12), show(0.5)
    ('8,192', '3.35e+12', '0.5')
    """
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}" if abs(value) < 1e9 else f"{value:.{max(digits, 6)}g}"
    return f"{value:.{digits}g}"


def _render(node: Any, numbers: bool) -> tuple[str, int]:
    """Text and binding strength of an expression."""
    if not isinstance(node, Traced):
        return show(float(node), digits=12), 9 if float(node) >= 0 else 0  # part of the formula: not rounded
    if node.op == "name":
        return (show(node.value), 9 if node.value >= 0 else 0) if numbers else (node.args[0], 9)
    if node.op not in _BINARY:
        return f"{node.op}({', '.join(_render(a, numbers)[0] for a in node.args)})", 9
    strength = _BINARY[node.op][1]
    left, right = (_render(a, numbers) for a in node.args)
    need_left, need_right = (
        strength + (node.op == "^"),
        strength + (node.op in ("-", "/", "^")),
    )  # these do not associate
    sides = zip((left, right), (need_left, need_right), strict=True)
    texts = [text if inner >= need else f"({text})" for (text, inner), need in sides]
    joiner = {"·": "·", "/": "/", "^": "^"}.get(node.op, f" {node.op} ")
    return joiner.join(texts), strength
