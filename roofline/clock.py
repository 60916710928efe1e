"""Clocks: what turns operators into times. One of each fidelity, with the same two questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step import Plan, Step
from perfmodel.roofline.times import OpTime, Rates

FIDELITIES = ("bound", "calibrated")


class Clock(Protocol):
    """Times of operators on one setup."""

    def time(self, op: Op) -> OpTime:
        """Time of all runs of an operator in a step."""

    def total(self, times: Sequence[Any]) -> OpTime:
        """Sum of the operators of a step, one after another, with its interval."""

    def beside(self, step: Step, plan: Plan) -> list[Op]:
        """What an engine does in a step beside the model's operators, where its time is known."""


class BoundClock:
    """The roofline: every operator at its bound, and nothing limits it above."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates

    def time(self, op: Op) -> OpTime:
        """The longest of what each resource needs."""
        return self.rates.time(op.cost())

    def total(self, times: Sequence[Any]) -> OpTime:
        """Sum of the bounds; the limiter is the resource that limits most of it."""
        bound: Any = 0.0
        share: dict[str, float] = {}
        for t in times:
            bound = bound + t.bound
            share[t.limiter] = share.get(t.limiter, 0.0) + float(np.mean(t.bound))
        return OpTime(bound, bound, bound, bound * np.inf, max(share, key=lambda name: share[name]))

    def beside(self, step: Step, plan: Plan) -> list[Op]:
        """Nothing: a host can always be faster."""
        return []


def operators(ready: Setup, step: Step, timer: Clock) -> list[Op]:
    """All that a clock times in a step: the graph of the model, and what the engine does beside it."""
    return [*graph(ready.model, step, ready.plan, ready.topology), *timer.beside(step, ready.plan)]


def clock(
    ready: Setup, fidelity: str = "bound", engine: str | None = None, efficiency: Iterable[str | Path] = ()
) -> Clock:
    """The clock of a fidelity.

    Parameters
    ----------
    fidelity : str
        ``bound``, or ``calibrated``: physics with few parameters fitted to measurements, each time with its interval.
    engine : str, optional
        Whose kernels: ``vllm``, ``trtllm`` or ``sglang``; the one with most data when left out.
    efficiency : iterable of paths
        Fits of the user's own, which go before the shipped ones.

    Raises
    ------
    UsageError
        For another fidelity, or an engine or fits without ``calibrated``.
    """
    if fidelity == "bound":
        if engine or tuple(efficiency):
            raise UsageError("an engine or an efficiency file changes calibrated times only: add --fidelity calibrated")
        return BoundClock(Rates(ready.gpu, ready.topology))
    if fidelity != "calibrated":
        raise UsageError(f"fidelity is {' or '.join(FIDELITIES)}, not {fidelity!r}")
    from perfmodel.roofline import efficiency as efficiencies
    from perfmodel.roofline.calibrated.model import Calibrated

    found = efficiencies.load(ready.gpu, engine, tuple(efficiency))
    return Calibrated(ready.gpu, found, ready.topology, found.step(ready))
