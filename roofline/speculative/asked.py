"""What is asked of ``speculate``, checked in words before anything is computed."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.roofline.setup import setup
from perfmodel.roofline.speculative.formulas import MAX_GAMMA, check_fraction
from perfmodel.roofline.step import check_number

Array = NDArray[np.float64]


def axis(name: str, value: object) -> Array:
    """A number or a list of them as an axis.

    Raises
    ------
    UsageError
        For what is no number, an empty list, several axes, or a value out of range.
    """
    check_number(name, value)
    array = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if array.ndim != 1 or not array.size:
        raise UsageError(f"{name} is a number or a list of at least one, not {printable(str(value), 40)}")
    return array


def acceptances(value: object) -> Array:
    """Acceptance by position: fractions, of 1 to 64 positions; raises UsageError for all else."""
    try:
        given = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise UsageError(f"alpha is a fraction or a list of them, not {printable(str(value), 40)!r}") from None
    check_fraction(alpha=given)
    if given.ndim != 1 or not 1 <= given.size <= MAX_GAMMA:
        raise UsageError(f"alpha has {given.size} positions; 1 to {MAX_GAMMA} are possible")
    return given


def length(gamma: object) -> int | None:
    """A draft length, or ``None`` for the method's own; raises UsageError for what is no whole number from 1 to 64."""
    if gamma is None:
        return None
    value = float(gamma) if isinstance(gamma, numbers.Real) and not isinstance(gamma, bool) else math.nan
    if not value.is_integer():
        raise UsageError(f"gamma is {printable(str(gamma), 40)}; it is a whole number from 1 to {MAX_GAMMA}")
    if not 1 <= value <= MAX_GAMMA:
        raise UsageError(f"gamma is {value:.0f}; 1 to {MAX_GAMMA} are possible")
    return int(value)


def check_plan(plan: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse options that neither the question (``known``) nor a setup has."""
    setups = [p.name for p in inspect.signature(setup).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if strange := sorted(set(plan) - set(setups)):
        names = ", ".join((*known, *setups))
        raise UsageError(f"speculate has no option {printable(strange[0], 40)!r}; there are {names}")
