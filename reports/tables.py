"""Tables in four forms.

``table`` is for a terminal, ``md`` for GitHub, with readable quantities; ``csv`` and ``json`` carry plain SI numbers.
Names in a table may come from a stranger's spec: control characters are escaped and no markup is interpreted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.base.errors import UsageError
from perfmodel.base.units import engineering
from perfmodel.reports.files import write as write
from perfmodel.reports.words import bounds_only, intensity, keys, limiter_words, one_line, percent

if TYPE_CHECKING:
    from rich.table import Table

    from perfmodel.roofline.analysis import Analysis
    from perfmodel.roofline.phases import OpResult, Phase

Row = Mapping[str, Any]
FORMATS = ("table", "json", "csv", "md")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    key : str
        Of the row, and of the JSON object.
    header : str
    unit : str
        SI unit of the value. People see it with a prefix in the cell, unless ``show`` says otherwise; CSV headers
        name it.
    show : Callable[[Any], str], optional
        How a value is shown to people, when not as ``unit`` says.
    optional : int
        Above 0 where a narrow terminal may go without it rather than fold text; the highest is left out first.
    last : int
        Above 0 where a terminal too narrow even for folded text may go without it; the highest is left out first.
    """

    key: str
    header: str
    unit: str = ""
    show: Callable[[Any], str] | None = None
    optional: int = 0
    last: int = 0

    def human(self, value: Any) -> str:
        """The value for people, on one line, with control characters escaped."""
        if value is None:
            return ""
        return one_line(self.show(value) if self.show is not None else _human(value, self.unit))


def _human(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_number(value):
        return str(value)
    if not math.isfinite(value):
        return "unlimited" if value > 0 else str(value)
    if unit:
        return engineering(float(value), unit)
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_terminal() -> bool:
    """Whether stdout is one; a closed one is not."""
    return sys.stdout is not None and sys.stdout.isatty()


def render(
    rows: Iterable[Row], columns: Sequence[Column], fmt: str = "table", title: str = "", notes: Sequence[str] = (),
    terminal: bool | None = None,
) -> str:  # fmt: skip
    """Rows as text that ends with a line break.

    Parameters
    ----------
    rows : iterable of mappings
        Values in SI units; ``None`` is shown empty. A row with a true ``"_total"`` stands out.
    columns : sequence of Column
    fmt : str
        ``table``, ``json``, ``csv`` or ``md``.
    title, notes
        Lines above and below, in ``table`` and ``md``.
    terminal : bool, optional
        Whether the reader is a terminal (colour, and folded to its width); by default, whether stdout is one.

    Raises
    ------
    UsageError
        For another format.
    """
    listed = list(rows)
    if fmt == "json":
        return to_json([{c.key: row.get(c.key) for c in columns} for row in listed])
    if fmt == "csv":
        return _csv(listed, columns)
    if fmt == "md":
        return _markdown(listed, columns, title, notes)
    if fmt == "table":
        return _table(listed, columns, title, notes, _is_terminal() if terminal is None else terminal)
    raise UsageError(f"unknown format {fmt[:40]!r}; choose one of {', '.join(FORMATS)}")


def to_json(data: Any) -> str:
    """JSON of plain data, numbers of NumPy included; what is infinite or undefined becomes ``null``.

    >>> to_json({"high_s": float("inf")})
    '{\\n  "high_s": null\\n}\\n'
    """
    return json.dumps(_plain(data), indent=2, allow_nan=False) + "\n"


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if hasattr(data, "tolist"):  # a NumPy number or array
        return _plain(data.tolist())
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def _csv(rows: list[Row], columns: Sequence[Column]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_csv_header(c) for c in columns])
    for row in rows:
        values = (_plain(row.get(c.key)) for c in columns)
        writer.writerow(["" if v is None else one_line(v) if isinstance(v, str) else v for v in values])
    return stream.getvalue()


def _csv_header(column: Column) -> str:
    named = not column.unit or column.unit == column.header
    return column.header if named else f"{column.header} ({column.unit})"


