"""A run of `perfmodel validate` as text: ceilings, cases, errors by family, the fit, whole steps, notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.reports import speculated_text
from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import percent

if TYPE_CHECKING:
    from perfmodel.validate.bench.compare import Compared
    from perfmodel.validate.bench.report import Report
    from perfmodel.validate.bench.store import Result, Run

#: Ceilings as people call them.
NAMES = {
    "memory": "memory bandwidth", "l2": "L2 bandwidth", "l3": "L3 bandwidth", "t0": "memory, time at no bytes",
    "exp": "exponentials", "fma": "elementwise multiply-adds", "launch": "a call", "launch:graph": "a call in a graph",
}  # fmt: skip


def signed(value: float) -> str:
    """A signed percentage.

    >>> signed(0.123), signed(-0.02)
    ('+12 %', '-2 %')
    """
    return "0 %" if abs(value) < 0.005 else f"{value:+.0%}".replace("%", " %")


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def text(report: Report, fmt: str = "table") -> str:
    """All of a run.

    Parameters
    ----------
    fmt : str
        ``table``, ``md``; ``json``: everything; ``csv``: the cases.
    """
    if fmt == "json":
        return to_json(report.to_dict())
    if fmt == "csv":
        return _cases(report, fmt) if report.compared else _ceilings(report, fmt)
    parts = [_ceilings(report, fmt)]
    if report.compared:
        parts += [_cases(report, fmt), _families(report, fmt)]
    if report.fit is not None:
        parts.append(_fit(report, fmt))
    if report.steps:
        parts.append(_steps(report, fmt))
    if report.speculated is not None:
        parts.append(speculated_text.text(report.speculated, fmt))
    return "\n".join(part for part in parts if part)


def _ceilings(report: Report, fmt: str) -> str:
    rows = []
    for name, c in report.ceilings.items.items():
        shown = NAMES.get(name) or f"{name.removeprefix('peak:').upper()} matrix products"
        rows.append({"name": shown, "value": c.value, "shown": c.text, "unit": c.unit, "noise": c.noise,
                     "method": c.method.removeprefix("measured here: ")})  # fmt: skip
    columns = [Column("name", "ceiling")]
    columns += [Column("value", "value"), Column("unit", "unit")] if fmt == "csv" else [Column("shown", "value")]
    columns += [Column("noise", "noise", "", percent), Column("method", "method", optional=1)]
    if fmt != "csv":
        for row in rows:
            row["method"] = str(row["method"]).split("; lines:")[0]
    notes = list(report.notes) if not report.compared else []
    return render(rows, columns, fmt, f"Ceilings of {report.device}", [*notes, *_kept(report)] if notes else [])


def _case(c: Compared, report: Report) -> dict[str, Any]:
    beside = ", ".join(f"{who} {c.measured / t:.2f}x" for who, t in c.beside.items())
    row = {
        "case": c.result.name, "set": c.set, "measured_s": c.measured, "noise": c.noise, "predicted_s": c.predicted,
        "error": c.ratio - 1, "attained": c.attained, "limiter": c.limiter, "gap": c.gap, "beside": beside,
        "bound_s": c.bound, "engine": c.result.engine,
    }  # fmt: skip
    return row | {f"by_{name}": p.predicted / c.measured for name, p in c.predictions.items() if name != c.judged}


def _cases(report: Report, fmt: str) -> str:
    others = [c.name for c in report.columns[1:]]
    columns = [
        Column("case", "case"), Column("measured_s", "measured", "s"),
        Column("noise", "noise", "", percent, optional=3), Column("predicted_s", "predicted", "s"),
        Column("error", "error", "", signed),
        *(Column(f"by_{name}", f"{name} / measured", "", _ratio, optional=4) for name in others),
        Column("attained", "of ceiling", "", percent, last=2), Column("limiter", "limited by", last=1),
        Column("gap", "above the bound", optional=2),
    ]  # fmt: skip
    if any(c.beside for c in report.compared):
        columns.append(Column("beside", "beside (measured / library)", optional=1))
    if report.fit is not None or fmt == "csv":
        columns.insert(1, Column("set", "set", optional=5))
    rows = [_case(c, report) for c in report.compared]
    if fmt == "csv":
        columns += [Column("bound_s", "bound", "s"), Column("engine", "engine")]
    return render(rows, columns, fmt, report.sentence)


def _families(report: Report, fmt: str) -> str:
    columns = [
        Column("name", "family"), Column("n", "cases"), Column("error", "median error", "", percent),
        Column("worst", "largest", "", percent), Column("bias", "bias", "", signed),
        Column("covered", "in 80 % interval", "", percent), Column("noise", "noise", "", percent),
        Column("allowed", "allowed", "", percent), Column("verdict", ""),
    ]  # fmt: skip
    rows = [
        {**vars(f), "verdict": "outside" if f.outside and f.name != "all" else "", "_total": f.name == "all"}
        for f in report.families
    ]
    for row in rows:
        if row["_total"]:
            row["allowed"] = None
    title = "Errors on shapes that the fit has not seen" if report.fit is not None else "Errors"
    return render(rows, columns, fmt, f"{title}, predicted by {report.columns[0].name}", _notes(report))


def _notes(report: Report) -> list[str]:
    others = [f"{c.name}: {c.words}" for c in report.columns[1:]]
    return [
        *(f"WRONG: {one}" for one in report.wrong), *others, *(f"not measured: {one}" for one in report.left),
        *report.notes, *_kept(report),
    ]  # fmt: skip


def _kept(report: Report) -> list[str]:
    return [f"kept: {one}" for one in report.kept] + [f"run {report.run} in the store: --history, --export"]


def _fit(report: Report, fmt: str) -> str:
    assert report.fit is not None
    columns = [
        Column("kind", "kind"), Column("format", "format"), Column("rows", "rows"), Column("launch", "launch", "s"),
        Column("matrix", "of the peak", "", percent), Column("memory", "of the bandwidth", "", percent),
        Column("overlap", "overlap", "", _ratio), Column("median_error", "error left out", "", percent),
    ]  # fmt: skip
    title = "The fit: launch + smax(compute / share, traffic / share; overlap); errors of rows left out in turn"
    return render(report.fit.lines, columns, fmt, title)


def _steps(report: Report, fmt: str) -> str:
    first = report.columns[0].name
    rows, notes = [], []
    for step in report.steps:
        reference = step.whole if step.whole is not None else step.added
        rows.append({
            "step": step.name, "added": step.added, "whole": step.whole, "share": step.share,
            **{f"by_{n}": t for n, t in step.parts.items()}, "predicted": step.predicted[first],
            **{f"error_{n}": t / reference - 1 if reference else None for n, t in step.parts.items()},
        })  # fmt: skip
        if step.missing:
            listed = "; ".join(f"{name} ({why})" for name, why in step.missing.items())
            notes.append(f"{step.name}: not measured, {1 - step.share:.0%} of the predicted time: {listed}")
    columns = [
        Column("step", "step"), Column("added", "operators added up", "s"), Column("whole", "run as a whole", "s"),
        *(
            column for c in report.columns
            for column in (Column(f"by_{c.name}", f"by {c.name}", "s"), Column(f"error_{c.name}", "error", "", signed))
        ),
        Column("predicted", f"by {first}, all operators", "s"), Column("share", "measured share", "", percent),
    ]  # fmt: skip
    return render(rows, columns, fmt, f"Whole steps of {report.suite}", notes)


def history(runs: list[tuple[Run, list[Result]]], fmt: str = "table") -> str:
    """Runs of the store, the newest first."""
    rows = [
        {
            "id": run.id, "started": run.started, "device": run.device, "suite": run.suite,
            "cases": len({r.name for r in found if r.operator != "ceilings"}),
            "state": "finished" if run.finished else "interrupted: --resume goes on with the newest",
            "revision": run.machine.get("revision", ""), "torch": run.machine.get("versions", {}).get("torch", ""),
        }
        for run, found in runs
    ]  # fmt: skip
    columns = [Column(key, key) for key in ("id", "started", "device", "suite", "cases", "state")]
    columns += [Column("torch", "torch", optional=1), Column("revision", "revision", optional=2)]
    return render(rows, columns, fmt, "Runs of perfmodel validate", [] if rows else ["none yet"])
