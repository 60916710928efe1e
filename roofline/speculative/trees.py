"""Trees of drafted tokens: ancestor masks, expected accepted length, and the best tree of a given size.

A tree holds the drafted nodes alone; the last token of the text is their common root and is not counted. A node's
value is the chance that it and all its ancestors are accepted, and a round yields one token more than the sum of all
values (linearity of expectation: whichever nodes are accepted form one path).

Sources: Medusa (arXiv:2401.10774) for static trees from the acceptance of each rank; Sequoia (arXiv:2402.12374) for
the dynamic programme; EAGLE-2 (arXiv:2406.16858) for trees by confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.formulas import check_fraction

#: Most nodes that a tree may have: engines verify some 64 and the mask is a 64-bit word a node.
MAX_NODES = 1024


@dataclass(frozen=True)
class Tree:
    """Drafted nodes in an order in which parents come first.

    Attributes
    ----------
    parents : tuple[int, ...]
        Of each node, the index of its parent, or -1 for a child of the root.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a parent that does not come first."""
        if len(self.parents) > MAX_NODES:
            raise UsageError(f"a tree of {len(self.parents)} nodes; the limit is {MAX_NODES}")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise UsageError(f"node {node} has parent {parent}; a parent is -1 (the root) or an earlier node")

    def __len__(self) -> int:
        """Number of drafted nodes."""
        return len(self.parents)

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """Depth of each node; children of the root have 1."""
        depth = np.zeros(len(self), dtype=np.int64)
        for node, parent in enumerate(self.parents):
            depth[node] = 1 if parent < 0 else depth[parent] + 1
        return depth

    @property
    def depth(self) -> int:
        """Draft steps that an autoregressive drafter needs."""
        return int(self.depths.max(initial=0))

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of each node among its siblings, in order of appearance, from 0."""
        seen: dict[int, int] = {}
        ranks = np.zeros(len(self), dtype=np.int64)
        for node, parent in enumerate(self.parents):
            ranks[node] = seen.get(parent, 0)
            seen[parent] = int(ranks[node]) + 1
        return ranks

    def mask(self) -> NDArray[np.bool_]:
        """``mask[i, j]``: node ``j`` is node ``i`` or an ancestor of it, so ``i`` may attend to ``j``.

        >>> Tree((-1, -1, 0)).mask().astype(int)
        array([[1, 0, 0],
               [0, 1, 0],
               [1, 0, 1]])
        """
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask

    def path_values(self, acceptances: ArrayLike) -> NDArray[np.float64]:
        """Chance that each node and its ancestors are accepted, from the chance of each given its parent."""
        check_fraction(acceptance=acceptances)
        given = np.asarray(acceptances, dtype=np.float64)
        if given.shape != (len(self),):
            raise UsageError(f"{given.size} acceptances for a tree of {len(self)} nodes")
        values = np.empty(len(self))
        for node, parent in enumerate(self.parents):
            values[node] = given[node] * (1.0 if parent < 0 else values[parent])
        return values

    def expected_tokens(self, acceptances: ArrayLike) -> float:
        """Tokens a round yields: ``1 + sum`` of the path values, the target's own token included.

        Parameters
        ----------
        acceptances : array_like, shape (nodes,)
            Chance that the node is the accepted one among its siblings, given that its parent was accepted; the
            chances of siblings sum to 1 at most, else UsageError.

        >>> Tree((-1, -1, 0)).expected_tokens([0.6, 0.2, 0.5])
        2.1
        """
        given = np.asarray(acceptances, dtype=np.float64)
        values = self.path_values(given)
        sums = np.zeros(len(self) + 1)
        np.add.at(sums, np.asarray(self.parents, dtype=np.int64) + 1, given)
        if sums.max(initial=0.0) > 1 + 1e-9:
            raise UsageError(f"the acceptances of siblings sum to {sums.max():g}; only one of them can be accepted")
        return float(1.0 + values.sum())

    def acceptances_by_rank(self, ranks: ArrayLike) -> NDArray[np.float64]:
        """Each node's acceptance where it depends on its rank alone (1-D), or on its depth and rank (2-D)."""
        table = np.atleast_2d(np.asarray(ranks, dtype=np.float64))
        if len(self) and (self.ranks.max() >= table.shape[1]):
            raise UsageError(
                f"the tree has {self.ranks.max() + 1} siblings; acceptances are given for {table.shape[1]}"
            )
        return table[np.minimum(self.depths - 1, len(table) - 1), self.ranks]


def chain(gamma: int) -> Tree:
    """The tree that is one path of ``gamma`` tokens.

    >>> chain(3).parents
    (-1, 0, 1)
    """
    return Tree(tuple(range(-1, gamma - 1)))


def branching(widths: Sequence[int]) -> Tree:
    """The tree in which every node of depth ``d`` has ``widths[d]`` children.

    >>> branching((2, 1)).parents
    (-1, -1, 0, 1)
    """
    parents: list[int] = []
    level = [-1]
    for width in widths:
        first = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return Tree(tuple(parents))


