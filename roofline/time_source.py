"""Where a serving simulator gets the time of a step: a protocol, and the model behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from math import ceil, frexp
from typing import Any, Protocol

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.batch import Batch, StepTime
from perfmodel.roofline.clock import BoundClock, Clock
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step import Step
from perfmodel.roofline.step_parts import StepParts
from perfmodel.roofline.times import OpTime, Rates

#: Distinct parts of steps that a source remembers.
REMEMBERED = 1 << 17
#: Contexts are told apart to this part of them.
RESOLUTION = 256


class TimeSource(Protocol):
    """Times of an engine's steps."""

    def step_time(self, batch: Batch) -> StepTime:
        """Time of a step that holds a batch, with its 80 % interval. [s]"""


class ModelSource:
    """Times of steps from the graph of a model, at any fidelity.

    Sequences are spread evenly over data-parallel ranks; the fullest one is timed. In pipeline parallelism the time is
    that of one pass through all stages.

    Parameters
    ----------
    ready : Setup
    clock : Clock, optional
        The roofline when left out.
    resolution : int
        Contexts above it are rounded up to this part of them (of the power of two below), so that steps which hardly
        differ are computed once: at most 1/256 too long by default. 0: all are exact.
    """

    def __init__(self, ready: Setup, clock: Clock | None = None, resolution: int = RESOLUTION) -> None:
        self.ready, self.clock = ready, clock or BoundClock(Rates(ready.gpu, ready.topology))
        self.parts, self.resolution = StepParts(ready), resolution
        self._known: dict[Any, Any] = {}

    def step_time(self, batch: Batch) -> StepTime:
        """Time of a step; of arrays, those of many steps."""
        if any(isinstance(value, np.ndarray) for value in batch):
            return self._many(batch)
        decodes, context, chunks, tokens, reach, queries = batch
        key = (decodes, self.rounded(context), chunks, tokens, self.rounded(reach), queries)
        found = self._known.get(key)
        if found is None:
            found = self._remember(key, self._sum(self._times(Batch(*key))))
        return found  # type: ignore[no-any-return]

    def rounded(self, length: Any) -> Any:
        """A length, rounded up to what is told apart."""
        if not self.resolution:
            return length
        if not isinstance(length, np.ndarray):
            unit = 2.0 ** max(frexp(length / self.resolution)[1] - 1, 0)
            return ceil(length / unit) * unit
        power = np.maximum(np.frexp(length / self.resolution)[1] - 1, 0)
        return np.ceil(length / 2.0**power) * 2.0**power

    def _remember(self, key: Any, value: Any) -> Any:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = value
        return value

    def _timed(self, name: str, make: Callable[..., list[Op]], *sizes: Num) -> list[OpTime]:
        """Times of one kind of operators, computed once for each set of sizes."""
        key = (name, *sizes)
        found = self._known.get(key)
        if found is None:
            found = self._remember(key, [self.clock.time(op) for op in make(*sizes)])
        return found  # type: ignore[no-any-return]

    def _times(self, batch: Batch) -> list[OpTime]:
        decodes, context, chunks, tokens, reach, queries = batch
        n, m = ceil(decodes / self.parts.ranks), ceil(chunks / self.parts.ranks)
        found = [
            *self._timed("tokens", self.parts.tokens, float(n * queries + m * tokens)),
            *self._timed("rows", self.parts.rows, float(n * queries + m)),
        ]
        if n:
            found += self._timed("decode", self.parts.decode, float(n), queries, context)
        if m:
            found += self._timed("chunk", self.parts.chunk, float(m), tokens, reach)
        return [*found, *self.host(decodes + chunks, "prefill" if m else "decode")]

    def host(self, sequences: Num, phase: str) -> list[OpTime]:
        """What the engine does beside the operators, where the clock knows it."""
        step = Step("decode" if phase == "decode" else "chunk", sequences, 1.0, 1.0)
        return [self.clock.time(op) for op in self.clock.beside(step, self.ready.plan)]

    def _sum(self, times: Iterable[OpTime]) -> StepTime:
        total = self.clock.total(list(times))
        return StepTime(float(total.predicted), float(total.low), float(total.high))

    def _many(self, batch: Batch) -> StepTime:
        """Many steps at once; those that hold no decodes, or no chunks, lose that part's time."""
        queries = batch.queries
        arrays = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in batch[:5]))
        decodes, context, chunks, tokens, reach = arrays
        context, reach = self.rounded(context), self.rounded(reach)
        n, m = np.ceil(decodes / self.parts.ranks), np.ceil(chunks / self.parts.ranks)
        time = self.clock.time
        found = [time(op) for op in self.parts.tokens(n * queries + m * tokens)]
        found += [time(op) for op in self.parts.rows(n * queries + m)]
        found += [only(time(op), n > 0) for op in self.parts.decode(np.maximum(n, 1), queries, context)]
        found += [only(time(op), m > 0) for op in self.parts.chunk(np.maximum(m, 1), tokens, reach)]
        alone, mixed = (
            self.clock.total([*found, *self.host(decodes + chunks, phase)]) for phase in ("decode", "prefill")
        )
        seconds, low, high = (
            np.where(m > 0, getattr(mixed, name), getattr(alone, name)) for name in ("predicted", "low", "high")
        )
        return StepTime(seconds, low, high)


def only(t: OpTime, where: Any) -> OpTime:
    """A time where something is, nothing elsewhere."""
    numbers = {
        f.name: np.where(where, getattr(t, f.name), 0.0)
        for f in fields(t)
        if f.name in ("bound", "predicted", "low", "high", "shared", "own")
    }
    return replace(t, **numbers)  # type: ignore[arg-type]
