"""Speculative decoding for real: a pair of transformers, its output's distribution, its length against the formula."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from perfmodel.validate.bench.speculation import Decoder, Seen, run
from perfmodel.validate.bench.speculation_output import chi_square, place
from perfmodel.validate.bench.speculation_time import Blocks, passes, stopwatch
from perfmodel.validate.bench.transformer import Sizes, Transformer

SMALL = Sizes(vocab=12, hidden=32, layers=2, heads=2, intermediate=64, positions=64)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The products are small: more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small() -> Transformer:
    """A model of two layers, whose first drafts."""
    return Transformer(SMALL, seed=3, sharpness=2.0)


def test_cache_equals_recomputing(small: Transformer) -> None:
    """Token by token with the cache, or all at once, the logits are the same."""
    tokens = torch.arange(10) % SMALL.vocab
    whole = small.logits(tokens, small.cache())
    cache = small.cache()
    parts = torch.cat([small.logits(part, cache) for part in (tokens[:4], tokens[4:5], tokens[5:])])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)


def first_tokens(model: Transformer, draws: int, decoder: Decoder) -> np.ndarray:
    """The first two tokens after the prompt, of many runs from it."""
    found = np.zeros((draws, 2), dtype=np.int64)
    length = len(decoder.prompt)
    for i in range(draws):
        decoder.text = decoder.prompt.tolist()
        decoder.cache.length = decoder.draft_cache.length = length - 1
        while len(decoder.text) < length + 2:
            decoder.round(2)
        found[i] = decoder.text[length : length + 2]
    return found


def exact(model: Transformer, prompt: list[int]) -> np.ndarray:
    """Chance of each pair of tokens after the prompt, by the model alone; (vocab, vocab)."""

    def after(tokens: list[int]) -> np.ndarray:
        logits = model.logits(torch.tensor(tokens), model.cache())[-1]
        return torch.softmax(logits.double(), dim=-1).numpy()

    first = after(prompt)
    return first[:, None] * np.stack([after([*prompt, token]) for token in range(model.sizes.vocab)])


def test_output_follows_the_model(small: Transformer) -> None:
    """Pairs of generated tokens follow the model's own probabilities by the chi-square test, the drafter's do not."""
    decoder = Decoder(small, draft_layers=1, seed=5)
    draws = 3000
    pairs = first_tokens(small, draws, decoder)
    counts = np.zeros((SMALL.vocab, SMALL.vocab))
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    expected = exact(small, decoder.prompt.tolist()) * draws
    likely = expected >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4
    draft = torch.softmax(small.logits(decoder.prompt, small.cache(1), 1)[-1].double(), dim=-1).numpy()
    assert stats.chisquare(counts.sum(axis=1), draft * draws).pvalue < 1e-4


def test_tokens_a_round_are_as_expected() -> None:
    """Measured tokens a round are within three standard errors of what the distributions promised."""
    got = run(Transformer(Sizes(), seed=0), draft_layers=2, gamma=4, rounds=400, seconds=20)
    assert got.rounds >= 100
    assert abs(got.off) < 3
    assert 1 < got.tau < 5
    assert 0 < got.alpha < 1
    # one acceptance for all positions is an approximation of the same
    assert got.tau_formula == pytest.approx(got.tau_expected, rel=0.25)
    assert got.draft_cost < 1
    assert got.speedup > 0


def test_a_drafter_that_is_the_model_is_always_accepted(small: Transformer) -> None:
    """With all layers drafting every token is accepted, and a round yields gamma + 1."""
    decoder, seen = Decoder(small, draft_layers=2), Seen()
    for _ in range(5):
        decoder.round(3, seen)
    assert seen.tokens == [4] * 5
    assert np.mean(seen.expected) == pytest.approx(4, abs=1e-3)


# ---- the output's distribution


def test_the_chance_is_that_of_the_chi_square_distribution() -> None:
    """Statistic and p are scipy's for the same counts; few places are no test."""
    places = np.random.default_rng(1).random(1000)
    statistic, degrees, chance = chi_square(list(places))
    seen, _ = np.histogram(places, 16, (0, 1))
    theirs = stats.chisquare(seen)
    assert (statistic, degrees, chance) == (pytest.approx(theirs.statistic), 15, pytest.approx(theirs.pvalue))
    assert chi_square([0.5] * 40)[1] == 4  # 8 tokens for each interval
    assert chi_square([0.5] * 15) == (0.0, 0, 1.0)


def test_places_are_even_for_the_right_distribution_alone() -> None:
    """Tokens drawn from p have even places in p, whatever the order; those drawn from q do not."""
    random = torch.Generator().manual_seed(2)
    p, q = (torch.softmax(torch.randn(40, generator=random), 0) for _ in "pq")
    uniforms = np.random.default_rng(2).random(4000)

    def chance(drawn_from: torch.Tensor, order: torch.Tensor) -> float:
        tokens = torch.multinomial(drawn_from, 4000, True, generator=random).tolist()
        return chi_square([place(p, order, token, u) for token, u in zip(tokens, uniforms, strict=True)])[2]

    for order in (q / p, p, torch.arange(40.0), torch.zeros(40)):
        assert chance(p, order) > 1e-4
    assert chance(q, q / p) < 1e-9


@pytest.mark.parametrize("broken", ["accepts all", "samples the model anew", "keeps one short"])
def test_a_broken_sampler_is_seen_in_its_output(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that accepts every draft, one that draws from the model where it should from the residual: both end
    far from the model's distribution. One that stops early is right in its output, and its length is not."""
    right = Decoder._by_torch

    def wrong(self: Decoder, p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor, u: torch.Tensor):
        if broken == "accepts all":
            return len(tokens), int(torch.multinomial(p[-1], 1, generator=self.random))
        accepted, last = right(self, p, q, tokens, u)
        if broken == "keeps one short":
            return (accepted - 1, int(tokens[accepted - 1])) if accepted else (accepted, last)
        return accepted, int(torch.multinomial(p[accepted], 1, generator=self.random))

    monkeypatch.setattr(Decoder, "_by_torch", wrong)
    got = run(Transformer(Sizes(vocab=64, hidden=32, layers=4, heads=2), seed=1), 1, 3, rounds=600, seconds=8, seed=1)
    assert (got.chance > 1e-3) == (broken == "keeps one short")
    assert abs(got.off) > 5 or broken == "samples the model anew"


# ---- its time


@pytest.mark.parametrize("gamma", [1, 5, 16])
def test_blocks_fit_the_caches(gamma: int) -> None:
    """Parts are timed over one sequence that starts again in time; drafts and verifications repeat the same one."""
    sizes = Sizes(vocab=64, hidden=32, layers=4, heads=2, intermediate=64, positions=96)
    decoder = Decoder(Transformer(sizes, seed=1), 1)
    blocks = Blocks(decoder, gamma, stopwatch("cpu"))
    for _ in range(12):
        assert all(seconds > 0 for seconds in blocks.turn())
        assert len(decoder.text) <= sizes.positions
        assert decoder.cache.length == len(decoder.text) - 1


def test_times_are_ratios_within_a_turn() -> None:
    """A drafter of all layers costs a plain step; whole rounds spread around their median, and turns are counted."""
    sizes = Sizes(vocab=64, hidden=32, layers=4, heads=2, intermediate=64, positions=128)
    found = passes(Decoder(Transformer(sizes, seed=1), 4), 2, 1.0)
    assert found.draft == pytest.approx(1, rel=0.35)
    assert found.fast <= found.whole <= found.slow
    assert found.turns >= 9
    assert 0 <= found.disturbed <= 1
