"""Laws of quantizers: what holds for any matrix, and small cases by hand."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.validate.quantizers.awq import awq, column_factors, with_factors
from perfmodel.validate.quantizers.gptq import cholesky_of_inverse, gptq, hessian
from perfmodel.validate.quantizers.grid import Grid, find_scales, round_to_nearest, to_integers, to_values
from perfmodel.validate.quantizers.smoothquant import smoothing
from perfmodel.validate.quantizers.theory import (
    clipped,
    clipping_error,
    output_error,
    rounding_variance,
    salience,
    spread_factor,
    sqnr_db,
)

GRIDS = st.builds(Grid, st.integers(2, 8), st.booleans(), st.sampled_from([0, 4, 8, None]))


def matrix(seed: int, rows: int = 6, columns: int = 16, power: float = 1.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=draw, dtype=torch.float64) ** 3) * power


@given(seed=st.integers(0, 10**6), grid=GRIDS, power=st.floats(1e-6, 1e6))
def test_rounding_stays_within_half_a_step(seed, grid, power) -> None:
    """No weight moves by more than half a step (a whole one at the ends of an asymmetric grid, whose 0 is rounded)."""
    w = matrix(seed, power=power)
    q = round_to_nearest(w, grid)
    step = q.scales.scale.repeat_interleave(w.shape[1] // q.scales.scale.shape[1], dim=1)
    off = (w - q.values()).abs() / step
    assert float(off.max()) <= (0.5 if grid.symmetric else 1.0) + 1e-9
    assert int(q.integers.min()) >= grid.low
    assert int(q.integers.max()) <= grid.high


@given(seed=st.integers(0, 10**6), grid=GRIDS)
def test_rounding_twice_changes_nothing(seed, grid) -> None:
    """What lies on the grid stays there."""
    once = round_to_nearest(matrix(seed), grid)
    again = to_values(to_integers(once.values(), once.scales, grid), once.scales)
    assert torch.allclose(again, once.values(), rtol=1e-12, atol=0)


@given(seed=st.integers(0, 10**6), bits=st.integers(2, 8))
def test_symmetric_grids_hold_the_largest_weight(seed, bits) -> None:
    """s = max|w| / (2^(b-1) - 1): the largest weight of each row is exact."""
    w = matrix(seed)
    q = round_to_nearest(w, Grid(bits)).values()
    at = w.abs().argmax(dim=1, keepdim=True)
    assert torch.allclose(q.gather(1, at), w.gather(1, at), rtol=1e-12)


@given(seed=st.integers(0, 10**6), grid=GRIDS)
def test_zero_is_exact(seed, grid) -> None:
    """A weight of 0 stays 0, and a matrix of zeros has no error."""
    w = matrix(seed)
    w[:, ::3] = 0
    assert bool((round_to_nearest(w, grid).values()[:, ::3] == 0).all())
    assert bool((round_to_nearest(torch.zeros_like(w), grid).values() == 0).all())


@given(seed=st.integers(0, 10**6))
def test_smaller_groups_never_have_larger_steps(seed) -> None:
    """The scale of a part of a group is at most the group's."""
    w = matrix(seed)
    wide, narrow = (find_scales(w, Grid(4, group=size)).scale for size in (16, 4))
    assert bool((narrow <= wide.repeat_interleave(4, dim=1) + 1e-15).all())


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_without_correlation_is_rounding(symmetric) -> None:
    """With a diagonal Hessian there is nothing to make good: GPTQ rounds to nearest, in any order."""
    w, grid = matrix(3), Grid(3, symmetric)
    h = torch.diag(torch.arange(1.0, 17.0, dtype=torch.float64))
    for act_order in (False, True):
        assert torch.equal(gptq(w, h, grid, act_order=act_order).values(), round_to_nearest(w, grid).values())


@given(seed=st.integers(0, 10**4), block=st.sampled_from([1, 3, 8, 16]))
def test_blocks_do_not_change_gptq(seed, block) -> None:
    """Blocks gather the updates of later columns: they save memory traffic, and change neither FLOPs nor results."""
    w, x = matrix(seed), matrix(seed + 1, rows=40)
    h, grid = hessian(x), Grid(3, symmetric=False, group=8)
    one = gptq(w, h, grid, block=16)
    assert torch.equal(gptq(w, h, grid, block=block).integers, one.integers)