#: What GitHub's Markdown would interpret; an underscore inside a word is plain there.
_ACTIVE = re.compile(r"[\\`*\[\]<>&|~$#!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in a table cell too.

    >>> print(escape_markdown("a|b <i> qkv_proj"))
    a\|b \<i\> qkv_proj
    """
    return _ACTIVE.sub(r"\\\g<0>", one_line(text))


def _markdown(rows: list[Row], columns: Sequence[Column], title: str, notes: Sequence[str]) -> str:
    numeric = _numeric(rows, columns)
    lines = [f"**{escape_markdown(title)}**", ""] if title else []
    lines.append("| " + " | ".join(escape_markdown(c.header) for c in columns) + " |")
    lines.append("|" + "|".join(" ---: " if numeric[c.key] else " --- " for c in columns) + "|")
    lines += ["| " + " | ".join(escape_markdown(c.human(row.get(c.key))) for c in columns) + " |" for row in rows]
    for note in filter(None, notes):
        lines += ["", escape_markdown(note)]
    return "\n".join(lines) + "\n"


def _numeric(rows: list[Row], columns: Sequence[Column]) -> dict[str, bool]:
    """Which columns hold numbers: they are aligned to the right."""
    return {c.key: any(_is_number(_plain(row.get(c.key))) for row in rows) for c in columns}


def _table(rows: list[Row], columns: Sequence[Column], title: str, notes: Sequence[str], terminal: bool) -> str:
    from rich.console import Console
    from rich.text import Text

    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else 100_000
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=colour, no_color=not colour, legacy_windows=False, highlight=False,
        color_system="standard" if colour else None, markup=False, emoji=False, _environ={},
    )  # fmt: skip
    kept, widths = _fit(rows, columns, width)
    if title:
        console.print(Text(one_line(title), style="bold"))
    console.width = max(width, _total_width(widths))
    console.print(_rich_table(rows, kept, widths))
    console.width = width
    if dropped := [c.header for c in columns if c not in kept]:
        notes = [*notes, f"Left out for want of width: {', '.join(dropped)}; widen the terminal or write to a file."]
    for note in filter(None, notes):
        console.print(Text(one_line(note)))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


#: Blanks between columns; the longest word that a column of text is kept wide enough for, and its least width.
_BETWEEN, _LONGEST_WORD, _LEAST = 2, 24, 4


def _fit(rows: list[Row], columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """Columns and their widths, within ``width`` unless a single column of numbers is wider.

    Optional columns go until the rest fits without folding; then text is folded between words; then the columns go
    that the last resort may take, and those on the right; numbers are never folded.
    """
    kept = list(columns)
    sizes = {c.key: _widths(rows, c) for c in kept}

    def total(which: int) -> int:
        return _total_width([sizes[c.key][which] for c in kept])

    for dropping, which in (("optional", 2), ("last", 1)):
        while total(which) > width and (spare := [c for c in kept if getattr(c, dropping)]):
            kept.remove(max(spare, key=lambda c: getattr(c, dropping)))
    while total(0) > width and len(kept) > 1:
        kept.pop()
    floor = 1 if total(1) <= width else 0
    least, chosen = [sizes[c.key][floor] for c in kept], [sizes[c.key][2] for c in kept]
    while _total_width(chosen) > width and any(now > low for now, low in zip(chosen, least, strict=True)):
        widest = max(range(len(kept)), key=lambda i: (chosen[i] > least[i], chosen[i]))
        chosen[widest] -= 1
    return kept, chosen


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * max(len(widths) - 1, 0) + 1


def _widths(rows: list[Row], column: Column) -> tuple[int, int, int]:
    """Widths of a column: with text folded inside words, folded between words, and not folded; of numbers all one."""
    lines = [column.header, *(column.human(row.get(column.key)) for row in rows)]
    longest = max(map(_cells, lines))
    if _numeric(rows, [column])[column.key]:
        return longest, longest, longest
    words = (word for line in lines for word in line.split())
    between = min(max(map(_cells, words), default=1), _LONGEST_WORD, longest)
    return min(_LEAST, longest), between, longest


def _cells(text: str) -> int:
    """Width on a terminal, where some characters take two places."""
    from rich.cells import cell_len

    return cell_len(text)


def _rich_table(rows: list[Row], columns: Sequence[Column], widths: Sequence[int]) -> Table:
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    plain = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=plain, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    numeric = _numeric(rows, columns)
    for column, width in zip(columns, widths, strict=True):
        number = numeric[column.key]
        side: Literal["right", "left"] = "right" if number else "left"
        table.add_column(Text(column.header), justify=side, no_wrap=number, overflow="fold", width=max(width, 1))
    for row in rows:
        cells = (Text(column.human(row.get(column.key))) for column in columns)
        table.add_row(*cells, style="bold" if row.get("_total") else None)
    return table


#: The standard operator table; ``roofline_rows`` makes its rows.
ROOFLINE_COLUMNS = (
    Column("phase", "phase"),
    Column("op", "operator"),
    Column("layer", "layer class", optional=2),
    Column("count", "runs", optional=3),
    Column("flops", "FLOPs", "FLOP", lambda v: engineering(v, "").strip(), last=4),
    Column("bytes", "bytes", "B", optional=1),
    Column("intensity", "FLOP/B", "FLOP/B", intensity, last=3),
    Column("limited_by", "limited by", last=1),
    Column("time_s", "time", "s"),
    Column("share", "share", "", percent, last=2),
)


#: What is added where times are no bounds: the bound beside them, their 80 % interval, and what each is.
INTERVAL_COLUMNS = (
    Column("bound_s", "bound", "s", optional=6),
    Column("low_s", "low", "s", optional=4),
    Column("high_s", "high", "s", optional=5),
    Column("source", "fidelity", optional=7),
)


def roofline_columns(analyses: Sequence[Analysis]) -> tuple[Column, ...]:
    """Columns of the operator table, with the name of the analysis in front when there are several."""
    return ((Column("analysis", "analysis"),) if len(analyses) > 1 else ()) + operator_columns(analyses)


def operator_columns(analyses: Sequence[Analysis]) -> tuple[Column, ...]:
    """Columns of an operator: with bound and interval beside the time when that is no bound."""
    if bounds_only(analyses):
        return ROOFLINE_COLUMNS
    at = next(i for i, column in enumerate(ROOFLINE_COLUMNS) if column.key == "time_s")
    bound, low, high, source = INTERVAL_COLUMNS
    return (*ROOFLINE_COLUMNS[:at], bound, low, ROOFLINE_COLUMNS[at], high, *ROOFLINE_COLUMNS[at + 1 :], source)


def roofline_rows(analyses: Sequence[Analysis]) -> list[dict[str, Any]]:
    """The operator table: every operator of prefill and decode, and a total of each phase.

    Rows are those of ``Analysis.rows`` with ``limited_by`` in words; work and bytes are those of all runs of an
    operator in one step on one GPU. The total's limiter is the resource that limits most of the phase's time.
    """
    rows: list[dict[str, Any]] = []
    for name, analysis in zip(keys(analyses), analyses, strict=True):
        plain = analysis.rows()
        for phase in (analysis.prefill, analysis.decode):
            mine = [row for row in plain if row["phase"] == phase.name] + [_total(phase)]
            rows += [
                {"analysis": name, **row, "limited_by": limiter_words(row["limiter"], analysis.setup)} for row in mine
            ]
    return rows


def _total(phase: Phase) -> dict[str, Any]:
    cost, time = phase.cost, phase.time
    flops, moved = float(cost.flops), float(cost.bytes)
    return {
        "phase": phase.name, "op": "total", "layer": "", "kind": "total", "count": _runs(phase.ops), "flops": flops,
        "bytes": moved, "sent_bytes": float(cost.sent), "l2_bytes": float(cost.l2),
        "intensity": flops / moved if moved else 0.0, "limiter": time.limiter, "time_s": float(time.predicted),
        "bound_s": float(time.bound), "low_s": float(time.low),
        "high_s": float(time.high) if math.isfinite(float(time.high)) else None,
        "share": 1.0, "source": time.source, "_total": True,
    }  # fmt: skip


def _runs(ops: Iterable[OpResult]) -> float:
    return sum(result.op.count for result in ops)
