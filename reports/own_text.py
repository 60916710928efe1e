"""A user's kernel beside the library, our kernel, the roofline and the prediction, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import clip, percent

if TYPE_CHECKING:
    from perfmodel.validate.bench.own_report import Outcome, Report

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
    own, bound = outcome.times[0].median, outcome.bound
    shape = " ".join(f"{name}={size}" for name, size in outcome.sizes.items())

    def row(who: str, seconds: float, low: float | None, high: float | None) -> dict[str, Any]:
        return {
            "shape": shape, "who": who, "seconds": seconds, "low": low, "high": high,
            "flops_per_s": outcome.flops / seconds, "bytes_per_s": outcome.bytes / seconds, "speed": seconds / own,
            "of_bound": bound / seconds if bound else None,
        }  # fmt: skip

    times = (*outcome.times, *([outcome.predicted] if outcome.predicted else []))
    found = [row(t.who, t.median, t.low, t.high) for t in times]
    found[0]["speed"] = None
    if bound:
        found.append(row("roofline", bound, None, None))
    return found


def notes(report: Report) -> list[str]:
    """What a reader must know of the figures."""
    found = list(report.notes)
    if report.outcomes:
        worst = max(o.error for o in report.outcomes)
        found.insert(0, f"checked first: largest relative error {worst:.2g}")
    if noisy := [t.noise for o in report.outcomes for t in o.times if t.noise > NOISY]:
        found.append(f"noisy: {len(noisy)} times spread by up to {percent(max(noisy))} (p80 - p20 over the median)")
    return [*found, *(f"not measured: {one}" for one in report.left)]


def text(report: Report, fmt: str) -> str:
    """A report as a table, JSON, CSV or Markdown."""
    listed = [row for outcome in report.outcomes for row in rows(outcome)]
    if fmt == "json":
        head = {"kernel": report.kernel, "op": report.op, "dtype": report.fmt, "device": report.device}
        errors = [{"shape": dict(o.sizes), "relative_error": o.error} for o in report.outcomes]
        return to_json({**head, "rows": listed, "checked": errors, "notes": notes(report)})
    heading = f"{report.kernel} as {report.op} in {report.fmt} on {report.device}"
    return render(listed, COLUMNS, fmt, heading, notes(report))
