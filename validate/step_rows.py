"""Measured steps as rows that a fit takes: what each held, and its seconds; whatever log they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs.load import MODELS
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.batch import Batch

Array = NDArray[np.float64]

#: Rows of a phase that take part in a fit: every n-th of more.
MOST_ROWS = 3000
ARRAYS = ("decodes", "context", "chunks", "tokens", "reach", "seconds", "client")


@dataclass(frozen=True)
class StepRows:
    """Measured steps.

    Attributes
    ----------
    decodes, context : Array
        Sequences that decode, and their mean tokens after the step.
    chunks, tokens, reach : Array
        Prompts of which tokens are computed, and the mean of such tokens and of the prompt's tokens after the step.
    seconds : Array
        Measured. [s]
    client : NDArray[bool]
        Whether a client measured it with what lies between it and the engine.
    measured : str
        What the seconds are.
    skipped : Counter
        Why others are no rows -> how many.
    notes : list[str]
        What to know about them.
    version : str
        Of the engine.
    """

    decodes: Array
    context: Array
    chunks: Array
    tokens: Array
    reach: Array
    seconds: Array
    client: NDArray[np.bool_]
    measured: str = ""
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    version: str = ""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def phase(self) -> NDArray[np.str_]:
        """``decode``, or ``prefill`` for a step that holds a prompt."""
        return np.where(self.chunks > 0, "prefill", "decode")

    @property
    def sequences(self) -> Array:
        """All sequences of the step."""
        return self.decodes + self.chunks

    def take(self, rows: NDArray[Any]) -> StepRows:
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ARRAYS})

    def thinned(self) -> StepRows:
        """At most ``MOST_ROWS`` of each phase, evenly over the log."""
        kept = []
        for phase in np.unique(self.phase):
            at = np.flatnonzero(self.phase == phase)
            kept.append(at[:: -(-len(at) // MOST_ROWS)])
        return self.take(np.sort(np.concatenate(kept))) if kept else self


def make(rows: Sequence[tuple[Batch, float, bool]], **told: Any) -> StepRows:
    """Rows ``(batch, seconds, client)`` as arrays."""
    numbers = np.array([[*batch[:5], seconds] for batch, seconds, _ in rows], dtype=np.float64).reshape(-1, 6)
    client = np.array([client for *_, client in rows], dtype=np.bool_)
    decodes, context, chunks, tokens, reach, seconds = numbers.T
    return StepRows(decodes, context, chunks, tokens, reach, seconds, client, **told)


def check_model(file: str, printed: str, asked: ModelSpec) -> None:
    """Refuse a log that names another built-in model than is asked for; what neither is cannot be compared.

    Parameters
    ----------
    file : str
        Its name, for the message.
    printed : str
        HF id or path that the engine or its client printed; empty when it did not.

    Raises
    ------
    UsageError
    """
    name = printed.rstrip("/").rsplit("/", 1)[-1] if printed.startswith(("/", ".", "~")) else printed
    try:
        meant = MODELS.resolve(name)
    except UnknownName:
        return
    if asked.name in MODELS.names and meant != asked.name:
        raise UsageError(
            f"{file} says model={printable(printed, 80)}, and --model is {asked.name}: give --model {meant}"
        )


def joined(parts: list[StepRows]) -> StepRows:
    """The rows of several files."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    measured = "; ".join(dict.fromkeys(part.measured for part in parts if len(part)))
    version = ", ".join(dict.fromkeys(part.version for part in parts if part.version))
    return replace(parts[0], **arrays, measured=measured, skipped=skipped, notes=notes, version=version)
