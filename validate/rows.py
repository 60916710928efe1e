"""What a kind of table is: which header it has, what a row's prediction is compared with, or why it is not compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.validate.models import Models

Row = Mapping[str, str]


class Skip(Exception):
    """A row cannot be predicted; the message is the reason, the same for all rows that share it."""


@dataclass(frozen=True)
class Comparison:
    """One measured number beside its prediction, both in the unit of the measured column.

    Attributes
    ----------
    metric : str
        The measured column.
    measured, predicted : float
    explanation : str
        How the prediction comes about, with its numbers.
    source : str
        What the prediction rests on: a built-in model, a configuration, printed numbers.
    low, high : float, optional
        80 % interval.
    physics : float, optional
        The prediction without a residual model, where there is one; else it is ``predicted``.
    half_unit : float
        Half of the last digit of the measured number as printed; within it the two are equal.
    group : Mapping[str, str]
        What to group by beside the kind's columns.
    plain : float, optional
        What would have been predicted without a look at the measurement, where ``predicted`` was chosen with one.
    """

    metric: str
    measured: float
    predicted: float
    explanation: str
    source: str = ""
    low: float | None = None
    high: float | None = None
    physics: float | None = None
    half_unit: float = 0.0
    group: Mapping[str, str] = field(default_factory=dict)
    plain: float | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        """Absolute relative error, as a fraction."""
        return abs(self.ratio - 1)

    @property
    def exact(self) -> bool:
        """Whether prediction and measurement agree to the printed digits."""
        return abs(self.predicted - self.measured) <= self.half_unit * (1 + 1e-9)

    @property
    def inside(self) -> bool | None:
        """Whether the measurement is in the 80 % interval; ``None`` without one."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Missing:
    """A measured number of a row that is not compared although others of the row are, and why."""

    metric: str
    reason: str


@dataclass(frozen=True)
class Kind:
    """A kind of table.

    Attributes
    ----------
    name, title : str
    columns : tuple[str, ...]
        The header's signature: columns that must be there.
    metrics : tuple[str, ...]
        Measured columns.
    groups : tuple[str, ...]
        Columns by whose values the figures are also given.
    compare : Callable
        A row and the models at hand to comparisons; raises ``Skip``. A measured column that is empty gives none, one
        that cannot be predicted a ``Missing``.
    times : Mapping[str, float]
        Metrics that are times -> microseconds of their unit.
    note : Callable, optional
        What to know about the predictions, in a line.
    bulk : Callable, optional
        All rows at once to the comparisons of each, or the reason why it has none; goes before ``compare``.
    prepare : Callable, optional
        All rows to a ``compare`` that knows them, where a row is predicted from others.
    remark : Callable, optional
        What to know about these very comparisons and the reasons of the rows that were skipped, in a line.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    groups: tuple[str, ...]
    compare: Callable[[Row, Models], Iterator[Comparison | Missing]]
    times: Mapping[str, float] = field(default_factory=dict)
    note: Callable[[], str] | None = None
    bulk: Callable[[Sequence[Row]], Sequence[Sequence[Comparison] | str]] | None = None
    remark: Callable[[Sequence[Comparison], Mapping[str, int]], str] | None = None
    prepare: Callable[[Sequence[Row]], Callable[[Row, Models], Iterator[Comparison | Missing]]] | None = None


@dataclass(frozen=True)
class Printed:
    """A number as it is printed: its value and half of the unit of its last digit."""

    value: float
    half_unit: float


def printed(text: str, scale: float = 1.0) -> Printed | None:
    """A number above zero as printed, times ``scale``; ``None`` for anything else.

    >>> printed("72.91")
    Printed(value=72.91, half_unit=0.005)
    >>> printed("nan"), printed("-2.14"), printed("")
    (None, None, None)
    """
    if len(text) > 40 or not text.strip().isascii() or "_" in text:
        return None
    try:
        number = Decimal(text.strip())
        value = float(number) * scale
    except (InvalidOperation, OverflowError):
        return None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or not math.isfinite(value) or value <= 0:
        return None
    return Printed(value, 0.5 * 10.0**exponent * scale)


def measured(row: Row, column: str, scale: float = 1.0) -> Printed | None:
    """The measured number of a column; ``None`` when the cell is empty.

    Raises
    ------
    Skip
        When there is something else than a number above zero.
    """
    text = row.get(column, "")
    if not text.strip():
        return None
    found = printed(text, scale)
    if found is None:
        raise Skip(f"{column} is no number above zero")
    return found


def whole(row: Row, column: str, default: int | None = None) -> int:
    """A whole number of a column that the prediction needs.

    Raises
    ------
    Skip
        When it is missing and has no default, or is something else.
    """
    text = row.get(column, "").strip()
    if not text and default is not None:
        return default
    found = printed(text)
    if found is None or found.value != int(found.value):
        raise Skip(f"{column} is missing" if not text else f"{column} is no whole number above zero")
    return int(found.value)
