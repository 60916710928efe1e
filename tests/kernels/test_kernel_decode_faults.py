"""Faults put into decode attention on purpose: the comparison of the other tests must catch each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from decode_data import BF16, FP8, FP8_TOLERANCE, Problem, blocks, compare, decode_is_right, latent_problem, problem
from faulty import faulty
from numeric import BAND, guarded
from triton.runtime import interpreter

from perfmodel.kernels.attention import mla_kernel, paged, paged_launch
from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.merge import merge_attention
from perfmodel.kernels.attention.mla import mla_decode
from perfmodel.kernels.attention.softmax_blocks import start
from perfmodel.kernels.device import interpreted

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced"),
]
CAUGHT = r"relative error|largest error|infinities|finite"


@triton.jit
def next_page(table, token, hi, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    t = token + tl.arange(0, BLOCK_N)
    return tl.load(table + t // PAGE + 1, mask=t < hi, other=0)


@triton.jit
def page_of_the_first(table, token, hi, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.load(table + token // PAGE, mask=token < hi, other=0) + tl.zeros((BLOCK_N,), tl.int32)


@triton.jit
def pieces_overlap(first, n, split, n_splits, BLOCK_N: tl.constexpr):
    per = tl.cdiv(tl.cdiv(n - first, n_splits), BLOCK_N) * BLOCK_N
    lo = first + split * per
    return lo, tl.minimum(lo + per + BLOCK_N, n)


@triton.jit
def pieces_lose_the_rest(first, n, split, n_splits, BLOCK_N: tl.constexpr):
    per = (n - first) // n_splits // BLOCK_N * BLOCK_N
    lo = first + split * per
    return lo, tl.minimum(lo + per, n)


@triton.jit
def sees_one_more(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return columns[None, :] <= positions[:, None] + 1


@triton.jit
def sees_not_itself(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return columns[None, :] < positions[:, None]


@triton.jit
def all_in_plain_blocks(lo, hi, shared, BLOCK_N: tl.constexpr):
    return lo + tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_N) * BLOCK_N


@triton.jit
def never_rescaled(acc, rescale, weights, values):
    return tl.dot(weights.to(values.dtype), values, acc)


@triton.jit
def unmasked_values(ptr, at, seen, MASKED: tl.constexpr):
    return tl.load(ptr + at)


@triton.jit
def sink_in_each_piece(sinks, heads, split, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    return start(sinks, heads, BLOCK_M, WIDTH)


SINKS = torch.tensor([0.0, 2.0])


@pytest.fixture(scope="module")
def given() -> Problem:
    """What is computed rightly without a fault."""
    sound = problem("cpu", (63, 130), q_len=2, group=2)
    decode_is_right(sound, splits=3, sinks=SINKS, config=blocks())
    return sound


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("lookup", next_page),
        ("lookup", page_of_the_first),
        ("piece", pieces_overlap),
        ("piece", pieces_lose_the_rest),
        ("visible", sees_one_more),
        ("visible", sees_not_itself),
        ("seen_by_all", all_in_plain_blocks),
        ("gather", never_rescaled),
        ("load_tile", unmasked_values),
        ("start_piece", sink_in_each_piece),
    ],
    ids=lambda value: value if isinstance(value, str) else value.fn.__name__,
)
def test_a_wrong_helper_is_caught(given: Problem, name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong pages, overlapping or incomplete pieces, wrong masks, a forgotten rescale, a sink counted twice."""
    monkeypatch.setattr(paged, name, fault)
    with pytest.raises(AssertionError, match=CAUGHT):
        decode_is_right(given, splits=3, sinks=SINKS, config=blocks())


