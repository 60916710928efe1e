"""Clocks: what turns operators into times. One of each fidelity, with the same two questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step import Plan, Step
from perfmodel.roofline.times import OpTime, Rates

if TYPE_CHECKING:
    from perfmodel.roofline.calibrated.model import Calibrated
    from perfmodel.roofline.measured.model import Measured
    from perfmodel.roofline.measured.record import Recorded

FIDELITIES = ("bound", "calibrated", "measured")


class Clock(Protocol):
    """Times of operators on one setup."""

    def time(self, op: Op) -> OpTime:
        """Time of all runs of an operator in a step."""

    def total(self, times: Sequence[Any]) -> OpTime:
        """Sum of the operators of a step, one after another, with its interval."""

    def beside(self, step: Step, plan: Plan) -> list[Op]:
        """What an engine does in a step beside the model's operators, where its time is known."""

    def warnings(self) -> tuple[str, ...]:
        """What the clock was given and does not use."""


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

    def warnings(self) -> tuple[str, ...]:
        """None."""
        return ()


def operators(ready: Setup, step: Step, timer: Clock) -> list[Op]:
    """All that a clock times in a step: the graph of the model, and what the engine does beside it."""
    return [*graph(ready.model, step, ready.plan, ready.topology), *timer.beside(step, ready.plan)]


def clock(
    ready: Setup, fidelity: str = "bound", engine: str | None = None, efficiency: Iterable[str | Path] = (),
    measured: Iterable[Recorded] = (),
) -> Clock:  # fmt: skip
    """The clock of a fidelity.

    Parameters
    ----------
    fidelity : str
        ``bound``; ``calibrated``: physics with few parameters fitted to measurements, each time with its interval; or
        ``measured``: recorded tables of this GPU, interpolated, and calibrated beyond them.
    engine : str, optional
        Whose kernels: ``vllm``, ``trtllm`` or ``sglang``; when left out the one with most data, or the tables' own.
    efficiency : iterable of paths
        Fits of the user's own, which go before the shipped ones.
    measured : iterable of Recorded
        Tables, as ``perfmodel.measured`` reads them.

    Raises
    ------
    UsageError
        For another fidelity; an engine or fits at the bound; tables without ``measured`` or the other way round; tables
        of another GPU or engine.
    """
    tables = tuple(measured)
    if fidelity not in FIDELITIES:
        raise UsageError(f"fidelity is {' or '.join(FIDELITIES)}, not {fidelity!r}")
    if fidelity == "bound" and (engine or tuple(efficiency)):
        raise UsageError("an engine or an efficiency file changes calibrated times only: add --fidelity calibrated")
    if fidelity != "measured" and tables:
        raise UsageError("a measured table is read at one fidelity only: add --fidelity measured")
    if fidelity == "bound":
        return BoundClock(Rates(ready.gpu, ready.topology))
    if fidelity == "measured":
        return _measured(ready, engine, efficiency, tables)
    return _calibrated(ready, engine, efficiency)


def _calibrated(ready: Setup, engine: str | None, efficiency: Iterable[str | Path]) -> Calibrated:
    from perfmodel.roofline import efficiency as efficiencies
    from perfmodel.roofline.calibrated.model import Calibrated

    found = efficiencies.load(ready.gpu, engine, tuple(efficiency))
    return Calibrated(ready.gpu, found, ready.topology, found.step(ready))


def _measured(
    ready: Setup, engine: str | None, efficiency: Iterable[str | Path], tables: Sequence[Recorded]
) -> Measured:
    from perfmodel.roofline.measured.model import Measured
    from perfmodel.roofline.measured.record import Recorded

    if not tables:
        raise UsageError("measured times need a table of them: add --measured TABLE.csv")
    if strange := next((t for t in tables if not isinstance(t, Recorded)), None):
        raise UsageError(f"measured takes tables that perfmodel.measured has read, not {str(strange)[:80]!r}")
    rows = [r for table in tables for r in table.of(ready.gpu.name, (engine or "").lower())]
    engines = sorted({r.engine for r in rows})
    if len(engines) > 1:
        raise UsageError(f"the tables are of {', '.join(engines)}: choose one by --engine")
    return Measured(_calibrated(ready, engine or _known(engines[0]), efficiency), rows)


def _known(engine: str) -> str | None:
    """An engine as calibrated times know it; ``None`` for another one, which the nearest fit answers for."""
    from perfmodel.roofline.efficiency import ENGINES

    return engine if engine in ENGINES else None
