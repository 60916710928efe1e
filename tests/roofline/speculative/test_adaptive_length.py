"""Draft length by confidence: limits, laws, a Monte Carlo of the engine's own loop, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.adaptive import (
    LLAMACPP_2024,
    LLAMACPP_2025,
    LLAMACPP_2026,
    Confidence,
    StopRule,
    drafting,
)

ALPHA = st.floats(0.0, 1.0)
RULES = st.builds(StopRule, st.integers(1, 20), st.floats(0.0, 0.99), st.booleans())


@given(ALPHA, RULES, st.floats(0.2, 20.0), st.floats(0.0, 3.0))
@settings(max_examples=60, deadline=None)
def test_lengths_are_a_distribution(alpha: float, rule: StopRule, k: float, s: float) -> None:
    """Chances sum to 1, lengths stay in the rule's range, and the acceptance is the one asked for."""
    d = drafting(alpha, rule, Confidence(k, s))
    assert d.lengths.sum() == pytest.approx(1.0, abs=1e-9)
    assert d.lengths.min() >= -1e-12
    assert (1.0 if rule.keeps_unsure else 0.0) - 1e-9 <= d.drafted <= rule.n_max + 1e-9
    assert d.accepted == pytest.approx(alpha * d.drafted)


@given(st.floats(0.05, 0.9), st.floats(0.01, 0.09))
@settings(max_examples=40, deadline=None)
def test_better_drafts_are_longer(alpha: float, more: float) -> None:
    """A higher acceptance goes with longer drafts and more tokens a round."""
    low, high = drafting(alpha, LLAMACPP_2025), drafting(alpha + more, LLAMACPP_2025)
    assert high.drafted > low.drafted
    assert high.tokens > low.tokens


def test_ends() -> None:
    """Nothing accepted: the one unsure token; everything: the longest draft each time."""
    assert drafting(0.0, LLAMACPP_2025).drafted == pytest.approx(1.0, abs=1e-3)
    assert drafting(1.0, LLAMACPP_2025).drafted == pytest.approx(16.0, abs=0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_without_a_threshold_the_length_is_fixed(alpha: float) -> None:
    """A rule with p_min 0 drafts n_max tokens whatever the acceptance."""
    assert drafting(alpha, LLAMACPP_2026).drafted == pytest.approx(3.0)


def test_defaults_by_version() -> None:
    """The threshold fell from 0.9 over 0.75 to none, and the longest draft from 16 to 3."""
    rules = (LLAMACPP_2024, LLAMACPP_2025, LLAMACPP_2026)
    assert [(rule.p_min, rule.n_max) for rule in rules] == [(0.9, 16), (0.75, 16), (0.0, 3)]
    assert LLAMACPP_2025.words == "drafts until its probability is below 0.75 (that token is drafted too), at most 16"


@pytest.mark.parametrize(
    ("rule", "spread"), [(LLAMACPP_2025, 0.0), (LLAMACPP_2025, 1.5), (StopRule(5, 0.6, False), 1.0)]
)
def test_monte_carlo_of_the_loop(rule: StopRule, spread: float) -> None:
    """The engine's loop, simulated token by token, agrees within 4 %: the acceptance looked up has its own noise."""
    confidence, mean, rng = Confidence(3.0, spread), 1.2, np.random.default_rng(7)
    drafted = accepted = 0
    rounds = 30_000
    for difficulty in mean + spread * rng.standard_normal(rounds):
        m = 1 / (1 + np.exp(-difficulty))
        sure, ok = rng.beta(m * 3.0, (1 - m) * 3.0, size=rule.n_max), True
        for p in sure:
            if p < rule.p_min and not rule.keeps_unsure:
                break
            drafted += 1
            ok = ok and rng.random() < p
            accepted += ok
            if p < rule.p_min:
                break
    found = drafting(accepted / drafted, rule, confidence)
    assert found.drafted == pytest.approx(drafted / rounds, rel=0.04)
    assert found.accepted == pytest.approx(accepted / rounds, rel=0.04)


def test_mean_over_lengths() -> None:
    """The mean cost weighs each length: of the length itself it is the mean length."""
    d = drafting(0.7, LLAMACPP_2025)
    assert d.mean(float) == pytest.approx(d.drafted)
    assert d.mean(lambda n: 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: drafting(1.2, LLAMACPP_2025), "alpha is 1.2"),
        (lambda: StopRule(0), "n_max is 0"),
        (lambda: StopRule(4, 1.5), "p_min is 1.5"),
        (lambda: Confidence(0.0), "concentration 0"),
    ],
)
def test_refusals(make: object, said: str) -> None:
    """What is impossible is refused with its value."""
    with pytest.raises(UsageError, match=said):
        make()  # type: ignore[operator]
