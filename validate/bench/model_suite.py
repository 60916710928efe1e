"""The exact shapes of a model's prefill and decode, and the whole step: predicted, added up, and run."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, decode, prefill
from perfmodel.validate.bench import machine
from perfmodel.validate.bench.case import Case, NotRealised, clone
from perfmodel.validate.bench.predict import Column, predict
from perfmodel.validate.bench.report import StepResult
from perfmodel.validate.bench.session import Session, realiser
from perfmodel.validate.bench.store import Result
from perfmodel.validate.bench.suites import Wanted
from perfmodel.validate.bench.timing import summary

#: Steps as people call them.
STEPS = ("prefill", "decode")
#: A whole step is run at least so often, and for so long. [1, s]
RUNS, LONG = 3, 6.0


def ready(model: str, spec: Gpu) -> Setup:
    """A model on the measured device, its weights in a format that is multiplied as it is stored."""
    found = setup(model, spec, kv="bf16")
    if found.plan.weights.name in ("bf16", "fp16", "fp32"):
        return found
    return setup(model, spec, weights="bf16", kv="bf16")


def steps(batch: int, length: int) -> dict[str, Step]:
    """The steps of a request: its prompt, and a token after it."""
    return {"prefill": prefill(float(batch), float(length)), "decode": decode(float(batch), float(length + 1))}


def columns_of(op: Op, model: Any) -> int | None:
    """Columns of a row of a pass over activations."""
    if op.name in ("norm", "final_norm"):
        return int(model.hidden_size)
    if op.name in ("qk_norm", "rope"):
        return next((int(a.head_dim) for a in model.attention.values() if hasattr(a, "head_dim")), None)
    if op.name.endswith("activation"):
        return next((int(f.intermediate_size) for f in model.ffn.values() if hasattr(f, "intermediate_size")), None)
    return None


def wanted(found: Setup, batch: int, length: int) -> list[Wanted]:
    """Every operator of both steps, one run each, with how often it runs."""
    return [
        Wanted(replace(op, count=1.0), columns=columns_of(op, found.model), times=op.count, step=name)
        for name, step in steps(batch, length).items()
        for op in graph(found.model, step, found.plan, found.topology)
    ]


def compare_steps(
    s: Session, listed: Sequence[Wanted], columns: Sequence[Column], budget: float = LONG, run: bool = True
) -> list[StepResult]:
    """Each step predicted by all columns, added up from what was measured, and run as a whole.

    Parameters
    ----------
    budget : float
        For running a step. [s]
    run : bool
        Whether to run the steps; else what the store has of them is taken.
    """
    measured = {r.name: r.median for r in s.results if r.engine == s.engine}
    return [_step(s, name, [w for w in listed if w.step == name], measured, columns, budget, run) for name in STEPS]


def _step(
    s: Session, name: str, mine: Sequence[Wanted], measured: Mapping[str, float], columns: Sequence[Column],
    budget: float, run: bool,
) -> StepResult:  # fmt: skip
    make, cases, missing = realiser(s.device), [], {}
    predicted, parts, added = dict.fromkeys((c.name for c in columns), 0.0), {c.name: 0.0 for c in columns}, 0.0
    for one in mine:
        times = {c.name: one.times * predict(c, one.op).predicted for c in columns}
        predicted = {n: predicted[n] + t for n, t in times.items()}
        try:
            case = make(one)
        except NotRealised as reason:
            missing[one.op.name] = str(reason)
            continue
        if case.name not in measured:
            missing[one.op.name] = "not measured in this run"
            continue
        parts = {n: parts[n] + t for n, t in times.items()}
        added += one.times * measured[case.name]
        cases.append((one, case))
    first = columns[0].name
    share = parts[first] / predicted[first] if predicted[first] else 0.0
    whole = _whole(s, name, cases, budget, run) if cases else None
    return StepResult(name, predicted, parts, added, whole, missing, share)


def _whole(
    s: Session, name: str, cases: Sequence[tuple[Wanted, Case]], budget: float, run: bool
) -> float | None:  # fmt: skip
    """Time of the operators in the order of the step, layer after layer; kept like any other result. [s]"""
    title = f"step {name}"
    kept = next((r.median for r in s.results if r.name == title and r.engine == s.engine), None)
    if kept is not None or not run:
        return kept
    touched = sum(case.touched for _, case in cases) + (_sets(cases, s.room.cache) - 1) * _layer(cases)
    if touched > s.room.memory:
        s.left.append(f"{title}: its buffers need {touched / 1e9:.2f} GB, and {s.room.memory / 1e9:.2f} GB may be used")
        return None
    s.say(f"running a whole {name} step")
    with machine.import_torch().inference_mode():
        calls = _order(cases, s.room.cache)
        samples = _samples(s, calls, budget)
    t = summary(samples, 1, s.room.watch.name)
    row = Result(
        title, "step", s.engine, "", {"operators": len(calls)}, t.median, t.p20, t.p80, t.precision, t.samples, {}
    )  # fmt: skip
    s.store.add(s.run, row)
    s.room.forget()
    return t.median


def _layer(cases: Sequence[tuple[Wanted, Case]]) -> float:
    """Bytes that the operators of a layer touch: those that run more than once a step."""
    return sum(case.touched for one, case in cases if round(one.times) > 1)


def _sets(cases: Sequence[tuple[Wanted, Case]], cache: float) -> int:
    """Sets of a layer's buffers that are past three times the last cache together, at most as many as layers."""
    layers, layer = max(round(one.times) for one, _ in cases), _layer(cases)
    return max(1, min(layers, math.ceil(3 * cache / layer) + 1)) if layer else 1


def _order(cases: Sequence[tuple[Wanted, Case]], cache: float) -> list[Callable[[], object]]:
    """The calls of a step: what runs once before and after the layers in its place, all else layer by layer.

    Layers go round through as many sets of buffers as are past the cache.
    """
    layers = max(round(one.times) for one, _ in cases)
    sets = _sets(cases, cache)
    order: list[Callable[[], object]] = []
    made = []
    for one, case in cases:
        first = case.make()
        more = sets - 1 if round(one.times) > 1 else 0
        made.append((round(one.times), case, [first, *(clone(first) for _ in range(more))]))
    for layer in range(layers):
        for times, case, buffers in made:
            call = functools.partial(case.run, buffers[layer % len(buffers)])
            order += [call] * sum(i * layers // times == layer for i in range(times))
    return order


def _samples(s: Session, calls: Sequence[Callable[[], object]], budget: float) -> list[float]:
    """Times of whole steps. [s]"""

    def once() -> None:
        for call in calls:
            call()

    start, whole = time.perf_counter(), [once]
    samples: list[float] = []
    once()
    while len(samples) < RUNS or (time.perf_counter() - start < budget and len(samples) < 50):
        samples.append(s.room.watch.seconds(whole, 1))
        if time.perf_counter() - start > 3 * budget:
            break
    return samples
