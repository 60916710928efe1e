"""Quantization gives the reference's codes and scales to the last bit, and codes that are the nearest."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from numeric import assert_close, guarded, poisoned, random
from verify_data import skip_where_missing

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.support import codes as codes_module
from perfmodel.kernels.support import kv_quantize as kv_module
from perfmodel.kernels.support import quantize as module
from perfmodel.kernels.support.kv_quantize import quantize_kv, quantize_kv_reference
from perfmodel.kernels.support.quantize import (
    quantize_blocks,
    quantize_blocks_reference,
    quantize_rows,
    quantize_rows_reference,
)
from perfmodel.kernels.table import Config

CODES = [torch.int8, torch.float8_e4m3fn]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int8)


def assert_rows(x: torch.Tensor, code: torch.dtype, block: int) -> None:
    """Codes and scales are the reference's, all was written and nothing beyond."""
    with guarded_allocations():
        found, scale = quantize_rows(x, code, Config({"BLOCK_K": block}, 4, 1))
    right, factor = quantize_rows_reference(x, code)
    assert_close(bits(found), bits(right))
    assert torch.equal(scale, factor), "scales differ"


def assert_blocks(x: torch.Tensor, code: torch.dtype, block: int = 2) -> None:
    """The same with a scale a block."""
    with guarded_allocations():
        found, scale = quantize_blocks(x, code, Config({"BLOCK_G": block}, 4, 1))
    right, factor = quantize_blocks_reference(x, code)
    assert_close(bits(found), bits(right))
    assert torch.equal(scale, factor), "scales differ"


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns", "block"), [(3, 200, 256), (2, 300, 128), (1, 1, 16)])
def test_rows(device: str, rows: int, columns: int, block: int, dtype: torch.dtype, code: torch.dtype) -> None:
    """Rows in one block and in several, odd lengths, one column, each type of activation and of code."""
    skip_where_missing(code, device)
    assert_rows(random(rows, columns, dtype=dtype, device=device, scale=5), code, block)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(3, 512), (2, 300), (1, 1)])
def test_blocks(device: str, rows: int, columns: int, code: torch.dtype) -> None:
    """Whole blocks, a shorter last one, fewer blocks than a program takes."""
    skip_where_missing(code, device)
    assert_blocks(random(rows, columns, dtype=torch.bfloat16, device=device), code)


@pytest.mark.parametrize("code", CODES, ids=str)
def test_zeros_small_and_large_numbers(device: str, code: torch.dtype) -> None:
    """Zeros code to zero with a scale above 0; the largest number of a row codes to the limit, without overflow."""
    skip_where_missing(code, device)
    x = torch.zeros(4, 64, device=device)
    x[1, 3], x[2, 5], x[3, 7] = 1e-30, -3e38, 0.75
    assert_rows(x, code, 64)
    found, scale = quantize_rows(x, code, Config({"BLOCK_K": 64}, 4, 1))
    limit = 127 if code == torch.int8 else 448
    assert bool((found[:2].float() == 0).all())
    assert bool((scale > 0).all())
    assert [found[2, 5].item(), found[3, 7].item()] == [-limit, limit]


@pytest.mark.parametrize("code", CODES, ids=str)
def test_codes_are_the_nearest(code: torch.dtype) -> None:
    """The reference's error is at most half a step: scale / 2 for int8, 2^-4 of the number (or of 2^-6) for FP8."""
    x = random(4, 500, dtype=torch.float32, scale=3)
    found, scale = quantize_rows_reference(x, code)
    error = (found.float() * scale[:, None] - x).abs()
    if code == torch.int8:
        allowed = scale[:, None] / 2 * 1.0001
    else:  # three bits of mantissa; numbers below 2^-6 are subnormal, in steps of 2^-9
        allowed = torch.maximum(x.abs() / 16, scale[:, None] * 2.0**-10) * 1.0001
    assert bool((error <= allowed).all())


