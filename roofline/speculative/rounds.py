"""A round of speculation in seconds: draft passes, verification and the engine's part, from the graphs of both models.

``round = draft passes + verification + rejection + host``, or the longer of draft and verification where they run at
the same time on two devices. Verification is the target's graph with ``gamma + 1`` (or tree nodes + 1) queries a
sequence: weights and cache are read once for all of them, experts are those that so many tokens choose, and the time
stops being that of one token where the GPU runs out of idle FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.base.num import Num, as_num
from perfmodel.roofline import ops
from perfmodel.roofline.clock import BoundClock, Clock
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Input, Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.step import decode, verify
from perfmodel.roofline.times import OpTime, Rates

#: Standard deviations of a normal 80 % interval.
Z80 = 1.2815515655446004


@dataclass(frozen=True)
class Shape:
    """What a round drafts.

    Attributes
    ----------
    gamma : Num
        Draft passes of a serial drafter: the depth of the chain or tree.
    nodes : Num
        Drafted tokens to verify: ``gamma`` for a chain.
    width : Num
        Tokens a sequence of a draft pass after the first: nodes expanded a level; 1 for a chain.
    """

    gamma: Num
    nodes: Num
    width: Num = 1.0


def chain_shape(gamma: Num) -> Shape:
    """A chain of ``gamma`` tokens."""
    return Shape(gamma, gamma)


@dataclass(frozen=True)
class Host:
    """Time of the engine around the kernels. [s]

    Attributes
    ----------
    step : float
        Of a plain decode step (scheduling, sampling, detokenising), not hidden behind the device.
    round : float
        Of a round, instead.
    draft_pass : float
        Of each draft pass.
    """

    step: float = 0.0
    round: float = 0.0
    draft_pass: float = 0.0


#: An engine whose own time is hidden behind the device.
NO_HOST = Host()


@dataclass(frozen=True)
class Timed:
    """Time of a list of operators and the errors that they share by kind, for ratios of two such sums.

    Attributes
    ----------
    seconds : Num
    shared : dict[str, Num]
        Standard deviation a kind, which all its operators share. [s]
    own : Num
        Root of the sum of squares of the rest. [s]
    """

    seconds: Num
    shared: dict[str, Num] = field(default_factory=dict)
    own: Num = 0.0

    def __add__(self, other: Timed) -> Timed:
        """Both, one after the other."""
        kinds = {k: self.shared.get(k, 0.0) + other.shared.get(k, 0.0) for k in self.shared | other.shared}
        return Timed(self.seconds + other.seconds, kinds, np.hypot(self.own, other.own))

    def __mul__(self, n: Num) -> Timed:
        """``n`` runs of the same operators, whose errors are the same."""
        return Timed(self.seconds * n, {k: v * n for k, v in self.shared.items()}, self.own * n)

    def plus(self, seconds: Num) -> Timed:
        """With a time that is known."""
        return Timed(self.seconds + seconds, self.shared, self.own)


def timed(clock: Clock, operators: Iterable[Op]) -> Timed:
    """Sum of operators at a clock's fidelity."""
    total, shared, own = 0.0, {}, 0.0  # type: Any, dict[str, Any], Any
    for op in operators:
        t: OpTime = clock.time(op)
        total = total + t.predicted
        if (s := getattr(t, "shared", None)) is not None:
            kind = getattr(t, "kind", "")
            shared[kind] = shared.get(kind, 0.0) + s
            own = np.hypot(own, getattr(t, "own", 0.0))
    return Timed(total, shared, own)


@dataclass(frozen=True)
class Round:
    """Seconds of a plain decode step and of a speculative round at the same batch and context.

    Attributes
    ----------
    plain, verify, draft : Timed
        ``draft`` is all passes of a round.
    first_pass, next_pass : Num
        One draft pass. [s]
    whole : Timed
        The round, host time included.
    """

    plain: Timed
    verify: Timed
    draft: Timed
    first_pass: Num
    next_pass: Num
    whole: Timed

    @property
    def draft_cost(self) -> Num:
        """``c``: a later draft pass over a plain step."""
        return as_num(self.next_pass / self.plain.seconds)

    @property
    def verify_cost(self) -> Num:
        """``v``: verification over a plain step."""
        return as_num(self.verify.seconds / self.plain.seconds)

    @property
    def cost(self) -> Num:
        """The round over a plain step; the speedup is tokens a round over it."""
        return as_num(self.whole.seconds / self.plain.seconds)

    @property
    def spread(self) -> Num:
        """Standard deviation of the logarithm of ``cost``: errors that both sums share by kind cancel in part.

        0 at bound fidelity, where no error is known.
        """
        a, b = self.plain, self.whole
        variance: Any = (a.own / a.seconds) ** 2 + (b.own / b.seconds) ** 2
        for kind in a.shared | b.shared:
            difference = a.shared.get(kind, 0.0) / a.seconds - b.shared.get(kind, 0.0) / b.seconds
            variance = variance + difference**2
        return as_num(np.sqrt(variance))

    def speedup(self, tokens: Num) -> Num:
        """Plain time a token over that of a round that yields ``tokens``."""
        return as_num(np.asarray(tokens) / self.cost)

    def interval(self, tokens: Num) -> tuple[Num, Num]:
        """80 % interval of the speedup from the errors of the times alone, ``tokens`` being given."""
        factor = np.exp(Z80 * np.asarray(self.spread))
        return as_num(self.speedup(tokens) / factor), as_num(self.speedup(tokens) * factor)


