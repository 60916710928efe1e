"""The kernels' layout of 4-bit weights: where each bit lies, what fills it up, checkpoints, act-order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from w4_data import quantized

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4_reference
from perfmodel.kernels.gemm.w4_formats import pack_awq, pack_gptq
from perfmodel.kernels.gemm.w4_packing import W4Weight, from_awq, from_gptq, from_integers, to_integers

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("k", "n", "tile", "word", "nibble"),
    [(0, 0, 0, 0, 0), (31, 5, 0, 31, 0), (32, 5, 0, 0, 1), (97, 7, 0, 1, 3), (128, 0, 1, 0, 0), (255, 129, 1, 31, 3)],
)
def test_where_an_integer_lies(k: int, n: int, tile: int, word: int, nibble: int) -> None:
    """Input k of output n is nibble (k % 128) // 32 of word k % 32 of tile k // 128, and no other."""
    q = torch.zeros(256, 130, dtype=torch.uint8)
    q[k, n] = 15
    words = from_integers(
        q, torch.ones(2, 130, dtype=torch.float16), torch.zeros(2, 130, dtype=torch.uint8), group=128
    ).words
    assert words.shape == (2, 256, 32)
    assert (int(words[tile, n, word]) & 0xFFFF) == 15 << 4 * nibble
    assert int((words != 0).sum()) == 1


def test_scale_and_zero_point_share_a_word() -> None:
    """The low half is the scale's float, the high half the zero point; outputs filled up have scale 0."""
    scales = torch.tensor([[1.0, -2.0]], dtype=torch.float16)
    weight = from_integers(torch.zeros(8, 2, dtype=torch.uint8), scales, torch.tensor([[15, 0]]), group=128)
    assert weight.meta[0, :3].tolist() == [0xF3C00, 0xC000, 0]
    assert weight.meta.shape == (1, 128)


@settings(max_examples=30)
@given(
    st.integers(1, 40), st.integers(1, 140), st.sampled_from([32, 64, 128, -1]), st.booleans(), st.integers(0, 2**31),
    st.sampled_from([torch.float16, torch.bfloat16]),
)  # fmt: skip
def test_integers_come_back(k8: int, n: int, group: int, act_order: bool, seed: int, dtype: torch.dtype) -> None:
    """For any sizes, groups and order of inputs the layout holds the integers, scales and zero points it is made of."""
    data = quantized(8 * k8, n, group, seed=seed, scale_dtype=dtype, act_order=act_order)
    weight = data.weight()
    q, scales, zeros = to_integers(weight)
    assert torch.equal(q, data.q)
    assert torch.equal(scales, data.scales)
    assert torch.equal(zeros, data.zeros)
    empty = W4Weight.empty(8 * k8, n, group, device="meta")
    assert (empty.words.shape, empty.meta.shape) == (weight.words.shape, weight.meta.shape)


def test_bytes_a_weight() -> None:
    """With groups of 128 a weight takes 4 bits and 1/4 bit of scale and zero point."""
    assert W4Weight.empty(8192, 1024, 128, device="meta").nbytes * 8 == 8192 * 1024 * 4.25


def test_inputs_that_fill_a_tile_are_worth_nothing() -> None:
    """Inputs past K hold the last group's zero point, so that their value is 0 whatever the kernel multiplies it by."""
    data = quantized(72, 8, 128)
    nibbles = torch.stack([(data.weight().words[0] >> 4 * j) & 0xF for j in range(4)], 1).reshape(-1, 128)
    assert torch.equal(nibbles[:8, 72:], data.zeros.T.to(torch.int16).expand(8, 56))


@pytest.mark.parametrize("form", [1, 2, "awq"])
def test_checkpoints(form: int | str) -> None:
    """The tensors of GPTQ (both versions) and AWQ checkpoints become the same weight as the integers they hold."""
    data = quantized(256, 16, 64)
    if form == "awq":
        weight = from_awq(*pack_awq(data.q, data.zeros), data.scales, group=64)
    else:
        assert isinstance(form, int)
        weight = from_gptq(*pack_gptq(data.q, data.zeros, version=form), data.scales, group=64, version=form)
    assert torch.equal(weight.words, data.weight().words)
    assert torch.equal(weight.meta, data.weight().meta)


def test_symmetric_weights_need_no_zero_points() -> None:
    """Without zero points they are 8."""
    data = quantized(64, 8, 32)
    weight = from_integers(data.q, data.scales, group=32)
    assert torch.equal(to_integers(weight)[2], torch.full((2, 8), 8, dtype=torch.uint8))


