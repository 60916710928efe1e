"""Exactness: the output of every sampler follows the target's distribution, and a planted fault does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative import acceptance, formulas, sampling, trees

DRAWS = 10**6
LEVEL = 1e-4  # the seeds are fixed: a sound sampler passes always, and a wrong one by far not


def p_value(tokens: np.ndarray, target: np.ndarray) -> float:
    """Chance of frequencies at least so far from the target, by the chi-square test."""
    counts = np.bincount(tokens, minlength=len(target))
    return float(stats.chisquare(counts, target * counts.sum()).pvalue)


@pytest.fixture(scope="module")
def models() -> tuple[np.ndarray, np.ndarray]:
    """Distributions of a target (5 positions) and a draft (4) over 24 tokens."""
    rng = np.random.default_rng(3)
    return rng.dirichlet(np.ones(24), 5), rng.dirichlet(np.ones(24), 4)


@pytest.fixture(scope="module")
def rounds(models: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A million rounds of a drafted chain."""
    return sampling.chain_rounds(*models, DRAWS, np.random.default_rng(11))


def test_chain_is_exact(models: tuple[np.ndarray, np.ndarray], rounds: tuple[np.ndarray, np.ndarray]) -> None:
    """At every position, the bonus token's included, the tokens follow the target."""
    tokens, _ = rounds
    for position, target in enumerate(models[0]):
        reached = tokens[:, position][tokens[:, position] != sampling.NONE]
        assert p_value(reached, target) > LEVEL, position


def test_an_off_by_one_is_found(models: tuple[np.ndarray, np.ndarray], rounds: tuple[np.ndarray, np.ndarray]) -> None:
    """Rejected positions drawn from the next position's rest, or the bonus from the last but one, fail the test."""
    target, draft = models
    wrong, _ = sampling.chain_rounds(np.roll(target, 1, axis=0), draft, DRAWS, np.random.default_rng(12))
    tokens, accepted = rounds
    assert p_value(wrong[:, 0], target[0]) < LEVEL
    bonus = tokens[accepted == 4, 4]
    assert p_value(bonus, target[4]) > LEVEL
    assert p_value(bonus, target[3]) < LEVEL


def test_accepted_length_is_tau(models: tuple[np.ndarray, np.ndarray], rounds: tuple[np.ndarray, np.ndarray]) -> None:
    """The mean number of tokens is tau of the positions' acceptances, 1 - TVD each, within three standard errors."""
    target, draft = models
    alphas = np.asarray(acceptance.acceptance(target[:-1], draft))
    lengths = rounds[1] + 1
    expected = float(formulas.expected_tokens_by_position(alphas))
    assert abs(lengths.mean() - expected) < 3 * lengths.std() / np.sqrt(DRAWS)
    pmf = np.bincount(rounds[1], minlength=5) / DRAWS
    assert pmf == pytest.approx(formulas.accepted_pmf(alphas), abs=3e-3)


@pytest.mark.parametrize("candidates", [1, 2, 5])
def test_several_candidates_are_exact(models: tuple[np.ndarray, np.ndarray], candidates: int) -> None:
    """A position with several candidates follows the target, and each wins as often as its chance says."""
    target, draft = models[0][0], models[1][0]
    tokens, winner = sampling.siblings(target, draft, candidates, DRAWS, np.random.default_rng(5))
    assert p_value(tokens, target) > LEVEL
    chances = sampling.sibling_acceptances(target, draft, candidates)
    won = np.bincount(winner + 1, minlength=candidates + 1)[1:] / DRAWS
    assert won == pytest.approx(chances, abs=3e-3)


def test_tree_is_exact(models: tuple[np.ndarray, np.ndarray]) -> None:
    """Every depth of a tree, the last one's own token included, follows the target."""
    tree = trees.branching((2, 2, 1))
    tokens, _ = sampling.tree_rounds(tree, models[0], models[1], DRAWS, np.random.default_rng(8))
    for depth, got in enumerate(tokens):
        assert p_value(got, models[0][depth]) > LEVEL, depth


def test_typical_acceptance_is_not_exact(models: tuple[np.ndarray, np.ndarray]) -> None:
    """Typical acceptance keeps tokens above its threshold whatever the draft, so its output is not the target's."""
    target, draft = models[0][0], models[1][0]
    guess = sampling.draw(draft, np.random.default_rng(2).random(DRAWS))
    plausible = np.array([sampling.typical_accepts(target[None], [token])[0] for token in range(24)])
    accepted = guess[plausible[guess]]
    assert plausible.any()
    assert not plausible.all()
    assert p_value(accepted, target) < LEVEL


@given(seed=st.integers(0, 10**6), size=st.integers(2, 40))
def test_acceptance_is_one_minus_distance(seed: int, size: int) -> None:
    """sum min(p, q) = 1 - TVD, from 0 to 1, and 1 only for equal distributions."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    assert acceptance.acceptance(p, q) == pytest.approx(1 - acceptance.total_variation(p, q))
    assert acceptance.acceptance(p, p) == pytest.approx(1)
    rest = acceptance.residual(p, q)
    assert rest.sum() == pytest.approx(1)
    # the two ways a token can come out add up to the target
    assert np.minimum(p, q) + (1 - acceptance.acceptance(p, q)) * rest == pytest.approx(p)


def test_temperature() -> None:
    """Greedy acceptance is agreement of the largest logits; a very high temperature makes any two models agree."""
    target, draft = np.array([3.0, 1.0, 0.0]), np.array([1.0, 3.0, 0.0])
    assert acceptance.acceptance_of_logits(target, draft, 0.0) == 0
    assert acceptance.acceptance_of_logits(target, target, 0.0) == 1
    assert acceptance.acceptance_of_logits(target, draft, 1e6) == pytest.approx(1)


def test_a_guess_is_accepted_by_the_targets_own_probability() -> None:
    """A deterministic draft, all on one token, is accepted with the target's probability of that token."""
    target = np.array([0.2, 0.7, 0.1])
    assert acceptance.acceptance_of_guess(target, 1) == acceptance.acceptance(target, [0, 1, 0]) == 0.7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acceptance.acceptance([0.5, 0.6], [0.5, 0.5]), "target sums to 1.1"),
        (lambda: acceptance.acceptance([0.5, 0.5], [1.5, -0.5]), "draft has a negative"),
        (lambda: acceptance.softmax([1.0], -1), "temperature is -1"),
        (lambda: sampling.chain_rounds(np.eye(3)[:2], np.eye(3)[:2], 5, np.random.default_rng(0)), "target has shape"),
        (lambda: sampling.tree_rounds(trees.chain(3), np.eye(3), np.eye(3), 5, np.random.default_rng(0)), "depth 3"),
    ],
)
def test_bad_distributions(call: object, message: str) -> None:
    """What is no distribution, or of the wrong shape, is refused with its value."""
    with pytest.raises(UsageError, match=message):
        call()  # type: ignore[operator]
