"""The bench that all shapes of a draft are tried on: one drafter, one clock, one way for a batch to advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.clock import Clock
from perfmodel.roofline.speculative.candidates import Candidate, shape_of, stacked
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.rounds import Host, Round, Shape, measure

Array = NDArray[np.float64]

#: Batches above this are not looked at for the break-even.
LARGEST_BATCH = 4096
#: Shapes within this share of the best one may overtake it at the batches around; others are not looked at there.
NEAR = 0.15


@dataclass(frozen=True)
class Bench:
    """What all points of a question share: drafter, clocks, host, and how a batch advances.

    Attributes
    ----------
    host : Host or None
        The engine's own time; ``None``: what the clock knows of it.
    padded : bool
        Whether all sequences of a batch advance by what the slowest of them accepted; paged engines let each go its
        own way.
    """

    draft: Draft
    clock: Clock
    host: Host | None = None
    concurrent: bool = False
    padded: bool = False

    def measure(self, shape: Shape, batch: Array, context: Array) -> Round:
        """Seconds of a round over a grid; the shape may differ from point to point."""
        return measure(
            self.draft, batch, context, shape, clock=self.clock, host=self.host, concurrent=self.concurrent
        )  # fmt: skip

    def round(self, c: Candidate, batch: Array, context: Array) -> Round:
        """Seconds of a round of one shape over a grid."""
        return self.measure(shape_of(c), batch, context)

    def tokens(self, c: Candidate, batch: Array, context: Array) -> Array:
        """Tokens a round yields to a sequence, over a grid."""
        whole = np.broadcast_shapes(batch.shape, context.shape)
        if not self.padded:
            return np.full(whole, c.tokens)
        return np.broadcast_to(c.slowest(batch), whole)

    def speedups(self, options: Sequence[Candidate], batch: Array, context: Array) -> Array:
        """Speedup of every shape over a grid; shape (options, *grid)."""
        whole = np.broadcast_shapes(batch.shape, context.shape)
        cost = self.measure(stacked(options, len(whole)), batch, context).cost
        tokens = np.stack([self.tokens(c, batch, context) for c in options])
        return np.asarray(tokens / np.broadcast_to(np.asarray(cost, dtype=np.float64), tokens.shape))


def break_even(bench: Bench, options: Sequence[Candidate], context: float) -> int | None:
    """The smallest batch from which on no shape pays at this context, up to 4096.

    A ladder finds its place; then every batch up to twice that place is looked at, since tiles make the speedup rise
    again for a few batches after it fell. 1 where none ever pays, ``None`` where one does at 4096.
    """

    def gains(some: Sequence[Candidate], batches: Array) -> Array:
        return bench.speedups(some, batches, np.array(context))

    ladder = np.unique(np.round(np.geomspace(1, LARGEST_BATCH, 49)))
    found = gains(options, ladder)
    good = np.flatnonzero(found.max(axis=0) > 1)
    if not good.size:
        return 1
    last = int(good[-1])
    if last == len(ladder) - 1:
        return None
    near = found[:, last : last + 2].max(axis=1)
    hopeful = [c for c, gain in zip(options, near, strict=True) if gain > near.max() * (1 - NEAR)]
    every = np.arange(ladder[last], min(2 * ladder[last + 1], LARGEST_BATCH) + 1)
    paying = np.flatnonzero(gains(hopeful, every).max(axis=0) > 1)
    stop = int(every[paying[-1]]) + 1
    return stop if stop <= LARGEST_BATCH else None
