"""What one step of an engine holds: sequences that decode, and chunks of prompts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.errors import UsageError


class Batch(NamedTuple):
    """The work of one step.

    A step's time depends on its sequences through these: all tokens go through the linear layers together; the decoding
    sequences read their caches, which add up; the (query, key) pairs of the chunks add up likewise. What is lost is how
    uneven they are.

    Attributes
    ----------
    decodes : int
        Sequences that decode; 0 for none.
    context : float
        Tokens of such a sequence after the step, the mean.
    chunks : int
        Prompts of which a chunk is computed; 0 for none.
    tokens : float
        New tokens of a chunk, the mean.
    reach : float
        Tokens of such a prompt after the step; of chunks that differ, the number that gives as many (query, key) pairs
        as they have.
    queries : float
        New tokens of a decoding sequence: 1, or 1 + drafted ones when they are verified.
    """

    decodes: int = 0
    context: float = 1
    chunks: int = 0
    tokens: float = 1
    reach: float = 1
    queries: float = 1

    @classmethod
    def of(cls, q: Sequence[float] | Any, kv: Sequence[float] | Any) -> Batch:
        """From the new tokens and the tokens after the step of each sequence; one new token is a decode.

        Raises
        ------
        UsageError
            When the two do not match, or a sequence has fewer tokens than new ones, or no new one.

        >>> Batch.of([1, 1, 512], [1000, 3000, 512])
        Batch(decodes=2, context=2000.0, chunks=1, tokens=512.0, reach=512.0, queries=1)
        """
        new, after = np.asarray(q, np.float64), np.asarray(kv, np.float64)
        if new.ndim != 1 or new.shape != after.shape or not new.size:
            raise UsageError(f"a batch is one list of new tokens and one of tokens; not {new.shape} and {after.shape}")
        if not (np.all(new >= 1) and np.all(after >= new)):
            raise UsageError("each sequence of a batch has at least one new token, and no fewer tokens than new ones")
        one = new == 1
        decodes, chunks = int(one.sum()), int((~one).sum())
        context = float(after[one].mean()) if decodes else 1
        if not chunks:
            return cls(decodes, context)
        new, after = new[~one], after[~one]
        tokens, pairs = float(new.mean()), float((new * after - new * (new - 1) / 2).mean())
        return cls(decodes, context, chunks, tokens, pairs / tokens + (tokens - 1) / 2)


class StepTime(NamedTuple):
    """Time of a step with its 80 % interval. [s]"""

    seconds: float
    low: float
    high: float
