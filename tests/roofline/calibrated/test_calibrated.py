"""Calibrated times of whole steps: never below the bound, with intervals, the same alone and in sweeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.calibrated.residual import Residual
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.calibrated.times import CalibratedTime, total
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import Step, chunked_prefill, decode, prefill, verify

SETUPS = [
    ("llama3-70b", "h100", 8, "vllm"), ("llama3-8b", "a100", 1, "vllm"), ("deepseek-v3", "h200", 8, "trtllm"),
    ("gpt-oss-120b", "b200", 1, "vllm"), ("llama3-8b", "mi300x", 1, "vllm"), ("gemma-3-27b", "rtx-4090", 1, "sglang"),
]  # fmt: skip
READY = {case: setup(case[0], case[1], tp=case[2]) for case in SETUPS}
MODELS = {case: Calibrated(s.gpu, load(s.gpu, case[3]), s.topology) for case, s in READY.items()}
STEPS = [decode(3.0, 900.0), prefill(2.0, 1000.0), chunked_prefill(1.0, 512.0, 3000.0), verify(4.0, 3.0, 2000.0)]


def times(case: tuple[str, str, int, str], step: Step) -> list[CalibratedTime]:
    """Of every operator of a step."""
    s = READY[case]
    return [MODELS[case].time(op) for op in graph(s.model, step, s.plan, s.topology)]


@pytest.mark.parametrize("case", SETUPS, ids=lambda c: f"{c[0]}-{c[1]}")
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_every_operator_of_every_step(case: tuple[str, str, int, str], step: Step) -> None:
    """bound <= low <= predicted <= high, the parts add up to the prediction, and each says where it comes from."""
    for t in times(case, step):
        assert 0 <= float(t.bound) <= float(t.low) * (1 + 1e-12)
        assert float(t.low) <= float(t.predicted) * (1 + 1e-12)
        assert float(t.predicted) <= float(t.high) * (1 + 1e-12)
        assert float(t.predicted) == pytest.approx(sum(float(v) for v in t.parts.values()))
        assert np.isfinite(float(t.high))
        assert t.origin
        assert t.source == "calibrated"


@given(batch=st.integers(1, 4096), context=st.integers(1, 131072))
def test_never_below_the_bound(batch: int, context: int) -> None:
    """No decode step of any size is predicted below its bound, operator by operator."""
    for t in times(SETUPS[0], decode(float(batch), float(context))):
        assert float(t.predicted) >= float(t.bound) * (1 - 1e-12)


@pytest.mark.parametrize("case", SETUPS, ids=lambda c: f"{c[0]}-{c[1]}")
def test_sweeps_agree_with_single_steps(case: tuple[str, str, int, str]) -> None:
    """A long array with repeated batches (folded, and cut into pieces) gives what each configuration gives alone."""
    rng = np.random.default_rng(1)
    batch, context = rng.integers(1, 64, 70000).astype(float), rng.integers(1, 9000, 70000).astype(float)
    together = total(times(case, decode(batch, context)))
    for i in (0, 1234, 69999):
        alone = total(times(case, decode(float(batch[i]), float(context[i]))))
        assert float(np.asarray(together.predicted)[i]) == pytest.approx(float(alone.predicted), rel=1e-12)
        assert float(np.asarray(together.high)[i]) == pytest.approx(float(alone.high), rel=1e-12)


def test_grids_agree_with_single_steps() -> None:
    """Batches down and contexts across give what each cell gives alone."""
    batch, context = np.array([1.0, 8.0, 64.0])[:, None], np.array([100.0, 5000.0])[None, :]
    together = np.asarray(total(times(SETUPS[0], decode(batch, context))).predicted)
    assert together.shape == (3, 2)
    alone = total(times(SETUPS[0], decode(8.0, 5000.0)))
    assert together[1, 1] == pytest.approx(float(alone.predicted), rel=1e-12)


def _one(kind: str, shared: float, own: float) -> CalibratedTime:
    return CalibratedTime(1.0, 10.0, 8.0, 12.0, "hbm", "calibrated", {}, shared, own, kind)


def test_shared_errors_add_linearly_and_others_in_quadrature() -> None:
    """Half-widths of 2: shared ones of one kind 2 + 2 = 4, of two kinds sqrt(8), own ones sqrt(8); 3-4-5 shares mix
    both."""
    shared = total([_one("a", 1.0, 0.0), _one("a", 1.0, 0.0)])
    assert (float(shared.low), float(shared.high)) == pytest.approx((16.0, 24.0))
    for pair in ([_one("a", 1.0, 0.0), _one("b", 1.0, 0.0)], [_one("a", 0.0, 1.0), _one("a", 0.0, 1.0)]):
        found = total(pair)
        assert float(found.high) - 20 == pytest.approx(8**0.5)
    mixed = total([_one("a", 0.6, 0.8), _one("a", 0.6, 0.8)])  # shared 1.2 + 1.2; own 1.6 each
    assert float(mixed.high) - 20 == pytest.approx((2.4**2 + 2 * 1.6**2) ** 0.5)


def test_a_sum_does_not_go_below_the_bound() -> None:
    """Wide intervals stop at the sum of the bounds."""
    wide = CalibratedTime(9.0, 10.0, 9.0, 100.0, "hbm", "calibrated", {}, 1.0, 0.0, "a")
    assert float(total([wide] * 3).low) >= 27.0


def test_intervals_by_regime() -> None:
    """A prediction takes the factors of its regime, and is always inside its interval."""
    regimes = (Regime(20e-6, 0.5, 2.0), Regime(float("inf"), 1.1, 1.2))
    kernel = Kernel("k", "f", SIMPLE, {}, regimes=regimes)
    low, high = kernel.interval(np.array([1e-5, 1e-3]))
    np.testing.assert_allclose(low, [5e-6, 1e-3])
    np.testing.assert_allclose(high, [2e-5, 1.2e-3])


def test_a_correction_by_hand_and_its_limits() -> None:
    """exp(0.1 + 0.2 z + 0.05 z^2) for z = 1; beyond the fitted range it stays what it is at the end."""
    r = Residual(("x",), *(np.array([v]) for v in (0.0, 1.0, -1.0, 1.0)), 0.1, np.array([0.2, 0.05]))
    assert float(r.factor({"x": np.e})) == pytest.approx(np.exp(0.35))
    assert float(r.factor({"x": 1e9})) == float(r.factor({"x": np.e}))
    strong = Residual(("x",), *(np.array([v]) for v in (0.0, 1.0, -1.0, 1.0)), 5.0, np.array([0.0, 0.0]))
    assert float(strong.factor({"x": 1.0})) == pytest.approx(np.exp(0.7))


def test_windowed_prefill_is_cheaper() -> None:
    """An attention window of 512 in a prompt of 8192 takes less than full attention, and at least its bound."""
    case = ("llama3-8b", "h100", 1, "vllm")
    s = setup(case[0], case[1])
    op = next(o for o in graph(s.model, prefill(1.0, 8192.0), s.plan, s.topology) if o.name == "attention")
    from dataclasses import replace

    model = Calibrated(s.gpu, load(s.gpu, "vllm"), s.topology)
    full, window = model.time(op), model.time(replace(op, inputs={**op.inputs, "window": 512.0}))
    assert float(window.predicted) < 0.3 * float(full.predicted)
    assert float(window.predicted) >= float(window.bound)
