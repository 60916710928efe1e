"""Whether what speculative decoding puts out follows the model's own distribution: a chi-square test on its own rounds.

A token that is drawn from a distribution p has, with all tokens in any order that is fixed before it is drawn, a place
``mass of those before it + u (its own mass)`` that is uniform on [0, 1) for a uniform u (the randomised probability
integral transform; Czado, Gneiting and Held, Predictive model assessment for count data, Biometrics 65, 2009). The
tokens of a round follow the model one after the other, so that their places are independent, whatever the text. Tokens
stand in the order of ``q / p``: a sampler that leans towards the drafter's distribution puts out too many of the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

#: Intervals of the places at most, and tokens that each is to expect at least.
BINS, LEAST = 16, 8


def place(p: torch.Tensor, order: torch.Tensor, token: int, uniform: float) -> float:
    """Place of a token in its distribution.

    Parameters
    ----------
    p : torch.Tensor
        (vocab,): the model's probabilities.
    order : torch.Tensor
        (vocab,): what tokens are ordered by; equal ones stand for one.
    token : int
    uniform : float
        Random, in [0, 1).

    Examples
    --------
    >>> place(torch.tensor([0.25, 0.5, 0.25]), torch.tensor([3.0, 1.0, 2.0]), 2, 0.5)
    0.625
    """
    mass, mine = p.double(), order[token]
    total = mass.sum()
    before = float(mass[order < mine].sum() / total)
    return min(before + uniform * float(mass[order == mine].sum() / total), 1.0)


def chi_square(places: Sequence[float]) -> tuple[float, int, float]:
    """Chi-square statistic of places against even intervals, degrees of freedom, and the chance of a larger one.

    ``sum (seen - expected)^2 / expected`` over up to 16 intervals, fewer where there are less than 8 tokens for each;
    with fewer than two intervals (0, 0, 1). The chance is ``Q(degrees / 2, statistic / 2)``, Q the regularised upper
    incomplete gamma function.

    >>> chi_square([(i + 0.5) / 160 for i in range(160)])
    (0.0, 15, 1.0)
    """
    bins = min(BINS, len(places) // LEAST)
    if bins < 2:
        return 0.0, 0, 1.0
    seen, _ = np.histogram(np.asarray(places), bins=bins, range=(0.0, 1.0))
    expected = len(places) / bins
    statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), bins - 1
    halves = (torch.tensor(x / 2, dtype=torch.float64) for x in (degrees, statistic))
    return statistic, degrees, float(torch.special.gammaincc(*halves))
