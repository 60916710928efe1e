"""``check``: a table of measurements beside what is predicted for each of its rows."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import PerfmodelError, SpecError
from perfmodel.base.text import printable
from perfmodel.validate import csvfile
from perfmodel.validate.csvfile import Line
from perfmodel.validate.kinds import kind_of
from perfmodel.validate.metrics import figures, grouped
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Skip

if TYPE_CHECKING:
    import pandas as pd

Found = list[Comparison | Missing]


@dataclass(frozen=True)
class Result:
    """A comparison and its row: line in the file, model, and values of the grouping columns."""

    line: int
    model: str
    group: Mapping[str, str]
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """The row, ready for JSON."""
        c = self.comparison
        return {
            "line": self.line, "model": self.model, "metric": c.metric, "measured": c.measured,
            "predicted": c.predicted, "ratio": c.ratio, "exact": c.exact, "low": c.low, "high": c.high,
            "physics": c.predicted if c.physics is None else c.physics, "source": c.source,
            "explanation": c.explanation, **self.group,
        }  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    """A row that was not compared, or a number of a row (``metric``) that was not, and why."""

    line: int
    model: str
    reason: str
    metric: str = ""


@dataclass(frozen=True)
class Check:
    """Predictions beside a table of measurements.

    Attributes
    ----------
    kind : Kind
    file : str
        The table's file name.
    rows : int
        Rows of the table: those compared and those skipped.
    results : tuple[Result, ...]
    skips : tuple[Skipped, ...]
    missing : tuple[Skipped, ...]
        Measured numbers that were not compared although others of their row were.
    """

    kind: Kind
    file: str
    rows: int
    results: tuple[Result, ...]
    skips: tuple[Skipped, ...]
    missing: tuple[Skipped, ...] = ()

    @functools.cached_property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Measured column -> ``overall`` figures and those of ``groups``; ``n`` is 0 where nothing was compared."""
        return {name: self._figures(name) for name in self.kind.metrics}

    def _figures(self, metric: str) -> dict[str, Any]:
        scale, mine = self.kind.times.get(metric), self.of(metric)
        return {
            "overall": figures([r.comparison for r in mine], scale),
            "groups": grouped(((r.group, r.comparison) for r in mine), scale),
        }

    def of(self, metric: str) -> list[Result]:
        """The results of one measured column."""
        return [r for r in self.results if r.comparison.metric == metric]

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Reasons why rows were skipped and how many; the most frequent first."""
        counts = Counter(skip.reason for skip in self.skips)
        return [
            {"reason": reason, "rows": n} for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]

    @property
    def not_compared(self) -> list[dict[str, Any]]:
        """Numbers of compared rows that were not compared: column, reason, and how many."""
        counts = Counter((one.metric, one.reason) for one in self.missing)
        return [{"metric": metric, "reason": reason, "rows": n} for (metric, reason), n in sorted(counts.items())]

    def outside(self, tolerances: Mapping[str, float]) -> list[str]:
        """Metrics whose ``mape`` is above its tolerance, in words; empty when all are within.

        Parameters
        ----------
        tolerances : mapping
            Metric -> fraction; ``""`` stands for all that are not named. A metric without comparisons is passed over, a
            table without any is outside.
        """
        if not self.results:
            return ["nothing was compared"]
        found = []
        for name, metric in self.metrics.items():
            limit, mape = tolerances.get(name, tolerances.get("")), metric["overall"]["mape"]
            if limit is not None and mape is not None and mape > limit:
                found.append(f"{name}: mean error {mape:.4%} is above {limit:.4%}")
        return found

    @property
    def note(self) -> str:
        """What to know about the predictions; empty when there is nothing to say."""
        parts = [self.kind.note()] if self.kind.note else []
        if self.kind.remark:
            counts = {one["reason"]: one["rows"] for one in self.skipped}
            parts.append(self.kind.remark([r.comparison for r in self.results], counts))
        return "; ".join(part for part in parts if part)

    @property
    def sentence(self) -> str:
        """What was compared, in words."""
        compared = self.rows - len(self.skips)
        return f"{self.file}: {self.kind.title}, {self.rows:,} rows, {compared:,} compared, {len(self.skips):,} skipped"

    @property
    def frame(self) -> pd.DataFrame:
        """One row a comparison: measured, predicted, ratio, interval, source, explanation, and the groups."""
        import pandas as pd

        return pd.DataFrame([r.to_dict() for r in self.results])

    @property
    def skipped_frame(self) -> pd.DataFrame:
        """One row a skipped row of the table, or number of a row (``metric``): line, model, reason."""
        import pandas as pd

        return pd.DataFrame(
            [vars(one) for one in (*self.skips, *self.missing)], columns=["line", "model", "metric", "reason"]
        )

    def to_dict(self, rows: bool = False) -> dict[str, Any]:
        """The figures, ready for JSON; ``table``, ``rows``, ``skipped`` and ``metrics`` are a contract.

        Parameters
        ----------
        rows : bool
            Whether to add ``results`` and ``skipped_rows``, row by row.
        """
        found: dict[str, Any] = {
            "table": self.kind.name, "file": self.file, "rows": self.rows, "compared": self.rows - len(self.skips),
            "skipped": self.skipped, "not_compared": self.not_compared, "note": self.note, "metrics": self.metrics,
        }  # fmt: skip
        if rows:
            found["results"] = [r.to_dict() for r in self.results]
            found["skipped_rows"] = [dict(vars(one)) for one in (*self.skips, *self.missing)]
        return found

    def plot(self, **options: Any) -> Any:
        """Predicted against measured: a matplotlib figure (``perfmodel.reports.scatter_plot.draw``)."""
        from importlib import import_module  # reports sit above this floor: looked up, not imported

        return import_module("perfmodel.reports.scatter_plot").draw(self, **options)

    def _repr_html_(self) -> str:
        import html

        import pandas as pd

        table = pd.DataFrame({name: metric["overall"] for name, metric in self.metrics.items()}).T
        reasons = "".join(f"<li>{s['rows']:,}: {html.escape(s['reason'])}</li>" for s in self.skipped)
        return f"<p>{html.escape(self.sentence)}</p>{table.to_html()}" + (f"<ul>{reasons}</ul>" if reasons else "")


def check(table: str | Path, *, configs: str | Path | None = None) -> Check:
    """Compare a table of measurements with what is predicted for its rows.

    Parameters
    ----------
    table : str or Path
        A CSV file. What kind it is, is told by its header and never by its name.
    configs : str or Path, optional
        A folder of Hugging Face configurations, ``<org>__<name>.json``, for models that are not built in.

    Returns
    -------
    Check
        Rows that cannot be predicted are counted with the reason, never left out in silence.

    Raises
    ------
    SpecError
        When the file is not a table or of no known kind; the message names the nearest kind and the missing columns.
    UsageError
        When ``configs`` is not a folder.
    """
    path = Path(table)
    content = csvfile.read(path)
    kind = kind_of(content.header, path)
    models = Models(configs)
    results: list[Result] = []
    skips: list[Skipped] = []
    missing: list[Skipped] = []
    answers = _answers(kind, content, models)
    for line in content.lines:
        name = printable(line.cells.get("model") or line.cells.get("target", ""), 200)
        try:
            found = next(answers)()
        except Skip as skip:
            skips.append(Skipped(line.number, name, printable(str(skip), 400)))
            continue
        compared = [one for one in found if isinstance(one, Comparison)]
        results += [Result(line.number, name, _group(kind, line.cells, one), one) for one in compared]
        others = [Skipped(line.number, name, one.reason, one.metric) for one in found if isinstance(one, Missing)]
        if compared:
            missing += others
        else:
            reason = others[0].reason if others else "the row has no measured number that is predicted"
            skips.append(Skipped(line.number, name, reason))
    shown = printable(path.name, 200)
    return Check(kind, shown, len(content.lines), tuple(results), tuple(skips), tuple(missing))


def _answers(kind: Kind, content: csvfile.Table, models: Models) -> Iterator[Callable[[], Found]]:
    """For each line a call that gives its comparisons or raises ``Skip``."""
    fields = len(content.header)
    if kind.prepare is not None:
        kind = replace(kind, compare=kind.prepare([line.cells for line in content.lines if line.fields == fields]))
    if kind.bulk is None:
        yield from (functools.partial(_compare, kind, line, fields, models) for line in content.lines)
        return
    found = iter(kind.bulk([line.cells for line in content.lines if line.fields == fields]))
    for line in content.lines:
        yield functools.partial(_given, line, fields, next(found) if line.fields == fields else "")


def _given(line: Line, fields: int, answer: Sequence[Comparison] | str) -> Found:
    """What a bulk comparison said of a line."""
    _check_fields(line, fields)
    if isinstance(answer, str):
        raise Skip(answer)
    return list(answer)


def _check_fields(line: Line, fields: int) -> None:
    if line.fields != fields:
        raise Skip(f"the line has not the {fields} fields that the header has")


def _compare(kind: Kind, line: Line, fields: int, models: Models) -> Found:
    """What the kind makes of a line; every error that a row can cause is a reason to skip it."""
    _check_fields(line, fields)
    try:
        return list(kind.compare(line.cells, models))
    except SpecError as error:
        raise Skip(f"refused: {error.problem}") from error
    except PerfmodelError as error:
        raise Skip(f"refused: {error}") from error


def _group(kind: Kind, cells: Mapping[str, str], one: Comparison) -> dict[str, str]:
    values = {column: printable(cells.get(column, ""), 100) for column in kind.groups}
    return {_CONTRACT.get(column, column): value for column, value in {**values, **one.group}.items()}


#: Columns that the figures call by another name, the same for all tables.
_CONTRACT = {"engine": "framework"}
