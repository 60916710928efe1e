"""The formulas of speculative decoding: published tables, limits, optima and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative import formulas as f

UNIT = st.floats(0, 1)
COST = st.floats(0, 2)

# Leviathan et al., arXiv:2211.17192, tables 2 and 4 (appendix A.3): alpha, gamma, c and the expected speedup.
LEVIATHAN = [
    ("EnDe T=0 small", 0.75, 7, 0.02, 3.2), ("EnDe T=0 base", 0.80, 7, 0.04, 3.3),
    ("EnDe T=0 large", 0.82, 7, 0.11, 2.5), ("EnDe T=1 small", 0.62, 7, 0.02, 2.3),
    ("EnDe T=1 base", 0.68, 5, 0.04, 2.4), ("EnDe T=1 large", 0.71, 3, 0.11, 2.0),
    ("CNNDM T=0 small", 0.65, 5, 0.02, 2.4), ("CNNDM T=0 base", 0.73, 5, 0.04, 2.6),
    ("CNNDM T=0 large", 0.74, 3, 0.11, 2.0), ("CNNDM T=1 small", 0.53, 5, 0.02, 1.9),
    ("CNNDM T=1 base", 0.55, 3, 0.04, 1.8), ("CNNDM T=1 large", 0.56, 3, 0.11, 1.6),
]  # fmt: skip


@pytest.mark.parametrize(("name", "alpha", "gamma", "c", "expected"), LEVIATHAN, ids=[r[0] for r in LEVIATHAN])
def test_published_speedups(name: str, alpha: float, gamma: int, c: float, expected: float) -> None:
    """Every expected speedup of Leviathan's table lies within what the rounding of its alpha and c leaves open."""
    low = float(f.speedup(alpha - 0.005, gamma, c + 0.005))
    high = float(f.speedup(alpha + 0.005, gamma, c - 0.005))
    assert low - 0.05 <= expected <= high + 0.05


def test_published_speedups_by_their_printed_inputs() -> None:
    """With alpha and c as printed, nine of the twelve come out to the digit; the others are 0.06 low at most."""
    off = [expected - float(f.speedup(alpha, gamma, c)) for _, alpha, gamma, c, expected in LEVIATHAN]
    assert sum(abs(x) <= 0.05 for x in off) == 9
    assert max(map(abs, off)) < 0.07


def test_limits() -> None:
    """Nothing accepted yields one token, all gamma + 1; the bound needs endless chains as well as a free draft."""
    assert f.expected_tokens(0.0, 5) == 1
    assert f.expected_tokens(1.0, 5) == 6
    assert f.speedup(0.8, 5, 0.0) == pytest.approx(3.68928)
    assert f.speedup(0.8, 500, 0.0) == pytest.approx(f.speedup_bound(0.8))
    assert f.speedup_bound(1.0) == np.inf


@given(alpha=UNIT, gamma=st.integers(0, 64))
def test_tokens_equal_the_sum(alpha: float, gamma: int) -> None:
    """The closed form equals the sum of powers to rounding at every acceptance, also next to 1."""
    for a in (alpha, 1 - alpha * 1e-9):
        assert f.expected_tokens(a, gamma) == pytest.approx(sum(a**i for i in range(gamma + 1)), rel=1e-12)


@given(alpha=UNIT, c=st.floats(0.001, 1.5), v=st.floats(0.5, 3))
def test_best_gamma_is_the_best(alpha: float, c: float, v: float) -> None:
    """No other chain of up to 64 tokens, nor plain decoding, is faster than the one chosen."""
    best = int(f.best_gamma(alpha, c, v))
    gains = [1.0] + [float(f.speedup(alpha, g, c, v)) for g in range(1, 65)]
    assert gains[best] >= max(gains) * (1 - 1e-12)


@given(alpha=UNIT, c=UNIT)
def test_some_chain_pays_just_where_acceptance_exceeds_cost(alpha: float, c: float) -> None:
    """With free verification a gain exists if and only if alpha > c: neither 0.3 nor 0.5 is a limit."""
    if abs(alpha - c) > 1e-9:
        assert (f.best_gamma(alpha, c) > 0) == (alpha > c)


def test_the_chapter_examples_of_loss_are_gains_at_gamma_1() -> None:
    """Acceptance 0.3 with c = 0.05 gains 1.24x, and c = 0.5 with acceptance 0.8 gains 1.2x, at one drafted token."""
    assert f.speedup(0.3, 1, 0.05) == pytest.approx(1.238, abs=1e-3)
    assert f.speedup(0.8, 1, 0.5) == pytest.approx(1.2)


