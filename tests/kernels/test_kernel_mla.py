"""MLA decode against its float64 reference: lengths, pages, heads, pieces, FP8, planted faults, bad input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from decode_data import BF16, FP8, FP8_TOLERANCE, FP16, blocks, latent_problem
from numeric import assert_close, guarded, poisoned

from perfmodel.kernels.attention import mla_kernel
from perfmodel.kernels.attention.mla import Latents, mla_decode, mla_reference
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume, interpreted
from perfmodel.kernels.table import Config

SCALE = 192**-0.5
ONE_LOOP, TWO_LOOPS = blocks(TWO_LOOPS=False), blocks(TWO_LOOPS=True)


def mla_is_right(
    q: torch.Tensor,
    latents: Latents,
    *,
    splits: int | None = 1,
    config: Config | None = TWO_LOOPS,
    arch: str = "sm_90",
    tolerance: float | None = None,
) -> None:
    """Compare with the reference: output, log-sum-exp, nothing unwritten, nothing written outside."""
    with assume(arch, sm_count=4), guarded_allocations():
        out, lse = mla_decode(q, latents, SCALE, splits=splits, config=config)
    right, mass = mla_reference(q, latents, SCALE)
    theirs, _ = mla_reference(q, latents, SCALE, dtype=q.dtype)
    assert_close(out, right, torch_result=theirs, tolerance=tolerance)
    assert_close(lse, mass)


@pytest.mark.parametrize("config", [ONE_LOOP, TWO_LOOPS], ids=["one loop", "two loops"])
@pytest.mark.parametrize(("page", "heads", "q_len", "dtype"), [(16, 16, 1, BF16), (64, 5, 3, FP16)])
def test_mla_is_attention_over_latents(
    device: str, page: int, heads: int, q_len: int, dtype: torch.dtype, config: Config
) -> None:
    """Whatever the page, heads and new tokens, latents are keys whole and values in their first 512 columns."""
    mla_is_right(*latent_problem(device, (1, 64, 130), heads=heads, q_len=q_len, page=page, dtype=dtype), config=config)


@pytest.mark.parametrize("splits", [2, 4])
def test_pieces_make_no_difference(device: str, splits: int) -> None:
    """Cut into more pieces than a short sequence has blocks, so that some are empty, the result is the same."""
    mla_is_right(*latent_problem(device, (1, 64, 100), heads=3), splits=splits)


def test_rows_beyond_a_block_go_to_further_programs(device: str) -> None:
    """2 tokens of 20 heads are 40 rows: two blocks of 16 and a part of a third, the tokens' border inside one."""
    mla_is_right(*latent_problem(device, (65,), heads=20, q_len=2))


def test_rows_without_a_token_are_zero(device: str) -> None:
    """An empty sequence, and tokens that would lie before a sequence's start, give output 0 and lse -inf."""
    q, latents = latent_problem(device, (0, 1, 33), heads=2, q_len=3)
    mla_is_right(q, latents, splits=2)
    out, lse = mla_decode(q, latents, SCALE, config=TWO_LOOPS)
    assert bool((out[0] == 0).all())
    assert bool((out[1, :2] == 0).all())
    assert torch.isneginf(lse[1, :, 0]).tolist() == [True, True, False]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("page", [16, 64])
def test_fp8_latents_are_exact(device: str, arch: str, page: int) -> None:
    """Converted (sm_90) or by moved bits (sm_80), only rounding of weights and output is left."""
    given = latent_problem(device, (1, 70), heads=4, page=page, kv=FP8)
    mla_is_right(*given, splits=2, arch=arch, tolerance=FP8_TOLERANCE)


def test_the_table_has_a_configuration(device: str) -> None:
    """Without `config` and `splits`, a long sequence on a GPU of 4 multiprocessors is cut, and merges rightly."""
    mla_is_right(*latent_problem(device, (200,), heads=4, page=64), splits=None, config=None)


def test_given_outputs_are_written_whole_and_alone(device: str) -> None:
    """Poisoned output tensors between guard bands are filled, and their neighbours left as they were."""
    q, latents = latent_problem(device, (20,), heads=3)
    out = guarded(poisoned((1, 1, 3, 512), BF16, device))
    lse = guarded(poisoned((1, 1, 3), torch.float32, device))
    mla_decode(q, latents, SCALE, out=(out.tensor, lse.tensor), config=ONE_LOOP)
    right, mass = mla_reference(q, latents, SCALE)
    assert_close(out.tensor, right)
    assert_close(lse.tensor, mass)
    out.check()
    lse.check()