def test_gptq_follows_the_plain_algorithm() -> None:
    """Column by column with the inverse of what is left, as optimal brain quantization does it: the same integers."""
    w, x = matrix(5, rows=4, columns=8), matrix(6, rows=50, columns=8)
    h, grid = hessian(x), Grid(3)
    left = h + 0.01 * float(h.diagonal().mean()) * torch.eye(8, dtype=w.dtype)
    scales, work, found = find_scales(w, grid), w.clone(), torch.empty_like(w)
    for i in range(8):
        inverse = torch.linalg.inv(left[i:, i:])
        found[:, i] = to_integers(work[:, i : i + 1], scales, grid)[:, 0]
        error = (work[:, i] - found[:, i] * scales.scale[:, 0]) / inverse[0, 0]
        work[:, i:] -= error[:, None] * inverse[0][None, :]
    assert torch.equal(gptq(w, h, grid).integers, found)


def test_cholesky_factor_of_the_inverse() -> None:
    """U^T U is the inverse of the damped Hessian, and U is upper."""
    h = hessian(matrix(7, rows=50))
    upper = cholesky_of_inverse(h)
    damped = h + 0.01 * float(h.diagonal().mean()) * torch.eye(16, dtype=h.dtype)
    assert torch.allclose(upper.T @ upper @ damped, torch.eye(16, dtype=h.dtype), atol=1e-9)
    assert torch.equal(upper, upper.triu())


def test_gptq_ignores_inputs_that_are_always_zero() -> None:
    """A dead input's weights are set to 0 and the rest is as good as without it."""
    w, x = matrix(8), matrix(9, rows=60)
    x[:, 5] = 0
    q = gptq(w, hessian(x), Grid(4)).values()
    assert bool((q[:, 5] == 0).all())
    assert output_error(w, q, x) < output_error(w, round_to_nearest(w, Grid(4)).values(), x)


def test_gptq_refuses_a_broken_hessian() -> None:
    """A matrix that is no Hessian is refused in words."""
    with pytest.raises(UsageError, match="not positive definite"):
        gptq(matrix(1), -torch.eye(16, dtype=torch.float64), Grid(4))


def test_act_order_gives_a_group_index() -> None:
    """Groups are of the columns in the order of their input power: ``g_idx`` says which column is in which."""
    w, x = matrix(10), matrix(11, rows=60)
    x[:, 3] *= 100
    q = gptq(w, hessian(x), Grid(4, group=4), act_order=True)
    assert q.group_index[3] == 0
    assert sorted(q.group_index.tolist()) == [g for g in range(4) for _ in range(4)]


def test_awq_magnifies_weights_of_large_inputs() -> None:
    """W' = W diag(s) with s above 1 for salient inputs, which are divided by s: the chapter has it the other way round.

    The magnified column's error falls by s; with s inverted it rises by as much.
    """
    w, x = matrix(12, rows=64, columns=32) * 0.01, matrix(13, rows=200, columns=32)
    x[:, 7] = x[:, 7] * 30
    w[:, 0] = 1.0  # sets the scale of every row, so that a magnified column 7 does not
    s = column_factors(x, 0.5)
    assert int(s.argmax()) == 7
    grid = Grid(4)
    errors = [output_error(w, with_factors(w, f, grid).values(), x) for f in (torch.ones_like(s), s, 1 / s)]
    assert errors[1] < errors[0] < errors[2]


@given(seed=st.integers(0, 10**4))
def test_awq_is_never_worse_than_rounding(seed) -> None:
    """The search holds the exponent 0, which is rounding: on its calibration inputs AWQ cannot lose."""
    w, x, grid = matrix(seed), matrix(seed + 1, rows=30), Grid(3, group=8)
    assert output_error(w, awq(w, x, grid, 5).values(), x) <= output_error(w, round_to_nearest(w, grid).values(), x) * (
        1 + 1e-9
    )


def test_smoothing_at_its_ends() -> None:
    """alpha = 1 makes all inputs equally large; alpha = 0 is 1 / max|W|, which smooths too, whatever the inputs."""
    w, x_max = matrix(14), matrix(15).abs().amax(dim=0)
    assert torch.allclose(x_max / smoothing(x_max, w, 1.0), torch.ones(16, dtype=w.dtype))
    assert torch.allclose(smoothing(x_max, w, 0.0), 1 / w.abs().amax(dim=0))
    with pytest.raises(UsageError, match=r"alpha is 1.5"):
        smoothing(x_max, w, 1.5)