@given(gamma=st.integers(1, 32), c=st.floats(0, 0.9), v=st.floats(1.0, 1.5))
def test_break_even_gains_nothing(gamma: int, c: float, v: float) -> None:
    """At the break-even acceptance, and at the break-even cost, the speedup is 1."""
    a = float(f.break_even_acceptance(gamma, c, v))
    if np.isnan(a):
        assert gamma * c + v > gamma + 1
        return
    assert f.speedup(a, gamma, c, v) == pytest.approx(1, abs=1e-9)
    if (cost := float(f.break_even_cost(a, gamma, v))) >= 0:
        assert f.speedup(a, gamma, cost, v) == pytest.approx(1, abs=1e-9)


@given(alphas=st.lists(UNIT, min_size=1, max_size=12))
def test_positions(alphas: list[float]) -> None:
    """The chances of all accepted lengths sum to 1 and their mean is tau less the own token."""
    pmf = f.accepted_pmf(alphas)
    assert pmf.sum() == pytest.approx(1)
    assert 1 + (pmf * np.arange(len(pmf))).sum() == pytest.approx(f.expected_tokens_by_position(alphas))


@given(alpha=UNIT, gamma=st.integers(1, 10), batch=st.integers(1, 64))
def test_the_slowest_of_a_batch(alpha: float, gamma: int, batch: int) -> None:
    """A batch that advances together keeps no more than a sequence alone, and less the larger it is."""
    alphas = np.full(gamma, alpha)
    assert f.expected_slowest(alphas, 1) == pytest.approx(f.expected_tokens(alpha, gamma))
    assert f.expected_slowest(alphas, batch + 1) <= f.expected_slowest(alphas, batch) + 1e-12


def test_the_slowest_by_simulation() -> None:
    """The expected minimum over a batch equals a simulation of it within three standard errors."""
    rng = np.random.default_rng(1)
    lengths = (rng.random((200_000, 4, 5)) < 0.8).cumprod(axis=2).sum(axis=2).min(axis=1) + 1
    assert abs(lengths.mean() - f.expected_slowest([0.8] * 5, 4)) < 3 * lengths.std() / np.sqrt(len(lengths))


@given(alpha=st.floats(0, 1), gamma=st.integers(1, 32))
def test_acceptance_of_a_published_tau(alpha: float, gamma: int) -> None:
    """The acceptance found for a number of tokens yields that number."""
    tau = f.expected_tokens(alpha, gamma)
    assert f.expected_tokens(f.alpha_of_tokens(tau, gamma), gamma) == pytest.approx(tau, rel=1e-9)


def test_decay() -> None:
    """Acceptance falls with the logarithm of the position and not below zero."""
    got = f.decayed_acceptance(0.8, 0.1, 3)
    assert got == pytest.approx([0.8, 0.8 * (1 - 0.1 * np.log(2)), 0.8 * (1 - 0.1 * np.log(3))])
    assert f.decayed_acceptance(0.5, 10.0, 4)[-1] == 0


@given(a=st.lists(UNIT, min_size=2, max_size=5), c=COST)
def test_scalar_equals_vector(a: list[float], c: float) -> None:
    """An array of points gives what each point alone gives."""
    for function in (lambda x: f.speedup(x, 4, c), lambda x: f.best_gamma(x, c), lambda x: f.expected_tokens(x, 3)):
        assert np.asarray(function(np.array(a))) == pytest.approx([float(function(x)) for x in a], rel=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: f.expected_tokens(1.2, 3), "alpha is 1.2; it must be between 0 and 1"),
        (lambda: f.expected_tokens(float("nan"), 3), "alpha is nan"),
        (lambda: f.expected_tokens(0.5, -1), "gamma is -1; it must be finite and >= 0"),
        (lambda: f.speedup(0.5, 3, -0.1), "draft_cost is -0.1"),
        (lambda: f.speedup(0.5, 3, 0.1, 0.0), "verify_cost is 0; it must be finite and > 0"),
        (lambda: f.alpha_of_tokens(9.0, 5), "9.0 tokens a round are not between 1 and gamma"),
    ],
)
def test_bad_numbers(call: object, message: str) -> None:
    """A number out of range is refused with its name, its value and the range."""
    with pytest.raises(UsageError, match=message.replace("+", r"\+").replace(">=", ">=")):
        call()  # type: ignore[operator]
