"""The operator table of one or more analyses, with what a reader needs beside it; and the estimate's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.base.units import gib
from perfmodel.reports.tables import Column, render, roofline_columns, roofline_rows
from perfmodel.reports.words import common_settings, memory_name, seconds, title
from perfmodel.roofline.critical import linear_critical_batch

if TYPE_CHECKING:
    from perfmodel.roofline.analysis import Analysis, Estimate


def text(analyses: Sequence[Analysis], fmt: str) -> str:
    """The operators of prefill and decode as a table, CSV or Markdown."""
    notes = [line for analysis in _distinct(analyses) for line in _notes(analysis)]
    notes += list(dict.fromkeys(a.notice for a in analyses if a.notice))
    settings = common_settings(analyses)
    heading = f"{title(analyses)}: {settings}" if settings else title(analyses)
    return render(roofline_rows(analyses), roofline_columns(analyses), fmt, heading, notes)


def _distinct(analyses: Sequence[Analysis]) -> list[Analysis]:
    return list({(a.setup.gpu.name, a.setup.plan.weights.name): a for a in analyses}.values())


def _notes(a: Analysis) -> list[str]:
    gpu, plan = a.setup.gpu, a.setup.plan
    math = plan.linear_math
    ridge = f"ridge {gpu.ridge(math):,.0f} FLOP/byte ({math.upper()} peak / {memory_name(gpu)} bandwidth)"
    batch = linear_critical_batch(gpu, plan.weights.bits / 8, math)
    return [
        f"{gpu.title}: {ridge}; linear layers turn compute-bound at {batch:,.0f} tokens a step "
        f"with {plan.weights.name} weights",
        "time: roofline bound, datasheet peaks, operators one after another; no real kernel is faster, most are slower",
    ]


def estimate_text(found: Estimate, fmt: str) -> str:
    """TTFT, TPOT and throughput, each with its meaning and its interval."""
    a = found.analysis
    requests = f"{a.batch:,} x ({a.input_tokens:,} in + {a.output_tokens:,} out)"
    rows = [
        _row("TTFT", found.ttft_s, "s", "at least", "prefill of the whole batch, no queueing"),
        _row("TPOT", found.tpot_s, "s", "at least", "mean time per output token after the first"),
        _row("throughput", found.tokens_per_s, "tokens/s", "at most", f"output tokens of all GPUs over {requests}"),
        _row("throughput per GPU", found.tokens_per_s / a.setup.plan.gpus, "tokens/s", "at most", "the same, per GPU"),
    ]
    if fmt in ("csv", "json"):
        columns = [Column(key, key) for key in ("quantity", "value", "unit", "is", "meaning")]
        return render(rows, columns, fmt)
    for row in rows:
        row["value"] = seconds(row["value"]) if row["unit"] == "s" else f"{row['value']:,.4g} tokens/s"  # type: ignore[arg-type]
    columns = [
        Column("quantity", "quantity"),
        Column("is", "is"),
        Column("value", "value"),
        Column("meaning", "meaning"),
    ]
    m = a.memory
    notes = [
        "fidelity: bound (roofline); the interval is open: no run is faster, nothing limits it above",
        f"memory a GPU: weights {gib(m.weights)} + KV cache {gib(m.kv)} + activations {gib(m.activations)} of "
        f"{gib(m.usable)} usable (GiB = 2^30 bytes)",
        "`perfmodel roofline` with the same options shows the operators, `perfmodel explain` their formulas",
    ]
    return render(rows, columns, fmt, a.title, notes)


def _row(name: str, value: float, unit: str, side: str, meaning: str) -> dict[str, object]:
    return {"quantity": name, "value": value, "unit": unit, "is": side, "meaning": meaning}
