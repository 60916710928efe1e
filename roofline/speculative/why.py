"""Why a round costs what it does: what limits the verification, and how that changes from the plain step."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.roofline.clock import Clock
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.speculative.rounds import verification
from perfmodel.roofline.step import decode


def shares(clock: Clock, operators: Iterable[Op]) -> dict[str, float]:
    """Share of the time that each limiter holds, largest first; limiters as ``OpTime`` names them."""
    found: dict[str, float] = {}
    for op in operators:
        t = clock.time(op)
        found[t.limiter] = found.get(t.limiter, 0.0) + float(t.predicted)
    total = sum(found.values()) or 1.0
    return {name: value / total for name, value in sorted(found.items(), key=lambda item: -item[1])}


def limiters(
    target: Setup, clock: Clock, batch: float, context: float, nodes: float
) -> tuple[dict[str, float], dict[str, float]]:
    """What limits a plain step, and the verification of ``nodes`` drafted tokens a sequence, as shares of their time.

    Verification is free while the plain step's limiter (reading weights and cache, or starting kernels) stays in
    charge; it costs what FLOPs cost once ``math`` takes over.
    """
    plain = graph(target.model, decode(batch, context + 1.0), target.plan, target.topology)
    return shares(clock, plain), shares(clock, verification(target, batch, nodes, context))
