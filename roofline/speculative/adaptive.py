"""Draft length by confidence: how much an engine drafts and has accepted when the drafter stops where it is unsure.

llama.cpp drafts greedily and stops after the first token whose probability is below ``p_min``, or at ``n_max`` tokens.
The length is then a random number that goes with the acceptance: where the drafter is sure it drafts on, and is right.

Three assumptions give its distribution from the one number that engines print, accepted over drafted:

- the drafter is calibrated: a token of probability p is accepted with chance p (greedy target);
- on text of one difficulty the probabilities are drawn from a Beta distribution with mean m and ``concentration`` k,
  ``Beta(m k, (1 - m) k)``, one token independent of the next;
- text is mixed: ``logit m`` is normal with standard deviation ``spread`` from round to round, and its mean is what the
  observed acceptance decides.

Sources: ``common/speculative.cpp`` and ``common/common.h`` of https://github.com/ggml-org/llama.cpp (the loop, the
defaults by version).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.formulas import MAX_GAMMA, check_fraction

Array = NDArray[np.float64]

#: Nodes of the Gauss-Hermite rule over difficulties, and points of the grid of mean difficulties.
NODES, GRID = 11, 201
#: Mean difficulties (logits) that the grid covers: acceptance from nearly 0 to nearly 1.
EASIEST, HARDEST = 20.0, -20.0


@dataclass(frozen=True)
class StopRule:
    """When a drafter stops.

    Attributes
    ----------
    n_max : int
        Most tokens it drafts.
    p_min : float
        It stops at the first token whose probability is below; 0: it always drafts ``n_max``.
    keeps_unsure : bool
        Whether the token at which it stops is drafted too.
    source : str
    """

    n_max: int = 16
    p_min: float = 0.75
    keeps_unsure: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        check_fraction(p_min=self.p_min)
        if not 1 <= self.n_max <= MAX_GAMMA:
            raise UsageError(f"n_max is {self.n_max}; 1 to {MAX_GAMMA} are possible")

    @property
    def words(self) -> str:
        """The rule in a line."""
        kept = "that token is drafted too" if self.keeps_unsure else "that token is not drafted"
        return f"drafts until its probability is below {self.p_min:g} ({kept}), at most {self.n_max}"


#: llama.cpp's defaults as they changed: of the first version, of 2025 to early 2026, and of those after.
LLAMACPP_2024 = StopRule(16, 0.9, True, "ggml-org/llama.cpp, common/speculative.h of its first version: p_min 0.9")
LLAMACPP_2025 = StopRule(
    16, 0.75, True, "ggml-org/llama.cpp, common/common.h: n_max 16, n_min 0, p_min 0.75; common/speculative.cpp adds a "
    "token to the draft before it tests its probability"
)  # fmt: skip
LLAMACPP_2026 = StopRule(3, 0.0, False, "ggml-org/llama.cpp, options --spec-draft-n-max 3 and --spec-draft-p-min 0.00")


@dataclass(frozen=True)
class Confidence:
    """How a drafter's probabilities are spread (see the module).

    Attributes
    ----------
    concentration : float
        k of the Beta distribution; small: nearly always sure or clueless.
    spread : float
        Standard deviation of the logit of the difficulty over the text; 0: one difficulty throughout.
    """

    concentration: float = 4.0
    spread: float = 3.0

    def __post_init__(self) -> None:
        if not (0 < self.concentration <= 1e3 and 0 <= self.spread <= 5):
            raise UsageError(f"concentration {self.concentration:g} and spread {self.spread:g} are not possible")


#: Chosen on speedups of 18 quantized targets with 31 drafters on one machine; ``tools/speculative_fit.py`` chooses
#: again with each pair of model sizes left out in turn, and says what that changes.
FITTED = Confidence()


@dataclass(frozen=True)
class Drafting:
    """What a round drafts and has accepted, on average and as a distribution.

    Attributes
    ----------
    lengths : ndarray
        Chance of 0, 1, ..., ``n_max`` drafted tokens.
    accepted : float
        Accepted tokens of a round; ``tokens`` is one more.
    """

    lengths: Array
    accepted: float

    @property
    def drafted(self) -> float:
        """Mean drafted tokens of a round."""
        return float(self.lengths @ np.arange(len(self.lengths)))

    @property
    def alpha(self) -> float:
        """Accepted over drafted, as engines print it."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens(self) -> float:
        """Tokens a round yields."""
        return 1.0 + self.accepted

    def mean(self, seconds: Callable[[int], float]) -> float:
        """Mean over the drafted lengths of what a length costs: verification is not linear in its tokens."""
        return float(sum(p * seconds(n) for n, p in enumerate(self.lengths) if p))


