"""Merging attention over pieces: weights, pieces without a key, many pieces, types, planted faults, bad input."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from decode_data import blocks, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.attention import merge
from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.merge import merge_attention, merge_reference
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import interpreted

INF = float("inf")


def pieces(device: str, rows: int, count: int, head_dim: int, dtype: torch.dtype = torch.float32, spread: float = 5.0):  # type: ignore[no-untyped-def]
    """Partial outputs and their masses, rising in the second row and falling in the third.

    A third of the pieces are without a key and hold NaN, as does all of the first row.
    """
    partial = random(rows, count, head_dim, dtype=dtype, device=device, seed=count)
    lse = random(rows, count, dtype=torch.float32, device=device, seed=1, scale=spread)
    lse[1] = lse[1].sort().values
    lse[2] = lse[2].sort(descending=True).values
    lse[:, ::3] = -INF
    lse[0] = -INF
    partial[torch.isneginf(lse)] = float("nan")
    return partial, lse


def merge_is_right(partial: torch.Tensor, lse: torch.Tensor) -> None:
    with guarded_allocations():
        out, mass = merge_attention(partial, lse)
    right, total = merge_reference(partial, lse)
    theirs = right.to(partial.dtype)
    assert_close(out, right, torch_result=theirs, atol=2e-6)
    assert_close(mass, total)


@pytest.mark.parametrize(("count", "head_dim"), [(1, 64), (2, 128), (7, 64), (16, 128), (17, 64), (40, 512), (9, 256)])
def test_merge_weighs_pieces_by_their_mass(device: str, count: int, head_dim: int) -> None:
    """Few pieces and more than are read at a time; those without a key do not count, whatever they hold."""
    merge_is_right(*pieces(device, 3, count, head_dim))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_merge_takes_half_precision(device: str, dtype: torch.dtype) -> None:
    """Partial outputs of other kernels, in their type."""
    merge_is_right(*pieces(device, 3, 5, 64, dtype))


@pytest.mark.parametrize("spread", [1e-3, 300.0, 1e4])
def test_masses_far_apart_neither_vanish_nor_overflow(device: str, spread: float) -> None:
    """exp(lse) itself would overflow; only differences are exponentiated."""
    merge_is_right(*pieces(device, 3, 20, 64, spread=spread))


@settings(max_examples=10)
@given(st.lists(st.one_of(st.just(-INF), st.floats(-50, 50, width=32)), min_size=1, max_size=20), st.randoms())
@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="the tensors are on the CPU")
def test_the_order_of_pieces_does_not_matter(masses: list[float], order) -> None:  # type: ignore[no-untyped-def]
    """Any masses, in any order, give the same output and the same sum; all of it -inf gives 0 and -inf."""
    lse = torch.tensor(masses)
    partial = random(len(masses), 64, dtype=torch.float32)
    shuffled = list(range(len(masses)))
    order.shuffle(shuffled)
    out, mass = merge_attention(partial, lse)
    other, again = merge_attention(partial[shuffled], lse[shuffled])
    torch.testing.assert_close(out, other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mass, again, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mass.double(), torch.logsumexp(lse.double(), 0), rtol=1e-5, atol=1e-5)


def test_attention_over_a_prefix_and_a_suffix_merges_to_the_whole(device: str) -> None:
    """Outputs of two calls over parts of the keys, merged, are those of one call over all of them."""
    whole = problem(device, (96,), page=16)
    prefix = Paged(whole.cache.k, whole.cache.v, whole.cache.table, whole.cache.lengths * 0 + 48)
    suffix = Paged(whole.cache.k, whole.cache.v, whole.cache.table[:, 3:].contiguous(), prefix.lengths)
    parts = [paged_decode(whole.q, part, config=blocks()) for part in (prefix, suffix)]
    partial, lse = (torch.stack(both, -1) for both in zip(*parts, strict=True))
    out, mass = merge_attention(partial.transpose(-1, -2).contiguous(), lse)
    right, total = paged_decode(whole.q, whole.cache, config=blocks())
    assert_close(out, right.double(), tolerance=6e-3)
    assert_close(mass, total.double())


def test_merge_fills_given_outputs(device: str) -> None:
    """Poisoned outputs between guard bands, in another type than the pieces."""
    partial, lse = pieces(device, 3, 5, 128)
    out = guarded(poisoned((3, 128), torch.bfloat16, device))
    mass = guarded(poisoned((3,), torch.float32, device))
    merge_attention(partial, lse, dtype=torch.bfloat16, out=(out.tensor, mass.tensor))
    right, total = merge_reference(partial, lse)
    assert_close(out.tensor, right)
    assert_close(mass.tensor, total)
    out.check()
    mass.check()


@triton.jit
def not_rescaled(peak, total, scores, scale):
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    return higher, total + tl.sum(weights, 1), weights, higher * 0.0 + 1.0


@triton.jit
def evenly_weighed(peak, total, scores, scale):
    weights = tl.where(scores > -float("inf"), 1.0, 0.0)
    return peak * 0.0, total + tl.sum(weights, 1), weights, peak * 0.0 + 1.0


@triton.jit
def natural_as_binary(peak, total, scores, scale):
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    rescale = tl.exp2(peak - higher)
    return higher, total * rescale + tl.sum(weights, 1), weights, rescale


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
@pytest.mark.parametrize("fault", [not_rescaled, evenly_weighed, natural_as_binary])
def test_a_wrong_weight_is_caught(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that forgets to rescale, takes the mean, or mistakes the base of the logarithm fails the comparison."""
    partial, lse = pieces("cpu", 3, 20, 64)
    merge_is_right(partial, lse)
    monkeypatch.setattr(merge, "weigh", fault)
    with pytest.raises(AssertionError, match=r"relative error|infinities|finite"):
        merge_is_right(partial, lse)


BAD = [
    (lambda p, x: (p[0, 0], x, {}), r"partial has shape .*, \[\.\.\., pieces, head_dim\] is needed"),
    (lambda p, x: (p.double(), x, {}), "partial is float64, float32 or float16 or bfloat16 is needed"),
    (lambda p, x: (p[:, :, :32].contiguous(), x, {}), "head_dim is 32, 64, 128, 256, 512 are supported"),
    (lambda p, x: (p[:, :, ::2], x, {}), "partial is not contiguous"),
    (lambda p, x: (p, x[:, :2], {}), r"lse has shape \(2, 2\), \(2, 4\) is needed"),
    (lambda p, x: (p, x.double(), {}), "lse is float64, float32 is needed"),
    (lambda p, x: (p[:, :0], x[:, :0], {}), "the number of pieces is 0, 1 to 1073741824 is supported"),
    (lambda p, x: (p, x, {"dtype": torch.int8}), "dtype is torch.int8"),
    (lambda p, x: (p, x, {"out": (p[:, 0].clone(), x)}), r"out\[1\] has shape \(2, 4\), \(2\) is needed"),
]


@pytest.mark.skipif(not interpreted(), reason="the tensors are on the CPU")
@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_named(change, message: str) -> None:  # type: ignore[no-untyped-def]
    """What does not fit is refused with its name, its value and what is needed."""
    partial, lse, options = change(torch.zeros(2, 4, 128), torch.zeros(2, 4))
    with pytest.raises(KernelInputError, match=message):
        merge_attention(partial, lse, **options)
