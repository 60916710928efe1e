"""How many distinct experts a batch wakes: the closed form, its limits and a count of random draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.ops import distinct_experts, grouped_gemm


@st.composite
def routings(draw: st.DrawFn) -> tuple[float, float, float, float]:
    experts = draw(st.integers(1, 512))
    chosen = draw(st.integers(1, experts))
    local = draw(st.sampled_from([n for n in range(1, experts + 1) if experts % n == 0]))
    return float(experts), float(chosen), float(draw(st.integers(1, 10_000))), float(local)


@given(routings())
def test_expected_experts_lie_between_one_token_and_all(routing: tuple[float, float, float, float]) -> None:
    """At least what one token wakes on this rank, at most all local ones and at most one for each routed row."""
    experts, chosen, tokens, local = routing
    found = float(distinct_experts(experts, chosen, tokens, local))
    tolerance = 1e-12 * local
    assert chosen * local / experts - tolerance <= found
    assert found <= min(local, tokens * chosen * local / experts) + tolerance


@given(routings(), st.integers(1, 100))
def test_more_tokens_wake_more_experts(routing: tuple[float, float, float, float], more: int) -> None:
    """The expectation grows with tokens, with experts chosen, and in proportion to the local share."""
    experts, chosen, tokens, local = routing
    found = distinct_experts(experts, chosen, tokens, local)
    assert distinct_experts(experts, chosen, tokens + more, local) >= found
    assert distinct_experts(experts, min(chosen + more, experts), tokens, local) >= found
    assert np.isclose(distinct_experts(experts, chosen, tokens, experts) * local / experts, found, rtol=1e-12)


def test_limits_of_the_closed_form() -> None:
    """One token wakes its k; a token that chooses all wakes all; infinitely many wake all."""
    assert distinct_experts(256.0, 8.0, 1.0, 256.0) == pytest.approx(8.0, rel=1e-12)
    assert distinct_experts(8.0, 8.0, 1.0, 8.0) == 8.0
    assert distinct_experts(256.0, 8.0, 1e6, 256.0) == 256.0


@pytest.mark.parametrize(
    ("experts", "chosen", "tokens", "local"),
    [(8, 2, 1, 8), (8, 2, 4, 8), (64, 6, 20, 16), (256, 8, 32, 256), (16, 1, 10, 4)],
)
def test_uniform_routing_wakes_as_many_as_a_simulation(experts: int, chosen: int, tokens: int, local: int) -> None:
    """4000 random routings, each token drawing k different experts: the mean is within four standard errors."""
    rng = np.random.default_rng(experts * tokens)
    order = rng.random((4000, tokens, experts)).argsort(axis=2)[:, :, :chosen]
    awake = np.zeros((4000, experts), dtype=bool)
    np.put_along_axis(awake, order.reshape(4000, -1), True, axis=1)
    counts = awake[:, :local].sum(axis=1)
    error = counts.std() / np.sqrt(len(counts))
    expected = distinct_experts(float(experts), float(chosen), float(tokens), float(local))
    assert abs(counts.mean() - expected) <= 4 * error + 1e-9


def test_hand_arithmetic_of_a_grouped_gemm() -> None:
    """4 tokens, 2 of 8 experts each, half of them here: 4 rows; 4 (1 - 0.75^4) = 2.734375 experts' weights."""
    cost = grouped_gemm(4.0, 64.0, 128.0, 8.0, 2.0, 4.0, 1000.0, 2.0, 2.0, "bf16")
    assert cost.matrix_flops == 2 * 4 * 64 * 128
    assert cost.hbm == {"weights": 2734.375, "act_read": 4 * 128 * 2, "act_write": 4 * 64 * 2}
