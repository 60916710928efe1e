"""The product with 4-bit weights against float64: rows, groups, tails, splits, checkpoints; planted faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from numeric import assert_close, guarded, poisoned, random
from w4_data import Quantized, quantized

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm import w4a16
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4, dequantize_w4_reference
from perfmodel.kernels.gemm.w4_formats import pack_gptq
from perfmodel.kernels.gemm.w4_packing import W4Weight, from_gptq
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
from perfmodel.kernels.table import Config

DTYPES = [torch.float16, torch.bfloat16]


def small(splits: int = 1, block_m: int = 16, block_n: int = 64) -> Config:
    return Config({"BLOCK_M": block_m, "BLOCK_N": block_n, "splits": splits}, 4, 2)


def activations(m: int, k: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Rows with a mean, so that a zero point that is off shows."""
    return (random(m, k, dtype=torch.float32, device=device, seed=m) + 0.25).to(dtype)


def check(data: Quantized, x: torch.Tensor, weight: W4Weight | None = None, config: Config | None = None) -> None:
    """The product of a weight (that of `data`) is x W of `data`, in a poisoned output between guard bands."""
    at, out = guarded(x), guarded(poisoned((len(x), data.q.shape[1]), x.dtype, str(x.device)))
    got = gemm_w4a16(at.tensor, weight or data.weight(), out=out.tensor, config=config)
    assert got.data_ptr() == out.tensor.data_ptr()
    assert_close(got, data.times(x), torch_result=data.times(x, x.dtype))
    at.check()
    out.check()


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("m", [1, 5, 16, 33, 200])
def test_shipped_configurations(device: str, m: int, group: int) -> None:
    """Rows and groups that take every row of the table, and the dequantized copy, give the product in fp16 and bf16."""
    data = quantized(256, 72, group, device)
    for dtype, arch in zip(DTYPES, ("sm_90", "sm_80" if m < 33 else "sm_100"), strict=True):
        with assume(arch, 2):
            check(data, activations(m, 256, dtype, device))


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize(("k", "n"), [(200, 72), (8, 1), (136, 129), (392, 24)])
def test_tails(device: str, k: int, n: int, group: int) -> None:
    """K that ends within a tile, a run or a group, and N of any size, with scales in bf16."""
    data = quantized(k, n, group, device, scale_dtype=torch.bfloat16)
    check(data, activations(3, k, torch.bfloat16, device), config=small(splits=2))


@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, 9])
def test_split_counts(device: str, splits: int) -> None:
    """K of five tiles in any number of parts, unequal ones and more than there are tiles, for two tiles of rows."""
    check(quantized(640, 40, 128, device), activations(18, 640, torch.float16, device), config=small(splits))


