"""Speculative decoding end to end: a real pair of models, measured acceptance, length and speedup against the formula.

Every round drafts ``gamma`` tokens with the first layers of the model, verifies them in one pass of all layers, keeps
the accepted prefix and draws the corrected or bonus token. What is counted is compared with what is predicted:

- tokens a round with ``1 + sum_i prod_(j<=i) alpha_j``, where ``alpha`` is ``1 - TVD`` of the two distributions at each
  position of each round (known before any token is accepted or rejected);
- the tokens that were put out with the model's own distribution, by a chi-square test;
- the speedup, from the time of a whole round, with ``tau / (gamma c + v)`` from the times of the three kinds of pass,
  each measured by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from perfmodel.roofline.speculative.formulas import expected_tokens, speedup
from perfmodel.validate.bench.speculation_output import chi_square, place
from perfmodel.validate.bench.speculation_report import FEWEST
from perfmodel.validate.bench.speculation_report import Outcome as Outcome
from perfmodel.validate.bench.transformer import Cache, Transformer

#: Of the text that a run starts with.
PROMPT = 16


@dataclass
class Seen:
    """What rounds have shown: tokens of each, what was expected of it, the acceptance of each position, and the place
    of each token in the model's distribution."""

    random: np.random.Generator = field(default_factory=np.random.default_rng)
    places: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    alphas: list[list[float]] = field(default_factory=list)


