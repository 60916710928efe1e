"""Speculative decoding for real: a pair of transformers, its output's distribution, its length against the formula."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from perfmodel.validate.bench.speculation import Decoder, Seen, run
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
