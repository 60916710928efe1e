"""Reference samplers of speculative decoding, whose output can be tested: plain numpy, many draws at once.

Each function runs ``draws`` independent rounds on given distributions and returns the tokens, so that a chi-square test
can compare the frequencies with the target's own. They say what a kernel must do; they are not fast.

Sources: rejection sampling, arXiv:2211.17192 (algorithm 1) and arXiv:2302.01318; several candidates a position,
SpecInfer (arXiv:2305.09781, algorithm 2); typical acceptance, Medusa (arXiv:2401.10774, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.acceptance import check_distribution, residual
from perfmodel.roofline.speculative.trees import Tree

Tokens = NDArray[np.int64]

#: Marks a position that a round did not reach.
NONE = -1


def draw(p: ArrayLike, uniforms: ArrayLike) -> Tokens:
    """Tokens of distributions (last axis) by inversion: the first whose cumulative probability passes the uniform.

    >>> draw([0.25, 0.75], [0.2, 0.3])
    array([0, 1])
    """
    cumulative = np.cumsum(np.asarray(p, dtype=np.float64), axis=-1)
    u = np.asarray(uniforms, dtype=np.float64)[..., None] * cumulative[..., -1:]
    return np.asarray(np.minimum((cumulative <= u).sum(axis=-1), cumulative.shape[-1] - 1), dtype=np.int64)


def chain_rounds(
    target: ArrayLike, draft: ArrayLike, draws: int, rng: np.random.Generator
) -> tuple[Tokens, NDArray[np.int64]]:
    """Rounds of a drafted chain.

    Parameters
    ----------
    target : array_like, shape (gamma + 1, V)
        The target's distribution at each position (contexts are taken as fixed, so every draw sees the same ones).
    draft : array_like, shape (gamma, V)
        The draft's.

    Returns
    -------
    tokens : ndarray, shape (draws, gamma + 1)
        Accepted tokens, then the corrected or bonus token, then ``NONE``.
    accepted : ndarray, shape (draws,)
        Drafted tokens accepted.
    """
    p, q = check_distribution("target", target), check_distribution("draft", draft)
    gamma = len(q)
    if p.shape != (gamma + 1, q.shape[-1]):
        raise UsageError(f"target has shape {p.shape}; a draft of {q.shape} needs {(gamma + 1, q.shape[-1])}")
    tokens = np.full((draws, gamma + 1), NONE, dtype=np.int64)
    alive = np.ones(draws, dtype=np.bool_)
    for i in range(gamma):
        guess = draw(q[i], rng.random(draws))
        # u q <= p, not u <= p / q: no division by a q that underflows
        accept = rng.random(draws) * q[i, guess] < p[i, guess]
        corrected = draw(residual(p[i], q[i]), rng.random(draws))
        tokens[alive, i] = np.where(accept, guess, corrected)[alive]
        alive &= accept
    tokens[alive, gamma] = draw(p[gamma], rng.random(draws))[alive]
    return tokens, (tokens != NONE).sum(axis=1) - 1


def siblings(
    target: ArrayLike, draft: ArrayLike, candidates: int, draws: int, rng: np.random.Generator
) -> tuple[Tokens, Tokens]:
    """One position with several candidates drawn from the draft (with replacement), tried in turn.

    A rejected candidate leaves ``max(p - q, 0)`` normalised as the target of the next one; after the last the token
    comes from what is left. The output follows the target exactly.

    Returns
    -------
    tokens, winner : ndarray, shape (draws,)
        The token, and which candidate it was (``NONE``: none, it was drawn from the rest).
    """
    p, q = check_distribution("target", target), check_distribution("draft", draft)
    tokens = np.full(draws, NONE, dtype=np.int64)
    winner = np.full(draws, NONE, dtype=np.int64)
    for k in range(candidates):
        guess = draw(q, rng.random(draws))
        accept = (tokens == NONE) & (rng.random(draws) * q[guess] < p[guess])
        tokens[accept], winner[accept] = guess[accept], k
        p = residual(p, q)
    rest = tokens == NONE
    tokens[rest] = draw(p, rng.random(draws))[rest]
    return tokens, winner


def sibling_acceptances(target: ArrayLike, draft: ArrayLike, candidates: int) -> NDArray[np.float64]:
    """Chance that each of the candidates of ``siblings`` is the accepted one: what a tree's ranks are made of.

    >>> sibling_acceptances([0.5, 0.5], [1.0, 0.0], 2)
    array([0.5, 0. ])
    """
    p, q = check_distribution("target", target), check_distribution("draft", draft)
    chances, left = np.zeros(candidates), 1.0
    for k in range(candidates):
        accepted = float(np.minimum(p, q).sum())
        chances[k], left = left * accepted, left * (1.0 - accepted)
        p = residual(p, q)
    return chances


def tree_rounds(
    tree: Tree, target: ArrayLike, draft: ArrayLike, draws: int, rng: np.random.Generator
) -> tuple[list[Tokens], NDArray[np.int64]]:
    """Rounds of a drafted tree; distributions depend on the depth alone (contexts are taken as fixed).

    Parameters
    ----------
    target : array_like, shape (depth + 1, V)
    draft : array_like, shape (depth, V)

    Returns
    -------
    tokens : list of ndarray
        The tokens of each depth over all draws that reached it, the own token included.
    accepted : ndarray, shape (draws,)
        Drafted nodes accepted.
    """
    p, q = check_distribution("target", target), check_distribution("draft", draft)
    if len(q) < tree.depth or len(p) < tree.depth + 1:
        raise UsageError(f"a tree of depth {tree.depth} needs as many draft rows and one more of the target")
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    at = np.full(draws, -1, dtype=np.int64)
    accepted = np.zeros(draws, dtype=np.int64)
    alive = np.ones(draws, dtype=np.bool_)
    out: list[Tokens] = []
    for depth in range(tree.depth + 1):
        tokens = np.full(draws, NONE, dtype=np.int64)
        going = np.zeros(draws, dtype=np.bool_)
        for node in np.unique(at[alive]):
            here = np.flatnonzero(alive & (at == node))
            below = children.get(int(node), [])
            if not below:
                tokens[here] = draw(p[depth], rng.random(len(here)))
                continue
            got, winner = siblings(p[depth], q[depth], len(below), len(here), rng)
            tokens[here] = got
            won = winner != NONE
            going[here[won]] = True
            at[here[won]] = np.asarray(below)[winner[won]]
        out.append(tokens[alive])
        alive = going
        accepted += alive
    return out, accepted


def typical_threshold(target: ArrayLike, epsilon: float = 0.09, delta: float = 0.3) -> NDArray[np.float64]:
    """Probability above which typical acceptance takes a token: ``min(epsilon, delta exp(-entropy))``.

    Not exact: it keeps plausible tokens instead of the target's distribution. Source: Medusa, section 3.3 (defaults:
    ``posterior_threshold`` 0.09 and ``posterior_alpha`` 0.3 of its repository).
    """
    p = check_distribution("target", target)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
    return np.asarray(np.minimum(epsilon, delta * np.exp(-entropy)))


def typical_accepts(
    target: ArrayLike, tokens: Sequence[int] | Tokens, epsilon: float = 0.09, delta: float = 0.3
) -> NDArray[np.bool_]:
    """Whether typical acceptance takes each token, given the target's distribution at its position (a row a token)."""
    p = check_distribution("target", target)
    chance = np.take_along_axis(p, np.asarray(tokens, dtype=np.int64)[..., None], axis=-1)[..., 0]
    return np.asarray(chance > typical_threshold(p, epsilon, delta))
