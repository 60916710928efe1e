"""Whether target and draft fit together: weights and caches of both on the fullest rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.base.units import gib
from perfmodel.roofline.memory import Memory, memory
from perfmodel.roofline.speculative.drafts import Draft

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Room:
    """Memory of the fullest rank with a draft beside the target. [bytes]

    Attributes
    ----------
    target : Memory
        With room in the cache for the drafted tokens.
    draft_weights : float
        What the draft adds; nothing of what it shares with the target.
    draft_kv : Num
        Its cache.
    apart : bool
        Whether the draft is on devices of its own: its memory is then not the target's.
    """

    target: Memory
    draft_weights: float
    draft_kv: Num
    apart: bool = False

    @property
    def needed(self) -> Array:
        """Of the target's rank, with the draft unless it is apart."""
        more = 0.0 if self.apart else self.draft_weights + np.asarray(self.draft_kv)
        return np.asarray(self.target.needed + more, dtype=np.float64)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether it is within the memory, at each point."""
        return np.asarray(self.needed <= self.target.usable)

    def words(self, at: tuple[int, int] = (0, 0)) -> str:
        """The sum at one point, in words."""

        def one(x: Num) -> float:
            return float(np.broadcast_to(np.asarray(x, dtype=np.float64), self.needed.shape)[at])

        parts = [f"target weights {gib(one(self.target.weights))}, its KV cache {gib(one(self.target.kv))}"]
        if not self.apart:
            parts.append(f"draft weights {gib(self.draft_weights)}, its KV cache {gib(one(self.draft_kv))}")
        verdict = "fits" if bool(self.fits[at]) else "does not fit"
        also = f"; the draft's device holds {gib(self.draft_weights + one(self.draft_kv))}" if self.apart else ""
        return (
            f"{verdict}: {', '.join(parts)}, activations {gib(one(self.target.activations))}: "
            f"{gib(float(self.needed[at]))} of {gib(self.target.usable)} a GPU{also}"
        )


def room(draft: Draft, nodes: int, batch: Array, context: Array, apart: bool = False) -> Room:
    """Memory of both with caches for the text and ``nodes`` drafted tokens of each sequence.

    Parameters
    ----------
    batch, context : ndarray
        Broadcast against each other to the grid.
    """
    target = draft.target
    shape = np.broadcast_shapes(batch.shape, context.shape)
    b, longest = (np.broadcast_to(x, shape) for x in (batch, context + nodes + 1.0))
    need = memory(target.model, target.gpu, target.plan, b, longest, b * (nodes + 1.0))
    return Room(need, draft.weight_bytes, draft.kv_bytes(b, longest), apart)


def most_fitting(draft: Draft, nodes: int, context: float, apart: bool = False, limit: int = 65536) -> int:
    """The largest batch that fits with sequences of this length; 0 where not even one does."""
    low, high = 0, limit
    while low < high:  # fits up to low
        middle = (low + high + 1) // 2
        fits = bool(np.all(room(draft, nodes, np.array(float(middle)), np.array(context), apart).fits))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
