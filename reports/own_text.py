"""A user's kernel beside the library, our kernel, the roofline and the prediction, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import clip, percent

if TYPE_CHECKING:
    from perfmodel.validate.bench.own_run import Outcome, Report

#: Above this spread of the samples a time is said to be noisy.
NOISY = 0.10
COLUMNS = (
    Column("shape", "shape"),
    Column("who", "what", show=lambda name: clip(str(name), 40)),
    Column("seconds", "time", "s"),
    Column("low", "from", "s", optional=2),
    Column("high", "to", "s", optional=2),
    Column("flops_per_s", "FLOP/s", "FLOP/s"),
    Column("bytes_per_s", "B/s", "B/s", optional=1),
    Column("speed", "kernel's speed", show=lambda value: "" if value is None else f"{value:.2f} x"),
    Column("of_bound", "of roofline", show=lambda value: "" if value is None else percent(value)),
)


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    """The kernel, those beside it, the prediction and the roofline, each with its time and rates in SI units."""
    own = outcome.measured.timings[""].median
    cost, prediction, bound = outcome.measured.case.op.unit_cost, outcome.prediction, outcome.bound
    flops, moved = float(cost.flops), float(cost.bytes)
    shape = " ".join(f"{name}={size}" for name, size in outcome.sizes.items())

    def row(who: str, seconds: float, low: float | None, high: float | None) -> dict[str, Any]:
        return {
            "shape": shape, "who": who, "seconds": seconds, "low": low, "high": high, "flops_per_s": flops / seconds,
            "bytes_per_s": moved / seconds, "speed": seconds / own, "of_bound": bound / seconds if bound else None,
        }  # fmt: skip

    found = [
        row(who or outcome.measured.case.source, t.median, t.p20, t.p80) for who, t in outcome.measured.timings.items()
    ]
    found[0]["speed"] = None
    if prediction:
        found.append(row("predicted", prediction.predicted, prediction.low, prediction.high))
    if bound:
        found.append(row("roofline", bound, None, None))
    return found


def notes(report: Report) -> list[str]:
    """What a reader must know of the figures."""
    found = list(report.notes)
    if report.outcomes:
        worst = max(o.measured.error for o in report.outcomes)
        found.insert(0, f"checked first: largest relative error {worst:.2g}")
    if noisy := [t.noise for o in report.outcomes for t in o.measured.timings.values() if t.noise > NOISY]:
        found.append(f"noisy: {len(noisy)} times spread by up to {percent(max(noisy))} (p80 - p20 over the median)")
    return [*found, *(f"not measured: {one}" for one in report.left)]


def text(report: Report, fmt: str) -> str:
    """A report as a table, JSON, CSV or Markdown."""
    listed = [row for outcome in report.outcomes for row in rows(outcome)]
    if fmt == "json":
        head = {"kernel": report.kernel, "op": report.op, "dtype": report.fmt, "device": report.device}
        errors = [{"shape": dict(o.sizes), "relative_error": o.measured.error} for o in report.outcomes]
        return to_json({**head, "rows": listed, "checked": errors, "notes": notes(report)})
    heading = f"{report.kernel} as {report.op} in {report.fmt} on {report.device}"
    return render(listed, COLUMNS, fmt, heading, notes(report))
