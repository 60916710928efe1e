"""Which width each tensor should have: the least error under a byte budget, solved exactly.

``minimise sum error(t, w_t)`` over one width ``w_t`` a tensor, ``subject to sum bytes(t, w_t) <= budget``: a
multiple-choice knapsack, given to HiGHS as an integer programme (scipy). Tensors with the same options are one integer
count an option, which keeps a model of hundreds of layers small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DoesNotFit, UsageError
from perfmodel.base.units import bytes_text

#: HiGHS stops at this relative gap between the found and the best possible error: equal to double precision.
GAP = 1e-9
#: And, exact or not, after so many seconds.
SECONDS = 60.0


@dataclass(frozen=True)
class Option:
    """One way to store a tensor.

    Attributes
    ----------
    label : str
        Such as ``int4``.
    bytes : float
        Of the whole tensor, scales included.
    error : float
        What it costs, in any unit that adds up over tensors; >= 0.
    """

    label: str
    bytes: float
    error: float


@dataclass(frozen=True)
class Choice:
    """A tensor and the ways in which it may be stored."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Allocation:
    """The chosen option of each tensor.

    Attributes
    ----------
    chosen : tuple[Option, ...]
        In the order of the choices.
    bytes, error : float
        Sums.
    least_error : float
        No allocation under the budget has less: equal to ``error`` where the solution is proven.
    """

    chosen: tuple[Option, ...]
    bytes: float
    error: float
    least_error: float

    @property
    def proven(self) -> bool:
        """Whether nothing better exists, to nine digits."""
        return self.error - self.least_error <= GAP * max(abs(self.error), 1e-300) * 10


def allocate(choices: Sequence[Choice], budget: float, seconds: float = SECONDS) -> Allocation:
    """The allocation of least error whose bytes are within the budget.

    Parameters
    ----------
    choices : sequence of Choice
    budget : float
        [bytes]
    seconds : float
        Time limit; what is found by then is returned with its bound.

    Raises
    ------
    DoesNotFit
        When the smallest options are above the budget.
    UsageError
        For an empty choice, or a size, error or budget that is negative or not finite.

    >>> two = Choice("w", (Option("int4", 5.0, 1.0), Option("int8", 9.0, 0.1)))
    >>> [o.label for o in allocate([two, two], 14.0).chosen]
    ['int8', 'int4']
    """
    _check(choices, budget)
    groups: dict[tuple[Option, ...], list[int]] = {}
    for i, choice in enumerate(choices):
        groups.setdefault(_undominated(choice.options), []).append(i)
    counts, bound = _solve(list(groups), [len(members) for members in groups.values()], budget, seconds)
    chosen: list[Option | None] = [None] * len(choices)
    for options, members, numbers in zip(groups, groups.values(), counts, strict=True):
        # of equal tensors the first ones get the surer widths: early layers are the more sensitive ones
        order = sorted(range(len(options)), key=lambda o: options[o].error)
        spread = [options[o] for o in order for _ in range(int(numbers[o]))]
        for member, option in zip(members, spread, strict=True):
            chosen[member] = option
    found = tuple(option for option in chosen if option is not None)
    return Allocation(found, sum(o.bytes for o in found), sum(o.error for o in found), bound)


def _check(choices: Sequence[Choice], budget: float) -> None:
    for choice in choices:
        if not choice.options:
            raise UsageError(f"{choice.name} has no option; give at least one")
        for option in choice.options:
            values = np.array([option.bytes, option.error])
            if not (np.isfinite(values) & (values >= 0)).all():
                raise UsageError(
                    f"{choice.name} as {option.label}: {option.bytes:g} bytes with error {option.error:g}; both must "
                    "be finite and >= 0"
                )
    least = sum(min(o.bytes for o in choice.options) for choice in choices)
    if not np.isfinite(budget):
        raise UsageError(f"a budget of {budget:g} bytes; it must be finite")
    if least > budget:
        raise DoesNotFit(
            f"the narrowest widths take {bytes_text(least)}, the budget is {bytes_text(budget)}; raise it to that or "
            "allow fewer bits",
            least, budget,
        )  # fmt: skip


