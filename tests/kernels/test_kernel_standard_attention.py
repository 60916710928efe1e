"""Standard attention against float64: its three launches, alone and together, what they store and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from numeric import TOLERANCE, Guarded, assert_close, guarded, random, relative_error

from perfmodel.kernels.attention import standard
from perfmodel.kernels.attention.standard import (
    ROW_MULTIPLE,
    attention_scores,
    attention_softmax,
    attention_values,
    standard_attention,
    standard_reference,
)
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import SM_COUNT, assume
from perfmodel.kernels.table import Config

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32

#: queries and keys, heads and key heads, head_dim, dtype, causal
SHAPES = {
    "one token": ((1, 1), (1, 1), 64, BF16, True),
    "a tail of one missing": ((63, 63), (4, 1), 64, FP16, True),
    "whole tiles, not causal": ((64, 64), (2, 2), 128, BF16, False),
    "long": ((130, 200), (2, 1), 64, BF16, True),
    "long, not causal": ((70, 200), (1, 1), 128, FP16, False),
    "head_dim 256": ((63, 65), (1, 1), 256, FP16, True),
    "more queries than keys": ((64, 37), (2, 1), 64, FP16, True),
    "no keys": ((5, 0), (2, 1), 64, BF16, True),
}


def operands(
    device: str,
    lengths: tuple[int, int],
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    sequences: int = 1,
) -> list[Guarded]:
    """q, k and v, NaN before and after each."""
    shapes = ((lengths[0], heads[0]), (lengths[1], heads[1]), (lengths[1], heads[1]))
    return [guarded(random(sequences, *s, head_dim, dtype=dtype, device=device, seed=i)) for i, s in enumerate(shapes)]


def materialised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """What torch computes in the dtype of q when scores and weights are stored in it."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        scores = scores.masked_fill(~hidden, -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(0.0), v)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device: str, shape: str) -> None:
    """Scores kept in fp32 give the result to the dtype; in 16 bits an error at most twice torch's."""
    lengths, heads, head_dim, dtype, causal = SHAPES[shape]
    given = operands(device, lengths, heads, head_dim, dtype, sequences=2)
    q, k, v = (each.tensor for each in given)
    exact, theirs = standard_reference(q, k, v, causal=causal), materialised(q, k, v, causal)
    assert_close(standard_attention(q, k, v, causal=causal, dtype=FP32), exact, torch_result=theirs)
    loose = max(2 * relative_error(theirs, exact), TOLERANCE[dtype])
    assert_close(standard_attention(q, k, v, causal=causal), exact, tolerance=loose, torch_result=theirs, atol=1e-3)
    for each in given:
        each.check()


@pytest.mark.parametrize("arch", SM_COUNT)
@pytest.mark.parametrize("queries", [20, 70])
@pytest.mark.interpreter
def test_shipped_configurations(arch: str, queries: int) -> None:
    """Every architecture's rows for few and many queries are right, at each head dimension."""
    for head_dim in (64, 256):
        q, k, v = (each.tensor for each in operands("cpu", (queries, 90), (1, 1), head_dim, BF16))
        with assume(arch):
            assert_close(standard_attention(q, k, v, dtype=FP32), standard_reference(q, k, v))


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
def test_scores(device: str, dtype: torch.dtype) -> None:
    """Scores are scale * Q K^T, unmasked, in rows padded with zeros."""
    q, k, _ = (each.tensor for each in operands(device, (33, 50), (2, 1), 64, BF16))
    scores = attention_scores(q, k, scale=0.25, dtype=dtype)
    exact = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.repeat_interleave(2, 2).double()) * 0.25
    assert_close(scores, exact)
    assert scores.stride(2) == 64
    padding = scores.as_strided((*scores.shape[:3], 14), scores.stride(), scores.storage_offset() + 50)
    assert bool((padding == 0).all())


@pytest.mark.parametrize("block", [64, 256])
@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax(device: str, block: int, dtype: torch.dtype, causal: bool) -> None:
    """The softmax is right in one pass and in several, in place, for large scores and for rows that see no key."""
    wide = 8 * random(1, 2, 40, 208, dtype=dtype, device=device)
    wide[..., 200:] = float("inf")
    scores = wide[..., :200][:, :, :, :30] if block == 256 else wide[..., :200]
    keys = scores.shape[3]
    seen = torch.ones(40, keys, dtype=torch.bool, device=device).tril(keys - 40) if causal else None
    exact = scores.double() if seen is None else scores.double().masked_fill(~seen, -math.inf)
    exact = exact.softmax(-1).nan_to_num(0.0)
    assert attention_softmax(scores, causal=causal, config=Config({"ROWS": 16, "BLOCK": block}, 4, 1)) is scores
    assert_close(scores, exact)
    assert bool((wide[..., keys:] == 0).all())


def test_values(device: str) -> None:
    """P V is right, its sum over keys in several steps, and reads nothing of rows and keys past the end."""
    p, v = (
        random(1, 2, 40, 96, dtype=FP16, device=device).abs(),
        random(1, 90, 1, 64, dtype=FP16, device=device, seed=1),
    )
    p[..., 90:] = 0.0
    held = guarded(v)
    out = attention_values(p[..., :90], held.tensor, config=Config({"BLOCK_M": 32, "BLOCK_N": 32}, 4, 2))
    exact = torch.einsum("bhqk,bkd->bqhd", p[..., :90].double(), v[:, :, 0].double())
    assert_close(out, exact)
    held.check()


