"""The fit's tools: they find what was put in, leave whole groups out, and their intervals hold what they say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.chip import chip
from perfmodel.roofline.calibrated.decode import DECODE
from perfmodel.roofline.calibrated.residual import Residual
from perfmodel.validate.fit import figures, fit_log, group_folds
from perfmodel.validate.fit_data import Cell, families
from perfmodel.validate.fit_kernel import check, conformal, fit_kernel, regimes, scores, spread
from perfmodel.validate.fit_report import neighbours, page, percent
from perfmodel.validate.fit_residual import fit_residual, helps


def made_up(noise: float, seed: int = 0) -> tuple[Cell, dict[str, float]]:
    """Decode times of known parameters on the H100's datasheet, with log-normal noise."""
    rng, n = np.random.default_rng(seed), 600
    device = chip(load_gpu("h100"))
    assert device is not None
    kv_heads = rng.choice([1.0, 2.0, 4.0, 8.0], n)
    shape = {
        "batch": 2.0 ** rng.integers(0, 10, n), "kv": 2.0 ** rng.integers(4, 16, n), "kv_heads": kv_heads,
        "heads": kv_heads * rng.choice([2.0, 4.0, 8.0], n), "dim": rng.choice([64.0, 128.0], n), "kv_bytes": 2.0,
        "math": "bf16",
    }  # fmt: skip
    truth = {**DECODE.start, "launch": 6e-6, "memory": 0.7, "cta": 3e-6}
    measured = np.asarray(DECODE.time(truth, shape, device, {})) * np.exp(noise * rng.normal(size=n))
    groups = np.stack([shape["heads"], shape["kv_heads"], shape["dim"]], 1)
    zero = np.zeros(n)
    cell = Cell(
        "decode", "h100-sxm", "vllm", "bf16", "0", "", device, shape, measured, zero, groups,
        {"compute": zero, "stream": zero}, "made up",
    )  # fmt: skip
    return cell, truth


def test_the_fit_finds_the_parameters_that_made_the_times() -> None:
    """Without noise, launch, bandwidth share and CTA time come back to 2 %."""
    cell, truth = made_up(0.0)
    kernel, fitted = fit_kernel(cell)
    for name in ("launch", "memory", "cta"):
        assert kernel.params[name] == pytest.approx(truth[name], rel=0.02)
    assert fitted.sigma["launch"] < 0.02


def test_one_wild_row_in_twenty_does_not_move_the_fit() -> None:
    """Rows that are four times too slow, as after a failed autotuning, shift the launch by under 3 %."""
    cell, truth = made_up(0.02)
    wild = cell.measured.copy()
    wild[::20] *= 4
    kernel, _ = fit_kernel(replace(cell, measured=wild))
    assert kernel.params["launch"] == pytest.approx(truth["launch"], rel=0.03)


def test_cross_validation_sees_the_noise_and_covers_it() -> None:
    """Log-normal noise of 10 %: the left-out error is its mean absolute deviation, 8 %, and 80 % of rows are inside."""
    cell, _ = made_up(0.1)
    checked = check(cell)
    found = scores(checked)
    assert found["mape"] == pytest.approx(0.08, abs=0.012)
    assert 0.76 < found["coverage80"] < 0.86
    assert abs(found["bias"]) < 0.02
    assert checked.kernel.own == pytest.approx(0.1, abs=0.02)
    assert checked.kernel.shared < 0.03


def test_rows_faster_than_the_bound_are_left_out_and_counted() -> None:
    """A row below its bound is not fitted: no prediction could meet it."""
    cell, _ = made_up(0.05)
    bound = cell.bound.copy()
    bound[:7] = cell.measured[:7] * 1.5
    checked = check(replace(cell, bound=bound))
    assert checked.excluded == 7
    assert len(checked.predicted) == len(cell.measured) - 7


