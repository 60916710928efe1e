"""Acceptance by position from counts: estimates, their 80 % interval, and what it means for the tokens of a round.

A drafted position is a trial when the position before it was accepted, and a success when it is accepted too. A
position's acceptance is the share of successes; its interval is Wilson's, which is sound at 0 and 1 and for few trials.
What follows from several positions is drawn from their Beta distributions (Jeffreys prior), with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.speculative.candidates import Candidate
from perfmodel.roofline.speculative.methods import Acceptance, rank_table
from perfmodel.roofline.speculative.rounds import Z80

Array = NDArray[np.float64]

#: Draws behind an interval, and their seed.
DRAWS, SEED = 2000, 20250717
#: Most positions that a log may have.
MOST_POSITIONS = 64


@dataclass(frozen=True)
class Fitted:
    """Acceptance of each drafted position as a log has it.

    Attributes
    ----------
    trials, accepted : tuple[float, ...]
        Of each position: rounds that reached it, and those that accepted it.
    rounds : float
        Rounds of the log.
    source : str
        What was read.
    skipped : dict[str, int]
        Lines that were not used, by reason.
    notes : tuple[str, ...]
        What the log does not tell and how that was met.
    """

    trials: tuple[float, ...]
    accepted: tuple[float, ...]
    rounds: float
    source: str
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what holds nothing, or more successes than trials."""
        if not self.trials or self.trials[0] <= 0:
            raise SpecError(self.source, "", "it holds no round of speculation to fit an acceptance to")
        if any(not 0 <= a <= t for a, t in zip(self.accepted, self.trials, strict=True)):
            raise UsageError("more accepted tokens than trials at a position")

    @property
    def alphas(self) -> Array:
        """Share of successes of each position."""
        return np.asarray(np.array(self.accepted) / np.array(self.trials))

    @property
    def interval(self) -> tuple[Array, Array]:
        """80 % interval of each position's acceptance (Wilson)."""
        n, p = np.array(self.trials), self.alphas
        middle = (p + Z80**2 / (2 * n)) / (1 + Z80**2 / n)
        half = Z80 * np.sqrt(p * (1 - p) / n + Z80**2 / (4 * n**2)) / (1 + Z80**2 / n)
        return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)

    @property
    def tau(self) -> float:
        """Tokens a round at the log's own draft length, the target's own included."""
        return float(1.0 + np.cumprod(self.alphas).sum())

    def acceptance(self, siblings: Sequence[float] = ()) -> Acceptance:
        """The estimates, with a method's candidates of a position where it drafts trees: a log of chains has none."""
        return Acceptance(
            alphas=tuple(map(float, self.alphas)), siblings=tuple(siblings), basis="fitted",
            setting=f"{self.rounds:,.0f} rounds of a log", source=self.source,
        )  # fmt: skip

    def draws(self, count: int = DRAWS) -> Array:
        """Acceptances that the counts allow, shape ``(count, positions)``; the same every time."""
        rng = np.random.default_rng(SEED)
        n, k = np.array(self.trials), np.array(self.accepted)
        return np.asarray(rng.beta(k + 0.5, n - k + 0.5, size=(count, len(n))))

    def spread(self, c: Candidate, siblings: Sequence[float] = ()) -> float:
        """Standard deviation of the logarithm of the tokens a round yields with this shape."""
        return float(np.std(np.log(tokens_under(c, self.draws(), siblings))))


def tokens_under(c: Candidate, alphas: Array, siblings: Sequence[float] = ()) -> Array:
    """Tokens a round yields with one shape for many acceptances.

    Parameters
    ----------
    alphas : ndarray, shape (draws, positions)
        The last position's holds for what follows.

    Returns
    -------
    ndarray, shape (draws,)
    """
    depth = c.tree.depth
    index = np.minimum(np.arange(depth), alphas.shape[1] - 1)
    each = rank_table(alphas[:, index], siblings, alphas[:, :1])
    values = np.empty((len(alphas), len(c.tree)))
    for node, parent in enumerate(c.tree.parents):
        given = each[:, c.tree.depths[node] - 1, c.tree.ranks[node]]
        values[:, node] = given * (1.0 if parent < 0 else values[:, parent])
    return np.asarray(1.0 + values.sum(axis=1))


def from_lengths(lengths: Sequence[int], drafted: int, source: str, **more: object) -> Fitted:
    """Counts from the number of accepted tokens of each round.

    Parameters
    ----------
    lengths : sequence of int
        Accepted drafted tokens of each round, the target's own token not included: 0 to ``drafted``.
    drafted : int
        Drafted tokens of a round.

    Examples
    --------
    >>> from_lengths([2, 0, 1, 2], 2, "four rounds").alphas
    array([0.75      , 0.66666667])
    """
    if not 1 <= drafted <= MOST_POSITIONS:
        raise UsageError(f"{drafted} drafted tokens a round; 1 to {MOST_POSITIONS} are possible")
    array = np.asarray(lengths, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() > drafted):
        raise UsageError(f"accepted lengths from {array.min()} to {array.max()} with {drafted} drafted tokens a round")
    reached = np.array([(array >= i).sum() for i in range(drafted + 1)], dtype=np.float64)
    return _fitted(reached, source, **more)


def from_reached(reached: Sequence[float], source: str, **more: object) -> Fitted:
    """Counts from how many rounds accepted at least 0, 1, 2, ... drafted tokens."""
    return _fitted(np.asarray(reached, dtype=np.float64), source, **more)


def _fitted(reached: Array, source: str, **more: object) -> Fitted:
    rounds = float(reached[0]) if reached.size else 0.0
    used = [(float(t), float(a)) for t, a in pairwise(reached) if t > 0]
    trials, accepted = tuple(t for t, _ in used), tuple(a for _, a in used)
    return Fitted(trials, accepted, rounds, source, **more)  # type: ignore[arg-type]