def pick(probabilities: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """One token of each distribution (last axis)."""
    return torch.multinomial(probabilities, 1, generator=random)[..., 0]


class Decoder:
    """One sequence under a model and a drafter of its first layers.

    Parameters
    ----------
    model : Transformer
    draft_layers : int
    seed : int
    kernel : bool
        Verify with our kernel, ``kernels.speculative.chain.verify_chain``, instead of torch.
    """

    def __init__(self, model: Transformer, draft_layers: int, seed: int = 0, kernel: bool = False) -> None:
        self.model, self.draft_layers, self.kernel = model, draft_layers, kernel
        self.random = torch.Generator(device=model.device).manual_seed(seed)
        self.prompt = torch.arange(PROMPT, device=model.device) % model.sizes.vocab
        self.restart()

    def restart(self) -> None:
        """Back to the prompt, all of whose tokens but the last are in the caches."""
        self.cache, self.draft_cache = self.model.cache(), self.model.cache(self.draft_layers)
        self.model.logits(self.prompt[:-1], self.cache)
        self.model.logits(self.prompt[:-1], self.draft_cache, self.draft_layers)
        self.text = self.prompt.tolist()

    @property
    def room(self) -> int:
        """Tokens that the caches still take."""
        return self.model.sizes.positions - len(self.text)

    def distribution(self, tokens: list[int], cache: Cache, layers: int | None = None) -> torch.Tensor:
        """Distributions after each of some tokens."""
        new = torch.tensor(tokens, device=self.model.device)
        return torch.softmax(self.model.logits(new, cache, layers), dim=-1)

    def plain_step(self) -> None:
        """One token, by the model alone."""
        p = self.distribution(self.text[-1:], self.cache)[0]
        self.text.append(int(pick(p, self.random)))

    def catch_up(self) -> None:
        """Let the drafter see the text but for its last token."""
        length = self.draft_cache.length = min(self.draft_cache.length, len(self.text) - 1)
        if length < len(self.text) - 1:
            self.distribution(self.text[length:-1], self.draft_cache, self.draft_layers)

    def propose(self, gamma: int) -> tuple[list[int], torch.Tensor]:
        """Drafted tokens and the drafter's distributions, (gamma, vocab); catches up with the text first."""
        new = self.text[self.draft_cache.length :]
        drafted: list[int] = []
        rows: list[torch.Tensor] = []
        for _ in range(gamma):
            q = self.distribution(new, self.draft_cache, self.draft_layers)[-1]
            drafted.append(int(pick(q, self.random)))
            rows.append(q)
            new = drafted[-1:]
        return drafted, torch.stack(rows)

    def round(self, gamma: int, seen: Seen | None = None) -> int:
        """One round; returns the tokens that it yielded."""
        return self.conclude(*self.propose(gamma), seen)

    def conclude(self, drafted: list[int], q: torch.Tensor, seen: Seen | None = None) -> int:
        """Verify what was drafted, keep what is accepted and the token after it; returns how many that are."""
        gamma = len(drafted)
        p = self.distribution([self.text[-1], *drafted], self.cache)
        tokens = torch.tensor(drafted, device=self.model.device)
        uniforms = torch.rand(gamma, generator=self.random, device=self.model.device)
        accepted, last = (self._by_kernel if self.kernel else self._by_torch)(p, q, tokens, uniforms)
        if seen is not None:
            chances = _chances(p, q, tokens)
            alphas = torch.minimum(p[:gamma], q).sum(dim=-1).double().clamp(max=1)
            seen.alphas.append(alphas.tolist())
            seen.tokens.append(accepted + 1)
            seen.expected.append(1.0 + float(_reached(chances.double().clamp(max=1)).sum()))
            seen.places += self._places(p, q, [*drafted[:accepted], last], seen.random)
        self.text += [*drafted[:accepted], last]
        # what was rejected is overwritten: lengths go back to the accepted text without its last token
        self.cache.length = len(self.text) - 1
        self.draft_cache.length = min(self.draft_cache.length, len(self.text) - 1)
        return accepted + 1

    def _places(self, p: torch.Tensor, q: torch.Tensor, tokens: list[int], random: np.random.Generator) -> list[float]:
        """Places of the tokens of a round in the model's distributions, in the order of q / p; of the token after a
        draft that was accepted as a whole in the order of p."""
        orders = [q[i] / p[i] if i < len(q) else p[i] for i in range(len(tokens))]
        return [place(p[i], orders[i], token, float(random.random())) for i, token in enumerate(tokens)]

    def _by_torch(
        self, p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[int, int]:
        """How many drafts are accepted, and the token after them."""
        accepted = int((uniforms < _chances(p, q, tokens)).long().cumprod(0).sum())
        rest = p[accepted] if accepted == len(tokens) else (p[accepted] - q[accepted]).clamp(min=0)
        return accepted, int(pick(rest if float(rest.sum()) > 0 else p[accepted], self.random))

    def _by_kernel(
        self, p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[int, int]:
        """The same in one call of our kernel, for one request at temperature 1."""
        from perfmodel.kernels.speculative.chain import verify_chain

        one, device = torch.ones(1, device=self.model.device), self.model.device
        sample = torch.rand(1, generator=self.random, device=device)
        length = torch.full((1,), len(tokens), dtype=torch.int32, device=device)
        found, accepted = verify_chain(
            p.log()[None], q.log()[None], tokens.to(torch.int32)[None], length, uniforms[None], sample, one
        )
        count = int(accepted)
        return count, int(found[0, count])


def _chances(p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Chance of each drafted token to be accepted, where above 1 stands for 1."""
    index = torch.arange(len(tokens), device=tokens.device)
    return p[index, tokens] / q[index, tokens]


def _reached(chances: torch.Tensor) -> torch.Tensor:
    """Chance that each position is accepted with all before it."""
    return chances.cumprod(0)


def run(
    model: Transformer, draft_layers: int, gamma: int, *, rounds: int = 300, seconds: float = 20.0, seed: int = 0,
    kernel: bool = False,
) -> Outcome:  # fmt: skip
    """Measure speculative decoding of one sequence after another until so many rounds, or the time, are spent.

    The tokens expected of a round are conditional on what was drafted: ``1 + sum of prod min(1, p/q)``, so the
    difference to what was accepted has mean 0 whatever the text.

    Parameters
    ----------
    seconds : float
        Half of it for the rounds, at least 30 of them; half for timing. [s]
    """
    from perfmodel.validate.bench.speculation_time import passes  # which uses the decoder of this module

    decoder, seen = Decoder(model, draft_layers, seed, kernel), Seen(np.random.default_rng(seed))
    end = time.perf_counter() + seconds / 2
    while len(seen.tokens) < min(rounds, FEWEST) or (len(seen.tokens) < rounds and time.perf_counter() < end):
        if decoder.room < gamma + 2:
            decoder.restart()
        decoder.round(gamma, seen)
    took = passes(decoder, gamma, seconds / 2)
    tokens, expected = np.array(seen.tokens, dtype=float), np.array(seen.expected)
    alphas: NDArray[np.float64] = np.array(seen.alphas)
    tau = float(tokens.mean())
    error = float((tokens - expected).std(ddof=1) / np.sqrt(len(tokens))) if len(tokens) > 1 else 0.0
    alpha, (statistic, degrees, chance) = float(alphas[:, 0].mean()), chi_square(seen.places)
    return Outcome(
        gamma=gamma, rounds=len(tokens), tau=tau, tau_error=error, tau_expected=float(expected.mean()), alpha=alpha,
        tau_formula=float(expected_tokens(alpha, gamma)), draft_cost=took.draft, verify_cost=took.verify,
        speedup=tau / took.whole, speedup_low=tau / took.slow, speedup_high=tau / took.fast,
        speedup_expected=tau * float(speedup(0.0, gamma, took.draft, took.verify)), plain_seconds=took.plain,
        turns=took.turns, disturbed=took.disturbed, chi2=statistic, degrees=degrees, chance=chance,
    )  # fmt: skip
