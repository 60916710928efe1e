"""FLOPs of a token, of a layer and of its parts, beside the textbook's formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.counts import active_params
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.tensors import tensors
from perfmodel.roofline.flops import (
    crossovers,
    flops_per_token,
    layer_work,
    op_share,
    role_share,
    step_flops,
    textbook_model,
)
from perfmodel.roofline.step import decode, prefill


@given(thirds=st.integers(1, 40), length=st.integers(1, 2**17), layers=st.integers(1, 3))
def test_textbook_layer(thirds, length, layers):
    """A layer of multi-head attention and SwiGLU of 8/3 d does 24 s d^2 + 4 s^2 d, and 16 s d^2 of it in the FFN."""
    d = 384 * thirds
    work = layer_work(textbook_model(d, layers), length, causal=False)
    assert work.projections == layers * 8 * length * d**2
    assert work.ffn == layers * 16 * length * d**2
    assert work.scores == pytest.approx(layers * 4 * length**2 * d, rel=1e-12)
    assert work.total == pytest.approx(work.linear + work.scores)


@given(length=st.integers(1, 2**17))
def test_causal_counts_the_needed_pairs(length):
    """s (s + 1) / 2 pairs of s^2: the causal half, and the diagonal."""
    spec = textbook_model(3072)
    assert layer_work(spec, length).scores == 2 * length * (length + 1) * 3072
    assert layer_work(spec, length).linear == layer_work(spec, length, causal=False).linear


@pytest.mark.parametrize("name", ["llama3-8b", "qwen2.5-72b", "llama3.1-405b", "qwen3-235b-a22b", "llama4-scout"])
def test_token_is_twice_the_active_matrices(name):
    """At a context of 1 a token does 2 FLOPs for every active parameter of a matrix, and a little attention."""
    spec = model(name)
    vectors = sum(
        t.total for t in tensors(spec) if len(t.shape) == 1 and t.role not in ("vision", "projector", "buffer")
    )
    attention = sum(4 * layer.count * layer.attention.heads * layer.attention.head_dim for layer in spec.layer_classes)
    assert flops_per_token(spec) == 2 * (active_params(spec) - vectors) + attention


def test_context_adds_attention_alone():
    """Llama 3 8B: 4 x 4096 FLOPs a layer and token of context."""
    spec = model("llama3-8b")
    assert flops_per_token(spec, 4096) - flops_per_token(spec, 1) == 4095 * 4 * 4096 * 32


def test_parts_add_up_to_the_step():
    """Layers and LM head are all matrix work of a prefill, in models with MLA, experts and windows too."""
    for name in ("llama3-8b", "deepseek-v3", "gemma3-27b"):
        spec, step = model(name), prefill(1.0, 1000.0)
        head = op_share(spec, step, "lm_head") * step_flops(spec, step)
        assert layer_work(spec, 1000).total + head == pytest.approx(step_flops(spec, step), rel=1e-12)


def test_layer_work_agrees_with_the_crossovers():
    """At the length where attention passes the FFN, and all linear work, the parts are equal."""
    spec = model("llama3-8b")
    found = crossovers(spec)
    work = layer_work(spec, round(found.ffn))
    assert work.scores == pytest.approx(work.ffn, rel=1e-4)
    work = layer_work(spec, round(found.linear))
    assert work.scores == pytest.approx(work.linear, rel=1e-4)


def test_head_shares_by_hand():
    """Llama 3 8B: 525,336,576 of 8,030,261,248 weights, and twice that of the decode FLOPs; an embedding costs none."""
    spec = model("llama3-8b")
    assert role_share(spec, "lm_head") == 525336576 / 8030261248
    assert op_share(spec, decode(1.0, 1.0), "lm_head") == 2 * 525336576 / flops_per_token(spec)
    assert op_share(spec, decode(1.0, 1.0), "embedding") == 0


def test_role_share_leaves_apart_what_is_counted_apart():
    """DeepSeek-V3's MTP layer is not in the whole."""
    spec = model("deepseek-v3")
    assert role_share(spec, "lm_head") == 129280 * 7168 / 671026419200


def test_the_full_square_of_windowed_layers_ignores_the_window():
    """All pairs are s^2 a head and layer, whatever the window: 62 layers of 32 heads of 128 in Gemma 3 27B."""
    assert layer_work(model("gemma3-27b"), 4096, causal=False).scores == pytest.approx(4 * 4096**2 * 32 * 128 * 62)


@pytest.mark.parametrize(("hidden", "heads"), [(4096, None), (3072, 7)])
def test_textbook_model_needs_whole_numbers(hidden, heads):
    """8/3 d and the heads are whole numbers or refused."""
    with pytest.raises(UsageError, match="must be a multiple of 3"):
        textbook_model(hidden, heads=heads)