@pytest.mark.parametrize("dtype", [FP16, FP32])
@pytest.mark.parametrize("keys", [17, 90])
def test_padding_of_weights_may_be_nan(device: str, keys: int, dtype: torch.dtype) -> None:
    """What lies in the padding of P's rows does not matter, within a block and in one past the last key."""
    p, v = random(1, 2, 40, 128, dtype=dtype, device=device), random(1, keys, 1, 64, dtype=FP16, device=device, seed=1)
    p[..., keys:] = math.nan
    exact = torch.einsum("bhqk,bkd->bqhd", p[..., :keys].half().double(), v[:, :, 0].double())
    assert_close(attention_values(p[..., :keys], v, config=Config({"BLOCK_M": 32, "BLOCK_N": 32}, 4, 2)), exact)


def test_a_last_row_without_its_padding_is_refused(device: str) -> None:
    """The padding of the last row is written: where the storage ends before it, nothing is launched."""
    strides = (64, 64, 32, 1)
    short, whole = (torch.zeros(n, dtype=FP32, device=device) for n in (52, 64))
    for refused in (short.as_strided((1, 1, 2, 20), strides), whole.as_strided((1, 1, 2, 20), strides, 4)):
        with pytest.raises(KernelInputError, match=r"padding is not theirs \(the storage ends (12|4) "):
            attention_softmax(refused)
    done = attention_softmax(whole.as_strided((1, 1, 2, 20), strides), causal=False)
    assert_close(done, torch.full((1, 1, 2, 20), 1 / 20, dtype=torch.float64))
    assert float(whole.sum()) == pytest.approx(2)


@pytest.mark.parametrize("shape", [(0, 5, 2, 64), (2, 0, 2, 64)])
def test_nothing_to_do(device: str, shape: tuple[int, ...]) -> None:
    """No sequences or no queries: an empty result, and no launch."""
    q = torch.empty(shape, dtype=BF16, device=device)
    assert standard_attention(q, q, q).shape == shape


@triton.jit
def own_key_hidden(row, queries, keys, CAUSAL: tl.constexpr):
    return (keys - queries + row % queries).to(tl.int32)


@triton.jit
def rows_of_all_heads(row, queries, keys, CAUSAL: tl.constexpr):
    return (keys - queries + row + 1).to(tl.int32)


@triton.jit
def hidden_keys_seen(base, columns, inside, seen):
    return tl.load(base + columns[None, :], mask=inside, other=-float("inf")).to(tl.float32)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("part", "fault"),
    [("_hidden_behind", own_key_hidden), ("_hidden_behind", rows_of_all_heads), ("_scores_at", hidden_keys_seen)],
    ids=["own key hidden", "rows of all heads", "padding and hidden keys seen"],
)
def test_fault_is_caught(monkeypatch: pytest.MonkeyPatch, part: str, fault: object) -> None:
    """A wrong mask makes the comparison fail that the right one passes."""
    q, k, v = (each.tensor for each in operands("cpu", (20, 37), (2, 1), 64, FP16))
    exact = standard_reference(q, k, v)
    assert_close(standard_attention(q, k, v, dtype=FP32), exact)
    monkeypatch.setattr(standard, part, fault)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(standard_attention(q, k, v, dtype=FP32), exact)


Q, K = random(2, 5, 4, 64, dtype=BF16), random(2, 7, 2, 64, dtype=BF16)
S = torch.zeros(2, 4, 5, ROW_MULTIPLE, dtype=BF16)[..., :7]

REFUSED = {
    "q is float32, float16 or bfloat16 is needed": lambda: standard_attention(Q.float(), K, K),
    "q is not contiguous": lambda: standard_attention(Q[:, :, :2], K, K),
    r"k has shape \(2, 7, 2, 32\), \(2, any, any, 64\)": lambda: attention_scores(Q, K[..., :32]),
    r"v has shape \(2, 6, 2, 64\), k has \(2, 7, 2, 64\)": lambda: standard_attention(Q, K, K[:, :6].contiguous()),
    "q has 4 heads, a multiple of v's 3": lambda: standard_attention(Q, K, random(2, 7, 3, 64, dtype=BF16)),
    "head_dim is 32, 64, 128, 256 are supported": lambda: attention_scores(Q[..., :32].clone(), K[..., :32].clone()),
    "dtype is torch.int8; scores are float16, bfloat16 or float32": lambda: attention_scores(Q, K, dtype=torch.int8),
    "scale is inf, a number above 0 is needed": lambda: attention_scores(Q, K, scale=math.inf),
    r"scores have strides \(140, 35, 7, 1\); rows": lambda: attention_softmax(S.contiguous()),
    r"v has shape \(2, 6, 2, 64\), \(2, 7, any, any\)": lambda: attention_values(S, K[:, :6].contiguous()),
    "scores is on meta, the others|v is on meta, the others": lambda: attention_values(S, K.to("meta")),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        REFUSED[message]()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_production_shapes(head_dim: int, causal: bool) -> None:
    """With the table's configurations a few thousand tokens are right, rows in one pass of the softmax or two."""
    for queries, keys in ((4000, 4000), (64, 4096), (100, 20000)):
        q, k, v = (each.tensor for each in operands("cuda", (queries, keys), (4, 2), head_dim, BF16))
        assert_close(standard_attention(q, k, v, causal=causal, dtype=FP32), standard_reference(q, k, v, causal=causal))
