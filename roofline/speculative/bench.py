"""The bench that all shapes of a draft are tried on: one drafter, one clock, one way for a batch to advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.clock import Clock
from perfmodel.roofline.speculative.candidates import Candidate, shape_of, stacked
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.rounds import NO_HOST, Host, Round, Shape, measure

Array = NDArray[np.float64]

#: Batches above this are not looked at for the break-even.
LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Bench:
    """What all points of a question share: drafter, clocks, host, and how a batch advances.

    Attributes
    ----------
    padded : bool
        Whether all sequences of a batch advance by what the slowest of them accepted; paged engines let each go its
        own way.
    """

    draft: Draft
    clock: Clock
    host: Host = NO_HOST
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
    """The smallest batch from which on no shape pays at this context: on a ladder, then to the sequence.

    1 where none ever pays, ``None`` where one does up to 4096.
    """

    def pays(batches: Array) -> NDArray[np.bool_]:
        return np.asarray(bench.speedups(options, batches, np.array(context)).max(axis=0) > 1)

    ladder = np.unique(np.round(np.geomspace(1, LARGEST_BATCH, 49)))
    good = pays(ladder)
    if good[-1]:
        return None
    if not good.any():
        return 1
    last = int(np.flatnonzero(good)[-1])
    between = np.arange(ladder[last], ladder[last + 1] + 1)
    between = between[:: max(1, len(between) // 64)]
    paying = np.flatnonzero(pays(between))
    return int(between[paying[-1]]) + 1
