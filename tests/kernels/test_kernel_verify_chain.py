"""Verification of a chain gives exactly what the float64 reference gives for the same chances."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from numeric import assert_close
from verify_data import Chain, assert_nearly_all, chain, small

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.speculative import chain as module
from perfmodel.kernels.speculative import sampling
from perfmodel.kernels.speculative.chain import verify_chain, verify_chain_reference
from perfmodel.kernels.speculative.rows import logsumexp_rows, logsumexp_rows_reference
from perfmodel.kernels.table import Config

INF = float("inf")


def assert_exact(given: Chain, config: Config | None = None) -> torch.Tensor:
    """Tokens and counts are those of the reference, all was written and nothing beyond; the counts."""
    with guarded_allocations():
        tokens, accepted = verify_chain(**given.arguments(), config=config or small())
    right, count = verify_chain_reference(**given.arguments())
    assert_close(tokens, right)
    assert_close(accepted, count)
    return accepted


@pytest.mark.parametrize(
    ("requests", "drafts", "vocabulary", "dtype"),
    [
        (6, 3, 37, torch.float32),
        (3, 1, 2, torch.float32),
        (4, 4, 200, torch.bfloat16),
        (2, 5, 64, torch.float16),
    ],
)
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "chosen"])
def test_equals_the_reference(
    device: str, requests: int, drafts: int, vocabulary: int, dtype: torch.dtype, drawn: bool
) -> None:
    """Random logits of each type, lengths from 0 to all, one vocabulary block and several, drafts drawn or chosen."""
    given = chain(requests, drafts, vocabulary, device, dtype=dtype, seed=vocabulary)
    assert_exact(given if drawn else given.without_draft())


def test_the_shipped_configuration(device: str) -> None:
    """Without a configuration of its own the call takes the table's."""
    with assume("sm_90"):
        given = chain(2, 2, 5000, device, dtype=torch.bfloat16)
        tokens, accepted = verify_chain(**given.arguments())
    right, count = verify_chain_reference(**given.arguments())
    assert_close(tokens, right)
    assert_close(accepted, count)


def test_all_none_and_first_rejected(device: str) -> None:
    """Equal distributions accept all and sample the bonus; a token the target excludes is rejected where it stands."""
    given = replace(chain(3, 3, 40, device), draft_lengths=torch.tensor([3, 3, 3], dtype=torch.int32, device=device))
    draft = given.target_logits[:, :3].clone()
    target = given.target_logits.clone()
    target[1, 0, given.draft_tokens[1, 0].long()] = -INF  # the first is rejected
    target[2, 2, given.draft_tokens[2, 2].long()] = -INF  # the last is rejected
    accepted = assert_exact(replace(given, target_logits=target, draft_logits=draft))
    assert accepted.tolist() == [3, 0, 2]


def test_no_chance_is_enough_for_a_token_without_probability(device: str) -> None:
    """A uniform of 0 accepts whatever the target allows and nothing that it excludes; q = 0 does not divide."""
    given = chain(3, 1, 20, device)
    draft, target = given.draft_logits.clone(), given.target_logits.clone()
    token = given.draft_tokens[:, 0].long()
    draft[0, 0, token[0]] = -INF  # the draft could not have proposed it
    target[1, 0, token[1]] = -INF
    draft[2, 0, token[2]] = target[2, 0, token[2]] = -INF
    ones = torch.ones(3, dtype=torch.int32, device=device)
    zeros = torch.zeros(3, 1, device=device)
    accepted = assert_exact(
        replace(given, target_logits=target, draft_logits=draft, draft_lengths=ones, uniforms=zeros)
    )
    assert accepted.tolist() == [1, 0, 0]


def test_lengths_and_tokens_out_of_range(device: str) -> None:
    """Lengths are limited to 0..G; a drafted token outside the vocabulary is rejected and read nowhere."""
    given = chain(4, 2, 30, device)
    tokens = given.draft_tokens.clone()
    tokens[2, 0], tokens[3, 0] = -7, 2_000_000_000
    lengths = torch.tensor([-3, 9, 2, 2], dtype=torch.int32, device=device)
    for one in (given, given.without_draft()):
        assert_exact(replace(one, draft_tokens=tokens, draft_lengths=lengths))


