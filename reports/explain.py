"""An operator's formula with its numbers filled in, made by running the cost formula on numbers that remember."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.base.text import printable
from perfmodel.base.trace import Traced, show
from perfmodel.base.units import engineering
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.clock import Clock, clock, operators
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, check_number, decode, prefill
from perfmodel.roofline.times import HBM, Rates

if TYPE_CHECKING:
    from perfmodel.roofline.measured.record import Recorded


def explain(
    model: str | ModelSpec, gpu: str | Gpu, op: str, phases: tuple[str, ...] = ("prefill", "decode"), *,
    batch: int = 1, input: int = 2048, output: int = 256, fidelity: str = "bound", engine: str | None = None,
    efficiency: Sequence[str] = (), measured: Sequence[Recorded] = (), **plan: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Explain an operator: every quantity of its cost and every term of its time as a formula with numbers.

    Decode is explained at the middle of the output, ``input + ceil(output/2)`` tokens in the cache.

    Parameters
    ----------
    op : str
        Name as the operator table shows it; it is explained once for each layer class and phase that has it.
    phases : tuple[str, ...]
    batch, input, output, fidelity, engine, efficiency, measured, **plan
        As ``analyze``; at another fidelity than the bound the parts of each predicted time are added, in microseconds.

    Raises
    ------
    UsageError
        For an operator that the graph does not have, with near matches.
    """
    for name, value in (("batch", batch), ("input", input), ("output", output)):
        check_number(name, value)
    ready = setup(model, gpu, **plan)
    timer = clock(ready, fidelity, engine, efficiency, measured)
    steps = {"prefill": prefill(float(batch), float(input)), "decode": decode(float(batch), input + -(-output // 2))}
    found, names = [], set()
    for phase in phases:
        for candidate in operators(ready, steps[phase], timer):
            names.add(candidate.name)
            if candidate.name == op:
                found.append({**_explain_op(candidate, phase, steps[phase], ready), **_calibrated(candidate, timer)})
    if not found:
        near = get_close_matches(op, sorted(names), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(names))}"
        raise UsageError(f"no operator '{printable(op, 80)}' here; {hint}")
    return found


def _explain_op(op: Op, phase: str, step: Step, ready: Setup) -> dict[str, Any]:
    rates, cost, traced = Rates(ready.gpu, ready.topology), op.unit_cost, op.traced_cost()
    quantities = [
        *(_quantity(f"{unit} operations", value, "") for unit, value in traced.ops.items()),
        *(_quantity(f"{stream} bytes", value, "B") for stream, value in traced.hbm.items()),
        *(_quantity(f"bytes sent over {link}", value, "B") for link, value in traced.comm.items()),
    ]
    terms = [_term(resource, work, rates) for resource, work in _works(op)] if op.kind != "host" else []
    bound = float(rates.bound(cost))
    return {
        "phase": phase, "op": op.name, "kind": op.kind, "layer": op.layer, "count": op.count,
        "tokens": float(step.batch * step.q), "context": float(step.kv),
        "inputs": {k: v for k, v in op.inputs.items() if v is not None}, "formula": _doc(op),
        "quantities": quantities, "terms": [t for t in terms if t is not None],
        "limiter": rates.limiter(cost) if terms else "host", "intensity": _intensity(cost.flops, cost.bytes),
        "ridge": _own_ridge(op, ready), "time_us": bound * 1e6, "total_us": bound * op.count * 1e6,
        "fidelity": "bound",
    }  # fmt: skip


def _calibrated(op: Op, timer: Clock) -> dict[str, Any]:
    t = timer.time(op)
    if t.source == "bound":
        return {}
    parts = {name: float(value) * 1e6 / op.count for name, value in getattr(t, "parts", {}).items()}
    times = {f"{name}_us": float(getattr(t, name)) * 1e6 / op.count for name in ("predicted", "low", "high")}
    return {"fidelity": t.source, "parts_us": parts, **times, "origin": getattr(t, "origin", "")}


def _own_ridge(op: Op, ready: Setup) -> float | None:
    """Ridge of the number format that the operator multiplies in; ``None`` when it multiplies nothing."""
    formats = [unit.removeprefix("matrix:") for unit in op.unit_cost.ops if unit.startswith("matrix:")]
    return ready.gpu.ridge(formats[0]) if formats else None


def _intensity(flops: Num, moved: Num) -> float:
    return float(flops) / float(moved) if float(moved) else 0.0


def _doc(op: Op) -> str:
    return (op.formula.__doc__ or "").split("\n\n")[0].strip()


def _quantity(name: str, value: Any, unit: str) -> dict[str, Any]:
    if isinstance(value, Traced):
        return {
            "name": name, "symbols": value.symbols(), "numbers": value.numbers(), "value": value.value, "unit": unit,
        }  # fmt: skip
    number = show(float(value))
    return {"name": name, "symbols": number, "numbers": number, "value": float(value), "unit": unit}


def _works(op: Op) -> list[tuple[str, float]]:
    cost = op.unit_cost
    works = [*cost.ops.items(), (HBM, cost.bytes), *cost.comm.items()]
    return [(name, float(work)) for name, work in works]


def _term(resource: str, work: float, rates: Rates) -> dict[str, Any] | None:
    rate = rates.rate(resource)
    if rate is None:
        return None
    seconds = Traced.named("work", work) / Traced.named("rate", rate)
    microseconds = seconds.value * 1e6
    return {"resource": resource, "work": work, "rate": rate, "formula": seconds.symbols(), "time_us": microseconds}


def explain_text(found: list[dict[str, Any]], fmt: str) -> str:
    """Explanations as text; ``csv`` and ``md`` give one row a quantity or term."""
    if fmt != "table":
        from perfmodel.reports.tables import Column, render

        keys = ("phase", "op", "layer", "name", "symbols", "numbers", "value", "unit")
        rows = [{**e, **q} for e in found for q in e["quantities"]]
        rows += [{**e, **_as_quantity(t)} for e in found for t in e["terms"]]
        return render(rows, [Column(key, key) for key in keys], fmt)
    return "\n\n".join(_paragraph(e) for e in found)


def _as_quantity(t: dict[str, Any]) -> dict[str, Any]:
    numbers = f"{show(t['work'])}/{show(t['rate'])}"
    name = f"{t['resource']} time"
    return {"name": name, "symbols": t["formula"], "numbers": numbers, "value": t["time_us"], "unit": "us"}


def _paragraph(e: dict[str, Any]) -> str:
    where = f"{printable(e['layer'])}, {e['count']:g} times" if e["layer"] else f"{e['count']:g} times"
    lines = [f"{e['op']} in {e['phase']} ({where}): {e['formula']}"]
    inputs = (f"{k} = {v if isinstance(v, str) else show(float(v))}" for k, v in e["inputs"].items())
    lines.append(f"  inputs: {', '.join(inputs)}")
    width = max((len(q["name"]) for q in e["quantities"]), default=0)
    for q in e["quantities"]:
        total = engineering(q["value"], q["unit"]).strip() if q["value"] else "0"
        lines.append(f"  {q['name']:{width}}  = {q['symbols']}")
        if q["numbers"] != q["symbols"] and q["symbols"] not in e["inputs"]:
            lines.append(f"  {'':{width}}  = {q['numbers']}")
        lines.append(f"  {'':{width}}  = {total}")
    for t in e["terms"]:
        counted = t["resource"] in ("vector", "exp", "issue") or t["resource"].startswith("matrix")
        unit = "op" if counted else "B"
        rate = engineering(t["rate"], f"{unit}/s", 4)
        lines.append(f"  time on {t['resource']}: {engineering(t['work'], unit, 4)} / {rate} = {t['time_us']:.4g} us")
    times = "" if e["count"] == 1 else f"; {e['count']:g} times = {e['total_us']:.5g} us"
    ridge = f", ridge {e['ridge']:.3g}" if e["ridge"] is not None else ""
    if e["terms"]:
        lines.append(
            f"  bound = the longest = {e['time_us']:.4g} us, set by {e['limiter']} "
            f"(intensity {e['intensity']:.3g} FLOP/byte{ridge}){times}"
        )
    if "parts_us" in e:
        parts = " + ".join(f"{name} {value:.3g}" for name, value in e["parts_us"].items() if value)
        interval = f"80 % from {e['low_us']:.4g} to {e['high_us']:.4g}"
        lines.append(f"  {e['fidelity']} = {e['predicted_us']:.4g} us, {interval}" + f" = {parts}" * bool(parts))
        lines.append(f"  {'parameters ' if e['fidelity'] == 'calibrated' else ''}{e['origin']}")
    return "\n".join(lines)