def best_tree(ranks: ArrayLike, nodes: int, depth: int | None = None) -> Tree:
    """The tree of ``nodes`` nodes with the highest expected length, by dynamic programming.

    ``T(n, d)``, the best value of the forest below a node with ``n`` nodes and ``d`` levels, is built child by child:
    a child of rank ``k`` that takes ``m`` nodes adds ``p_k (1 + T(m - 1, d - 1))``. Exact for any acceptances, also
    where a later rank is likelier than an earlier one. Time ``O(depth x ranks x nodes^2)``.

    Parameters
    ----------
    ranks : array_like, shape (R,) or (depths, R)
        Chance that the child of each rank is accepted given that its parent was; a row a depth, the last repeated.
    nodes : int
        Drafted nodes to verify, 0 to 1024.
    depth : int, optional
        Most levels (draft steps); default ``nodes``.

    >>> best_tree([0.6, 0.3], 3).parents
    (-1, -1, 0)
    """
    table = np.atleast_2d(np.asarray(ranks, dtype=np.float64))
    check_fraction(acceptance=table)
    if not 0 <= nodes <= MAX_NODES:
        raise UsageError(f"a tree of {nodes} nodes; 0 to {MAX_NODES} are possible")
    levels = nodes if depth is None else min(depth, nodes)
    below = np.zeros(nodes + 1)
    below[1:] = -np.inf  # below the last level there is no room for a node
    choices: list[NDArray[np.int64]] = []
    for level in range(levels, 0, -1):
        below, taken = _forest(table[min(level, len(table)) - 1], below, nodes)
        choices.append(taken)
    choices.reverse()
    size = int(np.argmax(below))  # fewer where depth and ranks leave no room for all
    return Tree(tuple(_unroll(choices, size)))


def _forest(
    p: NDArray[np.float64], below: NDArray[np.float64], nodes: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Best value of 0..nodes nodes under one parent, and how many of them the child of each rank takes.

    A child needs its earlier siblings, so the best forest of each number of children is kept apart: ``exact``.
    """
    totals = np.arange(nodes + 1)
    gap = totals[:, None] - totals[None, :]  # nodes left to the earlier siblings
    exact = np.where(totals == 0, 0.0, -np.inf)
    best, children = exact.copy(), np.zeros(nodes + 1, dtype=np.int64)
    last = np.zeros((len(p), nodes + 1), dtype=np.int64)
    for rank, chance in enumerate(p):
        gain = np.full(nodes + 1, -np.inf)
        gain[1:] = np.where(np.isfinite(below[:-1]), chance * (1.0 + np.maximum(below[:-1], 0.0)), -np.inf)
        options = np.where(gap >= 0, exact[np.maximum(gap, 0)] + gain[None, :], -np.inf)
        last[rank] = np.argmax(options, axis=1)
        exact = options[totals, last[rank]]
        better = exact > best
        best, children = np.where(better, exact, best), np.where(better, rank + 1, children)
    return best, _shares(children, last)


def _shares(children: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Nodes that the child of each rank takes, for every total: the choices followed back from the last child."""
    taken = np.zeros_like(last)
    for total, count in enumerate(children):
        left = total
        for rank in range(int(count) - 1, -1, -1):
            taken[rank, total] = last[rank, left]
            left -= int(last[rank, left])
    return taken


def _unroll(choices: list[NDArray[np.int64]], size: int) -> list[int]:
    """Parents of the tree that the choices describe, level by level."""
    parents: list[int] = []
    pending = [(-1, 0, size)]
    while pending:
        parent, level, total = pending.pop(0)
        for count in choices[level][:, total] if total else ():
            if count:
                parents.append(parent)
                pending.append((len(parents) - 1, level + 1, int(count) - 1))
    return parents


def dynamic_tree(
    confidence: Callable[[Sequence[int]], Sequence[float]], width: int, depth: int, nodes: int
) -> tuple[Tree, NDArray[np.float64]]:
    """A tree by confidence, as EAGLE-2 grows it: expand the surest ``width`` nodes a level, then keep the surest.

    Parameters
    ----------
    confidence : callable
        Takes the ranks on the path to a node (empty at the root) and returns the draft's probabilities of its children,
        highest first; the first ``width`` are looked at.
    width, depth, nodes : int
        Nodes expanded a level, levels, and nodes kept for verification.

    Returns
    -------
    Tree, ndarray
        And the probability of each node given its parent, to be taken as its acceptance (EAGLE-2 finds the two close).
    """
    paths: list[tuple[int, ...]] = []
    given: list[float] = []
    values: list[float] = []
    level: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    for _ in range(depth):
        found: list[tuple[float, tuple[int, ...]]] = []
        for value, path in level:
            for rank, p in enumerate(list(confidence(path))[:width]):
                found.append((value * p, (*path, rank)))
                paths.append(found[-1][1])
                given.append(float(p))
                values.append(value * p)
        level = sorted(found, key=lambda f: (-f[0], f[1]))[:width]
    # a child is never surer than its parent, and shorter paths win ties: what is kept is closed under parents
    kept = sorted(range(len(paths)), key=lambda i: (-values[i], len(paths[i]), paths[i]))[:nodes]
    kept.sort(key=lambda i: (len(paths[i]), paths[i]))
    index = {paths[i]: n for n, i in enumerate(kept)}
    parents = tuple(index[paths[i][:-1]] if len(paths[i]) > 1 else -1 for i in kept)
    return Tree(parents), np.array([given[i] for i in kept])
