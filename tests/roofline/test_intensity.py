"""Arithmetic intensities by part, and the prompts at which they reach a figure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.modelspecs.load import model
from perfmodel.roofline.intensity import (
    LONGEST,
    batch_intensity,
    op_intensities,
    part_intensity,
    score_intensity,
    shortest_prompt,
)
from perfmodel.roofline.step import decode, prefill


def test_score_intensity_by_hand():
    """QK^T: s/2 fused with as many KV heads as heads; s d / (2 d + s) with S written; the group at decode."""
    assert score_intensity(32, 32, 1024, 1024, 128) == 512
    assert score_intensity(32, 32, 1024, 1024, 128, stored=True) == pytest.approx(1024 * 128 / (256 + 1024))
    # K read once for 8 heads: 2 H s^2 d / (2 d s (H + H/8)) = s / (1 + 1/8)
    assert score_intensity(64, 8, 1024, 1024, 128) == pytest.approx(1024 / 1.125)
    # decode: 2 H kv d / (2 d (H + 8 kv)), nearly H / 8
    assert score_intensity(64, 8, 1, 8192, 128) == pytest.approx(64 / (8 + 64 / 8192))


def test_stored_scores_never_pass_the_head_dimension():
    """An implementation that writes S stays below d FLOP/byte at FP16, however long the prompt."""
    lengths = np.array([128.0, 4096.0, 131072.0, 2.0**20])
    values = np.asarray(score_intensity(32, 32, lengths, lengths, 128, stored=True))
    assert np.all(np.diff(values) > 0)
    assert values[-1] < 128


@given(
    heads=st.integers(1, 8), group=st.integers(1, 16), q=st.integers(1, 4096), kv=st.integers(1, 10**6),
    head_dim=st.integers(8, 256),
)  # fmt: skip
def test_score_intensity_laws(heads, group, q, kv, head_dim):
    """Halving the bytes doubles it, storing S lowers it, and more query heads a KV head never lower it."""
    base = score_intensity(heads * group, heads, q, kv, head_dim)
    assert score_intensity(heads * group, heads, q, kv, head_dim, 1.0) == pytest.approx(2 * base)
    assert score_intensity(heads * group, heads, q, kv, head_dim, stored=True) < base
    assert score_intensity(heads * group, heads * group, q, kv, head_dim) <= base * (1 + 1e-12)


def test_batch_intensity():
    """2 B / b: the batch itself at 2 bytes a weight, twice it at 1."""
    assert batch_intensity(64) == 64
    assert batch_intensity(64, 1.0) == 128


def test_intensity_of_a_gemm_by_hand():
    """The QKV projection of Llama 3 8B at 512 tokens: 2 m n k over 2 (n k + m k + m n) bytes, a layer or 32 of them."""
    m, n, k = 512, 6144, 4096
    got = op_intensities(model("llama3-8b"), prefill(1.0, 512.0))["qkv_proj"]
    assert got.flops == 32 * 2 * m * n * k
    assert got.value == pytest.approx(m * n * k / (n * k + m * k + m * n))
    assert part_intensity(model("llama3-8b"), prefill(1.0, 512.0), "QKV projections") == got.value


def test_decode_attention_reads_the_cache_once_a_group():
    """Decode attention of Llama 3 8B (32 heads, 8 KV heads) has nearly 4 FLOP/byte, of Llama 2 7B (multi-head) 1."""
    assert part_intensity(model("llama3-8b"), decode(1.0, 65536.0), "attention") == pytest.approx(4, rel=1e-3)
    assert part_intensity(model("llama2-7b"), decode(1.0, 65536.0), "attention") == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("part", ["QKV projections", "FFN"])
@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "qwen3-235b-a22b"])
def test_shortest_prompt_is_the_first(name, part):
    """One token fewer does not reach the figure, and the prompt itself does."""
    spec = model(name)
    found = shortest_prompt(spec, part, 80)
    assert part_intensity(spec, prefill(1.0, found), part) >= 80
    assert part_intensity(spec, prefill(1.0, found - 1), part) < 80


def test_shortest_prompt_that_is_not_there():
    """No prompt up to the longest has a million FLOP/byte."""
    assert shortest_prompt(model("llama3-8b"), "FFN", 1e6) == float("inf")
    assert LONGEST >= 8192


def test_scalar_equals_vector():
    """An array of lengths gives the scalars to 1e-13."""
    lengths = np.array([1.0, 17.0, 512.0, 8192.0])
    spec = model("qwen3-235b-a22b")
    got = np.asarray(part_intensity(spec, prefill(1.0, lengths), "FFN"))
    one = [part_intensity(spec, prefill(1.0, float(n)), "FFN") for n in lengths]
    assert got == pytest.approx(one, rel=1e-13)