def test_parameters_that_no_row_depends_on_stay_where_they_start() -> None:
    """y = a: b has no influence, and the weak prior keeps it at its start."""
    measured = np.full(50, 3e-6)
    found = fit_log(lambda p: np.full(50, p["a"]), {"a": 1e-6, "b": 7.0}, measured)
    assert found.params["a"] == pytest.approx(3e-6, rel=0.02)
    assert found.params["b"] == pytest.approx(7.0, rel=1e-6)
    held = fit_log(lambda p: np.full(50, p["a"]), {"a": 1e-6, "b": 7.0}, measured, fixed=("b",))
    assert set(held.sigma) == {"a"}


@given(st.lists(st.integers(0, 30), min_size=40, max_size=200))
def test_folds_keep_groups_together(labels: list[int]) -> None:
    """All rows of a group share a fold, and every row has one."""
    keys = np.array(labels)[:, None]
    if len(set(labels)) < 5:
        with pytest.raises(ValueError, match="cannot be spread over 5 folds"):
            group_folds(keys)
        return
    fold = group_folds(keys)
    assert set(fold) == set(range(5))
    for label in set(labels):
        assert len(set(fold[keys[:, 0] == label])) == 1


@given(st.integers(20, 400), st.integers(0, 10**6))
def test_conformal_ends_hold_their_share(n: int, seed: int) -> None:
    """At least 80 % less the discreteness of n rows lie between the ends."""
    error = np.random.default_rng(seed).normal(size=n)
    low, high = conformal(error)
    assert np.mean((error >= low) & (error <= high)) >= 0.8 - 2 / n


def test_intervals_by_regime_of_predicted_time() -> None:
    """Short calls scatter by 30 %, long ones by 3 %: each regime has its own width."""
    rng = np.random.default_rng(3)
    predicted = np.concatenate([np.full(300, 10e-6), np.full(300, 50e-6), np.full(300, 1e-3)])
    noise = np.repeat([0.3, 0.1, 0.03], 300) * rng.normal(size=900)
    found = regimes(predicted, predicted * np.exp(noise))
    assert [r.below for r in found] == [20e-6, 100e-6, np.inf]
    widths = [np.log(r.high / r.low) / (2 * 1.2816) for r in found]  # in standard deviations of a normal law
    np.testing.assert_allclose(widths, [0.3, 0.1, 0.03], rtol=0.2)


def test_a_regime_of_few_rows_joins_the_next() -> None:
    """Ten short calls are too few for an interval of their own."""
    rng = np.random.default_rng(4)
    predicted = np.concatenate([np.full(10, 10e-6), np.full(300, 50e-6)])
    found = regimes(predicted, predicted * np.exp(0.1 * rng.normal(size=310)))
    assert len(found) == 1
    assert found[0].below == np.inf


