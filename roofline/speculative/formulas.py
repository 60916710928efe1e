"""Accepted length and speedup of a drafted chain, scalar or vectorised, safe at every acceptance from 0 to 1.

A round drafts ``gamma`` tokens, verifies them in one pass of the target, keeps the accepted prefix and adds one token
of the target's own (the corrected one, or a bonus when all were accepted). With an acceptance ``alpha`` that is
independent from token to token a round yields ``tau = 1 + alpha + ... + alpha^gamma`` tokens.

Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv:2211.17192),
section 3; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv:2302.01318).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num

#: Longest chain that the searches look at: engines draft fewer.
MAX_GAMMA = 64


def check_fraction(**values: ArrayLike) -> None:
    """Refuse what is not in [0, 1]: raises UsageError with the name, the value and the range."""
    for name, value in values.items():
        array = np.asarray(value, dtype=np.float64)
        bad = ~((array >= 0) & (array <= 1))
        if bad.any():
            raise UsageError(f"{name} is {float(array[bad].flat[0]):g}; it must be between 0 and 1")


def check_positive(zero_too: bool = True, **values: ArrayLike) -> None:
    """Refuse negative or not finite numbers (and zero unless ``zero_too``): raises UsageError."""
    for name, value in values.items():
        array = np.asarray(value, dtype=np.float64)
        bad = ~(np.isfinite(array) & ((array >= 0) if zero_too else (array > 0)))
        if bad.any():
            raise UsageError(
                f"{name} is {float(array[bad].flat[0]):g}; it must be finite and {'>= 0' if zero_too else '> 0'}"
            )


def geometric_sum(alpha: Num, terms: Num) -> Num:
    """``1 + alpha + ... + alpha^(terms - 1)``, exact to rounding for alpha in [0, 1].

    ``expm1(terms log alpha) / expm1(log alpha)``; the quotient of differences ``(1 - alpha^n) / (1 - alpha)`` would
    lose every digit near 1.

    >>> geometric_sum(1.0, 6.0), geometric_sum(0.0, 6.0)
    (6.0, 1.0)
    """
    a, n = np.asarray(alpha, dtype=np.float64), np.asarray(terms, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(a)
        total = np.expm1(n * log) / np.expm1(log)
    return as_num(np.where(a == 1, n, np.where(n == 0, 0.0, total)))


def expected_tokens(alpha: Num, gamma: Num) -> Num:
    """Tokens a round yields on average: ``tau = (1 - alpha^(gamma + 1)) / (1 - alpha)``.

    Parameters
    ----------
    alpha : Num
        Chance that a drafted token is accepted, given that those before it were; in [0, 1].
    gamma : Num
        Drafted tokens, >= 0.

    Returns
    -------
    Num
        1 at ``alpha = 0``, ``gamma + 1`` at ``alpha = 1``.

    >>> round(expected_tokens(0.8, 5), 2)
    3.69
    """
    check_fraction(alpha=alpha)
    check_positive(gamma=gamma)
    return geometric_sum(alpha, as_num(np.asarray(gamma) + 1.0))


def expected_tokens_by_position(alphas: ArrayLike) -> Num:
    """``tau = 1 + a_1 + a_1 a_2 + ...``: the acceptance of each drafted position, the last axis, may differ.

    >>> float(expected_tokens_by_position([0.8, 0.5]))
    2.2
    """
    check_fraction(alpha=alphas)
    products = np.cumprod(np.asarray(alphas, dtype=np.float64), axis=-1)
    return as_num(1.0 + products.sum(axis=-1))


def speedup(alpha: Num, gamma: Num, draft_cost: Num, verify_cost: Num = 1.0) -> Num:
    """Time of plain decoding over time of speculative decoding, a token.

    ``S = tau / (gamma c + v)``: a round costs ``gamma`` draft steps and one verification, and yields ``tau`` tokens.

    Parameters
    ----------
    draft_cost : Num
        ``c``, time of a draft step over a plain decode step of the target.
    verify_cost : Num
        ``v``, time of a verification (with all that a round adds) over a plain decode step; 1 where verifying is free.

    >>> round(speedup(0.8, 5, 0.0), 2), round(speedup(0.3, 1, 0.05), 2)
    (3.69, 1.24)
    """
    check_positive(draft_cost=draft_cost)
    check_positive(verify_cost=verify_cost, zero_too=False)
    return as_num(expected_tokens(alpha, gamma) / (np.asarray(gamma) * draft_cost + verify_cost))


def speedup_bound(alpha: Num) -> Num:
    """``1 / (1 - alpha)``: the limit for a free draft *and* endless chains; infinite at ``alpha = 1``.

    >>> round(speedup_bound(0.8), 9)
    5.0
    """
    check_fraction(alpha=alpha)
    with np.errstate(divide="ignore"):
        return as_num(1.0 / (1.0 - np.asarray(alpha, dtype=np.float64)))


def best_gamma(alpha: Num, draft_cost: Num, verify_cost: Num = 1.0, limit: int = MAX_GAMMA) -> Num:
    """The chain length of 0 to ``limit`` with the highest speedup, for costs that do not depend on it.

    The speedup rises and then falls in gamma; the real maximum solves ``exp(z) = z + B`` with
    ``z = -(gamma + 1) log alpha`` and ``B = 1 - log(alpha) (v - c) / c`` (a branch of Lambert's W, found by Newton's
    method), and the best whole number is beside it. 0 means that no chain pays: just when ``alpha <= c`` at ``v = 1``.

    >>> float(best_gamma(0.8, 0.05)), float(best_gamma(0.3, 0.4)), float(best_gamma(1.0, 0.0))
    (8.0, 0.0, 64.0)
    """
    a, c, v = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (alpha, draft_cost, verify_cost)))
    inside = np.clip(a, 1e-12, 1 - 1e-12)
    rate = -np.log(inside)
    b = 1.0 + rate * (v - c) / np.maximum(c, 1e-12)
    over = np.maximum(b - 1.0, 0.0)
    z = np.minimum(np.sqrt(2.0 * over), np.log(over + 2.0) + 1.0)  # both are right of the root
    for _ in range(5):  # exp(z) - z - B is convex: Newton from the right converges without overshooting
        slope = np.expm1(z)
        z = z - (slope - z - over) / np.maximum(slope, 1e-300)
    middle = np.clip(np.where(np.isfinite(z), z / rate - 1.0, limit), 0, limit)
    low = np.maximum(np.floor(middle), 1)
    options = np.stack(
        [np.zeros_like(low), np.ones_like(low), low, np.minimum(low + 1, limit), np.full_like(low, limit)]
    )
    gains = np.asarray(speedup(a, options, c, v))
    # without a chain there is no verification: a plain step is the standard
    gains[0] = 1.0
    return as_num(np.take_along_axis(options, np.argmax(gains, axis=0)[None], axis=0)[0])


def break_even_cost(alpha: Num, gamma: Num, verify_cost: Num = 1.0) -> Num:
    """The draft cost ``c`` at which speculation neither gains nor loses: ``(tau - v) / gamma``; negative: it loses.

    At ``gamma = 1`` and ``v = 1`` it is ``alpha``, and longer chains need a cheaper draft: some chain pays just where
    ``alpha > c``.

    >>> round(break_even_cost(0.8, 1), 9)
    0.8
    """
    check_positive(gamma=gamma, zero_too=False)
    return as_num((np.asarray(expected_tokens(alpha, gamma)) - verify_cost) / np.asarray(gamma, dtype=np.float64))


def break_even_acceptance(gamma: Num, draft_cost: Num, verify_cost: Num = 1.0) -> Num:
    """The acceptance at which ``tau = gamma c + v``, by bisection to 1e-12; nan where no acceptance up to 1 reaches it.

    >>> round(break_even_acceptance(1, 0.4), 9)
    0.4
    """
    check_positive(gamma=gamma, draft_cost=draft_cost)
    g, c, v = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (gamma, draft_cost, verify_cost)))
    need = g * c + v
    low, high = np.zeros(g.shape), np.ones(g.shape)
    for _ in range(41):
        middle = (low + high) / 2
        below = np.asarray(geometric_sum(middle, g + 1.0)) < need
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return as_num(np.where(need > g + 1, np.nan, np.where(need <= 1, 0.0, high)))


def accepted_pmf(alphas: ArrayLike) -> NDArray[np.float64]:
    """Chance of 0, 1, ..., gamma accepted tokens, from the acceptance of each position; shape ``(..., gamma + 1)``.

    >>> accepted_pmf([0.5, 0.5])
    array([0.5 , 0.25, 0.25])
    """
    check_fraction(alpha=alphas)
    a = np.asarray(alphas, dtype=np.float64)
    reached = np.concatenate([np.ones((*a.shape[:-1], 1)), np.cumprod(a, axis=-1)], axis=-1)
    after = np.concatenate([reached[..., 1:], np.zeros((*a.shape[:-1], 1))], axis=-1)
    return np.asarray(reached - after)


def expected_slowest(alphas: ArrayLike, batch: int) -> float:
    """Expected *smallest* number of tokens over a batch whose sequences must advance together, the own token included.

    A batch padded to a common length keeps only what all its sequences accepted: ``1 + sum_i (a_1 ... a_i)^batch``.

    >>> expected_slowest([0.5], 1), expected_slowest([0.5], 2)
    (1.5, 1.25)
    """
    check_positive(batch=batch, zero_too=False)
    check_fraction(alpha=alphas)
    return float(1.0 + (np.cumprod(np.asarray(alphas, dtype=np.float64)) ** batch).sum())


def decayed_acceptance(alpha: float, decay: float, gamma: int) -> NDArray[np.float64]:
    """Acceptance that falls with the position: ``a_i = alpha (1 - decay log i)``, not below 0; shape ``(gamma,)``.

    An empirical form with a decay of 0.05 to 0.10 (natural logarithm, positions from 1).

    >>> decayed_acceptance(0.8, 0.0, 2)
    array([0.8, 0.8])
    """
    check_fraction(alpha=alpha)
    check_positive(decay=decay)
    position = np.arange(1, gamma + 1, dtype=np.float64)
    return np.clip(alpha * (1.0 - decay * np.log(position)), 0.0, 1.0)


def alpha_of_tokens(tau: Num, gamma: Num) -> Num:
    """The acceptance, one for all positions, whose ``expected_tokens`` is ``tau``: what a published ``tau`` implies.

    Raises UsageError unless ``1 <= tau <= gamma + 1``.

    >>> round(alpha_of_tokens(3.68928, 5), 6)
    0.8
    """
    t, g = np.broadcast_arrays(np.asarray(tau, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
    if np.any((t < 1) | (t > g + 1)):
        raise UsageError(f"{tau} tokens a round are not between 1 and gamma + 1 with gamma = {gamma}")
    # tau = gamma x 0 + v with v = tau: the break-even of a free draft
    return break_even_acceptance(as_num(g), 0.0, as_num(t))
