"""The operator table of one or more analyses, with what a reader needs beside it; and the estimate's text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import gib
from perfmodel.reports.summary import batch_words
from perfmodel.reports.tables import Column, render, roofline_columns, roofline_rows
from perfmodel.reports.words import (
    between,
    bounds_only,
    common_settings,
    memory_name,
    origin_words,
    seconds,
    title,
)

if TYPE_CHECKING:
    from perfmodel.roofline.analysis import Analysis, Estimate

_TIMES = (
    "time: roofline bound of each operator, one after another, each from cold memory; no kernel is faster, most are "
    "slower"
)


def text(analyses: Sequence[Analysis], fmt: str) -> str:
    """The operators of prefill and decode as a table, CSV or Markdown."""
    times = [_TIMES] if bounds_only(analyses) else _other_times(analyses)
    notes = [_ridge(analysis) for analysis in _distinct(analyses)] + [*times, *_all_totals(analyses)]
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


def _other_times(analyses: Sequence[Analysis]) -> list[str]:
    """What the times are, and where they come from, when they are not bounds alone."""
    return list(dict.fromkeys(note for a in analyses for note in (*_meaning(a), *origin_words(a))))


def _all_totals(analyses: Sequence[Analysis]) -> list[str]:
    """A line of totals an analysis, by GPU where there are several."""
    several = len({a.setup.gpu.name for a in analyses}) > 1
    return [f"{a.setup.gpu.title}, {_totals(a)}" if several else _totals(a) for a in analyses]


def _totals(a: Analysis) -> str:
    if a.fidelity != "bound":
        return (
            f"batch {a.batch:,}: TTFT {seconds(a.ttft_s)} ({between(a.ttft_interval)}), TPOT {seconds(a.tpot_s)} "
            f"({between(a.tpot_interval)})"
        )
    part = f" of one micro-batch of {a.microbatch}, as in the table," if a.microbatch < a.batch else ""
    return (
        f"batch {a.batch:,}: TTFT {seconds(a.ttft_s)} (all overlapped and fused: {seconds(a.ttft_floor_s)}), TPOT "
        f"{seconds(a.tpot_s)} ({seconds(a.tpot_floor_s)}); prefill{part} {seconds(float(a.prefill.time.bound))}"
    )


def estimate_text(found: Estimate, fmt: str) -> str:
    """TTFT, TPOT and throughput, each with its interval and its meaning."""
    a = found.analysis
    gpus, ttft, tpot, rates = a.setup.plan.gpus, a.ttft_interval, a.tpot_interval, a.tokens_interval
    over = f"output tokens of all GPUs over {a.batch:,} x ({a.input_tokens:,} in + {a.output_tokens:,} out)"
    rows = [
        _row("TTFT", "s", found.ttft_s, ttft, "prefill of the whole batch, no queueing"),
        _row("TPOT", "s", found.tpot_s, tpot, "mean time per output token after the first"),
        _row("throughput", "tokens/s", found.tokens_per_s, rates, over),
        _row("per GPU", "tokens/s", found.tokens_per_s / gpus, [r / gpus for r in rates], "the same, per GPU"),
    ]
    names = ("quantity", "unit", "low", a.fidelity, "high", "meaning")
    if fmt == "csv":
        return render([{**row, a.fidelity: row["value"]} for row in rows], [Column(key, key) for key in names], fmt)
    shown = [
        {**row, **{name: _shown(row[key], row["unit"]) for name, key in zip(names[2:5], _VALUES, strict=True)}}
        for row in rows
    ]
    return render(shown, [Column(key, key) for key in names if key != "unit"], fmt, a.title, _estimate_notes(a))


_VALUES = ("low", "value", "high")

_MEANING = {
    "bound": (
        "bound: operators at their rooflines, one after another, each from cold memory; most runs are slower",
        "low time, high rate: all of it overlapped and fused; nothing is faster. Nothing limits the other side",
    ),
    "calibrated": (
        "calibrated: physics with few parameters, fitted to measured kernels; low and high: 80 % interval of the "
        "operators' errors; the engine's own host time between steps is not in it",
    ),
    "measured": (
        "measured: recorded operator times where the table has the shape, interpolated between its rows, calibrated "
        "beyond them; low and high: 80 % interval from its rows left out in turn and from their noise",
    ),
}


_STEPS = (
    "calibrated: physics with few parameters, fitted to measured kernels, and steps fitted to an engine's log; the "
    "host's time is in them; low and high: 80 % interval of whole steps, of operators where few steps were measured"
)


def _meaning(a: Analysis) -> tuple[str, ...]:
    """What the times are; those of whole steps where an engine's host is among the operators."""
    hosted = any(r.op.kind == "host" for r in a.decode.ops)
    return (_STEPS,) if hosted and a.fidelity == "calibrated" else _MEANING[a.fidelity]


def _estimate_notes(a: Analysis) -> list[str]:
    m = a.memory
    return [
        *a.warnings,
        *_meaning(a),
        *origin_words(a),
        f"memory a GPU: weights {gib(m.weights)} + KV cache {gib(m.kv)} + activations {gib(m.activations)} of "
        f"{gib(m.usable)} usable (GiB = 2^30 bytes)",
        "`perfmodel roofline` shows the operators, `explain` their formulas, `memory` what an engine holds",
    ]


def _row(name: str, unit: str, value: float, ends: Sequence[float], meaning: str) -> dict[str, Any]:
    return {"quantity": name, "unit": unit, "low": ends[0], "value": value, "high": ends[1], "meaning": meaning}


def _shown(value: float, unit: str) -> str:
    if not math.isfinite(value) or value == 0:
        return "unlimited" if unit == "s" else "0"
    return seconds(value) if unit == "s" else f"{value:,.4g} tokens/s"