def verification(target: Setup, batch: Num, nodes: Num, context: Num) -> list[Op]:
    """Operators of a verification: the target's step over the newest token and all nodes, and the rejection test.

    The test reads the target's logits and the draft's probabilities once more, a row a node.
    """
    step = verify(batch, nodes, context)
    rows = np.ceil(batch / target.plan.dp) * nodes
    inputs: dict[str, Input] = {
        "rows": rows,
        "vocab": float(target.model.vocab_size),
        "act_bytes": 2 * target.plan.act_bytes,
    }
    rejection = Op("rejection", "sampling", "", 1.0, ops.sampling, inputs)
    return [*graph(target.model, step, target.plan, target.topology), rejection]


def draft_passes(draft: Draft, clock: Clock, batch: Num, context: Num, shape: Shape) -> tuple[Timed, Timed]:
    """The first draft pass of a round and one later pass (at the mean context of them).

    The first takes the path that was just verified (padded to its longest, as engines do) where the drafter needs the
    target's features there; a single-pass drafter proposes everything in it, over a mask token a drafted position when
    it has layers (the candidates of a position are the likeliest tokens of one distribution).
    """
    first_q: Num = 1.0
    if draft.catches_up:
        first_q = as_num(np.asarray(shape.gamma) + 1.0)
    if draft.passes == "single" and draft.ready:
        first_q = as_num(np.asarray(first_q) + np.maximum(np.asarray(shape.gamma) - 1.0, 0.0))
    proposing: Num = shape.gamma if draft.passes == "single" else 1.0
    first = timed(clock, draft.pass_ops(batch, first_q, context + first_q, True, proposing))
    if draft.passes != "serial":
        return first, Timed(0.0)
    middle = context + 1.0 + np.asarray(shape.gamma) / 2.0
    later = timed(clock, draft.pass_ops(batch, shape.width, as_num(middle + shape.width), False, shape.width))
    return first, later


def measure(
    draft: Draft, batch: Num, context: Num, shape: Shape, *, clock: Clock | None = None,
    draft_clock: Clock | None = None, host: Host | None = None, concurrent: bool = False,
) -> Round:  # fmt: skip
    """Time of a plain step and of a round.

    Parameters
    ----------
    draft : Draft
        With its target.
    batch, context : Num
        Sequences of the deployment, and tokens in the cache of each.
    shape : Shape
    clock, draft_clock : Clock, optional
        Of the target and of the drafter (which may run elsewhere); the roofline, and the target's, by default.
    host : Host, optional
        The engine's own time; by default what the clock knows of it (a fit of whole steps), else none. A round takes
        the host's time of one step.
    concurrent : bool
        Whether the draft runs beside the verification on a device of its own (Mirror).
    """
    target = draft.target
    timer = clock or BoundClock(Rates(target.gpu, target.topology))
    kept = as_num(np.asarray(context, dtype=np.float64))
    plain = timed(timer, graph(target.model, decode(batch, kept + 1.0), target.plan, target.topology))
    checked = timed(timer, verification(target, batch, shape.nodes, kept))
    first, later = draft_passes(draft, draft_clock or timer, batch, kept, shape)
    gamma = np.asarray(shape.gamma, dtype=np.float64)
    count = {"serial": gamma, "single": np.ones_like(gamma), "none": np.zeros_like(gamma)}[draft.passes]
    drafted = first * np.minimum(count, 1.0) + later * np.maximum(count - 1.0, 0.0)
    drafted = drafted.plus((host or NO_HOST).draft_pass * count)
    both = _longer(drafted, checked) if concurrent else drafted + checked
    if host is None:
        beside = step_host(timer, target, batch, kept)
        plain, both = plain + beside, both + beside
    else:
        plain, both = plain.plus(host.step), both.plus(host.round)
    return Round(plain, checked, drafted, first.seconds, later.seconds, both)


def step_host(clock: Clock, target: Setup, batch: Num, context: Num) -> Timed:
    """What the clock knows of the engine's own time in a step of so many sequences; 0 where it knows nothing. [s]

    Its error is the same in a step and in a round: from the ends of its 80 % interval, as of a lognormal.
    """
    found = Timed(0.0)
    for op in clock.beside(decode(batch, context + 1.0), target.plan):
        t = clock.time(op)
        sigma = np.log(np.asarray(t.high) / np.asarray(t.low)) / (2 * Z80)
        found = found + Timed(t.predicted, {op.kind: as_num(t.predicted * sigma)})
    return found


def _longer(a: Timed, b: Timed) -> Timed:
    """The longer of two that run at the same time."""
    longer = np.asarray(a.seconds) >= np.asarray(b.seconds)
    kinds = {k: as_num(np.where(longer, a.shared.get(k, 0.0), b.shared.get(k, 0.0))) for k in a.shared | b.shared}
    return Timed(as_num(np.maximum(a.seconds, b.seconds)), kinds, as_num(np.where(longer, a.own, b.own)))
