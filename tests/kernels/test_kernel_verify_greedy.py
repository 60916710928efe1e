"""Greedy verification of chains and trees follows the target's argmax, as the reference does."""

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from numeric import assert_close
from verify_data import small

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.speculative import greedy as module
from perfmodel.kernels.speculative.greedy import verify_greedy, verify_greedy_reference

INF = float("inf")
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def problem(requests: int, drafts: int, vocabulary: int, device: str, dtype: torch.dtype = torch.float32) -> Given:
    """Drafts that agree with the target's choices up to a place of their own; lengths from 0 to `drafts`."""
    g = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(requests, drafts + 1, vocabulary, generator=g).to(dtype)
    tokens = logits.double().argmax(-1)[:, :drafts].int()
    wrong = torch.rand(requests, drafts, generator=g) < 0.25
    tokens = torch.where(wrong, (tokens + 1) % vocabulary, tokens)
    lengths = torch.randint(0, drafts + 1, (requests,), generator=g).int()
    return logits.to(device), tokens.to(device), lengths.to(device)


def assert_exact(given: Given) -> torch.Tensor:
    """Tokens and counts are those of the reference, all was written and nothing beyond; the counts."""
    with guarded_allocations():
        tokens, accepted = verify_greedy(*given, config=small())
    right, count = verify_greedy_reference(*given)
    assert_close(tokens, right)
    assert_close(accepted, count)
    return accepted


@pytest.mark.parametrize(
    ("requests", "drafts", "vocabulary", "dtype"),
    [(8, 3, 37, torch.float32), (3, 1, 2, torch.float32), (4, 7, 200, torch.bfloat16), (3, 5, 64, torch.float16)],
)
def test_equals_the_reference(device: str, requests: int, drafts: int, vocabulary: int, dtype: torch.dtype) -> None:
    """Random logits of each type, ties of bfloat16 among them, one vocabulary block and several."""
    assert_exact(problem(requests, drafts, vocabulary, device, dtype))


def test_all_none_and_lengths_out_of_range(device: str) -> None:
    """All drafts right: the argmax after them follows. None right, none drafted, and lengths beyond 0..G."""
    logits, _, _ = problem(5, 3, 100, device)
    tokens = logits.argmax(-1)[:, :3].int()
    tokens[1] = (tokens[1] + 1) % 100
    lengths = torch.tensor([3, 3, 0, -2, 99], dtype=torch.int32, device=device)
    assert assert_exact((logits, tokens, lengths)).tolist() == [3, 0, 0, 0, 3]


def test_of_equal_logits_the_first_is_taken(device: str) -> None:
    """Ties within a vocabulary block and across blocks go to the lowest token, and an empty row to token 0."""
    logits = torch.zeros(3, 2, 200, device=device)
    logits[1, :, 70], logits[1, :, 150] = 5.0, 5.0
    logits[2] = -INF
    tokens = torch.tensor([[0], [70], [1]], dtype=torch.int32, device=device)
    assert assert_exact((logits, tokens, torch.ones(3, dtype=torch.int32, device=device))).tolist() == [1, 1, 0]


def test_the_shipped_configuration(device: str) -> None:
    """Without a configuration of its own the call takes the table's."""
    given = problem(2, 2, 5000, device)
    with assume("sm_80"):
        found = verify_greedy(*given)
    assert all(torch.equal(a, b) for a, b in zip(found, verify_greedy_reference(*given), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [32000, 50257, 151936])
def test_large_vocabularies(vocabulary: int) -> None:
    """Batches of 64 requests with seven drafts, rows that are aligned and rows that are not, ties of bfloat16."""
    given = problem(64, 7, vocabulary, "cuda", torch.bfloat16)
    found = verify_greedy(*given)
    assert all(torch.equal(a, b) for a, b in zip(found, verify_greedy_reference(*given), strict=True))


def _last_of_equals(tops, places, row, live, SPLITS, BLOCK_S: tl.constexpr):
    splits = tl.arange(0, BLOCK_S)
    mask = live[:, None] & (splits < SPLITS)[None, :]
    at = row[:, None] * SPLITS + splits[None, :]
    maxima = tl.load(tops + at, mask=mask, other=-float("inf"))
    place = tl.load(places + at, mask=mask, other=-1)
    return tl.max(tl.where(maxima == tl.max(maxima, 1)[:, None], place, -1), 1)


def _one_row_off(tops, places, row, live, SPLITS, BLOCK_S: tl.constexpr):
    return _last_of_equals_jit(tops, places, row + 1, live & (row % 3 < 2), SPLITS, BLOCK_S)


_last_of_equals_jit = triton.jit(_last_of_equals)


@pytest.mark.interpreter
@pytest.mark.parametrize("faulty", [_last_of_equals, _one_row_off])
def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, faulty) -> None:
    """Ties that go to the last token, and rows read one off, fail the comparison that the kernel passes."""
    logits = torch.randn(6, 3, 200, generator=torch.Generator().manual_seed(0))
    logits[:, :, 70], logits[:, :, 150] = 9.0, 9.0
    tokens = torch.full((6, 2), 70, dtype=torch.int32)
    if faulty is _one_row_off:
        logits[:, 1, 33] = 10.0
    monkeypatch.setattr(module, "_choices", triton.jit(faulty))
    with pytest.raises(AssertionError, match="integers differ"):
        assert_exact((logits, tokens, torch.full((6,), 2, dtype=torch.int32)))


BAD = [
    (0, lambda x: x[0], r"target_logits has shape \(3, 20\), \(any, any, any\) is needed"),
    (0, lambda x: x.int(), "target_logits is int32, bfloat16 or float16 or float32 is needed"),
    (0, lambda x: x.repeat(1, 30, 1), "number of drafts .* is 89, 1 to 64 is supported"),
    (1, lambda x: x.long(), "draft_tokens is int64, int32 is needed"),
    (1, lambda x: x[:, :1], r"draft_tokens has shape \(4, 1\), \(4, 2\) is needed"),
    (2, lambda x: x[:3], r"draft_lengths has shape \(3,\), \(4\) is needed"),
    (2, lambda x: x.to("meta"), "draft_lengths is on meta, the others are on"),
]


@pytest.mark.parametrize(("place", "spoil", "message"), BAD)
def test_bad_input_is_refused(device: str, place: int, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = list(problem(4, 2, 20, device))
    given[place] = spoil(given[place])
    with pytest.raises(KernelInputError, match=message):
        verify_greedy(*given)
