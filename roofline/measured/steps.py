"""Step times from a log of measured steps, and from a model where the log does not reach."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.batch import Batch, StepTime
from perfmodel.roofline.measured.scatter import BETWEEN, EXACT, OUTSIDE, Scatter
from perfmodel.roofline.time_source import TimeSource

Array = NDArray[np.float64]

#: What a time is called by where it was found.
WORDS = {EXACT: "measured", BETWEEN: "interpolated", OUTSIDE: "model"}


@dataclass(frozen=True)
class Steps:
    """Measured steps of an engine, with what its log says of each: one entry a step.

    Attributes
    ----------
    context_requests, context_tokens : Array
        Prompts of which something was computed, and their new tokens.
    generation_requests, generation_tokens : Array
        Sequences that decoded, and their new tokens (more where drafts were verified).
    seconds : Array
        [s]
    context : Array, optional
        Tokens of a decoding sequence, the mean; logs that do not say it hold steps of a known workload.
    """

    context_requests: Array
    context_tokens: Array
    generation_requests: Array
    generation_tokens: Array
    seconds: Array
    context: Array | None = None

    def batches(self, context: float) -> list[Batch]:
        """Each step as a batch; the prompts are taken as new ones.

        Parameters
        ----------
        context : float
            Tokens of a decoding sequence where the log does not say it.
        """
        after = self.context if self.context is not None else np.full(len(self.seconds), context)
        rows = zip(
            self.context_requests, self.context_tokens, self.generation_requests, self.generation_tokens, after,
            strict=True,
        )  # fmt: skip
        return [_batch(*map(float, row)) for row in rows]


def _batch(prompts: float, tokens: float, sequences: float, made: float, context: float) -> Batch:
    length = tokens / prompts if prompts else 1.0
    queries = made / sequences if sequences else 1.0
    return Batch(int(sequences), max(context, queries), int(prompts), length, length, queries)


class MeasuredSource:
    """Times of steps like those of a log: its own where it has the very batch, interpolated between its steps, and a
    model's beyond them. What is interpolated is the ratio to the model.

    Parameters
    ----------
    steps : Steps
        Of one engine, model, GPU and plan.
    model : TimeSource
        Of the same.
    context : float, optional
        Tokens of a decoding sequence in the log, the mean, where the log does not say it.

    Raises
    ------
    UsageError
        Without steps, for times that are not above zero, or when nothing says the contexts of decoding steps.
    """

    def __init__(self, steps: Steps, model: TimeSource, context: float | None = None) -> None:
        if not len(steps.seconds):
            raise UsageError("a table of measured steps is empty")
        if not (np.all(np.isfinite(steps.seconds)) and np.all(steps.seconds > 0)):
            raise UsageError("measured steps take times above zero")
        if steps.context is None and context is None and np.any(steps.generation_requests > 0):
            raise UsageError("the log does not say how long its contexts were: give their mean as context")
        self.model, self._contexts = model, steps.context is not None
        batches = steps.batches(context or 1.0)
        modelled = np.array([model.step_time(batch).seconds for batch in batches])
        points = np.array([self._point(batch) for batch in batches])
        self.scatter = Scatter(points, np.log(steps.seconds / modelled))
        self._known: dict[Batch, tuple[StepTime, int]] = {}

    def _point(self, batch: Batch) -> list[float]:
        """Logarithms of what tells steps apart; counts that may be zero are moved by one."""
        found = [
            np.log1p(batch.chunks), np.log1p(batch.chunks * batch.tokens), np.log1p(batch.decodes),
            np.log1p(batch.decodes * (batch.queries - 1)),
        ]  # fmt: skip
        return (
            [*found, np.log(batch.context)] if self._contexts and batch.decodes else [*found, *[0.0] * self._contexts]
        )

    def step_time(self, batch: Batch) -> StepTime:
        """Time of one step."""
        return self._find(batch)[0]

    def origin(self, batch: Batch) -> str:
        """``measured``, ``interpolated`` or ``model``."""
        return WORDS[self._find(batch)[1]]

    def _find(self, batch: Batch) -> tuple[StepTime, int]:
        found = self._known.get(batch)
        if found is None:
            found = self._known[batch] = self._made(batch)
        return found

    def _made(self, batch: Batch) -> tuple[StepTime, int]:
        base = self.model.step_time(batch)
        reused = batch.chunks and batch.reach > batch.tokens * (1 + 1e-9)
        near = self.scatter.at(np.array([self._point(batch)]))
        state = int(near.state[0])
        if state == OUTSIDE or reused:  # logs do not tell what was cached before a chunk
            return base, OUTSIDE
        seconds, low, high = (base.seconds * exp(v[0]) for v in (near.value, near.low, near.high))
        return StepTime(seconds, low, high), state

    def errors(self) -> tuple[Array, Array]:
        """Logarithmic errors of interpolation, each step from the others, and of the model for the same steps."""
        return self.scatter.errors()