def test_spread_divides_shared_from_own() -> None:
    """Groups that are off by 20 % together and 5 % each row: both come back."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(60), 30)
    error = 0.2 * rng.normal(size=60)[group] + 0.05 * rng.normal(size=1800)
    shared, own = spread(error, group[:, None])
    assert shared == pytest.approx(0.2, rel=0.25)
    assert own == pytest.approx(0.05, rel=0.15)


def test_a_correction_is_kept_only_when_it_helps_unseen_groups() -> None:
    """A slope in a feature is worth a correction; noise is not."""
    rng = np.random.default_rng(6)
    x, groups = np.exp(rng.uniform(0, 5, 800)), rng.integers(0, 40, 800)[:, None]
    noise = 0.05 * rng.normal(size=800)
    assert helps({"x": x}, 0.1 * np.log(x) + noise, groups)
    assert not helps({"x": x}, noise, groups)
    found = fit_residual({"x": x}, 0.1 * np.log(x) + noise, ridge=1.0)
    assert isinstance(found, Residual)
    ratio = float(found.factor({"x": np.e**4})) / float(found.factor({"x": np.e**2}))
    assert np.log(ratio) == pytest.approx(0.2, abs=0.02)


def test_figures_by_hand() -> None:
    """Ratios 1.1, 0.8 and 2 at 20, 30 and 5 us: 43.3 % in all, 15 % over 10 us, bias of the two -5 %."""
    found = figures(np.array([22e-6, 24e-6, 10e-6]), np.array([20e-6, 30e-6, 5e-6]))
    assert found["mape"] == pytest.approx(1.3 / 3)
    assert found["mape_10us"] == pytest.approx(0.15)
    assert found["bias"] == pytest.approx(-0.05)
    assert (found["n"], found["n_10us"]) == (3, 2)


def test_neighbours_see_what_is_smooth() -> None:
    """A ratio that is smooth in the shape is interpolated well; scatter of 20 % is not."""
    cell, _ = made_up(0.0)
    assert neighbours(cell, 0.1 * np.log(cell.shape["kv"])) < 0.15
    scatter = 0.2 * np.random.default_rng(0).normal(size=len(cell.measured))
    assert neighbours(cell, scatter) > 0.14


def test_kernel_families_by_name() -> None:
    """What names no family is CUTLASS."""
    names = ["moe_torch_flow_min_latency", "vllm_unquantizedfusedmoe_triton_tritonexperts", "moe_torch_flow_nongated"]
    assert families(names).tolist() == ["min_latency", "triton", "cutlass"]


def test_the_page_lists_what_misses_its_aim() -> None:
    """An error above its aim appears in the list of aims that are not reached, one below does not."""
    row = {
        "kind": "gemm", "gpu": "g", "engine": "e", "format": "f", "n": 9, "mape_10us": 0.08, "mape": 0.1, "floor": None,
        "physics_mape_10us": 0.09, "naive_mape_10us": 0.5, "bias": 0.001, "coverage80": 0.8, "excluded": 3,
    }  # fmt: skip
    key = ("gemm", "g", "e", "f")
    missed = page([row], {key: ("9", "7")}, {})
    assert "- GEMM, g e gemm f: 8.0 (aim 7)" in missed
    assert "g e gemm f 3" in missed
    assert "None." in page([row], {key: ("9", "8.0")}, {}).split("not reached")[1]
    assert percent(0.1234) == "12.3"


def test_every_aim_that_is_not_reached_is_listed() -> None:
    """A bias of 2 % and more, coverages outside 72 to 88 % (of cells with 200 rows), and pairs of GPUs by their aim."""
    row = {
        "kind": "gemm", "gpu": "g", "engine": "e", "format": "f", "n": 200, "mape_10us": 0.08, "mape": 0.1,
        "floor": None, "physics_mape_10us": 0.09, "naive_mape_10us": 0.5, "bias": -0.02, "coverage80": 0.7,
        "excluded": 0,
    }  # fmt: skip
    few = {**row, "format": "few", "n": 34, "bias": 0.019}
    pairs = ["h100-sxm to a100-sxm, trtllm bf16: 13.1 %", "h100-sxm to b200, trtllm bf16: 9.9 %"]
    moved = {"gemm": {"older": {"form": "full", "mape": 0.13, "rows": 9, "pairs": pairs, "coverage80": 0.9}}}
    listed = page([row, few], {}, moved).split("not reached")[1].split("##")[0]
    assert [line for line in listed.splitlines() if line.startswith("-")] == [
        "- GEMM, g e gemm f: bias -2.0 (aim under 2)",
        "- GEMM, g e gemm f: coverage 70 (aim 72 to 88)",
        "- GEMM, h100-sxm to a100-sxm, trtllm bf16, not seen: 13.1 (aim 13)",
        "- GEMM, to older architectures that were not seen: coverage 90 (aim 72 to 88)",
    ]


def test_tables_have_their_notice() -> None:
    """The measured tables carry their source and licence."""
    notice = (Path(__file__).parent / "data" / "measured" / "NOTICE").read_text()
    assert "aiconfigurator" in notice
    assert "Apache License" in notice
