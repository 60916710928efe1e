"""Accepted lengths at one draft length, predicted from those at others: is there one acceptance a position?

If the chance to accept a position does not depend on how many are drafted, tau grows by the chance to reach each
further position, and a curve through the other lengths gives the one left out. The curve is ``a_i = a (1 - d log i)``
with two parameters, or one acceptance for all positions where a single other length is known.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.speculative.formulas import MAX_GAMMA, alpha_of_tokens, expected_tokens

Array = NDArray[np.float64]

#: Decays that are tried; negative: later positions are accepted more often.
DECAYS = np.linspace(-0.2, 0.6, 81)
ALPHAS = np.linspace(0.0, 1.0, 401)


@functools.lru_cache(maxsize=1)
def _table() -> Array:
    """tau of every (decay, alpha) at 1, 2, ... drafted tokens; shape (decays, alphas, MAX_GAMMA)."""
    positions = np.log(np.arange(1, MAX_GAMMA + 1))
    a = np.clip(ALPHAS[None, :, None] * (1.0 - DECAYS[:, None, None] * positions), 0.0, 1.0)
    return np.asarray(1.0 + np.cumprod(a, axis=-1).cumsum(axis=-1))


def tau_from_others(gamma: int, others: Sequence[tuple[int, float]]) -> tuple[float, str]:
    """The accepted length at ``gamma`` drafted tokens from those at other lengths, and how, in words.

    Parameters
    ----------
    others : sequence of (drafted, tau)
        At least one, none at ``gamma``.

    Examples
    --------
    >>> tau, words = tau_from_others(3, [(1, 1.8), (2, 2.44), (4, 3.3616)])
    >>> round(tau, 2)
    2.95
    """
    if len(others) == 1:
        length, tau = others[0]
        alpha = float(alpha_of_tokens(min(tau, length + 1.0), float(length)))
        return float(
            expected_tokens(alpha, float(gamma))
        ), f"acceptance {alpha:.3f} of every position, from K = {length}"
    lengths = np.array([k for k, _ in others]) - 1
    wanted = np.array([tau for _, tau in others])
    misses = np.square(np.log(_table()[..., lengths] / wanted)).sum(axis=-1)
    i, j = np.unravel_index(int(np.argmin(misses)), misses.shape)
    words = f"acceptance {ALPHAS[j]:.3f} (1 - {DECAYS[i]:.2f} log i), from K = {', '.join(str(k) for k, _ in others)}"
    return float(_table()[i, j, gamma - 1]), words
