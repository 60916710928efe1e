"""What rounds of speculative decoding have shown: plain numbers, so that a report needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

#: Chance that a right sampler is refuted by any test of a run: that of three standard errors, 1 in 370.
FAMILY = 2 * (1 - NormalDist().cdf(3.0))
#: Rounds below which nothing is judged.
FEWEST = 30


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes
    ----------
    gamma, rounds : int
    tau, tau_error : float
        Tokens a round measured, and the standard error of its difference from what was expected.
    tau_expected : float
        From the distributions, round by round.
    alpha : float
        Mean acceptance of the first position.
    tau_formula : float
        From one acceptance for all positions: what is lost by taking them as independent shows here.
    draft_cost, verify_cost : float
        ``c`` and ``v`` as timed.
    speedup, speedup_low, speedup_high : float
        Tokens a round over the time of whole rounds in plain steps: by the median of the turns, and the 20th and 80th
        percentile.
    speedup_expected : float
        From tau, c and v.
    plain_seconds : float
        A plain step. [s]
    turns : int
        In which plain steps, parts and whole rounds were timed.
    disturbed : float
        Share of the timed blocks that other processes disturbed; they were repeated.
    chi2, degrees, chance
        Of the tokens put out against the model's own distribution: statistic, degrees of freedom, and the chance of a
        larger statistic.
    """

    gamma: int
    rounds: int
    tau: float
    tau_error: float
    tau_expected: float
    alpha: float
    tau_formula: float
    draft_cost: float
    verify_cost: float
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_expected: float
    plain_seconds: float
    turns: int
    disturbed: float
    chi2: float
    degrees: int
    chance: float

    @property
    def off(self) -> float:
        """Difference of measured and expected tokens a round, in standard errors."""
        return (self.tau - self.tau_expected) / self.tau_error if self.tau_error > 1e-6 else 0.0

    @property
    def noise(self) -> float:
        """Spread of the speedup over the turns: ``(p80 - p20) / median``."""
        return (self.speedup_high - self.speedup_low) / self.speedup


@dataclass(frozen=True)
class Speculated:
    """What rounds on this device have shown.

    Attributes
    ----------
    device : str
        Its name.
    sizes : Mapping
        Of the model: layers, hidden size, vocabulary.
    draft_layers : int
    verifier : str
        Whose code accepts and samples.
    outcomes : tuple[Outcome, ...]
        By draft length.
    seed : int
        Of the weights and of all that was drawn.
    """

    device: str
    sizes: Mapping[str, int]
    draft_layers: int
    verifier: str
    outcomes: tuple[Outcome, ...]
    seed: int = 0

    @property
    def level(self) -> float:
        """Chance at which one test refutes: two tests a draft length together have that of three standard errors,
        ``1 - (1 - level)^n = 0.0027`` (Sidak)."""
        return float(1 - (1 - FAMILY) ** (1 / (2 * max(len(self.outcomes), 1))))

    @property
    def limit(self) -> float:
        """The same in standard errors: 3 for one test, 3.5 for the six of three draft lengths."""
        return NormalDist().inv_cdf(1 - self.level / 2)

    def contradictions(self, o: Outcome) -> list[str]:
        """What of a draft length contradicts the formula, in words; nothing is judged on fewer than 30 rounds."""
        found = []
        if o.rounds >= FEWEST and abs(o.off) > self.limit:
            found.append(f"gamma {o.gamma}: {o.off:+.1f} standard errors from the formula")
        if o.rounds >= FEWEST and o.chance < self.level:
            what = f"chi-square {o.chi2:.1f} at {o.degrees} degrees of freedom, p = {o.chance:.2g}"
            found.append(f"gamma {o.gamma}: the output does not follow the model ({what})")
        return found

    @property
    def refuted(self) -> list[Outcome]:
        """Draft lengths that contradict the formula."""
        return [o for o in self.outcomes if self.contradictions(o)]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "device": self.device, "pair": {**self.sizes, "draft_layers": self.draft_layers}, "verifier": self.verifier,
            "seed": self.seed, "limit": self.limit, "level": self.level,
            "rows": [{**asdict(o), "off": o.off, "noise": o.noise} for o in self.outcomes],
            "refuted": [o.gamma for o in self.refuted],
        }  # fmt: skip