def test_ties_go_to_even(device: str) -> None:
    """Numbers half way between two codes take the even one, negative ones too."""
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]], device=device)
    found, scale = quantize_rows(x, torch.int8, Config({"BLOCK_K": 8}, 1, 1))
    assert scale.item() == 1.0
    assert found[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


def cache_problem(device: str, code: torch.dtype, by_token: bool, dim: int = 24, v_dim: int = 24) -> dict[str, Any]:
    """Four rows of three heads, one of them not kept, k and v slices of one tensor if they can be."""
    both = random(4, 6, dim, dtype=torch.bfloat16, device=device, scale=2)
    v = both[:, 3:] if v_dim == dim else random(4, 3, v_dim, dtype=torch.bfloat16, device=device, seed=1)
    scales = (
        poisoned((3, 4, 3), torch.float32, device) if by_token else torch.tensor([0.01, 0.05, 0.001], device=device)
    )
    return {
        "k": both[:, :3],
        "v": v,
        "slots": torch.tensor([9, 0, -1, 7], dtype=torch.int64, device=device),
        "key_cache": random(3, 4, 3, dim, dtype=torch.int8, device=device).view(code),
        "value_cache": random(3, 4, 3, v_dim, dtype=torch.int8, device=device, seed=2).view(code),
        "key_scales": scales,
        "value_scales": scales.clone() * 2,
    }


def assert_cached(given: dict[str, Any], by_token: bool) -> None:
    """Kept rows' codes and scales are the reference's, everything else is as it was."""
    names = ("key_cache", "value_cache", "key_scales", "value_scales")
    mine = {name: guarded(given[name]) for name in names}
    quantize_kv(**(given | {name: one.tensor for name, one in mine.items()}), config=Config({"BLOCK_H": 2}, 4, 1))
    kept = given["slots"] >= 0
    slots = given["slots"][kept]
    for source, name, scales in (("k", "key_cache", "key_scales"), ("v", "value_cache", "value_scales")):
        right = given[name].clone().flatten(0, 1)
        factors = given[scales].clone()
        found, factor = quantize_kv_reference(
            given[source][kept], given[name].dtype, None if by_token else given[scales]
        )
        bits(right)[slots] = bits(found)
        if by_token:
            factors.flatten(0, 1)[slots] = factor
        mine[name].check()
        mine[scales].check()
        assert_close(bits(mine[name].tensor.flatten(0, 1)), bits(right))
        assert torch.equal(mine[scales].tensor.nan_to_num(-1), factors.nan_to_num(-1)), "scales differ"


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("by_token", [False, True], ids=["a scale a head", "a scale a token"])
@pytest.mark.parametrize("widths", [(24, 24), (64, 10)], ids=str)
def test_keys_and_values(device: str, code: torch.dtype, by_token: bool, widths: tuple[int, int]) -> None:
    """Scales given a head (small enough that codes are limited) or found a token; heads that end within a block."""
    skip_where_missing(code, device)
    assert_cached(cache_problem(device, code, by_token, *widths), by_token)


def test_the_shipped_configurations(device: str) -> None:
    """Without configurations of their own the calls take the tables'; int8 on sm_80 too."""
    x = random(1, 500, dtype=torch.bfloat16, device=device)
    with assume("sm_80"):
        assert_close(quantize_rows(x, torch.int8)[0], quantize_rows_reference(x, torch.int8)[0])
        assert_close(quantize_blocks(x, torch.int8)[0], quantize_blocks_reference(x, torch.int8)[0])
        given = cache_problem(device, torch.int8, True)
        quantize_kv(**given)
    right, _ = quantize_kv_reference(given["k"], torch.int8)
    assert_close(given["key_cache"].flatten(0, 1)[9], right[0])


@pytest.mark.gpu
@pytest.mark.parametrize("code", CODES, ids=str)
def test_production_shapes(code: torch.dtype) -> None:
    """Each shipped configuration over 2048 rows, and a cache of 8 heads of 128 and of 256."""
    skip_where_missing(code, "cuda")
    for columns in (2048, 4096, 7168, 14336, 28672):
        x = random(2048, columns, dtype=torch.bfloat16).cuda()
        for found, right in (
            (quantize_rows(x, code), quantize_rows_reference(x, code)),
            (quantize_blocks(x, code), quantize_blocks_reference(x, code)),
        ):
            assert torch.equal(bits(found[0]), bits(right[0]))
            assert torch.equal(found[1], right[1])
    for dim in (128, 256):
        k, v = (random(2048, 8, dim, dtype=torch.bfloat16, seed=seed).cuda() for seed in (0, 1))
        slots = torch.randperm(256 * 16, generator=torch.Generator().manual_seed(0))[:2048].cuda()
        caches = [torch.zeros(256, 16, 8, dim, dtype=torch.uint8, device="cuda").view(code) for _ in range(2)]
        scales = [poisoned((256, 16, 8), torch.float32, "cuda") for _ in range(2)]
        quantize_kv(k, v, slots, *caches, *scales)
        for x, cache, scale in zip((k, v), caches, scales, strict=True):
            right = quantize_kv_reference(x, code)
            assert torch.equal(bits(cache).flatten(0, 1)[slots], bits(right[0]))
            assert torch.equal(scale.flatten(0, 1)[slots], right[1])


def _cut_off(x, factor, code: tl.constexpr, LIMIT: tl.constexpr):
    y = tl.minimum(tl.maximum(x * factor, -LIMIT), LIMIT)
    return y.to(tl.int8) if code == tl.int8 else (y * 0.97).to(code)


def _off_scale(largest, LIMIT: tl.constexpr):
    largest = tl.maximum(largest, 1e-10)
    return tl.div_rn(largest, LIMIT + 1.0), tl.div_rn(LIMIT + 1.0, largest)


@pytest.mark.interpreter
@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize(("name", "faulty"), [("_encode", _cut_off), ("_scale_of", _off_scale)])
def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, code: torch.dtype, name: str, faulty) -> None:
    """Codes cut off instead of rounded, and 128 (449) for the limit, fail the comparisons that the kernels pass."""
    for where in (codes_module, module, kv_module):
        monkeypatch.setattr(where, name, triton.jit(faulty))
    x = random(2, 200, dtype=torch.bfloat16)
    for compare in (
        lambda: assert_rows(x, code, 256),
        lambda: assert_blocks(x, code),
        lambda: assert_cached(cache_problem("cpu", code, True), True),
    ):
        with pytest.raises(AssertionError, match="differ"):
            compare()


