"""Shapes of a draft that are compared: chains and trees, what each yields, and what a round of it runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.formulas import MAX_GAMMA
from perfmodel.roofline.speculative.methods import Acceptance, Method
from perfmodel.roofline.speculative.rounds import Shape
from perfmodel.roofline.speculative.trees import Tree, best_tree, chain

Array = NDArray[np.float64]

#: Longest chain that the search for the best one looks at.
SEARCHED = 16
#: Tree sizes that the search looks at.
BUDGETS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Candidate:
    """One way to draft: its tree, what a round costs in passes and nodes, and what it yields.

    Attributes
    ----------
    tree : Tree
    width : int
        Nodes that a serial drafter expands in a pass after the first.
    reach : tuple[float, ...]
        Chance that an accepted path is at least 1, 2, ... tokens long, for each depth of the tree.
    """

    tree: Tree
    width: int
    reach: tuple[float, ...]

    @property
    def tokens(self) -> float:
        """Tokens a round yields to one sequence on average, the target's own included."""
        return 1.0 + sum(self.reach)

    def slowest(self, batch: ArrayLike) -> Array:
        """Average over rounds of the fewest tokens that any of ``batch`` sequences gets: ``1 + sum reach^batch``."""
        b = np.asarray(batch, dtype=np.float64)
        powers = np.power(np.asarray(self.reach), b[..., None])
        return np.asarray(1.0 + powers.sum(axis=-1))

    @property
    def words(self) -> str:
        """``gamma 5``, or ``60 nodes, 6 deep``."""
        n = len(self.tree)
        return f"gamma {n}" if n == self.tree.depth else f"{n} nodes, {self.tree.depth} deep"


def _made(tree: Tree, width: int, acceptances: ArrayLike) -> Candidate:
    values = tree.path_values(acceptances)
    tree.expected_tokens(acceptances)  # refuses siblings whose chances sum to more than 1
    depths = tree.depths
    level = np.bincount(depths, minlength=tree.depth + 1)[1:]
    reach = np.bincount(depths, weights=values, minlength=tree.depth + 1)[1:]
    # nodes of the last level are proposed, not expanded
    widest = int(level[:-1].max(initial=1))
    return Candidate(tree, min(width, widest), tuple(float(min(x, 1.0)) for x in reach))


@functools.lru_cache(maxsize=4096)
def candidate(acceptance: Acceptance, gamma: int, nodes: int | None = None, width: int = 1) -> Candidate:
    """The chain of ``gamma``, or the best tree of ``nodes`` nodes and at most ``gamma`` levels.

    Parameters
    ----------
    width : int
        Most nodes that a serial drafter expands in a pass; where the tree has fewer in a level, as many as it has.
    """
    if nodes is None:
        return _made(chain(gamma), 1, acceptance.positions(gamma))
    ranks = acceptance.ranks(gamma)
    tree = best_tree(ranks, nodes, gamma)
    return _made(tree, width, tree.acceptances_by_rank(ranks))


def candidates(m: Method, acceptance: Acceptance, seen: int | None = None) -> list[Candidate]:
    """What the search for the best shape tries.

    Chains of up to 16, or of as many tokens as its drafter was made for; of methods with trees also trees of growing
    size, as deep as the method's and half as deep. None is deeper than ``seen`` positions, where a log tells how many
    were: nobody knows how much is accepted beyond.
    """
    s = m.strategy
    found = [candidate(acceptance, gamma) for gamma in range(1, min(searched(m), seen or MAX_GAMMA) + 1)]
    if s.kind == "chain" or not acceptance.siblings:
        return found
    depths = sorted({min(d, seen or d) for d in (s.gamma, (s.gamma + 1) // 2)})
    return found + [candidate(acceptance, d, nodes, s.width) for d in depths for nodes in BUDGETS if nodes > d]


def searched(m: Method) -> int:
    """Longest chain that is tried: 16, or the positions that the method's drafter was made for."""
    return min(SEARCHED, m.strategy.most or SEARCHED, most_depth(m))


def most_depth(m: Method) -> int:
    """Positions that a method can draft: the number of Medusa's heads, else without a limit of its own."""
    return m.draft.heads if m.draft.kind == "medusa" else MAX_GAMMA


def default_candidate(
    m: Method, acceptance: Acceptance, gamma: int | None = None, seen: int | None = None
) -> Candidate:
    """The method's own shape, no deeper than ``seen`` positions; or its chain or tree at the asked depth.

    Raises
    ------
    UsageError
        When the method cannot draft so many positions.
    """
    s = m.strategy
    depth = min(s.gamma, seen or s.gamma) if gamma is None else gamma
    if depth > most_depth(m):
        raise UsageError(f"gamma is {depth}; {m.title} has {most_depth(m)} heads, one a drafted position")
    if s.kind == "chain" or not acceptance.siblings:
        return candidate(acceptance, depth)
    return candidate(acceptance, depth, s.nodes or depth, s.width)


def shape_of(c: Candidate) -> Shape:
    """What a round of it runs."""
    return Shape(float(c.tree.depth), float(len(c.tree)), float(c.width))


def stacked(options: Sequence[Candidate], dimensions: int) -> Shape:
    """The shapes of all options along a first axis, to be broadcast with grids of ``dimensions`` axes."""
    shapes = [shape_of(c) for c in options]
    form = (len(options),) + (1,) * dimensions
    gamma, nodes, width = (
        np.array([getattr(s, name) for s in shapes], dtype=np.float64).reshape(form)
        for name in ("gamma", "nodes", "width")
    )
    return Shape(gamma, nodes, width)