def test_act_order_sorts_inputs_by_group() -> None:
    """The layout's inputs are the layer's in the order of their groups, ties as they were; a plain g_idx needs none."""
    data = quantized(96, 8, 32)
    g_idx = torch.tensor([2, 0, 1] * 32)
    weight = from_integers(data.q, data.scales, data.zeros, g_idx, group=32)
    assert weight.order is not None
    assert weight.order[:3].tolist() == [1, 4, 7]
    assert torch.equal(g_idx[weight.order], torch.arange(96) // 32)
    assert from_integers(data.q, data.scales, data.zeros, torch.arange(96) // 32, group=32).order is None


def test_reference_by_hand() -> None:
    """(q - z) s for two groups: (15 - 3) 0.5 = 6 and (0 - 15) 2 = -30."""
    q = torch.tensor([[15]] * 32 + [[0]] * 32)
    scales, zeros = torch.tensor([[0.5], [2.0]]), torch.tensor([[3], [15]])
    assert dequantize_w4_reference(q, scales, zeros, 32)[0, [0, 31, 32, 63]].tolist() == [6.0, 6.0, -30.0, -30.0]


@pytest.mark.parametrize("bad", [-1, 16, 255, 2**31])
@pytest.mark.parametrize("name", ["q", "zeros"])
def test_one_integer_outside_its_bits_is_refused(name: str, bad: int) -> None:
    """A single number outside 0 to 15, wherever it stands, is refused: it would change its neighbours in the word."""
    data = quantized(64, 8, 32)
    wrong = {"q": data.q.long(), "zeros": data.zeros.long()}
    wrong[name][-1, 3] = bad
    low, high = min(bad, int(wrong[name].min())), max(bad, int(wrong[name].max()))
    with pytest.raises(KernelInputError, match=f"{name} holds {low} to {high}, 4-bit integers are 0 to 15; clamp or"):
        from_integers(wrong["q"], data.scales, wrong["zeros"], group=32)


def test_all_integers_of_all_types_are_taken() -> None:
    """0 and 15 are in range, in every integer type."""
    data = quantized(32, 8, 32)
    data.q[0], data.q[1], data.zeros[0, :2] = 0, 15, torch.tensor([0, 15])
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        weight = from_integers(data.q.to(dtype), data.scales, data.zeros.to(dtype), group=32)
        assert torch.equal(weight.words, data.weight().words)
        assert torch.equal(weight.meta, data.weight().meta)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 32), "K is 0, a positive multiple of 8 is needed"),
        ((12, 8, 32), "K is 12, a positive multiple of 8 is needed"),
        ((64.0, 8, 32), "K is 64.0, an integer is needed"),
        ((64, -1, 32), "N is -1, 0 to 4194240 is supported"),
        ((64, 4194241, 32), "N is 4194241, 0 to 4194240 is supported"),
        ((8388488, 8, 32), "K is 8388488, 8 to 8388480 is supported"),
        ((64, 8, 0), "group is 0; 32, 64, 128 or -1 is supported"),
        ((64, 8, None), "group is None, an integer is needed"),
    ],
)
def test_sizes_that_no_weight_has(arguments: tuple[int, int, int], message: str) -> None:
    """A weight without contents has the sizes of one with: its limits are named."""
    with pytest.raises(KernelInputError, match=message):
        W4Weight.empty(*arguments, device="meta")


def test_a_weight_that_is_not_what_its_sizes_say_is_not_unpacked() -> None:
    """Tensors exchanged, cut or of another type are refused by name."""
    weight = quantized(64, 8, 32).weight()
    for changes, message in (
        ({"words": weight.words[:0]}, r"weight.words has shape \(0, 128, 32\), \(1, 128, 32\) is needed"),
        ({"meta": weight.meta.long()}, "weight.meta is torch.int64, torch.int32 is needed"),
        ({"order": torch.arange(8)}, r"weight.order has shape \(8,\), \(64,\) is needed"),
        ({"k": 0}, "K is 0, a positive multiple of 8"),
        ({"words": None}, "weight.words is None, a torch tensor is needed"),
    ):
        with pytest.raises(KernelInputError, match=message):
            to_integers(replace(weight, **changes))


D = quantized(64, 8, 32)
REFUSED = {
    "K is 0, a positive multiple of 8 is needed": lambda: from_integers(D.q[:0], D.scales[:0], D.zeros[:0], group=32),
    "q is torch.float32, integers are needed; round it": lambda: from_integers(D.q + 0.5, D.scales, D.zeros, group=32),
    "zeros is torch.float32, integers": lambda: from_integers(D.q, D.scales, D.zeros.float(), group=32),
    "g_idx is torch.float32, integers": lambda: from_integers(D.q, D.scales, D.zeros, torch.zeros(64), group=32),
    "g_idx holds 0 to 1, groups are 0 to 0": lambda: from_integers(
        D.q, D.scales[:1], D.zeros[:1], torch.arange(64) // 32, group=-1
    ),
    "group is 256; 32, 64, 128 or -1 is supported": lambda: from_integers(D.q, D.scales, D.zeros, group=256),
    "K is 60, a positive multiple of 8 is needed": lambda: from_integers(D.q[:60], D.scales, D.zeros, group=32),
    r"scales has shape \(2, 8\), \(1, 8\) is needed": lambda: from_integers(D.q, D.scales, D.zeros, group=64),
    r"zeros has shape \(1, 8\), \(2, 8\) is needed": lambda: from_integers(D.q, D.scales, D.zeros[:1], group=32),
    "scales are torch.float32": lambda: from_integers(D.q, D.scales.float(), D.zeros, group=32),
    r"g_idx has shape \(3,\), \(64,\)": lambda: from_integers(D.q, D.scales, D.zeros, torch.zeros(3), group=32),
    "g_idx holds 0 to 2, groups are 0 to 1": lambda: from_integers(
        D.q, D.scales, D.zeros, torch.tensor([0] * 32 + [2] * 32), group=32
    ),
    "g_idx puts 33 inputs into group 0, 32 are needed": lambda: from_integers(
        D.q, D.scales, D.zeros, torch.tensor([0] * 33 + [1] * 31), group=32
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """What cannot be packed is refused with its value and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        REFUSED[message]()
