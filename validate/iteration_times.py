"""How long the steps of a log took: from one line to the next where the clock tells, else the time that was waited.

An engine prints how long it waited for a step's result. Its own work between two waits (scheduling, launching, handing
out tokens) is in no line, and with asynchronous scheduling even a part of the step itself is not. The stamps of the
lines hold it: where two lines follow one another and the second goes on with requests of the first, the engine was busy
from one to the other, and that is the step's time. Stamps of whole seconds give its mean over long stretches only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.validate.logs_vllm_iterations import Iteration

Array = NDArray[np.float64]

#: The mean time between waits is used when its standard error is below this share of a step.
SHARE = 0.02
#: Standard deviation of the difference of two stamps cut to whole seconds. [s]
CUT = 6**-0.5


@dataclass(frozen=True)
class Times:
    """Seconds of each line's step.

    Attributes
    ----------
    seconds : Array
    measured : str
        What they are, in words.
    between : float, optional
        Mean time between two waits, in them; ``None`` when the log does not tell it. [s]
    """

    seconds: Array
    measured: str
    between: float | None


def step_times(iterations: Sequence[Iteration]) -> Times:
    """Times of the steps, as exactly as the log's stamps allow."""
    elapsed = np.array([i.elapsed for i in iterations])
    before = _followed(iterations)
    busy = np.flatnonzero(before >= 0)
    fine = np.array([i.fine for i in iterations], bool)
    stamps = np.array([np.nan if i.stamp is None else i.stamp for i in iterations])
    exact = busy[fine[busy] & fine[before[busy]]]
    if len(exact) > len(busy) / 2:
        seconds = elapsed.copy()
        period = stamps[exact] - stamps[before[exact]]
        between = float(np.median(period - elapsed[exact]))
        seconds[exact] = period
        others = np.setdiff1d(np.arange(len(elapsed)), exact)
        seconds[others] += max(between, 0.0)
        return Times(seconds, "from one line to the next, by stamps of milliseconds", between)
    mean = _mean_between(elapsed, stamps, before)
    if mean is None:
        return Times(elapsed, "the engine's wait for the result; its own work between steps is not in it", None)
    return Times(elapsed + mean, "the engine's wait for the result, and the mean time between waits by stamps", mean)


def _followed(iterations: Sequence[Iteration]) -> NDArray[np.int64]:
    """For each line the one before it of the same engine, if the engine was surely busy between them; else -1."""
    before = np.full(len(iterations), -1)
    last: dict[str, int] = {}
    for at, one in enumerate(iterations):
        previous = last.get(one.engine)
        if previous is not None and one.generation_requests and one.index == iterations[previous].index + 1:
            before[at] = previous
        last[one.engine] = at
    return before


def _mean_between(elapsed: Array, stamps: Array, before: NDArray[np.int64]) -> float | None:
    """Mean time between two waits over stretches of busy lines; ``None`` when whole seconds do not fix it. [s]"""
    start, waited, steps = np.arange(len(elapsed)), np.zeros(len(elapsed)), np.zeros(len(elapsed))
    last = np.ones(len(elapsed), bool)
    for at in np.flatnonzero(before >= 0):  # since its stretch began, without the first line's own
        previous = before[at]
        start[at], last[previous] = start[previous], False
        waited[at], steps[at] = waited[previous] + elapsed[at], steps[previous] + 1
    ends = np.flatnonzero(last & (steps > 0))
    wall = stamps[ends] - stamps[start[ends]]
    good = np.isfinite(wall) & (wall >= 0)
    total, n = float(wall[good].sum()), float(steps[ends][good].sum())
    spent = float(waited[ends][good].sum())
    if not n or CUT * good.sum() ** 0.5 > SHARE * max(total, spent):
        return None
    return max((total - spent) / n, 0.0)
