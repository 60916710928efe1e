"""From a model, a GPU and a workload to phases: every operator of prefill and decode with its cost and time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.clock import BoundClock, Clock, operators
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step import Step, decode, prefill
from perfmodel.roofline.times import OpTime, Rates

#: Positions at which a decode phase is evaluated; between them its time is linear but for window edges.
POSITIONS = 257


@dataclass(frozen=True)
class OpResult:
    """One operator of a phase.

    Attributes
    ----------
    op : Op
    cost : Cost
        Of all its runs in one step on one rank; the mean over the positions of a decode phase.
    time : OpTime
        Likewise. [s]
    share : float
        Of the phase's predicted time.
    """

    op: Op
    cost: Cost
    time: OpTime
    share: float


@dataclass(frozen=True)
class Phase:
    """Prefill, or the mean decode step of a request.

    Attributes
    ----------
    name : str
    step : Step
    ops : tuple[OpResult, ...]
    time : OpTime
        Sum over the operators, which run one after another as engines run them. [s]
    floor : float
        The longest of what all matrix work, all weights and cache, and all communication need by themselves, with
        everything overlapped and no activation ever in device memory. Nothing can be faster. [s]
    """

    name: str
    step: Step
    ops: tuple[OpResult, ...]
    time: OpTime
    floor: float

    @property
    def cost(self) -> Cost:
        """Sum over the operators."""
        total = Cost()
        for result in self.ops:
            total = total + result.cost
        return total


def run_phase(ready: Setup, step: Step, clock: Clock | None = None) -> Phase:
    """Cost and time of every operator of a step; arrays in the step are averaged.

    Parameters
    ----------
    clock : Clock, optional
        What times the operators; the roofline when left out.
    """
    rates = Rates(ready.gpu, ready.topology)
    timer = clock or BoundClock(rates)
    parts = [(op, op.cost()) for op in operators(ready, step, timer)]
    times = [timer.time(op) for op, _ in parts]
    total, means = _mean_time(timer.total(times)), [_mean_time(t) for t in times]
    ops = tuple(
        OpResult(op, mean_cost(cost), t, float(t.predicted) / float(total.predicted) if total.predicted else 0.0)
        for (op, cost), t in zip(parts, means, strict=True)
    )
    floor = min(_floor(rates, [cost for _, cost in parts]), float(total.bound))  # equal sums may differ in a digit
    return Phase(step.name, step, ops, total, floor)


def _floor(rates: Rates, costs: list[Cost]) -> float:
    total = Cost()
    for cost in costs:
        total = total + cost
    kept = {stream: moved for stream, moved in total.hbm.items() if not stream.startswith("act_")}
    return float(np.mean(rates.bound(replace(total, hbm=kept))))


def _mean_time(t: OpTime) -> OpTime:
    bound, predicted, low, high = (float(np.mean(v)) for v in (t.bound, t.predicted, t.low, t.high))
    return replace(t, bound=bound, predicted=predicted, low=low, high=high)


def mean_cost(cost: Cost) -> Cost:
    """The mean of a cost over its arrays."""
    return Cost(
        {k: float(np.mean(v)) for k, v in cost.ops.items()},
        {k: float(np.mean(v)) for k, v in cost.hbm.items()},
        float(np.mean(cost.l2)),
        {k: float(np.mean(v)) for k, v in cost.comm.items()},
    )


def decode_contexts(input_tokens: int, output_tokens: int) -> Num:
    """Tokens in the cache at the decode steps of a request: the first output token comes from prefill.

    All of them up to ``POSITIONS``, else as many evenly spaced ones.

    >>> decode_contexts(100, 4)
    array([101., 102., 103.])
    """
    first, last = input_tokens + 1, input_tokens + max(output_tokens - 1, 1)
    return np.linspace(first, last, min(last - first + 1, POSITIONS))


def prefill_phase(ready: Setup, batch: int, input_tokens: int, clock: Clock | None = None) -> Phase:
    """Prefill of all prompts of the batch at once."""
    return run_phase(ready, prefill(float(batch), float(input_tokens)), clock)


def decode_phase(ready: Setup, batch: int, input_tokens: int, output_tokens: int, clock: Clock | None = None) -> Phase:
    """The mean decode step of requests that start with ``input_tokens`` and make ``output_tokens``."""
    return run_phase(ready, decode(float(batch), decode_contexts(input_tokens, output_tokens)), clock)


def pipeline_factor(setup: Setup, batch: int) -> float:
    """Time of a batch of prompts over a pipeline, in units of one microbatch's pass through all stages.

    ``(stages + microbatches - 1) / stages``; microbatches = stages, or fewer when the batch is smaller.
    """
    stages = setup.plan.pp
    per_rank = ceil(batch / setup.plan.dp)
    microbatches = ceil(per_rank / ceil(per_rank / stages))
    return (stages + microbatches - 1) / stages
