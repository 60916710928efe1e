"""FlashDecoding: traffic, the choice of splits, the speedup it can have, and the exact merge."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.roofline.attention_decode import (
    MAX_SPLITS,
    decode_traffic,
    flash_decoding_splits,
    online_softmax_merge,
    partial_softmax,
    split_speedup,
    split_speedup_limit,
    wave_efficiency,
)
from perfmodel.roofline.attention_published import published

A100, H100 = 108, 132


def test_decode_by_hand():
    """Llama-3 70B's heads, 8192 keys, 8 splits: cache, partials and output counted by hand."""
    got = decode_traffic(1, 64, 8, 8192, 128, 2, splits=8)
    cache = 2 * 8192 * 8 * 128 * 2
    partial = 8 * 64 * (128 + 1) * 4  # FP32 output and log-sum-exp of each split
    assert got.step("K, V").total == cache
    assert (got.step("partials").read, got.step("partials").written) == (partial, partial)
    assert got.step("Q").read == 8 * 64 * 128 * 2
    assert got.dram == cache + 2 * partial + 2 * 64 * 128 * 2 + 64 * 4


def test_one_split_has_no_merge():
    """Without a split no partials move, and only the log-sum-exp comes on top of the compulsory bytes."""
    got = decode_traffic(4, 32, 8, 1000, 128, 2)
    assert got.step("partials").total == 0
    assert got.dram == got.compulsory + 4 * 32 * 4


def test_fp8_cache_halves_the_cache_only():
    """An FP8 cache halves the K/V bytes and nothing else."""
    half = decode_traffic(1, 64, 8, 8192, 128, 2, splits=8, kv_bytes_per_element=1)
    full = decode_traffic(1, 64, 8, 8192, 128, 2, splits=8)
    assert full.dram - half.dram == half.step("K, V").read == full.step("K, V").read / 2


@given(kv=st.integers(1, 4000), more=st.integers(1, 400), splits=st.integers(1, 128), group=st.integers(1, 8))
def test_decode_traffic_grows(kv, more, splits, group):
    """More keys move more bytes, more splits never fewer, and never less than the compulsory ones."""
    splits = min(splits, kv)
    now = decode_traffic(2, 4 * group, 4, kv, 64, 2, splits=splits)
    assert now.compulsory < now.dram <= now.l2
    assert decode_traffic(2, 4 * group, 4, kv + more, 64, 2, splits=splits).dram > now.dram
    assert decode_traffic(2, 4 * group, 4, kv, 64, 2, splits=1).dram <= now.dram


def heuristic(total_blocks, sms, key_blocks, max_splits):
    """The heuristic of hopper/heuristics.h, restated as a loop."""
    if total_blocks >= 0.8 * sms or key_blocks <= 4:
        return 1
    efficiency = []
    for splits in range(1, min(max_splits, sms, key_blocks) + 1):
        waves = total_blocks * splits / sms
        efficiency.append(waves / math.ceil(waves))
    return next(i for i, e in enumerate(efficiency, 1) if e >= 0.85 * max(efficiency))


