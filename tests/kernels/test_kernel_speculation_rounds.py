"""Speculative decoding of a real pair with our kernel as the verifier."""

import torch

from perfmodel.validate.bench import speculation
from perfmodel.validate.bench.speculation import Decoder
from perfmodel.validate.bench.transformer import Sizes, Transformer

SMALL = Sizes(vocab=48, hidden=32, layers=3, heads=2, intermediate=64, positions=128)


def test_kernel_accepts_what_torch_accepts(device: str) -> None:
    """For the same distributions, drafts and uniform numbers the kernel accepts as many drafts as torch."""
    decoder = Decoder(Transformer(SMALL, seed=1, device=device), draft_layers=1, seed=2, kernel=True)
    seen = set()
    for _ in range(12):
        drafted, q = decoder.propose(3)
        p = decoder.distribution([decoder.text[-1], *drafted], decoder.cache)
        tokens = torch.tensor(drafted, device=device)
        uniforms = torch.rand(3, generator=decoder.random, device=device)
        ours, token = decoder._by_kernel(p, q, tokens, uniforms)
        theirs, _ = decoder._by_torch(p, q, tokens, uniforms)
        assert ours == theirs
        assert 0 <= token < SMALL.vocab
        assert p[ours, token] > 0
        seen.add(ours)
        decoder.restart()
        decoder.text.append(len(seen))  # another text, so that other drafts follow
    assert len(seen) > 1


def test_rounds_by_the_kernel_are_as_long_as_expected(device: str) -> None:
    """Tokens a round are within four standard errors of what the distributions promised."""
    got = speculation.run(Transformer(SMALL, seed=0, device=device), 1, 2, rounds=40, seconds=30, kernel=True)
    assert got.rounds > 10
    assert abs(got.off) < 4