def test_float8_is_refused_on_sm_80(device: str) -> None:
    """sm_80 cannot convert to FP8; the message says so and what to use."""
    if device == "cuda":
        pytest.skip("the architecture of a GPU is its own")
    message = r"dtype is float8_e4m3fn, which GPUs before sm_89 cannot convert to; use int8 there"
    with assume("sm_80"), pytest.raises(KernelInputError, match=message):
        quantize_rows(torch.ones(2, 16), torch.float8_e4m3fn)


BAD = [
    (lambda x: quantize_rows(x.double()), "x is float64, bfloat16 or float16 or float32 is needed"),
    (lambda x: quantize_rows(x, torch.float8_e5m2), "dtype is float8_e5m2, int8 or float8_e4m3fn is needed"),
    (lambda x: quantize_rows(x[0]), r"x has shape \(64,\), \(any, any\) is needed"),
    (lambda x: quantize_blocks(x.T), "x is not contiguous"),
    (lambda x: quantize_blocks(x[:, :0].contiguous()), "the number of columns is 0, 1 to"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused(device: str, call, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        call(torch.ones(2, 64, device=device))


BAD_CACHE = [
    ("k", lambda x: x.transpose(1, 2), "k has strides .* heads must be packed"),
    ("v", lambda x: x[:, :2], r"v has shape \(4, 2, 24\), rows and heads of k \(4, 3, 24\) are needed"),
    ("slots", lambda x: x[:3], r"slots has shape \(3,\), \(4\) is needed"),
    ("key_cache", lambda x: x.float(), "key_cache is float32, int8 or float8_e4m3fn is needed"),
    ("value_cache", lambda x: x.view(torch.float8_e4m3fn), "value_cache is float8_e4m3fn, int8 is needed"),
    ("key_scales", lambda x: x[:2], r"key_scales has shape \(2,\), \(3\) is needed"),
    ("value_scales", lambda x: x.double(), "value_scales is float64, float32 is needed"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD_CACHE)
def test_bad_input_of_the_cache_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = cache_problem(device, torch.int8, False)
    given[name] = spoil(given[name])
    with pytest.raises(KernelInputError, match=message):
        quantize_kv(**given)