@pytest.mark.parametrize("wrong", ["page", "length", "scale", "heads", "order"])
def test_a_wrong_argument_is_caught(wrong: str) -> None:
    """The comparison sees a table shifted by a page, a length off by one, and keys of the wrong head or order."""
    given = problem("cpu", (63, 130), kv_heads=2, group=2, kv=FP8)
    q, cache = given.q, given.cache
    assert cache.k_scale is not None
    bad = {
        "page": Problem(q, replace(cache, table=cache.table.roll(1, 1))),
        "length": Problem(q, replace(cache, lengths=cache.lengths - 1)),
        "scale": Problem(q, replace(cache, k_scale=cache.k_scale.flip(0))),
        "heads": Problem(q.view(2, 1, 2, 2, 64).transpose(2, 3).reshape(q.shape), cache),
        "order": Problem(q, replace(cache, v=cache.v.flip(1))),
    }[wrong]
    out, lse = paged_decode(bad.q, bad.cache, splits=2, config=blocks())
    with pytest.raises(AssertionError, match=CAUGHT):
        compare(given, out, lse, FP8_TOLERANCE)


def test_a_merge_without_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Averaging the pieces instead of weighing them by their mass fails."""
    given = problem("cpu", (130,), dtype=BF16)

    def average(partial, lse, *, dtype, out):  # type: ignore[no-untyped-def]
        return merge_attention(partial, torch.where(torch.isneginf(lse), lse, 0.0), dtype=dtype, out=out)

    monkeypatch.setattr("perfmodel.kernels.attention.paged_launch.merge_attention", average)
    with pytest.raises(AssertionError, match=CAUGHT):
        decode_is_right(given, splits=3, config=blocks())


WINDOW_FAULTS = [("keys - q_len + 1 - window, 0", f"keys - q_len + {n} - window, 0") for n in (2, 33)]


@pytest.mark.parametrize("fault", WINDOW_FAULTS, ids=["one", "a block"])
def test_a_window_begun_too_late_is_caught(
    fault: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a window begins on the last key of a block, the first block that is read must not be the next."""
    given = problem("cpu", (200,), page=32)
    decode_is_right(given, window=137, config=blocks())
    monkeypatch.setattr(paged_launch, "paged_kernel", faulty(paged, fault, tmp_path).paged_kernel)
    with pytest.raises(AssertionError, match=CAUGHT):
        decode_is_right(given, window=137, config=blocks())


@triton.jit
def unmasked_lookup(table, token, hi, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    if PAGE % BLOCK_N == 0:
        return tl.load(table + token // PAGE)
    else:
        return tl.load(table + (token + tl.arange(0, BLOCK_N)) // PAGE)


def in_full_tables(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode, of tokens and of latents, with tables that the lengths fill; what is read of the band after each."""
    read: list[int] = []
    builder = interpreter.interpreter_builder
    load = builder.create_masked_load

    def watched(pointers, mask, *rest):  # type: ignore[no-untyped-def]
        where = pointers.data[mask.data].astype(np.uint64)
        read.extend(int(at) for at in where[(where >= after) & (where < after + BAND)])
        return load(pointers, mask, *rest)

    for kind in ("tokens", "latents"):
        given = problem("cpu", (64, 128), page=page) if kind == "tokens" else latent_problem("cpu", (128,), page=page)
        cache = given.cache if isinstance(given, Problem) else given[1]
        table = guarded(cache.table[:, : 128 // page])
        after = table.tensor.data_ptr() + table.tensor.numel() * 4
        full = replace(cache, table=table.tensor)
        with monkeypatch.context() as patch:
            patch.setattr(builder, "create_masked_load", watched)
            if isinstance(given, Problem):
                decode_is_right(Problem(given.q, full), splits=2, config=blocks())
            else:
                mla_decode(given[0], full, 0.05, splits=2, config=blocks(TWO_LOOPS=True))
        assert not read, f"{kind}: {len(read)} page numbers were read after the table"


@pytest.mark.parametrize("page", [16, 64])
def test_nothing_after_the_table_is_read(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up a block ahead stops at the end of a sequence, where the table may end too."""
    in_full_tables(page, monkeypatch)
    for module, kind in ((paged, "tokens"), (mla_kernel, "latents")):
        with monkeypatch.context() as patch:
            patch.setattr(module, "lookup", unmasked_lookup)
            with pytest.raises(AssertionError, match=f"{kind}: .* page numbers were read after the table"):
                in_full_tables(page, monkeypatch)
