"""Formulas of quantization error against simulation and by hand: sections 4.1 to 4.4 of a textbook chapter."""

import numpy as np
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.formats import weight_format
from perfmodel.roofline.quantization.noise import (
    asymmetric_scale,
    gptq_flops,
    gptq_traffic,
    metadata_bits,
    normal_clipping,
    normal_rounding,
    normal_second_moment_beyond,
    salient_error,
    smoothing_gap,
    smoothing_spread,
    steps_a_side,
    symmetric_scale,
)

DRAWS = np.random.default_rng(0).normal(size=2_000_000)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_scales_hold_the_largest_value(bits) -> None:
    """The integer of the largest value is the largest integer; by the chapter's definition it would be beyond it."""
    largest = 2 ** (bits - 1) - 1
    assert 8.0 / symmetric_scale(8.0, bits) == pytest.approx(largest)
    chapter = 2 * 8.0 / (2**bits - 1)
    assert 8.0 / chapter == pytest.approx(largest + 0.5)


def test_scales_by_hand() -> None:
    """8 / 127 and 3 / 15; levels beside an outlier."""
    assert symmetric_scale(8.0, 8) == pytest.approx(0.06299, abs=1e-5)
    assert asymmetric_scale(-1.0, 2.0, 4) == pytest.approx(0.2)
    assert steps_a_side(0.5, symmetric_scale(8.0, 8)) == pytest.approx(7.94, abs=0.01)
    with pytest.raises(UsageError, match="1 bits"):
        symmetric_scale(1.0, 1)


@pytest.mark.parametrize("step", [0.3, 1.0, 2.0, 3.0, 5.0])
def test_rounding_of_normal_values(step) -> None:
    """The closed form is what rounding two million draws loses; s^2/12 is not, once the step is wide."""
    measured = float(np.mean((DRAWS - np.round(DRAWS / step) * step) ** 2))
    assert normal_rounding(step) == pytest.approx(measured, rel=0.01)
    assert (abs(step**2 / 12 / measured - 1) < 0.02) == (step <= 2)


@pytest.mark.parametrize("end", [0.5, 1.0, 2.0, 3.0])
def test_clipping_of_normal_values(end) -> None:
    """The closed form is the mean of (x - end)^2 beyond the ends; the chapter's x^2 is many times that."""
    beyond = np.maximum(np.abs(DRAWS) - end, 0.0)
    assert normal_clipping(end) == pytest.approx(float(np.mean(beyond**2)), rel=0.05)
    squares = float(np.mean(np.where(np.abs(DRAWS) > end, DRAWS**2, 0.0)))
    assert normal_second_moment_beyond(end) == pytest.approx(squares, rel=0.02)
    assert normal_second_moment_beyond(end) > 2 * normal_clipping(end)


def test_rounding_and_clipping_add_up() -> None:
    """A clipped 4-bit grid on normal values loses the sum of both, to a few percent; the best end is between."""
    losses = {}
    for end in (1.0, 2.0, 2.5, 3.0, 5.0):
        step = end / 7
        q = np.clip(np.round(DRAWS / step), -7, 7) * step
        losses[end] = float(np.mean((DRAWS - q) ** 2))
        inside = float(np.mean(np.abs(DRAWS) <= end))
        assert losses[end] == pytest.approx(normal_clipping(end) + inside * step**2 / 12, rel=0.03)
    assert min(losses, key=lambda end: losses[end]) in (2.5, 3.0)


@pytest.mark.parametrize(
    ("name", "bits"), [("gptq_g128", 0.15625), ("gptq_g32", 0.625), ("int4_g64", 0.25), ("w8a16", 0.0), ("bf16", 0.0)]
)
def test_metadata(name, bits) -> None:
    """(16 + 4) / 128 and others; of a whole row next to nothing."""
    assert metadata_bits(weight_format(name)) == bits


def test_blocks_of_gptq_save_traffic_and_no_flops() -> None:
    """Every block does the same sums; traffic falls by nearly the block's size."""
    assert gptq_flops(3, 5) == 2 * 3 * (4 + 3 + 2 + 1)
    assert gptq_traffic(1, 4096, 1) / gptq_traffic(1, 4096, 128) == pytest.approx(128, rel=0.05)
    assert gptq_traffic(2, 6, 6, 1) == 2 * 2 * 6  # one block: each weight read and written once
    with pytest.raises(UsageError, match="a block of 7 columns of 6"):
        gptq_traffic(1, 6, 7)


def test_smoothing() -> None:
    """Exact to rounding; at a = 0 columns get factors that differ, which is no identity."""
    assert smoothing_gap() < 1e-12
    assert smoothing_spread(0.0) > 2
    assert smoothing_spread(1.0) > 1.5


def test_direction_of_awq() -> None:
    """Multiplying a column lowers its error by about s^2, dividing raises it as much."""
    assert salient_error(2.0) == pytest.approx(1 / 4, rel=0.2)
    assert salient_error(0.5) == pytest.approx(4, rel=0.2)
    assert salient_error(1.0) == 1
