"""Figures of a check as text: by measured column, by group, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.reports.tables import Column, render, to_json

if TYPE_CHECKING:
    from perfmodel.validate.check import Check


def fraction(value: float) -> str:
    """A fraction as a percentage, small ones to their first digits.

    >>> fraction(0.0123), fraction(0.000412), fraction(0.0), fraction(-0.002), fraction(3e-8)
    ('1.23 %', '0.041 %', '0 %', '-0.20 %', '< 0.001 %')
    """
    if value == 0:
        return "0 %"
    if abs(value) < 5e-6:
        return "< 0.001 %" if value > 0 else "> -0.001 %"
    return f"{value * 100:.3f} %" if abs(value) < 1e-3 else f"{value * 100:.2f} %"


_FIGURES = (
    Column("n", "n"), Column("mape", "mean error", "", fraction), Column("median_ape", "median", "", fraction),
    Column("max_ape", "largest", "", fraction), Column("bias", "bias", "", fraction),
    Column("coverage80", "in 80 % interval", "", lambda v: f"{v:.0%}"),
    Column("exact", "to the digit", "", lambda v: f"{v:.0%}"),
)  # fmt: skip
_TIMES = (
    Column("mape_10us", "mean error from 10 us", "", fraction),
    Column("physics_mape_10us", "physics alone", "", fraction),
)  # fmt: skip
_ROWS = (
    Column("line", "line"), Column("model", "model"), Column("metric", "measured column"),
    Column("measured", "measured", "", lambda v: f"{v:,.10g}"),
    Column("predicted", "predicted", "", lambda v: f"{v:,.10g}"), Column("ratio", "ratio", "", lambda v: f"{v:.5f}"),
    Column("low", "low", "", lambda v: f"{v:,.6g}", 3), Column("high", "high", "", lambda v: f"{v:,.6g}", 3),
    Column("source", "source", optional=1), Column("explanation", "explanation", optional=2),
)  # fmt: skip


def check_text(check: Check, fmt: str = "table", groups: bool = False, rows: bool = False) -> str:
    """A check in a form of ``tables``.

    Parameters
    ----------
    fmt : str
        ``table``, ``json``, ``csv`` or ``md``; JSON always holds the groups.
    groups : bool
        Whether each group gets a line.
    rows : bool
        Row by row instead of figures (in JSON: beside them).
    """
    if fmt == "json":
        return to_json(check.to_dict(rows))
    if rows:
        columns = (*_ROWS, *(Column(name, name, optional=4) for name in _group_names(check)))
        return render([r.to_dict() for r in check.results], columns, fmt, check.sentence, _notes(check))
    lines = [line for name in check.kind.metrics for line in _lines(check, name, groups)]
    names = _group_names(check) if groups else []
    timed = _TIMES if check.kind.times else ()
    columns = (Column("metric", "measured column"), *(Column(name, name) for name in names), *_FIGURES, *timed)
    return render(lines, columns, fmt, check.sentence, _notes(check))


def _group_names(check: Check) -> list[str]:
    return list(dict.fromkeys(name for r in check.results for name in r.group))


def _lines(check: Check, name: str, groups: bool) -> list[dict[str, Any]]:
    found = check.metrics[name]
    overall = {"metric": name, **found["overall"], "_total": groups}
    return [*({"metric": name, **group} for group in found["groups"]), overall] if groups else [overall]


def _notes(check: Check) -> Sequence[str]:
    reasons = [f"{s['rows']:,} {'row' if s['rows'] == 1 else 'rows'} skipped: {s['reason']}" for s in check.skipped]
    reasons += [f"{s['rows']:,} x {s['metric']} not compared: {s['reason']}" for s in check.not_compared]
    return [*reasons, *([check.note] if check.note else [])]
