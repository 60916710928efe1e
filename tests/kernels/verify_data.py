"""Drafts and logits for the tests of verification, a test of goodness of fit, and what some GPUs lack."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from perfmodel.kernels.table import Config

Result = tuple[torch.Tensor, ...]


def small(block: int = 64) -> Config:
    """A configuration whose vocabulary blocks are small."""
    return Config({"BLOCK_V": block}, 4, 1)


@dataclass(frozen=True)
class Chain:
    """The arguments of `verify_chain`, by name."""

    target_logits: torch.Tensor
    draft_logits: torch.Tensor | None
    draft_tokens: torch.Tensor
    draft_lengths: torch.Tensor
    uniforms: torch.Tensor
    sample_uniforms: torch.Tensor
    temperature: torch.Tensor

    def arguments(self) -> dict[str, Any]:
        """What to call with."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def without_draft(self) -> Chain:
        """The same drafts, chosen without chance."""
        return replace(self, draft_logits=None)


def chain(
    requests: int,
    drafts: int,
    vocabulary: int,
    device: str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Chain:
    """Random logits, a draft that resembles the target, tokens drawn from it; lengths from 0 to `drafts`."""
    g = torch.Generator().manual_seed(seed)
    target = (torch.randn(requests, drafts + 1, vocabulary, generator=g) * 2).to(dtype)
    draft = (target[:, :-1].float() + torch.randn(requests, drafts, vocabulary, generator=g)).to(dtype)
    temperature = torch.rand(requests, generator=g) + 0.5
    q = torch.softmax(draft.float() / temperature[:, None, None], -1)
    tokens = torch.multinomial(q.view(-1, vocabulary), 1, generator=g).view(requests, drafts).int()
    lengths = torch.randint(0, drafts + 1, (requests,), generator=g).int()
    uniforms, last = torch.rand(requests, drafts, generator=g), torch.rand(requests, generator=g)
    return Chain(*(x.to(device) for x in (target, draft, tokens, lengths, uniforms, last, temperature)))


#: Target and draft probabilities at two places and after them; no two alike, so that a wrong row shows.
P = ((0.5, 0.3, 0.15, 0.05), (0.1, 0.1, 0.3, 0.5), (0.25, 0.05, 0.6, 0.1))
Q = ((0.1, 0.2, 0.3, 0.4), (0.4, 0.4, 0.1, 0.1))


def repeated(requests: int, device: str = "cpu", *, seed: int = 1, drafts: int = 2) -> Chain:
    """Many requests with the probabilities P and Q and chances of their own."""
    g = torch.Generator().manual_seed(seed)
    p, q = torch.tensor(P[: drafts + 1]), torch.tensor(Q[:drafts])
    tokens = torch.stack([torch.multinomial(row, requests, replacement=True, generator=g) for row in q], dim=1).int()
    target = p.log().expand(requests, -1, -1).contiguous()
    draft = q.log().expand(requests, -1, -1).contiguous()
    lengths = torch.full((requests,), drafts, dtype=torch.int32)
    uniforms, last = torch.rand(requests, drafts, generator=g), torch.rand(requests, generator=g)
    arguments = (target, draft, tokens, lengths, uniforms, last, torch.ones(requests))
    return Chain(*(x.to(device) for x in arguments))


def p_value(tokens: torch.Tensor, probabilities: tuple[float, ...]) -> float:
    """Pearson's chi-square: how likely tokens drawn with these probabilities are to fit no better than those given."""
    counts = torch.bincount(tokens.long().cpu(), minlength=len(probabilities)).double()
    expected = torch.tensor(probabilities, dtype=torch.float64) * len(tokens)
    statistic = ((counts - expected).square() / expected).sum()
    freedom = torch.tensor((len(probabilities) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def misfit(tokens: torch.Tensor, accepted: torch.Tensor) -> float:
    """Smallest p-value over the places of a `repeated` chain.

    The logits of a place do not depend on the tokens before it, so those that reach it are distributed as its P.
    """
    places = range(tokens.shape[1])
    return min(p_value(tokens[accepted >= place, place], P[place]) for place in places)


def assert_nearly_all(tokens: torch.Tensor, right: torch.Tensor, accepted: torch.Tensor, count: torch.Tensor) -> None:
    """Of a large vocabulary: the counts agree, and so do nine in ten rows of tokens.

    In float32 the running sum over 10^5 tokens is exact to about 10^-7, which is a hundredth of a token's probability.
    """
    assert torch.equal(accepted, count)
    assert (tokens != right).any(dim=1).double().mean().item() <= 0.1


def skip_where_missing(dtype: torch.dtype, device: str) -> None:
    """Skip a test of FP8 on a GPU that has none."""
    if device == "cuda" and dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU does not compute in FP8")