def test_rows_past_the_length_are_not_read(device: str) -> None:
    """NaN in the logits, chances and tokens of steps that were not drafted changes nothing."""
    given = chain(4, 3, 30, device, seed=5)
    lengths = torch.tensor([0, 1, 2, 1], dtype=torch.int32, device=device)
    clean = verify_chain_reference(**replace(given, draft_lengths=lengths).arguments())
    step = torch.arange(4, device=device)
    late, undrafted = step > lengths[:, None], step[:3] >= lengths[:, None]
    spoilt = replace(
        given,
        target_logits=given.target_logits.masked_fill(late[..., None], float("nan")),
        draft_logits=given.draft_logits.masked_fill(undrafted[..., None], float("nan")),
        uniforms=given.uniforms.masked_fill(undrafted, float("nan")),
        draft_tokens=given.draft_tokens.masked_fill(undrafted, 999_999_999),
        draft_lengths=lengths,
    )
    found = verify_chain(**spoilt.arguments(), config=small())
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))


def test_excluded_tokens_and_empty_blocks_never_come_out(device: str) -> None:
    """Logits of -inf over whole vocabulary blocks, and chances at both ends, still give an allowed token."""
    given = chain(4, 1, 300, device)
    target = given.target_logits.clone()
    target[:, :, :130] = target[:, :, 140:] = -INF
    last = torch.tensor([0.0, 1 - 2**-24, 1.0, 0.5], device=device)
    one = replace(given, target_logits=target, sample_uniforms=last)
    assert_exact(one)
    tokens, _ = verify_chain(**one.arguments(), config=small())
    assert bool(((tokens >= 130) & (tokens < 140) | (tokens == -1)).all())


def test_a_target_without_a_token_gives_none(device: str) -> None:
    """A row that is -inf throughout has no distribution: its token is -1."""
    given = chain(2, 1, 70, device)
    accepted = assert_exact(replace(given, target_logits=torch.full_like(given.target_logits, -INF)))
    assert accepted.tolist() == [0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-3, 1.0, 50.0])
def test_temperatures(device: str, temperature: float) -> None:
    """From nearly greedy, where exp of the scaled logits would overflow, to nearly uniform."""
    given = chain(3, 2, 90, device, dtype=torch.bfloat16)
    large = replace(given, target_logits=given.target_logits * 20, draft_logits=given.draft_logits * 20)
    assert_exact(replace(large, temperature=torch.full((3,), temperature, device=device)))


def test_equal_distributions_leave_the_target(device: str) -> None:
    """When nothing is left of p - q and a chance of 1 rejects all the same, the token comes from p."""
    given = chain(2, 1, 33, device)
    ones = torch.ones(2, dtype=torch.int32, device=device)
    same = replace(given, draft_logits=given.target_logits[:, :1].clone(), draft_lengths=ones)
    accepted = assert_exact(replace(same, uniforms=torch.ones(2, 1, device=device)))
    assert accepted.tolist() == [0, 0]