@triton.jit
def next_page(table, token, hi, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    t = token + tl.arange(0, BLOCK_N)
    return tl.load(table + t // PAGE + 1, mask=t < hi, other=0)


@triton.jit
def pieces_overlap(first, n, split, n_splits, BLOCK_N: tl.constexpr):
    per = tl.cdiv(tl.cdiv(n - first, n_splits), BLOCK_N) * BLOCK_N
    lo = first + split * per
    return lo, tl.minimum(lo + per + BLOCK_N, n)


@triton.jit
def sees_one_more(positions, columns, keys, window, CAUSAL: tl.constexpr):
    return columns[None, :] <= positions[:, None] + 1


@triton.jit
def never_rescaled(acc, rescale, weights, values):
    return tl.dot(weights.to(values.dtype), values, acc)


@triton.jit
def unmasked(ptr, at, seen, MASKED: tl.constexpr):
    return tl.load(ptr + at)


def test_the_faulty_problem_is_right_without_a_fault(device: str) -> None:
    """What the next tests break is sound."""
    for page in (16, 64):
        mla_is_right(*latent_problem(device, (130,), heads=1, q_len=2, page=page), splits=2)


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
@pytest.mark.parametrize(
    ("page", "name", "fault"),
    [
        (16, "lookup", next_page),
        (16, "piece", pieces_overlap),
        (16, "visible", sees_one_more),
        (16, "gather", never_rescaled),
        (64, "load_tile", unmasked),  # blocks of a smaller page look up no page for tokens past the end
    ],
    ids=lambda value: value.fn.__name__ if hasattr(value, "fn") else str(value),
)
def test_a_wrong_helper_is_caught(page: int, name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong pages, overlapping pieces, a wrong mask, a forgotten rescale, poison that is let in."""
    given = latent_problem("cpu", (130,), heads=1, q_len=2, page=page)
    monkeypatch.setattr(mla_kernel, name, fault)
    with pytest.raises(AssertionError, match=r"relative error|infinities|finite"):
        mla_is_right(*given, splits=2)


BAD = [
    (lambda q, c: (q[..., :512].contiguous(), c), r"q has shape \(1, 1, 2, 512\), \(any, any, any, 576\) is needed"),
    (lambda q, c: (q.float(), c), "q is float32"),
    (
        lambda q, c: (q, replace(c, cache=c.cache.half())),
        "latents.cache is float16, bfloat16 or float8_e4m3fn is needed",
    ),
    (lambda q, c: (q, replace(c, cache=c.cache[:, :12])), "latents.cache has pages of 12 tokens, 16, 32, 64, 128"),
    (lambda q, c: (q, replace(c, table=c.table[0])), r"latents.table has shape"),
    (lambda q, c: (q, replace(c, cache=c.cache.to(FP8))), "latents.scale is needed for a float8_e4m3fn cache"),
    (
        lambda q, c: (q, replace(c, cache=c.cache.to(FP8), scale=torch.ones(2))),
        r"latents.scale has shape \(2,?\), \(1\)",
    ),
]


@pytest.mark.skipif(not interpreted(), reason="the tensors are on the CPU")
@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_named(change, message: str) -> None:  # type: ignore[no-untyped-def]
    """What does not fit is refused with its name, its value and what is needed."""
    q, latents = change(*latent_problem("cpu", (20,), heads=2))
    with pytest.raises(KernelInputError, match=message):
        mla_decode(q, latents, SCALE)


@pytest.mark.gpu
@pytest.mark.skipif(interpreted(), reason="production shapes are for a GPU")
@pytest.mark.parametrize(("sequences", "heads", "page"), [(16, 128, 64), (64, 16, 64), (1, 128, 16)])
def test_mla_at_production_size(sequences: int, heads: int, page: int) -> None:
    """DeepSeek-V3's heads, on one GPU and on eight, by the table's configuration and number of pieces."""
    lengths = [4096 - 17 * i for i in range(sequences)]
    mla_is_right(*latent_problem("cuda", lengths, heads=heads, page=page), splits=None, config=None)
