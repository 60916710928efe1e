"""Paged decode attention against its float64 reference: lengths, pages, head groups, pieces, masks, bad input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from decode_data import BF16, FP16, Problem, blocks, decode_is_right, latent_problem, problem
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.attention.decode import decode_reference, paged_decode
from perfmodel.kernels.attention.decode_blocks import place_rows
from perfmodel.kernels.attention.mla import mla_decode
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.attention.tree import tree_attention
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume, interpreted

SHAPES = [
    {"page": 16, "kv_heads": 1, "group": 1, "q_len": 1, "head_dim": 64, "dtype": BF16},
    {"page": 64, "kv_heads": 2, "group": 4, "q_len": 1, "head_dim": 128, "dtype": BF16},
    {"page": 32, "kv_heads": 2, "group": 3, "q_len": 2, "head_dim": 64, "dtype": FP16},
    {"page": 128, "kv_heads": 1, "group": 8, "q_len": 4, "head_dim": 64, "dtype": BF16},
    {"page": 16, "kv_heads": 1, "group": 7, "q_len": 3, "head_dim": 256, "dtype": FP16},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(str(v).removeprefix("torch.") for v in s.values()))
def test_decode_is_attention_over_each_sequence(device: str, shape: dict[str, object]) -> None:
    """Whatever the page, head group and number of new tokens, the result is that of the whole score matrix."""
    decode_is_right(problem(device, **shape))  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_pieces_make_no_difference(device: str, page: int, splits: int) -> None:
    """Cut into one piece or more than a short sequence has blocks, so that some are empty, the result is the same."""
    decode_is_right(problem(device, page=page, q_len=2), splits=splits, config=blocks())


def test_pieces_are_chosen_for_the_gpu(device: str) -> None:
    """Without `splits` or a configuration, few sequences on a GPU of 4 multiprocessors are cut, and merge rightly."""
    decode_is_right(problem(device, (400,)))


def test_rows_beyond_a_block_go_to_further_programs(device: str) -> None:
    """5 tokens of 8 heads are 40 rows: two blocks of 16 and a part of a third."""
    decode_is_right(problem(device, (70, 5), q_len=5, group=8), config=blocks())


def test_rows_without_a_key_are_zero(device: str) -> None:
    """An empty sequence, and tokens that would lie before a sequence's start, give output 0 and lse -inf."""
    given = problem(device, (0, 2, 40), q_len=4)
    decode_is_right(given, splits=2, config=blocks())
    out, lse = paged_decode(given.q, given.cache, config=blocks())
    assert bool((out[0] == 0).all())
    assert bool((out[1, :2] == 0).all())
    assert bool(torch.isneginf(lse[0]).all())
    assert torch.isneginf(lse[1, :, 0]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("window", [1, 37, 1000])
def test_a_window_hides_what_lies_before_it(device: str, window: int) -> None:
    """Each query sees the last `window` keys up to its own, wherever the window begins in a block."""
    decode_is_right(problem(device, (63, 150), q_len=3), window=window, splits=2, config=blocks())


@pytest.mark.parametrize("q_len", [1, 2])
def test_a_window_that_begins_on_the_last_key_of_a_block(device: str, q_len: int) -> None:
    """Key 63, the last of a block of 32 or 64, is the first that the first query sees, and is not lost."""
    for config in (blocks(), blocks(n=64)):
        given = problem(device, (200,), q_len=q_len, page=32)
        decode_is_right(given, window=201 - q_len - 63, config=config)


@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_join_the_denominator_once(device: str, splits: int) -> None:
    """A sink is counted once however many pieces there are, and is all that a row without keys has."""
    given = problem(device, (0, 1, 130), group=2, kv_heads=2)
    sinks = torch.tensor([-2.0, 0.5, 3.0, 30.0], device=device)
    decode_is_right(given, sinks=sinks, splits=splits, config=blocks())
    _, lse = paged_decode(given.q, given.cache, sinks=sinks, splits=splits, config=blocks())
    assert_close(lse[0, 0], sinks.double())


def test_window_softcap_sinks_and_scale_together(device: str) -> None:
    """Scores are scaled, capped and masked in this order, and the sink is none of them."""
    sinks = random(4, dtype=BF16, device=device)
    decode_is_right(problem(device, q_len=2), window=50, softcap=2.0, scale=0.4, sinks=sinks, splits=2, config=blocks())


def test_large_scores_do_not_overflow(device: str) -> None:
    """Scores of several hundred are exponentiated relative to their maximum."""
    given = problem(device, (200,), dtype=FP16)
    decode_is_right(Problem(given.q * 30, given.cache), splits=3, config=blocks())


@pytest.mark.parametrize("heads_first", [False, True])
def test_other_layouts_are_read_in_place(device: str, heads_first: bool) -> None:
    """Pages that hold keys and then values, [pages, 2, page, heads, D], also with heads before tokens."""
    given = problem(device, (1, 100), kv_heads=2, page=32)
    both = torch.stack([given.cache.k, given.cache.v], 1)
    if heads_first:
        both = both.transpose(2, 3).contiguous().transpose(2, 3)
    cache = replace(given.cache, k=both[:, 0], v=both[:, 1])
    assert not cache.k.is_contiguous()
    decode_is_right(Problem(given.q, cache), splits=2, config=blocks())


@triton.jit
def offsets_kernel(out_ptr, page, token, page_stride, slot_stride, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    pages = page if PAGE % BLOCK_N == 0 else page + tl.zeros((BLOCK_N,), tl.int32)
    first, at = place_rows(pages, token, page_stride, slot_stride, PAGE, BLOCK_N)
    tl.store(out_ptr + tl.arange(0, BLOCK_N), first + at)


@pytest.mark.parametrize("page", [16, 64])
def test_a_page_far_away_is_found(device: str, page: int) -> None:
    """Offsets past 2^31 elements are computed in 64 bits, whether a block of 32 keys lies in one page or in two."""
    out = poisoned((32,), torch.int64, device)
    offsets_kernel[(1,)](out, 3_000_000, 96, 16 * 8192, 8192, page, 32)
    slot = (torch.arange(96, 128) % page).to(device)
    assert torch.equal(out, 3_000_000 * 16 * 8192 + slot * 8192)


def test_given_outputs_are_written_whole_and_alone(device: str) -> None:
    """Poisoned output tensors between guard bands are filled, and their neighbours left as they were."""
    given = problem(device, (63, 5))
    out = guarded(poisoned(given.q.shape, BF16, device))
    lse = guarded(poisoned(given.q.shape[:-1], torch.float32, device))
    with guarded_allocations():
        results = paged_decode(given.q, given.cache, out=(out.tensor, lse.tensor), splits=2, config=blocks())
    assert results[0] is out.tensor
    assert results[1] is lse.tensor
    right, mass = decode_reference(given.q, given.cache)
    assert_close(out.tensor, right)
    assert_close(lse.tensor, mass)
    out.check()
    lse.check()


def test_no_sequence_is_no_work(device: str) -> None:
    """An empty batch gives empty tensors."""
    given = problem(device, (5,))
    none = Paged(given.cache.k, given.cache.v, given.cache.table[:0], given.cache.lengths[:0])
    out, lse = paged_decode(given.q[:0], none)
    assert out.shape == (0, 1, 4, 64)
    assert lse.shape == (0, 1, 4)


def far_apart(cache: torch.Tensor) -> torch.Tensor:
    """A cache of one page, its tokens 2^28 elements apart; nothing of it is read."""
    return cache.as_strided((0, 16, 2, 64), (2**33, 2**28, 64, 1))


BAD = [
    (lambda g: {"q": g.q[0]}, r"q has shape \(1, 4, 64\), \(any, any, any, any\) is needed"),
    (lambda g: {"q": g.q.float()}, "q is float32, float16 or bfloat16 is needed"),
    (lambda g: {"q": g.q[..., :32].contiguous()}, "head_dim is 32, 64, 128, 256 are supported"),
    (lambda g: {"q": g.q.repeat(1, 1, 2, 1)[:, :, :5].contiguous()}, "q has 5 heads, a multiple of the cache's 2"),
    (lambda g: {"k": g.cache.k.half()}, r"cache.k is float16, bfloat16 or float8_e4m3fn is needed"),
    (lambda g: {"v": g.cache.v[:, :, :1]}, r"cache.v has shape .*, \(.*, 16, 2, 64\) is needed"),
    (lambda g: {"v": g.cache.v.transpose(1, 2).contiguous().transpose(1, 2)}, "cache.v has strides .* of cache.k"),
    (lambda g: {"k": g.cache.k[:, :8], "v": g.cache.v[:, :8]}, "cache.k has pages of 8 tokens, 16, 32, 64, 128 are"),
    (lambda g: {"table": g.cache.table.long()}, "cache.table is int64, int32 is needed"),
    (lambda g: {"table": g.cache.table[:, :0]}, "cache.table has no column"),
    (lambda g: {"lengths": g.cache.lengths[:1]}, r"cache.lengths has shape \(1,\), \(2\)"),
    (lambda g: {"k_scale": torch.ones(1)}, "cache.k_scale is given for a cache that is not float8_e4m3fn"),
    (lambda g: {"k": g.cache.k.to(torch.float8_e4m3fn), "v": g.cache.v.to(torch.float8_e4m3fn)}, "k_scale is needed"),
    (lambda g: {"scale": 0.0}, "scale is 0.0, a number above 0 is needed"),
    (lambda g: {"window": 0}, "window is 0, at least 1 is needed"),
    (lambda g: {"softcap": -1.0}, "softcap is -1.0, a number above 0 or None"),
    (lambda g: {"sinks": torch.zeros(3)}, r"sinks has shape \(3,?\), \(4\) is needed"),
    (lambda g: {"max_length": 1000}, "max_length is 1000, 0 to 48 is supported"),
    (lambda g: {"splits": 0}, "splits is 0, 1 to 65535 is supported"),
    (lambda g: {"k": far_apart(g.cache.k), "v": far_apart(g.cache.v)}, "a page must span less than 2\\^31"),
]


@pytest.mark.skipif(not interpreted(), reason="the tensors are on the CPU")
@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_named(change, message: str) -> None:  # type: ignore[no-untyped-def]
    """What does not fit is refused before anything is launched, with its name, its value and what is needed."""
    given = problem("cpu", (20, 20), kv_heads=2, group=2)
    changes = change(given)
    fields = {k: changes.pop(k) for k in ("k", "v", "table", "lengths", "k_scale") if k in changes}
    q = changes.pop("q", given.q)
    with pytest.raises(KernelInputError, match=message):
        paged_decode(q, replace(given.cache, **fields), **changes)


@pytest.mark.gpu
@pytest.mark.skipif(interpreted(), reason="production shapes are for a GPU")
@pytest.mark.parametrize(("sequences", "length", "page"), [(64, 8192, 16), (16, 4096, 64), (1, 32768, 128)])
def test_decode_at_production_size(sequences: int, length: int, page: int) -> None:
    """The shapes of an 8B model's decode step, by the table's configuration and number of pieces."""
    lengths = [length - 17 * i for i in range(sequences)]
    decode_is_right(problem("cuda", lengths, kv_heads=8, group=4, head_dim=128, page=page))


def test_the_architecture_chooses_the_pieces(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More multiprocessors mean more pieces; a window shorter than the sequence means fewer."""
    if device == "cuda":
        pytest.skip("a GPU's multiprocessors are what they are")
    asked = []

    def note(programs: int, slots: int, key_blocks: int) -> int:
        asked.append((programs, slots, key_blocks))
        return 1

    monkeypatch.setattr("perfmodel.kernels.attention.paged_launch.split_count", note)
    given = problem(device, (200,), kv_heads=2)
    for sm_count, options in ((4, {}), (8, {}), (8, {"window": 10}), (8, {"max_length": 64})):
        with assume("sm_90", sm_count=sm_count):
            paged_decode(given.q, given.cache, **options)  # type: ignore[arg-type]
    # 14 table columns of 16 tokens are 4 blocks of 64; two thread blocks on each multiprocessor.
    assert asked == [(2, 8, 4), (2, 16, 4), (2, 16, 1), (2, 16, 1)]


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="tables on a GPU are not looked at")
@pytest.mark.parametrize(
    ("part", "at", "value", "message"),
    [
        ("lengths", (1,), 49, r"lengths\[1\] is 49, 0 to 48 is supported"),
        ("lengths", (0,), -1, r"lengths\[0\] is -1, 0 to 48 is supported"),
        ("table", (1, 1), 6, r"table\[1, 1\] is 6, 0 to 5 is supported"),
        ("table", (0, 0), -1, r"table\[0, 0\] is -1, 0 to 5 is supported"),
    ],
)
def test_places_outside_the_cache_are_named_on_the_cpu(
    part: str, at: tuple[int, ...], value: int, message: str
) -> None:
    """A length beyond the table's room and a page that the cache has not are refused, in decode, trees and MLA."""
    given, (q, latents) = problem("cpu", (20, 20)), latent_problem("cpu", (20, 20), heads=2)
    for cache in (given.cache, latents):
        getattr(cache, part)[at] = value
    masks = torch.ones(2, 1, dtype=torch.int64)
    with pytest.raises(KernelInputError, match="cache." + message):
        paged_decode(given.q, given.cache)
    with pytest.raises(KernelInputError, match="cache." + message):
        tree_attention(given.q, given.cache, masks)
    with pytest.raises(KernelInputError, match="latents." + message):
        mla_decode(q, latents, 0.05)


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="tables on a GPU are not looked at")
def test_page_numbers_that_no_length_needs_may_be_anything() -> None:
    """Columns after a sequence's last page are not looked at; one that its length reaches is."""
    given = problem("cpu", (32, 20))
    given.cache.table[:, 2:] = -1
    decode_is_right(given, config=blocks())
    given.cache.lengths[0] = 33
    with pytest.raises(KernelInputError, match=r"cache.table\[0, 2\] is -1"):
        paged_decode(given.q, given.cache, config=blocks())
