"""Laws that any step of any model obeys: more work is never faster, and a bound is a bound."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.phases import run_phase
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, chunked_prefill, decode, prefill, verify
from perfmodel.roofline.sweep import step_time
from perfmodel.roofline.times import HBM, Rates

BATCH = st.integers(1, 4096)
LENGTH = st.integers(1, 100_000)
QUERIES = st.integers(1, 512)
#: Chunked attention forgets everything at each border of a chunk, so a longer context can be less work there.
FORGETFUL = {"chunks"}
DENSE = {"kind": "dense", "intermediate_size": 192}


def one_gpu(spec: ModelSpec, gpu: Gpu) -> Setup:
    return setup(spec, gpu)


def seconds(spec: ModelSpec, gpu: Gpu, step: Step) -> float:
    return float(step_time(one_gpu(spec, gpu), step))


def ordered(a: int, b: int) -> tuple[float, float]:
    low, high = sorted((a, b))
    return float(low), float(high)


@settings(max_examples=15)
@given(a=BATCH, b=BATCH, length=LENGTH)
def test_more_sequences_are_never_faster(spec: ModelSpec, toy_gpu: Gpu, a: int, b: int, length: int) -> None:
    """A larger batch takes at least as long, in prefill and in decode, for every structure."""
    few, many = ordered(a, b)
    for make in (prefill, decode):
        assert seconds(spec, toy_gpu, make(few, float(length))) <= seconds(spec, toy_gpu, make(many, float(length)))


@settings(max_examples=15)
@given(a=LENGTH, b=LENGTH, batch=BATCH)
def test_a_longer_context_is_never_faster(spec: ModelSpec, toy_gpu: Gpu, a: int, b: int, batch: int) -> None:
    """A longer prompt takes at least as long; so does decode at a longer context, unless attention is chunked."""
    short, long = ordered(a, b)
    makes: list[Callable[[float, float], Step]] = [prefill] if spec.name in FORGETFUL else [prefill, decode]
    for make in makes:
        assert seconds(spec, toy_gpu, make(float(batch), short)) <= seconds(spec, toy_gpu, make(float(batch), long))


@settings(max_examples=15)
@given(a=QUERIES, b=QUERIES, past=LENGTH, batch=st.integers(1, 64))
def test_more_new_tokens_are_never_faster(spec: ModelSpec, toy_gpu: Gpu, a: int, b: int, past: int, batch: int) -> None:
    """A larger chunk on the same past, or more drafted tokens to verify, takes at least as long."""
    few, many = ordered(a, b)
    for make in (chunked_prefill, verify):
        less, more = (make(float(batch), n, float(past)) for n in (few, many))
        assert seconds(spec, toy_gpu, less) <= seconds(spec, toy_gpu, more)


@settings(max_examples=10)
@given(a=st.integers(1, 60), b=st.integers(1, 60), batch=BATCH, length=LENGTH)
def test_more_layers_are_never_faster(
    build_model: Callable[..., ModelSpec], toy_gpu: Gpu, a: int, b: int, batch: int, length: int
) -> None:
    """Repeating a layer more often takes longer, by the same time a layer."""
    attention, ffn = {"a": {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_dim": 16}}, {"f": DENSE}
    models = [build_model(attention=attention, ffn=ffn, layers=[[n, ["a/f"]]]) for n in (1, a, a + b)]
    for make in (prefill, decode):
        one, less, more = (seconds(m, toy_gpu, make(float(batch), float(length))) for m in models)
        assert less < more
        assert np.isclose((more - less) / b, (more - one) / (a + b - 1), rtol=1e-9)


@settings(max_examples=10)
@given(k=st.integers(1, 7), experts=st.sampled_from([8, 16, 64]), batch=BATCH, length=LENGTH)
def test_more_experts_a_token_are_never_faster(
    build_model: Callable[..., ModelSpec], toy_gpu: Gpu, k: int, experts: int, batch: int, length: int
) -> None:
    """Choosing one more expert a token takes at least as long."""

    def model(chosen: int) -> ModelSpec:
        moe = {"kind": "moe", "experts": experts, "experts_per_token": chosen, "intermediate_size": 64}
        attention = {"a": {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_dim": 16}}
        return build_model(f"moe{chosen}", attention=attention, ffn={"m": moe}, layers=[[2, ["a/m"]]])

    for make in (prefill, decode):
        step = make(float(batch), float(length))
        assert seconds(model(k), toy_gpu, step) <= seconds(model(k + 1), toy_gpu, step)


STEPS = st.one_of(
    st.builds(lambda b, n: prefill(float(b), float(n)), BATCH, st.integers(1, 5000)),
    st.builds(lambda b, n: decode(float(b), float(n)), BATCH, LENGTH),
    st.builds(lambda b, g, n: verify(float(b), float(g), float(n)), BATCH, st.integers(0, 16), LENGTH),
)


@settings(max_examples=20)
@given(step=STEPS)
def test_no_prediction_is_below_the_bound_and_no_bound_below_a_resource(
    spec: ModelSpec, toy_gpu: Gpu, step: Step
) -> None:
    """predicted >= bound, bound >= work / rate of every resource, and the bound equals the largest of them."""
    phase = run_phase(one_gpu(spec, toy_gpu), step)
    for result in phase.ops:
        cost, time = result.cost, result.time
        assert time.low >= time.bound
        assert time.predicted >= time.bound
        assert time.high >= time.predicted
        terms = [
            float(cost.bytes) / 1e12,
            sum(float(v) / {"bf16": 1e14}[k.removeprefix("matrix:")] for k, v in cost.ops.items() if "matrix" in k),
            float(cost.ops.get("vector", 0.0)) / 1e13,
            float(cost.ops.get("exp", 0.0)) / 1e12,
        ]
        assert np.isclose(time.bound, max(terms), rtol=1e-12, atol=0)
        assert all(time.bound >= term * (1 - 1e-12) for term in terms)
    assert np.isclose(phase.time.bound, sum(float(r.time.bound) for r in phase.ops), rtol=1e-12)
    assert np.isclose(sum(r.share for r in phase.ops), 1.0)
    # a step is no faster than all of its work spread perfectly over the whole step
    assert phase.time.bound >= Rates(toy_gpu).bound(phase.cost) * (1 - 1e-12)


def test_the_limiter_is_the_resource_that_needs_longest(toy_gpu: Gpu) -> None:
    """Each resource is named when it is the slowest; of two matrix formats the one with more work is named."""
    rates = Rates(toy_gpu)
    light = {"weights": 1.0}
    assert rates.limiter(Cost({"matrix:bf16": 1e14}, light)) == "matrix:bf16"
    assert rates.limiter(Cost({"matrix:bf16": 1e12, "matrix:fp8": 1e14}, light)) == "matrix:fp8"
    assert rates.limiter(Cost({"matrix:bf16": 1e14, "vector": 1.1e13}, light)) == "vector"
    assert rates.limiter(Cost({"matrix:bf16": 1e14, "exp": 1.1e12}, light)) == "exp"
    assert rates.limiter(Cost({"matrix:bf16": 1e14}, {"weights": 0.6e12, "kv_read": 0.6e12})) == HBM


def test_matrix_formats_share_the_units(toy_gpu: Gpu) -> None:
    """FP8 and BF16 work of one operator run one after the other on the same units: 1 s + 0.5 s."""
    assert Rates(toy_gpu).bound(Cost({"matrix:bf16": 1e14, "matrix:fp8": 1e14})) == 1.5


def test_a_rate_that_a_spec_does_not_give_limits_nothing(toy_gpu: Gpu) -> None:
    """Without an exponential rate in the spec, exponentials are left out of the bound rather than guessed."""
    bare = toy_gpu.model_copy(update={"compute": toy_gpu.compute.model_copy(update={"exp": None})})
    cost = Cost({"matrix:bf16": 1e13, "exp": 1e15}, {"kv_read": 1.0})
    assert Rates(bare).bound(cost) == 0.1
    assert Rates(toy_gpu).bound(cost) == 1000.0


@settings(max_examples=15)
@given(batch=BATCH, context=LENGTH)
def test_verifying_no_draft_is_decoding(spec: ModelSpec, batch: int, context: int) -> None:
    """Verification of zero drafted tokens is a decode step: every operator costs the same."""
    plain, check = decode(float(batch), float(context + 1)), verify(float(batch), 0.0, float(context))
    for a, b in zip(_costs(spec, plain), _costs(spec, check), strict=True):
        assert a == b


def _costs(spec: ModelSpec, step: Step) -> list[tuple[str, Cost]]:
    from perfmodel.roofline.step import Plan

    return [(op.name, op.cost()) for op in graph(spec, step, Plan())]


@settings(max_examples=15)
@given(pieces=st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_pieces_of_a_prefill_do_the_attention_of_the_whole(spec: ModelSpec, pieces: list[int]) -> None:
    """Chunked prefill does exactly the attention FLOPs of the whole, and the linear FLOPs but MLA's expansion."""

    def flops(step: Step) -> dict[str, float]:
        found = {"attention": 0.0, "linear": 0.0}
        for name, cost in _costs(spec, step):
            if name == "kv_b_proj" or name == "lm_head" or name.endswith("_scan"):
                continue  # the cache is expanded again for every piece; each has its own last token and blocks
            found["attention" if name in ("attention", "indexer") else "linear"] += float(cost.matrix_flops)
        return found

    done, total = 0, {"attention": 0.0, "linear": 0.0}
    for piece in pieces:
        part = flops(chunked_prefill(1.0, float(piece), float(done)))
        total = {key: total[key] + part[key] for key in total}
        done += piece
    whole = flops(prefill(1.0, float(done)))
    assert total["attention"] == whole["attention"]
    assert np.isclose(total["linear"], whole["linear"], rtol=1e-12)


def test_more_gpus_never_hold_more_each(structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System) -> None:
    """A rank's matrix FLOPs and weight bytes fall, or stay where the work is replicated, as TP doubles."""
    for model in structures.values():
        costs: list[Cost] = []
        for tp in (1, 2, 4, 8):
            ready = setup(model, toy_gpu, tp=tp, system=toy_system)
            ops: list[Any] = graph(model, prefill(4.0, 64.0), ready.plan, ready.topology)
            costs.append(sum((op.cost() for op in ops), Cost()))
        for fewer, more in pairwise(costs):
            assert more.matrix_flops < fewer.matrix_flops
            assert more.hbm["weights"] < fewer.hbm["weights"]


def test_replacing_a_step_number_changes_only_that_number() -> None:
    """Steps are frozen values; a copy with another batch keeps the rest."""
    step = replace(decode(4.0, 100.0), batch=8.0)
    assert (step.name, step.batch, step.q, step.kv, step.logits, step.tokens) == ("decode", 8.0, 1.0, 100.0, 1.0, 8.0)
