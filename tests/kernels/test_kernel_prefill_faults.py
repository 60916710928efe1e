"""Faults planted in the parts of prefill attention: each makes the comparison of the other tests fail.

Interpreted, so that a part can be exchanged while the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from prefill_problems import problem, small

from perfmodel.kernels.attention import prefill_pointer, prefill_tma
from perfmodel.kernels.attention.softmax_blocks import FLOOR, LN2

pytestmark = [pytest.mark.interpreter, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@triton.jit
def own_key_hidden(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return (columns[None, :] < positions[:, None]) & (columns < keys)[None, :]


@triton.jit
def next_key_seen(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return (columns[None, :] <= positions[:, None] + 1) & (columns < keys)[None, :]


@triton.jit
def window_too_wide(positions, columns, keys, window, CAUSAL: tl.constexpr):
    seen = (columns[None, :] <= positions[:, None]) & (columns < keys)[None, :]
    return seen & (columns[None, :] >= positions[:, None] - window)


@triton.jit
def window_too_narrow(positions, columns, keys, window, CAUSAL: tl.constexpr):
    seen = (columns[None, :] <= positions[:, None]) & (columns < keys)[None, :]
    return seen & (columns[None, :] > positions[:, None] - window + 1)


@triton.jit
def padding_seen(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return (positions >= 0)[:, None] | (columns >= 0)[None, :]


@triton.jit
def aligned_to_the_top(row, queries, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return 0, 0, 0, tl.minimum(keys, row + BLOCK_M)


@triton.jit
def diagonal_not_masked(row, queries, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    high = tl.minimum(keys, keys - queries + row + BLOCK_M)
    return 0, 0, tl.cdiv(high, BLOCK_N) * BLOCK_N, high


@triton.jit
def accumulator_not_rescaled(acc, rescale, weights, values):
    return tl.dot(weights.to(values.dtype), values, acc)


@triton.jit
def total_not_rescaled(peak, total, scores, scale):
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    return higher, total + tl.sum(weights, 1), weights, tl.exp2(peak - higher)


@triton.jit
def peak_not_kept(peak, total, scores, scale):
    higher = tl.maximum(tl.max(scores, 1) * scale, FLOOR)
    weights = tl.exp2(scores * scale - higher[:, None])
    rescale = tl.exp2(peak - higher)
    return higher, total * tl.minimum(rescale, 1.0) + tl.sum(weights, 1), weights, tl.minimum(rescale, 1.0)


@triton.jit
def heads_interleaved(head, group):
    return head % group


@triton.jit
def first_head_for_all(head, group):
    return head * 0


@triton.jit
def sink_ignored(sinks, head, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    peak = tl.full((BLOCK_M,), FLOOR, tl.float32)
    return peak, tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, WIDTH), tl.float32)


@triton.jit
def sink_in_log2(sinks, head, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    peak = tl.zeros((BLOCK_M,), tl.float32) + tl.load(sinks + head)
    return peak, peak * 0.0 + 1.0, tl.zeros((BLOCK_M, WIDTH), tl.float32)


@triton.jit
def cap_ignored(scores, scale, cap):
    return scores, scale


@triton.jit
def lse_in_log2(peak, total, acc):
    return acc / total[:, None], peak + tl.log2(total)


@triton.jit
def lse_without_peak(peak, total, acc):
    return acc / total[:, None], tl.log2(total) * LN2


@triton.jit
def not_divided(peak, total, acc):
    return acc, (peak + tl.log2(total)) * LN2


@triton.jit
def last_token_forgotten(starts, sequence, length):
    first = tl.load(starts + sequence)
    return first, tl.load(starts + sequence + 1) - first - 1


@triton.jit
def one_token_too_many(starts, sequence, length):
    first = tl.load(starts + sequence)
    return first, tl.load(starts + sequence + 1) - first + 1


WINDOW, SINKS, PACKED = {"window": 20}, {"sinks": True}, {"packed": True}

#: part, fault, options of the kernel, options of the problem
FAULTS = [
    ("visible", own_key_hidden, {}, {}),
    ("visible", next_key_seen, {}, {}),
    ("visible", window_too_wide, WINDOW, {}),
    ("visible", window_too_narrow, WINDOW, {}),
    ("visible", padding_seen, {"causal": False}, {}),
    ("key_range", aligned_to_the_top, {}, {}),
    ("key_range", diagonal_not_masked, {}, {}),
    ("gather", accumulator_not_rescaled, {}, {}),
    ("weigh", total_not_rescaled, {}, {}),
    ("weigh", peak_not_kept, {}, {}),
    ("kv_head", heads_interleaved, {}, {}),
    ("kv_head", first_head_for_all, {}, {}),
    ("start", sink_ignored, {}, SINKS),
    ("start", sink_in_log2, {}, SINKS),
    ("capped", cap_ignored, {"softcap": 2.0}, {}),
    ("finish", lse_in_log2, {}, {}),
    ("finish", lse_without_peak, {}, {}),
    ("finish", not_divided, {}, {}),
    ("extent", last_token_forgotten, {}, PACKED),
    ("extent", one_token_too_many, {}, PACKED),
]


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize(
    ("part", "fault", "options", "more"), FAULTS, ids=[fault.__name__ for _, fault, _, _ in FAULTS]
)
def test_fault_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    fault: Callable[..., object],
    options: dict[str, object],
    more: dict[str, bool],
    path: str,
) -> None:
    """The comparison that passes with the right part fails with the wrong one, on both paths."""
    lengths = [(20, 33), (34, 50)] if more.get("packed") else [(34, 50)]
    heads = (4, 2) if part == "kv_head" else (1, 1)
    given = problem("cpu", torch.float16, heads, 64, lengths, **more)
    config = small(path, 32, 32)
    if path == "pointer":
        given.check(config, **options)
    monkeypatch.setattr({"pointer": prefill_pointer, "tma": prefill_tma}[path], part, fault)
    with pytest.raises(AssertionError, match=r"error|infinities|not finite|overwritten"):
        given.check(config, **options)


def test_row_without_keys_needs_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing by the total of a row that sees nothing is caught as a result that is not finite."""
    given = problem("cpu", torch.float16, (1, 1), 64, [(34, 20)])
    given.check(small("tma", 32, 32))
    monkeypatch.setattr(prefill_tma, "finish", lse_in_log2)
    with pytest.raises(AssertionError, match="not finite"):
        given.check(small("tma", 32, 32))