def test_the_chapters_outlier_example() -> None:
    """One scale for inputs of 8.0 and 0.5: s = 8/127 = 0.063, 7.9 steps a side for the small ones (the chapter: 4)."""
    x = torch.full((1, 512), 0.5, dtype=torch.float64)
    x[0, -1] = 8.0
    scale = float(find_scales(x, Grid(8, group=None)).scale[0, 0])
    assert scale == pytest.approx(8 / 127)
    assert 0.5 / scale == pytest.approx(7.94, abs=0.01)
    assert pytest.approx(2 * scale) == 2 * 8 / 127  # the chapter's s


def test_clipping_loses_the_distance_to_the_end() -> None:
    """Beyond an end the error is (x - end)^2: for a normal density at 2 deviations 0.0115, not x^2's 0.261."""
    x = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tail = math.erfc(2 / math.sqrt(2)) / 2
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    expected = 2 * ((1 + 4) * tail - 2 * density)  # integral of (x - 2)^2 p(x) beyond 2, both sides
    assert clipping_error(x, -2.0, 2.0) == pytest.approx(expected, rel=0.02)
    squares = 2 * (2 * density + tail)  # integral of x^2 p(x)
    assert squares > 20 * expected


def test_total_error_is_rounding_and_clipping() -> None:
    """A clipped uniform quantizer's error on a normal density is clipping + s^2/12 of what is inside."""
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = 2.5 / 31
    q = torch.clamp(torch.round(x / step), -31, 31) * step
    inside = float((x.abs() <= 2.5).double().mean())
    assert float(((x - q) ** 2).mean()) == pytest.approx(clipping_error(x, -2.5, 2.5) + inside * step**2 / 12, rel=0.02)


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.8, 1.2])
def test_spread_factor_is_right_for_normal_weights(ratio) -> None:
    """The factor on s^2/12 for a normal density of so many steps' deviation, against a simulation."""
    draw = torch.Generator().manual_seed(2)
    w = torch.randn(1, 400_000, generator=draw, dtype=torch.float64) * ratio
    w[0, 0] = 7.0  # sets a step of 1
    q = round_to_nearest(w, Grid(4))
    measured = float(((w - q.values())[0, 1:] ** 2).mean()) * 12
    assert float(spread_factor(w, q.scales)[0, 0]) == pytest.approx(measured, rel=0.02)


def test_figures_by_hand() -> None:
    """SQNR, s^2/12, salience and the clipped share of small cases."""
    w = torch.tensor([[3.0, 1.0, -3.0, 0.4]])
    q = round_to_nearest(w, Grid(3))  # s = 1: 3, 1, -3, 0
    assert q.values().tolist() == [[3.0, 1.0, -3.0, 0.0]]
    assert rounding_variance(q.scales) == pytest.approx(1 / 12)
    assert sqnr_db(w, q.values()) == pytest.approx(10 * math.log10(19.16 / 0.16), rel=1e-5)
    assert sqnr_db(w, w) == math.inf
    assert clipped(q) == 0.5
    x = torch.ones(10, 200)
    x[:, :2] = 10  # 2 of 200 inputs with 100 times the power: 200 of 398
    assert salience(x) == pytest.approx(200 / 398)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Grid(1), "1 bits; 2 to 8"),
        (lambda: Grid(9), "9 bits; 2 to 8"),
        (lambda: Grid(4, group=-1), "a group of -1"),
        (lambda: round_to_nearest(torch.ones(2, 10), Grid(4, group=4)), "a group of 4 does not divide 10 inputs"),
    ],
)
def test_bad_grids(build, message) -> None:
    """Widths and groups that cannot be are refused with the value."""
    with pytest.raises(UsageError, match=message):
        build()


def test_words_of_grids() -> None:
    """A grid names itself."""
    words = [Grid(b, s, g).words for b, s, g in itertools.product([4], [True, False], [None, 0, 64])]
    assert words == [
        "4-bit symmetric, a scale a tensor", "4-bit symmetric, a scale a channel", "4-bit symmetric, group 64",
        "4-bit asymmetric, a scale a tensor", "4-bit asymmetric, a scale a channel", "4-bit asymmetric, group 64",
    ]  # fmt: skip
