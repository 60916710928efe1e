"""Speculative decoding end to end: a real pair of models, measured acceptance, length and speedup against the formula.

Every round drafts ``gamma`` tokens with the first layers of the model, verifies them in one pass of all layers, keeps
the accepted prefix and draws the corrected or bonus token. What is counted is compared with what is predicted:

- tokens a round with ``1 + sum_i prod_(j<=i) alpha_j``, where ``alpha`` is ``1 - TVD`` of the two distributions at each
  position of each round (known before any token is accepted or rejected);
- the speedup with ``tau / (gamma c + v)`` from the times of the three kinds of pass, each measured by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from perfmodel.roofline.speculative.formulas import expected_tokens, speedup
from perfmodel.validate.bench.transformer import Cache, Transformer

#: Of the text that a run starts with.
PROMPT = 16


@dataclass
class Seen:
    """What rounds have shown: tokens of each, what was expected of it, and the acceptance of each position."""

    tokens: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    alphas: list[list[float]] = field(default_factory=list)


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
        Measured end to end, and from tau, c and v.
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
    """

    def __init__(self, model: Transformer, draft_layers: int, seed: int = 0) -> None:
        self.model, self.draft_layers = model, draft_layers
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
        drafted, q = self.propose(gamma)
        p = self.distribution([self.text[-1], *drafted], self.cache)
        tokens = torch.tensor(drafted, device=self.model.device)
        index = torch.arange(gamma, device=self.model.device)
        chances = p[index, tokens] / q[index, tokens]
        uniforms = torch.rand(gamma, generator=self.random, device=self.model.device)
        accepted = int((uniforms < chances).long().cumprod(0).sum())
        rest = p[accepted] if accepted == gamma else (p[accepted] - q[accepted]).clamp(min=0)
        last = int(pick(rest if float(rest.sum()) > 0 else p[accepted], self.random))
        if seen is not None:
            alphas = torch.minimum(p[:gamma], q).sum(dim=-1).double().clamp(max=1)
            seen.alphas.append(alphas.tolist())
            seen.tokens.append(accepted + 1)
            seen.expected.append(1.0 + float(_reached(chances.double().clamp(max=1)).sum()))
        self.text += [*drafted[:accepted], last]
        # what was rejected is overwritten: lengths go back to the accepted text without its last token
        self.cache.length = len(self.text) - 1
        self.draft_cache.length = min(self.draft_cache.length, len(self.text) - 1)
        return accepted + 1


def _reached(chances: torch.Tensor) -> torch.Tensor:
    """Chance that each position is accepted with all before it."""
    return chances.cumprod(0)


def run(
    model: Transformer, draft_layers: int, gamma: int, *, rounds: int = 300, seconds: float = 20.0, seed: int = 0
) -> Outcome:  # fmt: skip
    """Measure speculative decoding of one sequence after another until so many rounds, or the time, are spent.

    The tokens expected of a round are conditional on what was drafted: ``1 + sum of prod min(1, p/q)``, so the
    difference to what was accepted has mean 0 whatever the text.
    """
    decoder, seen = Decoder(model, draft_layers, seed), Seen()
    end, spent, yielded = time.perf_counter() + seconds, 0.0, 0
    while len(seen.tokens) < rounds and time.perf_counter() < end:
        if decoder.room < gamma + 2:
            decoder.restart()
        decoder.round(gamma, seen)
    decoder.restart()
    for _ in range(min(len(seen.tokens), 100)):
        if decoder.room < gamma + 2:
            decoder.restart()
        start = time.perf_counter()
        yielded += decoder.round(gamma)
        _settle(model)
        spent += time.perf_counter() - start
    plain, draft, verify = _passes(model, draft_layers, gamma, seed)
    tokens, expected = np.array(seen.tokens, dtype=float), np.array(seen.expected)
    alphas: NDArray[np.float64] = np.array(seen.alphas)
    tau = float(tokens.mean())
    error = float((tokens - expected).std(ddof=1) / np.sqrt(len(tokens))) if len(tokens) > 1 else 0.0
    alpha = float(alphas[:, 0].mean())
    return Outcome(
        gamma, len(tokens), tau, error, float(expected.mean()), alpha, float(expected_tokens(alpha, gamma)),
        draft / plain, verify / plain, plain * yielded / spent,
        float(speedup(0.0, gamma, draft / plain, verify / plain)) * yielded / min(len(seen.tokens), 100), plain,
    )  # fmt: skip


def _settle(model: Transformer) -> None:
    if model.device != "cpu":
        torch.cuda.synchronize()


def _passes(model: Transformer, draft_layers: int, gamma: int, seed: int) -> tuple[float, float, float]:
    """Seconds of a plain step, of a draft step, and of a verification with its acceptance: medians, taken in turns."""
    decoder = Decoder(model, draft_layers, seed)
    found: list[list[float]] = [[], [], []]
    for _ in range(40):
        if decoder.room < 3 * gamma + 8:
            decoder.restart()
        start = time.perf_counter()
        decoder.plain_step()
        _settle(model)
        found[0].append(time.perf_counter() - start)
        decoder.draft_cache.length = min(decoder.draft_cache.length, len(decoder.text) - 1)
        decoder.distribution(decoder.text[decoder.draft_cache.length :], decoder.draft_cache, draft_layers)
        decoder.draft_cache.length = len(decoder.text) - 1
        start = time.perf_counter()
        decoder.propose(gamma)
        _settle(model)
        found[1].append((time.perf_counter() - start) / gamma)
        decoder.draft_cache.length = len(decoder.text) - 1
        start = time.perf_counter()
        decoder.round(gamma)
        _settle(model)
        found[2].append(time.perf_counter() - start - found[1][-1] * gamma)
    plain, draft, verify = (float(np.median(times[5:])) for times in found)
    return plain, draft, max(verify, 1e-9)