def large(requests: int, drafts: int, vocabulary: int, device: str) -> None:
    """Drawn and chosen drafts over a vocabulary of production size, with the shipped configuration."""
    given = chain(requests, drafts, vocabulary, device, dtype=torch.bfloat16)
    for one in (given, given.without_draft()):
        tokens, accepted = verify_chain(**one.arguments())
        right, count = verify_chain_reference(**one.arguments())
        assert_nearly_all(tokens, right, accepted, count)


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [32000, 50257, 128256])
def test_large_vocabularies(vocabulary: int) -> None:
    """Batches of 64 requests with four drafts, rows that are aligned and rows that are not."""
    large(64, 4, vocabulary, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_log_sum_exp(device: str, dtype: torch.dtype) -> None:
    """The pass over the vocabulary by itself: float64 to 1e-5, -inf where a row has no finite logit."""
    x = (torch.randn(5, 150, generator=torch.Generator().manual_seed(0)) * 10).to(dtype).to(device)
    x[1, :64], x[2] = -INF, -INF
    temperature = torch.tensor([1.0, 0.5, 1.0, 3.0, 0.01], device=device)
    with guarded_allocations():
        found = logsumexp_rows(x, temperature, config=small())
    assert_close(found, logsumexp_rows_reference(x, temperature), tolerance=1e-5)


def _inverted(p, q, uniform):
    return uniform * p < q


def _eager(p, q, uniform):
    return uniform * q < p + 0.05


def _other_way(p, q, coefficient):
    return tl.maximum(q - coefficient * p, 0.0)


def _not_taken_off(p, q, coefficient):
    return p


def _after_the_token(weights, goal, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    chosen = tl.min(tl.where(tl.cumsum(weights, 0) > goal, index, BLOCK - 1), 0) + 1
    return chosen, tl.sum(tl.where(index < chosen, weights, 0.0), 0)


def _cold_merge(tops, sums, row, live, scale, SPLITS, BLOCK_S: tl.constexpr):
    """Blocks are summed without being brought to one maximum."""
    splits = tl.arange(0, BLOCK_S)
    mask = live[:, None] & (splits < SPLITS)[None, :]
    at = row.to(tl.int64)[:, None] * SPLITS + splits[None, :]
    top = tl.max(tl.load(tops + at, mask=mask, other=-1e30), 1)
    return top, 1.0 / tl.maximum(tl.sum(tl.load(sums + at, mask=mask, other=0.0), 1), 1.0)


FAULTS = [
    (module, "_keeps", _inverted),
    (module, "_keeps", _eager),
    (module, "_merge", _cold_merge),
    (sampling, "_less", _other_way),
    (sampling, "_less", _not_taken_off),
    (sampling, "_pick", _after_the_token),
]


@pytest.mark.interpreter
@pytest.mark.parametrize(("where", "name", "faulty"), FAULTS, ids=[fault[2].__name__ for fault in FAULTS])
def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, where, name: str, faulty) -> None:
    """The comparison that the kernel passes fails once one of its steps is wrong."""
    given = replace(chain(16, 1, 100, seed=3), draft_lengths=torch.ones(16, dtype=torch.int32))
    monkeypatch.setattr(where, name, triton.jit(faulty))
    with pytest.raises(AssertionError, match="integers differ"):
        assert_exact(given)


BAD = [
    ("target_logits", lambda x: x[0], r"target_logits has shape \(3, 20\), \(any, any, any\) is needed"),
    ("target_logits", lambda x: x.double(), "target_logits is float64, bfloat16 or float16 or float32 is needed"),
    ("target_logits", lambda x: x.transpose(1, 2), r"target_logits is not contiguous .*\.contiguous"),
    ("target_logits", lambda x: x[:, :1].contiguous(), "number of drafts .* is 0, 1 to 64 is supported"),
    ("target_logits", lambda x: x[:0], "number of requests is 0, 1 to 65536 is supported"),
    ("target_logits", lambda x: x[:, :, :1].contiguous(), "the vocabulary is 1, 2 to 1048576 is supported"),
    ("draft_logits", lambda x: x[:, :1], r"draft_logits has shape \(4, 1, 20\), \(4, 2, 20\) is needed"),
    ("draft_tokens", lambda x: x.long(), "draft_tokens is int64, int32 is needed"),
    ("draft_lengths", lambda x: x[:3], r"draft_lengths has shape \(3,\), \(4\) is needed"),
    ("uniforms", lambda x: x.double(), "uniforms is float64, float32 is needed"),
    ("sample_uniforms", lambda x: x[:, None], r"sample_uniforms has shape \(4, 1\), \(4\) is needed"),
    ("temperature", lambda x: 1.0, "temperature is float, a torch tensor is needed"),
    ("temperature", lambda x: x.to("meta"), "temperature is on meta, the others are on"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD)
def test_bad_input_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = chain(4, 2, 20, device)
    with pytest.raises(KernelInputError, match=message):
        verify_chain(**replace(given, **{name: spoil(getattr(given, name))}).arguments())
