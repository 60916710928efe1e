"""Decode attention over FP8 keys and values: scales, both ways to widen them, and the PTX that GPUs run instead."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from decode_data import BF16, FP8, FP8_TOLERANCE, FP16, Problem, blocks, decode_is_right, problem
from numeric import poisoned

from perfmodel.kernels.attention import decode_blocks
from perfmodel.kernels.attention.decode_blocks import halves
from perfmodel.kernels.device import interpreted

Words = np.ndarray[tuple[int], np.dtype[np.uint32]]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("page", "dtype", "per_head"), [(16, BF16, True), (64, FP16, False)])
def test_fp8_keys_and_values_are_exact(device: str, arch: str, page: int, dtype: torch.dtype, per_head: bool) -> None:
    """With a scale for all heads or for each, converted (sm_90) or by moved bits (sm_80), only rounding is left."""
    given = problem(device, (1, 64, 130), kv_heads=2, group=3, page=page, dtype=dtype, kv=FP8, per_head=per_head)
    decode_is_right(given, arch=arch, splits=2, config=blocks(), tolerance=FP8_TOLERANCE)


def test_fp8_with_wide_heads_window_and_sinks(device: str) -> None:
    """Head dimension 128, by the table's configuration."""
    given = problem(device, (150, 40), kv_heads=1, group=4, head_dim=128, page=64, kv=FP8)
    sinks = torch.tensor([0.0, 1.0, 2.0, 3.0], device=device)
    decode_is_right(given, window=70, sinks=sinks, tolerance=FP8_TOLERANCE)


@pytest.mark.parametrize("size", [1e-30, 1e6, 1e30])
def test_queries_beyond_fp16_do_not_overflow(device: str, size: float) -> None:
    """Queries are brought to fp16 by a power of two for each row, whatever their magnitude; a zero row is harmless."""
    given = problem(device, (90,), group=4, kv=FP8)
    q = given.q * torch.tensor([size, 1.0, 0.0, 1 / size], device=device, dtype=BF16)[:, None]
    q[:, :, :2, ::2] = 0  # one half of a word's columns alone
    # The scores of large rows are as large: a scale of 1 / size would make those of the last row vanish.
    decode_is_right(Problem(q, given.cache), scale=0.1 / max(size, 1.0), config=blocks(), tolerance=FP8_TOLERANCE)


@triton.jit
def halves_kernel(words, low, high, BITS: tl.constexpr, ASM: tl.constexpr):
    at = tl.program_id(0) * 4096 + tl.arange(0, 4096)
    even, odd = halves(tl.load(words + at), BITS, ASM)
    tl.store(low + at, even)
    tl.store(high + at, odd)


def every_word(device: str) -> torch.Tensor:
    """All 2^16 pairs of FP8 values, as words."""
    return torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16)


def as_fp8(words: torch.Tensor) -> torch.Tensor:
    """[words, 2]: what the low and the high byte of each word mean."""
    return words.view(torch.uint8).view(-1, 2).view(FP8).to(torch.float32)


@pytest.mark.parametrize("bits", [False, True])
def test_every_fp8_value_is_widened_exactly(device: str, bits: bool) -> None:
    """Each of the 256 values, subnormals, both zeros and the limits among them, in both halves of a word."""
    words = every_word(device)
    low, high = (poisoned((65536,), torch.float16, device) for _ in "lh")
    halves_kernel[(16,)](words, low, high, bits, not interpreted())
    widened_is_right(words, torch.stack([low, high], 1), bits)


def widened_is_right(words: torch.Tensor, widened: torch.Tensor, bits: bool) -> None:
    """Moved bits are 2^-8 of the values and read NaN as 480; converted ones are the values."""
    got, right = widened.float() * (256.0 if bits else 1.0), as_fp8(words)
    if bits:
        right = torch.where(right.isnan(), torch.copysign(torch.tensor(480.0), right), right)
    assert torch.equal(got.isnan(), right.isnan())
    number = ~right.isnan()
    assert torch.equal(got[number], right[number])
    assert torch.equal(torch.signbit(got[number]), torch.signbit(right[number]))


def run_ptx(text: str, words: Words) -> tuple[Words, Words]:
    """Run the few PTX instructions of the two texts, `words` being operand 2; returns operands 0 and 1."""
    held: dict[str, Words] = {"$2": words}

    def value(name: str) -> Words:
        return held[name] if name in held else np.full_like(words, int(name, 0))

    def permute(a: Words, b: Words, selector: Words) -> Words:
        every = [(x >> np.uint32(8 * i)) & np.uint32(255) for x in (a, b) for i in range(4)]
        chosen = [every[int(selector[0]) >> (4 * i) & 7] for i in range(4)]
        return sum((c << np.uint32(8 * i) for i, c in enumerate(chosen)), np.zeros_like(a))

    def convert(a: Words) -> Words:
        pair = torch.from_numpy(a.astype(np.uint16).view(np.uint8)).view(FP8).to(torch.float16)
        return pair.view(torch.int16).numpy().view(np.uint32)

    known: dict[str, Callable[..., Words]] = {
        "prmt.b32": permute,
        "cvt.rn.f16x2.e4m3x2": convert,
        "shl.b32": lambda a, n: a << n,
        "shr.b32": lambda a, n: a >> n,
        "and.b32": lambda a, b: a & b,
        "or.b32": lambda a, b: a | b,
    }
    for line in re.findall(r"([\w.]+ [^;{}]*(?:\{[^}]*\}[^;]*)?);", text):
        operation, operands = line.strip().split(" ", 1)
        if operation == ".reg":
            continue
        if operation == "mov.b32":
            low, high, source = re.fullmatch(r"\{(\w+), (\w+)\}, (\w+)", operands).groups()  # type: ignore[union-attr]
            held[low], held[high] = held[source] & np.uint32(0xFFFF), held[source] >> np.uint32(16)
            continue
        target, *sources = (name.strip() for name in operands.split(","))
        held[target] = known[operation](*map(value, sources))
    return held["$0"], held["$1"]


@pytest.mark.interpreter
@pytest.mark.parametrize("bits", [False, True])
def test_the_ptx_of_gpus_does_the_same(bits: bool) -> None:
    """The PTX that replaces the Triton code on a GPU, run by an interpreter of its instructions, for every pair."""
    words = every_word("cpu")
    others = words.flip(0)
    packed = torch.stack([words, others], 1).view(torch.int32)[:, 0].numpy().view(np.uint32)
    text = decode_blocks.MOVE if bits else decode_blocks.CONVERT
    even, odd = (
        torch.from_numpy(x.view(np.int32).copy()).view(torch.float16).view(-1, 2) for x in run_ptx(text.value, packed)
    )
    for at, given in ((0, words), (1, others)):
        widened_is_right(given, torch.stack([even[:, at], odd[:, at]], 1), bits)
