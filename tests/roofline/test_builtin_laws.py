"""The laws on every built-in model: more work is never faster, and nothing is lost in spreading it over GPUs."""

import numpy as np
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.load import MODELS
from perfmodel.modelspecs.load import model as load
from perfmodel.modelspecs.schema import Gqa
from perfmodel.roofline.graph import graph
from perfmodel.roofline.memory import rank_kv_bytes
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.sharding import rank_weight_bytes, stage_weight_bytes
from perfmodel.roofline.step import decode, make_plan, prefill
from perfmodel.roofline.sweep import step_time
from perfmodel.roofline.times import Rates

ALL = pytest.mark.parametrize("name", MODELS.names)
BATCHES = np.array([1.0, 2.0, 3.0, 8.0, 61.0, 256.0, 4096.0])
LENGTHS = np.array([1.0, 2.0, 127.0, 128.0, 129.0, 1000.0, 4097.0, 40_000.0, 131_072.0])


def chunked(ready: Setup) -> bool:
    return any(isinstance(c.attention, Gqa) and c.attention.chunk for c in ready.model.layer_classes)


@ALL
def test_more_work_is_never_faster(name: str) -> None:
    """Times grow along batch and along length, in prefill and in decode (chunked attention's context apart)."""
    ready = setup(name, "h100")
    for make in (prefill, decode):
        times = np.asarray(step_time(ready, make(BATCHES[:, None], LENGTHS[None, :])))
        assert np.isfinite(times).all()
        assert (np.diff(times, axis=0) >= 0).all()
        if make is prefill or not chunked(ready):
            assert (np.diff(times, axis=1) >= 0).all()


@ALL
def test_the_step_takes_at_least_as_long_as_its_weights(name: str) -> None:
    """A decode step is no faster than reading every weight matrix that it touches, nor than its FLOPs at the peak."""
    ready = setup(name, "h100")
    ops = graph(ready.model, decode(1.0, 100.0), ready.plan, ready.topology)
    read = sum(float(op.cost().hbm.get("weights", 0.0)) for op in ops)
    seconds = float(step_time(ready, decode(1.0, 100.0)))
    assert seconds >= read / ready.gpu.bandwidth
    assert read <= rank_weight_bytes(ready.model, ready.plan) * (1 + 1e-12)
    assert seconds >= sum(float(op.cost().matrix_flops) for op in ops) / ready.gpu.peak("fp8")
    assert seconds >= max(float(Rates(ready.gpu).bound(op.cost())) for op in ops)


@ALL
def test_ranks_together_hold_at_least_the_model(name: str) -> None:
    """tp x a rank's weights and cache are at least those of one GPU, and each rank holds less; stages add up."""
    model, gpu = load(name), setup(name, "h100").gpu
    alone = make_plan(model, gpu, weights="bf16")
    one, cache = rank_weight_bytes(model, alone), rank_kv_bytes(model, alone, 4.0, 1000.0)
    for tp in (2, 4, 8):
        try:
            plan = make_plan(model, gpu, tp, weights="bf16")
        except UsageError:
            continue
        assert one / tp <= rank_weight_bytes(model, plan) < one
        assert cache / tp <= rank_kv_bytes(model, plan, 4.0, 1000.0) <= cache
    plan = make_plan(model, gpu, pp=3, weights="bf16")
    stages = [stage_weight_bytes(model, plan, stage) for stage in range(3)]
    again = 2 * model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    assert sum(stages) == pytest.approx(one + again, rel=1e-15)
    caches = [rank_kv_bytes(model, plan, 4.0, 1000.0, stage) for stage in range(3)]
    assert sum(caches) == pytest.approx(cache, rel=1e-12)


@ALL
def test_arrays_are_scalars(name: str) -> None:
    """A grid of batches and lengths is, to 1e-13, what each number gives by itself."""
    ready = setup(name, "h100")
    for make in (prefill, decode):
        times = np.asarray(step_time(ready, make(BATCHES[:, None], LENGTHS[None, :])))
        for i, j in ((0, 0), (3, 4), (6, 8)):
            one = float(step_time(ready, make(float(BATCHES[i]), float(LENGTHS[j]))))
            assert abs(times[i, j] - one) <= 1e-13 * one


def test_all_operators_of_all_models_can_be_explained() -> None:
    """Every operator's traced cost has the value of its cost, for all built-ins."""
    for name in MODELS.names:
        ready = setup(name, "h100")
        for op in graph(ready.model, prefill(2.0, 300.0), ready.plan, ready.topology):
            plain, traced = op.unit_cost, op.traced_cost()
            for key, value in {**plain.ops, **plain.hbm}.items():
                assert float({**traced.ops, **traced.hbm}[key]) == float(value), (name, op.name, key)