def _sure(mean: Array, k: float, p_min: float) -> tuple[Array, Array, Array]:
    """Chance of a probability of ``p_min`` or more, and the accepted share among those and in all the rest (joint)."""
    from scipy.special import betaincc  # scipy is slow to import, and most runs need none

    a, b = mean * k, (1 - mean) * k
    sure = np.ones_like(mean) if p_min <= 0 else np.asarray(betaincc(a, b, p_min))
    right = mean if p_min <= 0 else mean * np.asarray(betaincc(a + 1, b, p_min))
    return sure, right, np.maximum(mean - right, 0.0)


def _one_difficulty(mean: Array, rule: StopRule, k: float) -> tuple[Array, Array]:
    """Distribution of lengths, shape (..., n_max + 1), and accepted tokens, for one mean probability."""
    sure, right, lucky = _sure(mean, k, rule.p_min)
    reach = sure[..., None] ** np.arange(rule.n_max + 1)  # chance of at least i sure tokens
    stop = reach[..., :-1] * (1 - sure)[..., None]  # of just i = 0 ... n_max - 1 of them
    lengths = np.zeros((*mean.shape, rule.n_max + 1))
    lengths[..., -1] = reach[..., -1]
    if rule.keeps_unsure:
        lengths[..., 1:] += stop
    else:
        lengths[..., :-1] += stop
    kept = right[..., None] ** np.arange(rule.n_max)  # chance that i tokens were sure and accepted
    step = right + (lucky if rule.keeps_unsure else 0.0)
    return lengths, (kept * step[..., None]).sum(axis=-1)


@functools.lru_cache(maxsize=32)
def _grid(rule: StopRule, confidence: Confidence) -> tuple[Array, Array, Array]:
    """Acceptance, distribution of lengths and accepted tokens over mean difficulties, the hardest text first."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    logits = np.linspace(HARDEST, EASIEST, GRID)[:, None] + confidence.spread * points
    mean = np.clip(1 / (1 + np.exp(-logits)), 1e-6, 1 - 1e-6)
    lengths, accepted = _one_difficulty(mean, rule, confidence.concentration)
    share = weights / weights.sum()
    lengths, accepted = np.einsum("gnl,n->gl", lengths, share), accepted @ share
    return accepted / (lengths @ np.arange(rule.n_max + 1)), lengths, accepted


def drafting(alpha: float, rule: StopRule, confidence: Confidence = FITTED) -> Drafting:
    """The lengths that go with an observed acceptance, accepted over drafted.

    Parameters
    ----------
    alpha : float
        In [0, 1].
    rule : StopRule
    confidence : Confidence

    Returns
    -------
    Drafting
        Its ``alpha`` is the one that was asked for; at 0 the shortest draft, at 1 the longest.

    Raises
    ------
    UsageError
        For an acceptance outside [0, 1].

    Examples
    --------
    A rule that never stops has one length:

    >>> round(drafting(0.5, StopRule(4, 0.0)).drafted, 9)
    4.0
    """
    check_fraction(alpha=alpha)
    acceptances, lengths, _ = _grid(rule, confidence)
    rising = np.maximum.accumulate(acceptances)  # a spread above 3 can dip by a rounding at the ends
    at = float(np.interp(alpha, rising, np.arange(GRID)))
    low = min(int(at), GRID - 2)
    found = lengths[low] * (low + 1 - at) + lengths[low + 1] * (at - low)
    drafted = float(found @ np.arange(rule.n_max + 1))
    return Drafting(found, alpha * drafted)
