"""What `explain` prints is the formula that is computed: same value, and its text evaluates to it again."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.base.num import Num
from perfmodel.base.trace import Traced
from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import Step, chunked_prefill, decode, prefill, verify

STEPS = {
    "prefill": prefill(3.0, 40.0),
    "decode": decode(3.0, 41.0),
    "chunk": chunked_prefill(2.0, 7.0, 33.0),
    "verify": verify(2.0, 3.0, 50.0),
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max, "min": min, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "neg": lambda x: -x, "mod": np.mod, "where": lambda c, a, b: a if c else b,
}  # fmt: skip


def evaluate(text: str, names: dict[str, float]) -> float:
    """Read an expression as a person would: · is times, ^ is power, 8,192 is a number."""
    python = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("·", "*").replace("^", "**")
    return float(eval(python, {"__builtins__": {}}, {**FUNCTIONS, **names}))


def parts(cost: Cost) -> dict[str, Num]:
    groups = {"ops": cost.ops, "hbm": cost.hbm, "comm": cost.comm}
    return {f"{group}.{k}": v for group, values in groups.items() for k, v in values.items()} | {"l2": cost.l2}


def numbers_of(op: Op) -> dict[str, float]:
    return {k: float(v) for k, v in op.inputs.items() if v is not None and not isinstance(v, str)}  # type: ignore[arg-type]


def check(op: Op) -> None:
    plain, traced = parts(op.unit_cost), parts(op.traced_cost())
    assert plain.keys() == traced.keys()
    for key, value in plain.items():
        shown: Any = traced[key]
        if not isinstance(shown, Traced):  # a constant, such as no traffic at all
            assert shown == value
            continue
        assert shown.value == float(value), (op.name, key)
        assert np.isclose(evaluate(shown.symbols(), numbers_of(op)), shown.value, rtol=1e-12), shown.symbols()
        # numbers are shown to four digits, and to six from 10^9 on
        assert np.isclose(evaluate(shown.numbers(), {}), shown.value, rtol=2e-3), shown.numbers()


@pytest.mark.parametrize("name", STEPS)
def test_traced_costs_of_all_operators(spec: ModelSpec, name: str, toy_gpu: Gpu) -> None:
    """On one GPU, each stream of each operator of each structure and step is what its text says."""
    ready = setup(spec, toy_gpu)
    for op in graph(spec, STEPS[name], ready.plan, ready.topology):
        check(op)


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"tp": 8}, {"tp": 2, "pp": 2, "dp": 2}])
def test_traced_costs_with_collectives(
    spec: ModelSpec, degrees: dict[str, int], toy_gpu: Gpu, toy_system: System
) -> None:
    """The same over several GPUs, within a domain and beyond it."""
    ready = setup(spec, toy_gpu, system=toy_system, **degrees)
    for op in graph(spec, STEPS["prefill"], ready.plan, ready.topology):
        check(op)


def test_traced_costs_of_spread_experts(structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System) -> None:
    """The same for the exchanges of expert parallelism over two domains."""
    ready = setup(structures["mla"], toy_gpu, dp=8, ep=8, system=toy_system)
    ops = graph(ready.model, STEPS["decode"], ready.plan, ready.topology)
    assert {"experts_dispatch", "experts_return"} <= {op.name for op in ops}
    for op in ops:
        check(op)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_traced_costs_of_real_models(step: Step) -> None:
    """The same for Llama-3 70B and DeepSeek-V3 with their own large numbers."""
    for model in ("llama3-70b", "deepseek-v3"):
        ready = setup(model, "h100", tp=8)
        for op in graph(ready.model, step, ready.plan, ready.topology):
            check(op)


def test_a_formula_is_shown_in_names_and_in_numbers() -> None:
    """The projection of Q, K and V of Llama-3 70B at batch 8: 2 x 8 x 10240 x 8192 FLOPs."""
    ready = setup("llama3-70b", "h100")
    op = next(o for o in graph(ready.model, decode(8.0, 100.0), ready.plan) if o.name == "qkv_proj")
    flops: Any = op.traced_cost().ops["matrix:bf16"]
    assert flops.symbols() == "2·m·n·k"
    assert flops.numbers() == "2·8·10,240·8,192"
    assert flops.value == 2 * 8 * 10240 * 8192
