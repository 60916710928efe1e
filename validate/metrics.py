"""Figures of merit of predictions: relative errors, bias, and how often the 80 % interval holds the measurement.

No figure depends on the order of the rows: sums are exact (``math.fsum``), medians and shares have no order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfmodel.validate.rows import Comparison

#: Times below this measure the harness: they count in ``mape`` and not in ``mape_10us``. [us]
HARNESS_US = 10.0


def figures(compared: Sequence[Comparison], microseconds: float | None = None) -> dict[str, float | int | None]:
    """Figures of some comparisons of one metric.

    Parameters
    ----------
    microseconds : float, optional
        Microseconds of the metric's unit, when it is a time.

    Returns
    -------
    dict
        ``n`` comparisons; as fractions: ``mape`` mean of ``|predicted/measured - 1|``, ``mape_10us`` of those measured
        at 10 us or more, ``physics_mape_10us`` of those without a residual model (both null where the metric is no
        time), ``median_ape``, ``max_ape``; ``bias`` the median of ``predicted/measured`` less 1; ``coverage80`` the
        share of measurements inside the 80 % interval, of those that have one; ``exact`` the share that agrees to the
        printed digits. Null where there is nothing to average.

    Examples
    --------
    Two predictions 10 % and 30 % too high:

    >>> found = figures([Comparison("x", 100, 110, ""), Comparison("x", 10, 13, "")])
    >>> round(found["mape"], 3), round(found["bias"], 3), round(found["max_ape"], 3)
    (0.2, 0.2, 0.3)
    """
    errors = [one.error for one in compared]
    long = [one for one in compared if microseconds and one.measured * microseconds >= HARNESS_US]
    inside = [one.inside for one in compared if one.inside is not None]
    return {
        "n": len(compared),
        "mape": _mean(errors),
        "mape_10us": _mean([one.error for one in long]),
        "physics_mape_10us": _mean([_physics_error(one) for one in long]),
        "median_ape": statistics.median(errors) if errors else None,
        "max_ape": max(errors, default=None),
        "bias": statistics.median(one.ratio for one in compared) - 1 if compared else None,
        "coverage80": _mean([float(value) for value in inside]),
        "exact": _mean([float(one.exact) for one in compared]),
    }


def _physics_error(one: Comparison) -> float:
    return one.error if one.physics is None else abs(one.physics / one.measured - 1)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def grouped(
    compared: Iterable[tuple[Mapping[str, str], Comparison]], microseconds: float | None = None
) -> list[dict[str, Any]]:
    """Figures by group, each with the group's own columns in front; sorted by them."""
    groups: dict[tuple[tuple[str, str], ...], list[Comparison]] = {}
    for group, one in compared:
        groups.setdefault(tuple(group.items()), []).append(one)
    return [{**dict(name), **figures(members, microseconds)} for name, members in sorted(groups.items())]
