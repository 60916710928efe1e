"""Acceptance from counts: estimates, intervals that cover, and what they mean for the tokens of a round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.speculative.acceptance_fit import Fitted, from_lengths, from_reached, tokens_under
from perfmodel.roofline.speculative.candidates import candidate
from perfmodel.roofline.speculative.evaluate import speculate
from perfmodel.roofline.speculative.methods import method

TRUE = np.array([0.8, 0.7, 0.6, 0.5])
TARGET = {"model": "llama3-70b", "gpu": "h100", "tp": 8}


def simulated(rounds: int, seed: int) -> Fitted:
    """Accepted lengths of rounds with the true acceptances."""
    lengths = (np.random.default_rng(seed).random((rounds, 4)) < TRUE).cumprod(axis=1).sum(axis=1)
    return from_lengths(lengths.tolist(), 4, "simulated")


def test_counts_by_hand() -> None:
    """Rounds of 2, 0, 1 and 2 accepted: 3 of 4 pass the first position, 2 of those 3 the second."""
    found = from_lengths([2, 0, 1, 2], 2, "by hand")
    assert (found.trials, found.accepted) == ((4.0, 3.0), (3.0, 2.0))
    assert found.tau == pytest.approx(1 + 0.75 + 0.5)


def test_estimates_converge() -> None:
    """A hundred thousand rounds give each position's acceptance to 0.008, and the mean length to 0.02."""
    found = simulated(100_000, 1)
    assert found.alphas == pytest.approx(TRUE, abs=0.008)
    assert found.tau == pytest.approx(1 + np.cumprod(TRUE).sum(), abs=0.02)


def test_intervals_cover() -> None:
    """Of 80 % intervals of 300 logs of 200 rounds, between 74 and 86 % hold the truth, at every position."""
    inside = np.zeros(4)
    for seed in range(300):
        low, high = simulated(200, seed).interval
        inside += (low <= TRUE) & (high >= TRUE)
    assert (np.abs(inside / 300 - 0.8) < 0.06).all()


def test_speedup_intervals_cover() -> None:
    """The spread of the tokens that a log allows is that of the tokens over many such logs."""
    acceptance = simulated(10, 0).acceptance()
    c = candidate(acceptance, 4)
    taus = [simulated(300, seed).tau for seed in range(300)]
    assert simulated(300, 9).spread(c) == pytest.approx(float(np.std(np.log(taus))), rel=0.15)


@given(
    alphas=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4), siblings=st.lists(st.floats(0, 0.5), max_size=2),
    gamma=st.integers(1, 5), nodes=st.integers(1, 12),
)  # fmt: skip
def test_tokens_for_many_acceptances(alphas: list[float], siblings: list[float], gamma: int, nodes: int) -> None:
    """One row of acceptances gives the tokens that the shape has with them, for chains and for trees."""
    acceptance = method("eagle-1").acceptance.model_copy(
        update={"alphas": tuple(alphas), "siblings": tuple(siblings)}
    )  # fmt: skip
    for c in (candidate(acceptance, gamma), candidate(acceptance, gamma, nodes, 4)):
        assert tokens_under(c, np.array([alphas]), siblings) == pytest.approx([c.tokens])


def test_more_rounds_are_surer() -> None:
    """The interval of a speedup shrinks towards that of the times alone with the rounds of the log."""
    few, many = (speculate(**TARGET, method="sps", draft="llama3.2-1b", log=simulated(n, 2)) for n in (50, 50_000))
    alone = speculate(**TARGET, method="sps", draft="llama3.2-1b")

    def width(found: object) -> float:
        low, high = found.interval  # type: ignore[attr-defined]
        return float(np.log(high / low)[0, 0])

    assert width(few) > 1.5 * width(many)
    assert width(many) == pytest.approx(width(alone), rel=0.05)


def test_the_best_length_follows_the_log() -> None:
    """Falling acceptance makes the best draft shorter than one acceptance with the same first position does."""
    falling = from_reached([1000, 800, 400, 100, 10], "falling")
    flat = from_reached([1000, 800, 640, 512, 409], "flat")
    shapes = [
        speculate(**TARGET, method="sps", draft="llama3.2-1b", log=log).best[0][0] for log in (falling, flat)
    ]  # fmt: skip
    assert shapes[0] is not None
    assert shapes[1] is not None
    assert len(shapes[0].tree) < len(shapes[1].tree)


def test_trees_keep_the_methods_candidates() -> None:
    """With a log of chains a tree method still has its candidates of a position, and says it fitted the rest."""
    found = speculate(**TARGET, method="eagle-3", log=simulated(1000, 3))
    assert found.acceptance.siblings == method("eagle-3").acceptance.siblings
    assert found.acceptance.basis == "fitted"


def test_a_position_that_no_round_reached_is_left_out() -> None:
    """Positions without a trial have no estimate; the last one that has holds for them."""
    found = from_reached([10, 5, 0, 0], "short")
    assert found.alphas == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: from_reached([], "empty"), SpecError, "no round"),
        (lambda: from_reached([0, 0], "empty"), SpecError, "no round"),
        (lambda: from_lengths([3], 2, "x"), UsageError, "with 2 drafted"),
        (lambda: from_lengths([-1], 2, "x"), UsageError, "from -1"),
        (lambda: from_lengths([1], 0, "x"), UsageError, "1 to 64"),
        (lambda: Fitted((1.0,), (2.0,), 1.0, "x"), UsageError, "more accepted"),
        (
            lambda: speculate(**TARGET, method="ngram", alpha=0.5, log=simulated(10, 0)), UsageError,
            "give one of them",
        ),
    ],
)  # fmt: skip
def test_bad_counts(call: object, error: type, message: str) -> None:
    """Counts that cannot be are refused with their values."""
    with pytest.raises(error, match=message):
        call()  # type: ignore[operator]