def _undominated(options: tuple[Option, ...]) -> tuple[Option, ...]:
    """Options without those that another beats in both bytes and error."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.bytes, o.error)):
        if not kept or option.error < kept[-1].error:
            kept.append(option)
    return tuple(kept)


def _solve(
    groups: list[tuple[Option, ...]], sizes: list[int], budget: float, seconds: float
) -> tuple[list[NDArray[np.int64]], float]:
    """How many tensors of each group take each option, and a lower limit of the error that holds for this budget.

    HiGHS stops at an absolute gap of 1e-6 as well as at a relative one, and lets a constraint and a whole number be off
    by as much. So the errors are scaled until their sum is large beside it, and sizes and budget are whole numbers of
    the largest unit that divides all sizes: then less than a unit over the budget is none. Where the numbers are too
    large for that, an allocation that is over the budget is left for one with less room, and the limit stays that of
    the whole budget: ``proven`` is then what it says.
    """
    flat = [o for options in groups for o in options]
    errors, owner = (
        np.array([o.error for o in flat]), np.repeat(np.arange(len(groups)), [len(options) for options in groups])
    )  # fmt: skip
    units, room = whole_units([o.bytes for o in flat], budget)
    room = min(room, sum(max(units[i] for i in np.flatnonzero(owner == g)) * size for g, size in enumerate(sizes)))
    scale = max(errors.max(initial=0.0), 1e-300)
    for _ in range(ROUNDS):
        numbers, limit = _milp(errors / scale, units, owner, sizes, room, seconds)
        error = float(errors @ numbers)
        if not error or error / scale * GAP >= ABSOLUTE:
            break
        scale = error * GAP / (4 * ABSOLUTE)
    left, least = room, _smallest(units, owner, sizes)
    for attempt in range(ROUNDS):
        over = _taken(units, numbers) - room
        if over <= 0:
            return [numbers[owner == g] for g in range(len(groups))], limit * scale
        left = max(left - (over << attempt), _taken(units, least))
        numbers, _ = _milp(errors / scale, units, owner, sizes, left, seconds)
    return [least[owner == g] for g in range(len(groups))], limit * scale


#: HiGHS's absolute gap, and how often a solution is scaled and sought again.
ABSOLUTE, ROUNDS = 1e-6, 8
#: Sizes are given to HiGHS in whole units up to this many, and rounded to this precision beyond.
MOST_UNITS = 2.0**20


def whole_units(sizes: Sequence[float], budget: float) -> tuple[list[int], int]:
    """Sizes as whole numbers of the largest unit that divides them all, and the budget in it, rounded down; exact.

    >>> whole_units([6.0, 1.5, 4.5], 9.9999)
    ([4, 1, 3], 6)
    """
    exact = [Fraction(size) for size in sizes]
    below = lcm(*(size.denominator for size in exact))
    unit = Fraction(gcd(*(int(size * below) for size in exact)), below) or Fraction(1)
    return [int(size / unit) for size in exact], int(Fraction(budget) / unit)


def _taken(units: Sequence[int], numbers: NDArray[np.int64]) -> int:
    """Units of an allocation, in whole numbers."""
    return sum(unit * int(number) for unit, number in zip(units, numbers, strict=True))


def _smallest(units: Sequence[int], owner: NDArray[np.int64], sizes: list[int]) -> NDArray[np.int64]:
    """Every tensor in its smallest option: within the budget, as was checked."""
    numbers = np.zeros(len(units), dtype=np.int64)
    for g, size in enumerate(sizes):
        numbers[min(np.flatnonzero(owner == g), key=lambda i: units[int(i)])] = size
    return numbers


def _milp(
    errors: NDArray[np.float64], units: Sequence[int], owner: NDArray[np.int64], sizes: list[int], room: int,
    seconds: float,
) -> tuple[NDArray[np.int64], float]:  # fmt: skip
    """Whole numbers of each option of least error within so many units, and the lower limit of it."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    one_each = (owner[None, :] == np.arange(len(sizes))[:, None]).astype(float)
    widest = max(*units, 1)
    scale = min(float(widest), MOST_UNITS)
    row = np.array([unit / widest * scale for unit in units])
    result = milp(
        errors,
        constraints=[
            LinearConstraint(one_each, sizes, sizes),
            LinearConstraint(row[None, :], -np.inf, room / widest * scale),
        ],
        integrality=np.ones(len(errors)), bounds=Bounds(0, np.array(sizes, dtype=float)[owner]),
        options={"time_limit": seconds, "mip_rel_gap": GAP},
    )  # fmt: skip
    if result.x is None:
        raise UsageError(f"no allocation was found within {seconds:g} s; allow more time")
    numbers = np.rint(result.x).astype(np.int64)
    return numbers, float(result.mip_dual_bound) if result.mip_dual_bound is not None else float(errors @ numbers)