@given(
    batch=st.integers(1, 40),
    kv_heads=st.integers(1, 16),
    kv=st.integers(1, 200_000),
    sms=st.integers(1, 160),
    q_blocks=st.integers(1, 3),
)
@settings(max_examples=300)
def test_splits_equal_the_heuristic(batch, kv_heads, kv, sms, q_blocks):
    """The vectorised choice equals a loop over the splits."""
    got = flash_decoding_splits(batch, kv_heads, kv, sms, 128, q_blocks=q_blocks)
    assert got == heuristic(batch * kv_heads * q_blocks, sms, -(-kv // 128), MAX_SPLITS)


def test_splits_scalar_equals_vector():
    """Arrays of batches and lengths give what scalars give."""
    batch, kv = np.array([[1.0], [4.0], [16.0]]), np.array([512.0, 640.0, 8192.0, 131072.0])
    got = flash_decoding_splits(batch, 8, kv, H100, 128)
    want = [[flash_decoding_splits(b, 8, k, H100, 128) for k in kv] for b in (1, 4, 16)]
    assert got.tolist() == want
    assert flash_decoding_splits(1, 8, 8192, H100, 128) == want[0][2]


def test_wave_efficiency_of_the_comment():
    """The example in the heuristic's own comment: 48 heads on 108 SMs, 2 splits 0.89, 3 splits 0.67."""
    assert wave_efficiency(96, A100) == pytest.approx(0.889, abs=1e-3)
    assert wave_efficiency(144, A100) == pytest.approx(0.667, abs=1e-3)


@pytest.mark.parametrize(("name", "most"), [("a100", 13), ("h100", 16)])
def test_a6_eight_times_exactly_below_an_eighth_of_the_sms(name, most):
    """A6: 8x emerges exactly while batch x KV heads is at most an eighth of the SMs: 13 on A100, 16 on H100."""
    sms = gpu(name).compute.sms.value
    reached = [n for n in range(1, 200) if split_speedup_limit(n, 1, sms) >= 8]
    assert reached == list(range(1, most + 1))
    # and a split that comes close to it exists for a long cache: 128K keys, one sequence, 8 KV heads
    splits = flash_decoding_splits(1, 8, 131072, sms, 128)
    assert 0.85 * sms / 8 < split_speedup(1, 8, 131072, sms, 128, splits) <= sms / 8


def test_a6_no_gain_at_large_batch():
    """A6: with 64 sequences of 8 KV heads the SMs are busy without a split: the heuristic takes none."""
    assert flash_decoding_splits(64, 8, 131072, H100, 128) == 1
    assert split_speedup_limit(64, 8, H100) < 1.04


def test_a6_published_table_stays_below_the_bound():
    """A6: every speedup of the Flash-Decoding table (A100, 4.7x to 43x) lies below the bound and above half of it."""
    table = published().decode_split
    for row in table.rows:
        # FlashAttention 2.0.9 gives every query head a block that reads its KV head's cache alone
        bound = split_speedup_limit(row.batch, table.kv_heads, A100, unsplit_heads=table.heads)
        assert 0.5 * bound < row.speedup < bound, row
    assert split_speedup_limit(1, 2, A100, unsplit_heads=16) == 54
    assert max(row.speedup for row in table.rows) == pytest.approx(43.1, abs=0.1)


@given(batch=st.integers(1, 300), kv_heads=st.integers(1, 16), kv=st.integers(1, 50_000), splits=st.integers(1, 128))
def test_no_split_passes_the_limit(batch, kv_heads, kv, splits):
    """Whatever the splits, the speedup stays at or below the limit, and one split gains nothing."""
    splits = min(splits, -(-kv // 128))
    assert split_speedup(batch, kv_heads, kv, H100, 128, splits) <= split_speedup_limit(batch, kv_heads, H100) + 1e-12
    assert split_speedup(batch, kv_heads, kv, H100, 128, 1) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode_traffic(1, 8, 8, 4, 64, 2, splits=5), "more splits than keys"),
        (lambda: split_speedup(1, 8, 256, H100, 128, 3), "more splits than key blocks"),
        (lambda: flash_decoding_splits(0, 8, 256, H100, 128), "batch is 0"),
    ],
)
def test_bad_splits_are_named(call, message):
    """A split without a key, or a batch of nothing, is refused."""
    with pytest.raises(UsageError, match=message):
        call()


SCORES = st.one_of(st.floats(-80, 80), st.just(-np.inf))


@given(data=st.data(), keys=st.integers(1, 24), parts=st.integers(1, 5))
@settings(max_examples=200)
def test_a7_merge_of_splits_is_direct_softmax(data, keys, parts):
    """A7: attention over any parts of the keys, merged, equals direct softmax over all; empty parts change nothing."""
    scores = data.draw(arrays(np.float64, (3, keys), elements=SCORES))
    values = data.draw(arrays(np.float64, (keys, 2), elements=st.floats(-5, 5)))
    cuts = sorted(data.draw(st.lists(st.integers(0, keys), min_size=parts - 1, max_size=parts - 1)))
    pieces = zip([0, *cuts], [*cuts, keys], strict=True)
    state = (np.full(3, -np.inf), np.zeros(3), np.full((3, 2), np.nan))
    for start, stop in pieces:
        state = online_softmax_merge(*state, *partial_softmax(scores[:, start:stop], values[start:stop]))
    m, total, o = state
    for row in range(3):
        seen = np.isfinite(scores[row])
        if not seen.any():
            assert (m[row], total[row], o[row].tolist()) == (-np.inf, 0, [0, 0])
            continue
        weights = np.exp(scores[row] - scores[row][seen].max())
        assert m[row] == scores[row][seen].max()
        assert total[row] == pytest.approx(weights.sum(), rel=1e-12)
        np.testing.assert_allclose(o[row], weights @ values / weights.sum(), rtol=1e-11, atol=1e-11)


def test_a7_merge_is_commutative_and_has_a_neutral_element():
    """A7: the order of the parts does not matter; a part without a key (NaN output) is neutral; two such stay empty."""
    rng = np.random.default_rng(0)
    first = partial_softmax(rng.normal(size=(4, 7)), rng.normal(size=(7, 3)))
    second = partial_softmax(rng.normal(size=(4, 5)), rng.normal(size=(5, 3)))
    empty = (np.full(4, -np.inf), np.zeros(4), np.full((4, 3), np.nan))
    for one, other in zip(online_softmax_merge(*first, *second), online_softmax_merge(*second, *first), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
    for one, other in zip(online_softmax_merge(*empty, *first), first, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
    m, total, o = online_softmax_merge(*empty, *empty)
    assert np.all(m == -np.inf)
    assert not total.any()
    assert not o.any()
