"""What rounds of speculative decoding have shown: plain numbers, so that a report needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Standard errors of the tokens a round beyond which the formula is refuted: 1 in 16,000 by chance.
REFUTED = 4.0


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
    speedup, speedup_expected : float
        Tokens a round over the time of whole rounds in plain steps; and from tau, c and v.
    plain_seconds : float
        A plain step. [s]
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
    speedup_expected: float
    plain_seconds: float

    @property
    def off(self) -> float:
        """Difference of measured and expected tokens a round, in standard errors."""
        return (self.tau - self.tau_expected) / self.tau_error if self.tau_error else 0.0


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
    """

    device: str
    sizes: Mapping[str, int]
    draft_layers: int
    verifier: str
    outcomes: tuple[Outcome, ...]

    @property
    def refuted(self) -> list[Outcome]:
        """Draft lengths whose tokens a round contradict the formula."""
        return [o for o in self.outcomes if abs(o.off) > REFUTED]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "device": self.device, "pair": {**self.sizes, "draft_layers": self.draft_layers}, "verifier": self.verifier,
            "rows": [{**asdict(o), "off": o.off} for o in self.outcomes], "refuted": [o.gamma for o in self.refuted],
        }  # fmt: skip
