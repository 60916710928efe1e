"""What came of measuring a user's kernel: plain numbers, so that a report needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Time:
    """A time, measured or expected. [s]

    Attributes
    ----------
    who : str
        Whose: the kernel's name, a library's, ``predicted``.
    median, low, high : float
        Of what was measured the 20th and 80th percentile, of a prediction the 80 % interval.
    noise : float
        Spread of the samples over the median.
    """

    who: str
    median: float
    low: float
    high: float
    noise: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A kernel on one shape.

    Attributes
    ----------
    sizes : Mapping
    times : tuple[Time, ...]
        The kernel's, then those of what stands beside it.
    flops, bytes : float
        Of the operator. [FLOP, bytes]
    error : float
        Relative error of the result.
    predicted : Time, optional
    bound : float
        By the roofline; 0 where no spec describes the device. [s]
    """

    sizes: Mapping[str, int]
    times: tuple[Time, ...]
    flops: float
    bytes: float
    error: float
    predicted: Time | None
    bound: float


@dataclass(frozen=True)
class Report:
    """A kernel on all its shapes.

    Attributes
    ----------
    kernel, op, fmt, device : str
        ``device`` is its name.
    outcomes : tuple
    left : tuple[str, ...]
        What was not measured, with the reason.
    notes : tuple[str, ...]
    """

    kernel: str
    op: str
    fmt: str
    device: str
    outcomes: tuple[Outcome, ...]
    left: tuple[str, ...]
    notes: tuple[str, ...]
