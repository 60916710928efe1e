"""Where the limiter changes: critical batches and crossover lengths against their closed forms."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.critical import compute_bound_context, critical_batch, linear_critical_batch
from perfmodel.roofline.flops import crossovers
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import decode
from perfmodel.roofline.times import Rates


@pytest.mark.parametrize(("name", "batch"), [("a100", 153), ("h100", 295), ("b200", 293)])
def test_linear_layers_turn_compute_bound_at_the_ridge(name: str, batch: int) -> None:
    """At 16 bits the critical batch is the ridge, peak / bandwidth: 153, 295, 293; not half of it."""
    assert linear_critical_batch(gpu(name)) == pytest.approx(batch, abs=0.6)
    assert linear_critical_batch(gpu(name)) == gpu(name).peak("bf16") / gpu(name).bandwidth


def test_stored_width_and_arithmetic_move_the_critical_batch() -> None:
    """H100: 8-bit weights in BF16 arithmetic halve it to 148; in FP8 arithmetic it is back at 295; 4 bits: 77."""
    h100 = gpu("h100")
    assert linear_critical_batch(h100, 1.0, "bf16") == pytest.approx(147.7, abs=0.1)
    assert linear_critical_batch(h100, 1.0, "fp8") == pytest.approx(295.4, abs=0.1)
    assert linear_critical_batch(h100, (4 + 20 / 128) / 8, "bf16") == pytest.approx(295.34 * 4.15625 / 16, rel=1e-3)


@pytest.mark.parametrize(("weights", "batch"), [("bf16", 295), ("w8a16", 148), ("fp8", 295)])
def test_the_linear_layers_of_a_model_turn_where_the_formula_says(weights: str, batch: int) -> None:
    """Summed over Llama-3 70B's own layers the crossing is that of the formula, within the 16-bit head's share."""
    (found,) = critical_batch("llama3-70b", "h100", 512.0, weights=weights)
    assert found.linear == pytest.approx(batch, rel=0.02)


def test_a_step_turns_later_the_longer_the_context_and_beyond_1_5k_never() -> None:
    """Cache reads grow with the batch: beyond some 1.5k tokens no batch of Llama-3 70B is compute-bound on H100."""
    found = critical_batch(
        "llama3-70b", "h100", np.array([1.0, 256.0, 512.0, 1024.0, 2048.0]), include_activations=False
    )
    steps = [c.step for c in found]
    assert steps[0] == pytest.approx(295, abs=1)
    assert steps[:4] == sorted(steps[:4])
    assert np.isfinite(steps[3])
    assert steps[4] == float("inf")


def test_the_last_compute_bound_context_by_hand() -> None:
    """(327,680 (c + 1) + 16,384) / 3.35e12 = (2 x 69.5e9 + 2,621,440 c) / 989.4e12 at c = 1475 tokens.

    A sequence reads c cached tokens, writes one and gathers one row of the embedding; weights vanish at large batches.
    """
    linear = 2 * (80 * 855_638_016 + 8192 * 128256)
    cache, scores = 327_680 / 3.35e12, 80 * 64 * 2 * 256 / 989.4e12
    by_hand = (linear / 989.4e12 - cache - 16_384 / 3.35e12) / (cache - scores)
    assert by_hand == pytest.approx(1475, abs=1)
    assert compute_bound_context("llama3-70b", "h100") == pytest.approx(by_hand, rel=1e-6)
    just_under, just_over = critical_batch("llama3-70b", "h100", [by_hand - 1, by_hand + 1], include_activations=False)
    assert just_under.step > 100_000
    assert just_over.step == float("inf")


@settings(max_examples=10)
@given(context=st.integers(1, 1400), tp=st.sampled_from([1, 2, 4, 8]))
def test_at_the_critical_batch_memory_and_compute_take_as_long(context: int, tp: int) -> None:
    """One sequence fewer is memory-bound and one more is compute-bound, summed over all operators of the step."""
    ready = setup("llama3-70b", "h100", tp=tp)
    (found,) = critical_batch("llama3-70b", "h100", float(context), tp=tp)
    if found.step == float("inf"):
        return
    rates = Rates(ready.gpu, ready.topology)

    def surplus(batch: float) -> float:
        step = decode(batch, float(context))
        terms = [rates.terms(op.cost()) for op in graph(ready.model, step, ready.plan, ready.topology)]
        return sum(float(t.get("matrix", 0.0)) - float(t["hbm"]) for t in terms)

    assert surplus(found.step * 0.999) < 0 < surplus(found.step * 1.001)


def test_activations_move_the_critical_batch_up() -> None:
    """Counting what the kernels pass to each other in device memory needs a larger batch to be compute-bound."""
    (with_them,) = critical_batch("llama3-70b", "h100", 128.0)
    (without,) = critical_batch("llama3-70b", "h100", 128.0, include_activations=False)
    assert with_them.step > without.step > with_them.linear


@pytest.fixture(scope="module")
def textbook(build_model: Callable[..., ModelSpec]) -> ModelSpec:
    """Multi-head attention of width d and SwiGLU of 8/3 d: d = 3072 makes 8/3 d whole."""
    d = 3072
    return build_model(
        attention={"a": {"kind": "gqa", "heads": 24, "kv_heads": 24, "head_dim": 128}},
        ffn={"f": {"kind": "dense", "intermediate_size": 8 * d // 3}}, layers=[[2, ["a/f"]]], hidden_size=d,
    )  # fmt: skip


def test_a_textbook_layer_costs_24_s_d2_and_4_s2_d(textbook: ModelSpec) -> None:
    """Linear work is 24 s d^2, of which 16 in the feed-forward layer (two thirds); causal scores are 2 s (s+1) d."""
    from perfmodel.roofline.step import Plan, prefill

    s, d = 100.0, 3072
    flops = {op.name: float(op.unit_cost.matrix_flops) for op in graph(textbook, prefill(1.0, s), Plan())}
    ffn = flops["gate_up_proj"] + flops["down_proj"]
    assert ffn == 16 * s * d**2
    assert ffn + flops["qkv_proj"] + flops["o_proj"] == 24 * s * d**2
    assert flops["attention"] == 2 * s * (s + 1) * d


def test_full_square_crossovers_are_4d_6d_and_2d(textbook: ModelSpec) -> None:
    """4 s^2 d passes 16 s d^2 at 4 d and all 24 s d^2 at 6 d; with the projections counted to attention at 2 d."""
    found = crossovers(textbook, causal=False)
    d = 3072
    assert (found.ffn, found.linear, found.ffn_with_projections) == pytest.approx((4 * d, 6 * d, 2 * d), rel=1e-9)


def test_causal_crossovers_are_twice_as_long_less_a_token(textbook: ModelSpec) -> None:
    """2 s (s+1) d passes 16 s d^2 at 8 d - 1, and so on."""
    found = crossovers(textbook, causal=True)
    d = 3072
    expected = (8 * d - 1, 12 * d - 1, 4 * d - 1)
    assert (found.ffn, found.linear, found.ffn_with_projections) == pytest.approx(expected, rel=1e-9)
    assert found.causal


def test_grouped_heads_shift_the_crossovers_of_a_real_model() -> None:
    """Llama-3 70B: 4 x 8192 s^2 against 6 x 8192 x 28672 s (feed-forward) and 2 x 855.6 M s (all linear)."""
    found = crossovers("llama3-70b", causal=False)
    assert found.ffn == pytest.approx(6 * 28672 / 4, rel=1e-9)
    assert found.linear == pytest.approx(2 * 855_638_016 / (4 * 8192), rel=1e-9)


def test_windowed_attention_never_passes_the_feed_forward_layers() -> None:
    """Under Mistral 7B v0.1's window scores stop growing at 4096 keys a query and never pass; the full square does."""
    assert crossovers("mistral-7b-v0.1", causal=True).ffn == float("inf")
    # 4 x 4096 s^2 = 6 x 4096 x 14336 s
    assert crossovers("mistral-7b-v0.1", causal=False).ffn == pytest.approx(6 * 14336 / 4, rel=1e-9)


def test_shared_experts_and_routers_belong_to_the_feed_forward_part(build_model: Callable[..., ModelSpec]) -> None:
    """d = 128, 2 of 8 experts of 64, a shared one of 128 and its gate: 2 d (8 + 1 + 3 (2 x 64 + 128)) FLOPs a token."""
    model = build_model(
        attention={"a": {"kind": "gqa", "heads": 8, "kv_heads": 8, "head_dim": 16}},
        ffn={"m": {"kind": "moe", "experts": 8, "experts_per_token": 2, "intermediate_size": 64,
                   "shared_intermediate_size": 128, "shared_gate": True}},
        layers=[[1, ["a/m"]]],
    )  # fmt: skip
    ffn = 2 * 128 * (8 + 1 + 3 * (2 * 64 + 128))
    assert crossovers(model, causal=False).ffn == pytest.approx(ffn / (4 * 128), rel=1e-9)
