"""The operator table of one or more analyses, with what a reader needs beside it; and the estimate's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import gib
from perfmodel.reports.summary import batch_words
from perfmodel.reports.tables import Column, render, roofline_columns, roofline_rows
from perfmodel.reports.words import common_settings, memory_name, seconds, title

if TYPE_CHECKING:
    from perfmodel.roofline.analysis import Analysis, Estimate

_TIMES = (
    "time: roofline bound of each operator, one after another, each from cold memory; no kernel is faster, most are "
    "slower"
)


def text(analyses: Sequence[Analysis], fmt: str) -> str:
    """The operators of prefill and decode as a table, CSV or Markdown."""
    notes = [_ridge(analysis) for analysis in _distinct(analyses)] + [_TIMES, *map(_totals, analyses)]
    notes += list(dict.fromkeys(note for a in analyses for note in (*a.warnings, a.notice) if note))
    settings = common_settings(analyses)
    heading = f"{title(analyses)}: {settings}" if settings else title(analyses)
    return render(roofline_rows(analyses), roofline_columns(analyses), fmt, heading, notes)


def _distinct(analyses: Sequence[Analysis]) -> list[Analysis]:
    return list({(a.setup.gpu.name, a.setup.plan.weights.name): a for a in analyses}.values())


def _ridge(a: Analysis) -> str:
    gpu, math = a.setup.gpu, a.setup.plan.linear_math
    peaks = "peaks derived and bandwidth measured here" if gpu.kind == "cpu" else "datasheet peaks"
    ridge = f"ridge {gpu.ridge(math):,.0f} FLOP/byte ({math.upper()} peak / {memory_name(gpu)} bandwidth; {peaks})"
    return f"{gpu.title}: {ridge}. {batch_words(a)}".rstrip(" .")


def _totals(a: Analysis) -> str:
    part = f" of one micro-batch of {a.microbatch}, as in the table," if a.microbatch < a.batch else ""
    return (
        f"batch {a.batch:,}: TTFT {seconds(a.ttft_s)} (all overlapped and fused: {seconds(a.ttft_floor_s)}), TPOT "
        f"{seconds(a.tpot_s)} ({seconds(a.tpot_floor_s)}); prefill{part} {seconds(float(a.prefill.time.bound))}"
    )


def estimate_text(found: Estimate, fmt: str) -> str:
    """TTFT, TPOT and throughput, each with its meaning and its interval."""
    a = found.analysis
    gpus, ceiling = a.setup.plan.gpus, a.tokens_ceiling_per_s
    over = f"output tokens of all GPUs over {a.batch:,} x ({a.input_tokens:,} in + {a.output_tokens:,} out)"
    rows = [
        _row("TTFT", "s", found.ttft_s, a.ttft_floor_s, "prefill of the whole batch, no queueing"),
        _row("TPOT", "s", found.tpot_s, a.tpot_floor_s, "mean time per output token after the first"),
        _row("throughput", "tokens/s", found.tokens_per_s, ceiling, over),
        _row("throughput per GPU", "tokens/s", found.tokens_per_s / gpus, ceiling / gpus, "the same, per GPU"),
    ]
    names = ("quantity", "unit", "bound", "limit", "meaning")
    if fmt == "csv":
        return render(rows, [Column(key, key) for key in names], fmt)
    for row in rows:
        row |= {key: _shown(row[key], row["unit"]) for key in ("bound", "limit")}
    return render(rows, [Column(key, key) for key in names if key != "unit"], fmt, a.title, _estimate_notes(a))


def _estimate_notes(a: Analysis) -> list[str]:
    m = a.memory
    return [
        *a.warnings,
        "bound: operators at their rooflines, one after another, each from cold memory; most runs are slower",
        "limit: all of it overlapped and fused; nothing is faster. Nothing limits the other side (fidelity: bound)",
        f"memory a GPU: weights {gib(m.weights)} + KV cache {gib(m.kv)} + activations {gib(m.activations)} of "
        f"{gib(m.usable)} usable (GiB = 2^30 bytes)",
        "`perfmodel roofline` with the same options shows the operators, `perfmodel explain` their formulas",
    ]


def _row(name: str, unit: str, bound: float, limit: float, meaning: str) -> dict[str, Any]:
    return {"quantity": name, "unit": unit, "bound": bound, "limit": limit, "meaning": meaning}


def _shown(value: float, unit: str) -> str:
    return f"≥ {seconds(value)}" if unit == "s" else f"≤ {value:,.4g} tokens/s"
