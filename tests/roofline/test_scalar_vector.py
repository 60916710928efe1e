"""Scalars and sweeps are one code: whatever is computed for an array is what is computed for each of its numbers."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline import attention, attention_compressed, collectives, ops, recurrent
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import Step, chunked_prefill, decode, prefill, verify
from perfmodel.roofline.sweep import CHUNK, decode_times, step_time, sweep
from perfmodel.roofline.times import Rates

TOLERANCE = 1e-13
FORMULAS = [
    ops.gemm, ops.grouped_gemm, ops.combine, ops.elementwise, ops.embedding, ops.kv_write, ops.sampling,
    attention.scaled_dot_product, attention.latent_attention, attention.batched_per_head, attention.indexer_scores,
    attention.gqa, attention.mla, attention.indexer, collectives.all_reduce, collectives.all_gather, collectives.send,
    collectives.expert_exchange, recurrent.causal_conv, recurrent.ssd_scan, recurrent.ssd_step,
    recurrent.selective_scan, recurrent.delta_scan, recurrent.delta_step, recurrent.lightning_scan,
    recurrent.lightning_step, attention_compressed.compressed, attention_compressed.entry_indexer,
]  # fmt: skip


def flat(cost: Cost) -> dict[str, Num]:
    parts = {"ops": cost.ops, "hbm": cost.hbm, "comm": cost.comm}
    return {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()} | {"l2": cost.l2}


def at(value: Num, i: int, n: int) -> float:
    return float(np.broadcast_to(np.asarray(value), (n,))[i])


def close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


def test_every_cost_formula_of_the_graph_is_in_the_list(spec: ModelSpec, toy_gpu: Gpu, toy_system: System) -> None:
    """The list of formulas below misses none that a graph uses."""
    ready = setup(spec, toy_gpu, tp=8, system=toy_system)
    used = {op.formula for op in graph(spec, prefill(2.0, 8.0), ready.plan, ready.topology)}
    assert used <= set(FORMULAS)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f"{f.__module__.rsplit('.', 1)[1]}.{f.__name__}")
@settings(max_examples=25)
@given(data=st.data())
def test_each_formula_gives_an_array_what_it_gives_its_numbers(formula: Callable[..., Cost], data: Any) -> None:
    """For random arguments, the cost of three arrays is the cost of each scalar to 1e-13."""
    n, arguments = 3, {}
    for name, parameter in inspect.signature(formula).parameters.items():
        kind = str(parameter.annotation)
        if name in ("link", "math"):
            arguments[name] = "scale_up" if name == "link" else "bf16"
        elif name == "in_network":
            arguments[name] = data.draw(st.booleans())
        elif parameter.default is not inspect.Parameter.empty and data.draw(st.booleans()):
            continue
        elif "Num" in kind:
            arguments[name] = np.array(data.draw(st.lists(st.integers(1, 4096), min_size=n, max_size=n)), dtype=float)
        else:
            arguments[name] = float(data.draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])))
    if "window" in arguments and "chunk" in arguments:
        del arguments["chunk"]
    for small, large in (("local", "experts"), ("chosen", "experts"), ("inside", "ranks"), ("q", "kv")):
        if small in arguments and large in arguments:  # a part is no larger than its whole
            pair = arguments[small], arguments[large]
            arguments[small], arguments[large] = np.minimum(*pair), np.maximum(*pair)
    whole = flat(formula(**arguments))
    for i in range(n):
        one = {k: float(v[i]) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        scalars = flat(formula(**one))
        assert scalars.keys() == whole.keys()
        for key, value in scalars.items():
            assert close(at(whole[key], i, n), float(value)), key


STEPS: dict[str, Callable[[Num, Num, Num], Step]] = {
    "prefill": lambda b, q, n: prefill(b, n),
    "decode": lambda b, q, n: decode(b, n),
    "chunk": chunked_prefill,
    "verify": verify,
}


@pytest.mark.parametrize("kind", STEPS)
@settings(max_examples=8)
@given(data=st.data())
def test_a_graph_of_arrays_is_the_graphs_of_its_numbers(spec: ModelSpec, kind: str, toy_gpu: Gpu, data: Any) -> None:
    """Costs of all operators and the time of the step agree, scalar by scalar, for every structure and kind of step."""
    ready = setup(spec, toy_gpu)

    def draw(top: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(1, top), min_size=3, max_size=3)), dtype=float)

    numbers = [draw(512), draw(64), draw(10_000)]
    whole = graph(spec, STEPS[kind](*numbers), ready.plan)
    times = step_time(ready, STEPS[kind](*numbers))
    for i in range(3):
        step = STEPS[kind](*(float(x[i]) for x in numbers))
        for a, b in zip(whole, graph(spec, step, ready.plan), strict=True):
            left, right = flat(a.cost()), flat(b.cost())
            assert (a.name, left.keys()) == (b.name, right.keys())
            assert all(close(at(left[key], i, 3), float(right[key])) for key in left), a.name
        assert close(at(times, i, 3), float(step_time(ready, step)))


def test_integers_do_not_overflow(structures: dict[str, ModelSpec], toy_gpu: Gpu) -> None:
    """A million tokens of a million sequences is 10^18 scores and more: counted in floats, not in wrapped integers."""
    assert as_num(np.array([3], dtype=np.int32)).dtype == np.float64  # type: ignore[union-attr]
    assert isinstance(as_num(3), float)
    step = prefill(as_num(10**7), as_num(10**6))
    flops = {
        op.name: op.cost().matrix_flops for op in graph(structures["gqa"], step, setup(structures["gqa"], toy_gpu).plan)
    }
    pairs = 10**7 * 10**6 * (10**6 + 1) // 2
    assert np.isclose(flops["attention"], 4 * 2 * 8 * pairs * 32, rtol=1e-12)
    assert flops["attention"] > 2**63


def test_a_grid_is_its_pairs_is_its_scalars(toy_gpu: Gpu, structures: dict[str, ModelSpec]) -> None:
    """decode_times gives the same for a grid, for the pairs of the grid in one long list, and one by one."""
    ready = setup(structures["shared"], toy_gpu)
    b, c = np.arange(1.0, 251.0), np.arange(1.0, 401.0) * 7
    grid = decode_times(ready, b[:, None], c[None, :])
    pairs = decode_times(ready, np.repeat(b, c.size), np.tile(c, b.size))
    assert pairs.size > CHUNK  # long enough to be cut into pieces
    assert np.array_equal(np.broadcast_to(grid, (250, 400)).ravel(), pairs)
    for i in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, pairs.size - 1):
        one = float(step_time(ready, decode(float(b[i // 400]), float(c[i % 400]))))
        assert close(float(pairs[i]), one)


def test_a_million_configurations_are_a_million_scalars() -> None:
    """A sweep of 10^6 decode steps of Llama-3 70B on H100 has the scalar times at sampled points."""
    ready = setup("llama3-70b", "h100", tp=4)
    rng = np.random.default_rng(7)
    batch, context = rng.integers(1, 512, 10**6).astype(float), rng.integers(1, 131072, 10**6).astype(float)
    times = decode_times(ready, batch, context)
    assert times.shape == (10**6,)
    for i in rng.integers(0, 10**6, 25):
        assert close(float(times[i]), float(step_time(ready, decode(float(batch[i]), float(context[i])))))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_frame_of_a_sweep_has_each_combination_once(phase: str) -> None:
    """Rows of sweep() are all combinations in order, with the scalar time and tokens a second of the deployment."""
    frame = sweep(
        "llama3-70b", "h100", batch=[1, 8], context=[128, 4096, 100], tp=[4, 8], kv=["bf16", "fp8"], phase=phase,
        hypothetical=True,
    )  # fmt: skip
    assert len(frame) == 2 * 3 * 2 * 2
    assert list(frame.batch[:6]) == [1, 1, 1, 8, 8, 8]
    assert list(frame.context[:3]) == [128, 4096, 100]
    assert not frame.duplicated(["tp", "kv", "batch", "context"]).any()
    for row in frame.itertuples():
        ready = setup("llama3-70b", "h100", tp=row.tp, kv=row.kv)
        step = (decode if phase == "decode" else prefill)(row.batch, row.context)
        seconds = float(step_time(ready, step))
        assert close(row.time_s, seconds)
        assert close(row.tokens_per_s, row.batch * (row.context if phase == "prefill" else 1) / seconds)


def test_a_sweep_leaves_out_what_cannot_be_cut_and_refuses_what_never_can() -> None:
    """tp 3 is left out beside tp 4; alone it is refused with the degrees that would do."""
    frame = sweep("llama3-70b", "h100", tp=[3, 4])
    assert set(frame.tp) == {4}
    with pytest.raises(
        UsageError, match=r"tp 3 does not divide the 64 attention heads .* tp can be 1, 2, 4, 8, 16, 32, 64"
    ):
        sweep("llama3-70b", "h100", tp=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": [1, -1]}, "batch must be between 1 and 1e\\+07, not -1"),
        ({"batch": [1, float("nan")]}, "batch must be between 1 and 1e\\+07, not nan"),
        ({"context": [1e30]}, "context must be between 1 and 1e\\+08, not 1e\\+30"),
        ({"context": 0}, "between 1 and 1e\\+08, not 0"),
        ({"phase": "training"}, "phase is 'decode' or 'prefill', not 'training'"),
        ({"batch": "many"}, "batch must be a number"),
        ({"context": []}, "context is an empty list; give at least one value"),
        ({"gpu": []}, "gpu is an empty list"),
    ],
)
def test_a_sweep_refuses_numbers_out_of_range(options: dict[str, Any], message: str) -> None:
    """One bad number in a list is named, with the limits."""
    with pytest.raises(UsageError, match=message):
        sweep("llama3-70b", **({"gpu": "h100", "tp": 4} | options))


def test_bound_of_an_array_is_the_largest_term_of_each(toy_gpu: Gpu) -> None:
    """One element is limited by memory and the next by compute: each gets its own maximum."""
    cost = Cost({"matrix:bf16": np.array([1e12, 1e14])}, {"weights": np.array([1e12, 1e10])})
    assert np.array_equal(np.asarray(Rates(toy_gpu).bound(cost)), [1.0, 1.0])