def test_equal_calls_give_equal_bits(device: str) -> None:
    """Parts are added in a fixed order."""
    data, x = quantized(1024, 64, 128, device), activations(4, 1024, torch.bfloat16, device)
    results = [gemm_w4a16(x, data.weight(), config=small(splits=8)) for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_parts_are_kept_in_fp32(device: str) -> None:
    """1 + 2^-11 + 2^-11 in three parts is 1 + 2^-10 in fp16, which parts in fp16 would lose."""
    x = torch.zeros(1, 384, dtype=torch.float16, device=device)
    x[0, 0], x[0, 130], x[0, 383] = 1.0, 2.0**-11, 2.0**-11
    one = torch.ones(384, 8, dtype=torch.uint8, device=device)
    scales = torch.ones(3, 8, dtype=torch.float16, device=device)
    data = Quantized(one, scales, torch.zeros(3, 8, dtype=torch.uint8, device=device), 128)
    out = gemm_w4a16(x, data.weight(), config=small(splits=3))
    assert torch.equal(out, torch.full_like(out, 1.0 + 2.0**-10))


@pytest.mark.parametrize("zero", [0, 15])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_integers_are_exact(device: str, dtype: torch.dtype, zero: int) -> None:
    """q - z of 15 and -15 with powers of two as scales and one input of 1 comes out exactly."""
    q = torch.full((128, 16), 15 - zero, dtype=torch.uint8, device=device)
    zeros = torch.full((1, 16), zero, dtype=torch.uint8, device=device)
    scales = (2.0 ** torch.arange(-8.0, 8.0, device=device)).to(torch.float16)[None, :]
    x = torch.eye(128, dtype=dtype, device=device)[::9].contiguous()
    out = gemm_w4a16(x, Quantized(q, scales, zeros, 128).weight(), config=small())
    assert torch.equal(out, ((15 - 2 * zero) * scales.to(dtype)).expand(len(x), 16))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("m", [5, 130])
def test_act_order(device: str, m: int, group: int) -> None:
    """Inputs that belong to groups in a shuffled order meet their own scales, for few rows and many."""
    data = quantized(264, 40, group, device, act_order=True)
    assert data.weight().order is not None
    check(data, activations(m, 264, torch.float16, device))


def test_infinities_and_nan_stay_in_their_row(device: str) -> None:
    """An infinity or NaN in one row of x shows in that row of the result alone."""
    data, x = quantized(136, 24, 64, device), activations(20, 136, torch.float16, device)
    x[3, 5], x[17, 130] = float("inf"), float("nan")
    out = gemm_w4a16(x, data.weight(), config=small())
    assert_close(out, data.times(x))


def test_what_fills_up_outputs_is_not_seen(device: str) -> None:
    """Whatever lies in the layout past N changes nothing."""
    data, x = quantized(128, 24, 128, device), activations(5, 128, torch.bfloat16, device)
    weight = data.weight()
    weight.words[:, 24:], weight.meta[:, 24:] = -1, -1
    check(data, x, weight, config=small())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n", "group"), [(256, 72, 128), (200, 129, 32), (392, 8, 64), (136, 24, -1)])
def test_dequantize(device: str, k: int, n: int, group: int, dtype: torch.dtype) -> None:
    """The copy in memory is (q - z) s rounded once, for any tails, and nothing beside it is written."""
    data = quantized(k, n, group, device)
    out = guarded(poisoned((n, k), dtype, device))
    dequantize_w4(data.weight(), dtype, out=out.tensor)
    right = dequantize_w4_reference(data.q, data.scales, data.zeros, group)
    assert torch.equal(out.tensor, right.to(torch.float32).to(dtype))
    out.check()


def test_few_and_many_rows_agree(device: str) -> None:
    """The kernel for few rows and the dense product of a copy give the same to the copy's rounding."""
    data, x = quantized(256, 40, 64, device), activations(128, 256, torch.float16, device)
    few = gemm_w4a16(x, data.weight(), config=small(block_m=32))
    assert_close(gemm_w4a16(x, data.weight()), few.double())


@pytest.mark.parametrize(("m", "n"), [(0, 8), (4, 0)])
def test_empty(device: str, m: int, n: int) -> None:
    """No rows or no outputs: an empty result, and no launch."""
    weight = W4Weight.empty(16, n, 128, device=device)
    assert gemm_w4a16(torch.empty(m, 16, dtype=torch.float16, device=device), weight).shape == (m, n)
    assert dequantize_w4(weight).shape == (n, 16)


def swapped_nibbles(weight: W4Weight) -> W4Weight:
    """Nibbles 0 and 1 of every word in each other's place."""
    words = weight.words.to(torch.int32)
    exchanged = (words & 0xFF00) | (words & 0xF) << 4 | (words >> 4 & 0xF)
    return replace(weight, words=exchanged.to(torch.int16))


FAULTS = {
    "nibble order": swapped_nibbles,
    "word order": lambda weight: replace(weight, words=weight.words.flip(2)),
    "zero point off by one": lambda weight: replace(weight, meta=weight.meta + (1 << 16)),
    "group index off by one": lambda weight: replace(weight, meta=weight.meta.roll(1, 0)),
    "tile index off by one": lambda weight: replace(weight, words=weight.words.roll(1, 0)),
    "scales read as another type": lambda weight: replace(weight, scale_dtype=torch.bfloat16),
    "act-order left out": lambda weight: replace(weight, order=None),
}


@pytest.mark.parametrize(
    ("fault", "m"), [*((fault, 5) for fault in FAULTS), ("nibble order", 130), ("group index off by one", 130)]
)
def test_planted_faults_in_the_weight(device: str, fault: str, m: int) -> None:
    """A weight laid out wrongly fails the very comparison that the right one passes."""
    data = quantized(256, 24, 64, device, act_order=True)
    data = replace(data, zeros=data.zeros % 15)
    x = activations(m, 256, torch.float16, device)
    config = small() if m == 5 else None
    check(data, x, config=config)
    with pytest.raises(AssertionError, match=r"relative error|not finite"):
        check(data, x, FAULTS[fault](data.weight()), config)


def test_planted_fault_in_the_checkpoint(device: str) -> None:
    """A version 1 checkpoint read as version 2 has zero points off by one, and fails the comparison."""
    data = quantized(128, 24, 32, device)
    data = replace(data, zeros=data.zeros % 14 + 1)
    words = pack_gptq(data.q, data.zeros, version=1)
    x = activations(5, 128, torch.bfloat16, device)
    check(data, x, from_gptq(*words, data.scales, group=32, version=1), small())
    with pytest.raises(AssertionError, match="relative error"):
        check(data, x, from_gptq(*words, data.scales, group=32, version=2), small())


@pytest.mark.parametrize("fault", ["last part left out", "a part added twice"])
def test_planted_faults_in_merging(device: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of K that are not added, or twice, fail the comparison."""
    data, x = quantized(384, 24, 128, device), activations(5, 384, torch.float16, device)
    merge = w4a16.merge

    def wrong(partial: torch.Tensor, *rest: Any) -> None:
        more = partial[:1] if fault == "a part added twice" else partial[:0]
        merge(torch.cat([partial[:-1] if not len(more) else partial, more]), *rest)

    monkeypatch.setattr(w4a16, "merge", wrong)
    with pytest.raises(AssertionError, match="relative error"):
        check(data, x, config=small(splits=3))


X = random(4, 64, dtype=torch.float16)
W = quantized(64, 8, 32).weight()

REFUSED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "x is float32, float16 or bfloat16 is needed": (X.float(), W, {}),
    r"x has shape \(4, 32\), \(any, 64\) is needed": (X[:, :32].clone(), W, {}),
    "x is not contiguous": (random(64, 4, dtype=torch.float16).T, W, {}),
    "x starts 2 bytes off a multiple of 16": (random(257, dtype=torch.float16)[1:].view(4, 64), W, {}),
    "weight is Tensor, a W4Weight is needed": (X, X, {}),
    r"out has shape \(4, 4\), \(4, 8\) is needed": (X, W, {"out": X[:, :4].clone()}),
    "out is bfloat16, float16 is needed": (X, W, {"out": torch.empty(4, 8, dtype=torch.bfloat16)}),
    "group is 16": (X, replace(W, group=16), {}),
    r"weight.meta has shape \(4, 128\), \(2, 128\)": (X, replace(W, group=64), {}),
    r"weight.words has shape \(1, 128, 32\), \(1, 256, 32\)": (X, replace(W, n=129), {}),
    "weight.words is int32": (X, replace(W, words=W.words.int()), {}),
    "scales are torch.float32": (X, replace(W, scale_dtype=torch.float32), {}),
    "weight.order is int32": (X, replace(W, order=torch.arange(64, dtype=torch.int32)), {}),
    "BLOCK_N'] is 256, a power of two from 64 to 128 is needed": (X, W, {"config": small(block_n=256)}),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    x, weight, more = REFUSED[message]
    with pytest.raises(KernelInputError, match=message):
        gemm_w4a16(x, weight, **more)


@pytest.mark.interpreter
def test_refuses_offsets_past_32_bits() -> None:
    """The kernel for few rows, asked for many by a configuration, has 32-bit offsets and says so."""
    weight = W4Weight.empty(32768, 8, 128, device="meta")
    x = torch.empty(65536, 32768, dtype=torch.float16, device="meta")
    wanted = r"2147483648 elements; this kernel's offsets need fewer than 2\^31"
    with assume("sm_90", ahead_of_time=True), pytest.raises(KernelInputError, match=wanted):
        gemm_w4a16(x, weight, config=small())


@pytest.mark.interpreter
def test_dequantize_refuses() -> None:
    """The copy is in one of the types of activations."""
    with pytest.raises(KernelInputError, match=r"dtype is torch.float32, torch.float16 or torch.bfloat16"):
        dequantize_w4(W, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("m", [1, 16, 32, 64, 256])
@pytest.mark.parametrize(("k", "n"), [(8192, 28672), (14336, 4096)])
def test_production_shapes(device: str, k: int, n: int, m: int, group: int) -> None:
    """Layers of common models with the shipped configurations, on the GPU."""
    data = quantized(k, n, group, device)
    for dtype in DTYPES:
        check(data, activations(m, k, dtype, device))
