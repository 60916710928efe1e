"""Where a serving simulator gets the time of a step: a protocol, and the model behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import ceil, frexp
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.batch import Batch, StepTime
from perfmodel.roofline.clock import BoundClock, Clock, clock
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step
from perfmodel.roofline.step_parts import StepParts
from perfmodel.roofline.times import OpTime, Rates

if TYPE_CHECKING:
    from perfmodel.roofline.measured.record import Recorded

Array = NDArray[np.float64]

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
    timer : Clock, optional
        The roofline when left out.
    resolution : int
        Contexts above it are rounded up to this part of them (of the power of two below), so that steps which hardly
        differ are computed once: at most 1/256 too long by default. 0: all are exact.
    """

    def __init__(self, ready: Setup, timer: Clock | None = None, resolution: int = RESOLUTION) -> None:
        self.ready, self.clock = ready, timer or BoundClock(Rates(ready.gpu, ready.topology))
        self.parts, self.resolution = StepParts(ready), resolution
        self._known: dict[Any, Any] = {}

    def step_time(self, batch: Batch) -> StepTime:
        """Time of a step, with its 80 % interval.

        Raises
        ------
        UsageError
            For a batch without sequences.
        """
        decodes, context, chunks, tokens, reach, queries = batch
        key = (decodes, self.rounded(context), chunks, tokens, self.rounded(reach), queries)
        found: StepTime | None = self._known.get(key)
        if found is None:
            if decodes + chunks < 1:
                raise UsageError("a step holds at least one sequence")
            total = self.clock.total(self._times(*key))
            found = StepTime(float(total.predicted), float(total.low), float(total.high))
            self._remember(key, found)
        return found

    def rounded(self, length: float) -> float:
        """A length, rounded up to what is told apart."""
        if not self.resolution:
            return length
        unit = 2.0 ** max(frexp(length / self.resolution)[1] - 1, 0)
        return ceil(length / unit) * unit

    def _remember(self, key: Any, value: Any) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = value

    def _timed(self, name: str, make: Callable[..., list[Op]], *sizes: Num) -> list[OpTime]:
        """Times of one kind of operators, computed once for each set of sizes."""
        key = (name, *sizes)
        found: list[OpTime] | None = self._known.get(key)
        if found is None:
            found = [self.clock.time(op) for op in make(*sizes)]
            self._remember(key, found)
        return found

    def _times(
        self, decodes: int, context: float, chunks: int, tokens: float, reach: float, queries: float
    ) -> list[OpTime]:
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

    def many(self, batches: Sequence[Batch]) -> tuple[Array, Array, Array]:
        """Times of many steps at once, of one number of queries, and the ends of their intervals: those of each alone.

        Raises
        ------
        UsageError
            When their numbers of queries differ.
        """
        queries = {batch.queries for batch in batches}
        if len(queries) != 1:
            raise UsageError(f"steps are timed at once for one number of queries, not for {sorted(queries)}")
        q = queries.pop()
        decodes, chunks, tokens = (np.array([getattr(b, x) for b in batches]) for x in ("decodes", "chunks", "tokens"))
        context, reach = (np.array([self.rounded(getattr(b, x)) for b in batches]) for x in ("context", "reach"))
        n, m = np.ceil(decodes / self.parts.ranks), np.ceil(chunks / self.parts.ranks)
        time = self.clock.time
        found = [time(op) for op in self.parts.tokens(n * q + m * tokens)]
        found += [time(op) for op in self.parts.rows(n * q + m)]
        found += [only(time(op), n > 0) for op in self.parts.decode(np.maximum(n, 1), q, context)]
        found += [only(time(op), m > 0) for op in self.parts.chunk(np.maximum(m, 1), tokens, reach)]
        sequences = (decodes + chunks).astype(np.float64)
        alone, mixed = (self.clock.total([*found, *self.host(sequences, p)]) for p in ("decode", "prefill"))
        seconds, low, high = (
            np.where(m > 0, getattr(mixed, name), getattr(alone, name)) for name in ("predicted", "low", "high")
        )
        return seconds, low, high


def only(t: OpTime, where: Any) -> OpTime:
    """A time where something is, nothing elsewhere."""
    numbers = {
        f.name: np.where(where, getattr(t, f.name), 0.0)
        for f in fields(t)
        if f.name in ("bound", "predicted", "low", "high", "shared", "own")
    }
    return replace(t, **numbers)  # type: ignore[arg-type]


def model_source(
    model: str | ModelSpec, gpu: str | Gpu, *, fidelity: str = "bound", engine: str | None = None,
    efficiency: Sequence[str] = (), measured: Sequence[Recorded] = (), resolution: int = RESOLUTION, **plan: Any,
) -> ModelSource:  # fmt: skip
    """The step times of a model on a GPU. Options as ``analyze`` and ``ModelSource``.

    Raises
    ------
    UnknownName, SpecError, UsageError

    >>> source = model_source("llama3-70b", "h100", tp=4)
    >>> round(source.step_time(Batch(decodes=8, context=2176)).seconds * 1e3, 1)
    10.9
    """
    ready = setup(model, gpu, **plan)
    return ModelSource(ready, clock(ready, fidelity, engine, efficiency, measured), resolution)
