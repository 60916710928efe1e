"""The report: one plain page that needs nothing but itself. No script, no font, no request.

Every text in it is escaped by the template engine; a content-security policy forbids what a mistake might let in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import gb, gib
from perfmodel.reports import words
from perfmodel.reports.roofline_data import basis, device_noun
from perfmodel.reports.summary import headline, memory_rows, sentences
from perfmodel.reports.tables import Column, Row, operator_columns, roofline_rows
from perfmodel.reports.theme import DARK, LIGHT

if TYPE_CHECKING:
    from perfmodel.roofline.analysis import Analysis

TEMPLATES = Path(__file__).parent / "templates"

_URL = re.compile(r"https?://[^\s<>\"'()]+[^\s<>\"'().,;:]")


#: Characters of text that are kept on one line in a table.
SHORT = 30


@dataclass(frozen=True)
class Table:
    """Rows under a caption; ``columns`` say how they are shown."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def classes(self) -> list[str]:
        """How each column is set: ``number``, ``short`` text on one line, or ``long`` text."""
        return [self._class(column) for column in self.columns]

    def _class(self, column: Column) -> str:
        values = [row.get(column.key) for row in self.rows]
        if any(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            return "number"
        return "short" if all(len(column.human(v)) <= SHORT for v in values) else "long"


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes
    ----------
    title : str
    paragraphs : sequence of str
        Plain text; escaped.
    tables : sequence of Table
    html : str
        Trusted HTML, such as an SVG made here; not escaped. Never put text from outside into it.
    folded : str
        What the tables come to, in one line: they are folded away under it.
    """

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    html: str = ""
    folded: str = ""

    @property
    def anchor(self) -> str:
        """Id for links: lower-case words joined by hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.casefold()).strip("-") or "section"


def page(
    analyses: Sequence[Analysis], claims_rows: Sequence[Row] | None = None, sections: Sequence[Section] = ()
) -> str:
    """One self-contained HTML page about one or more analyses.

    Parameters
    ----------
    analyses : sequence of Analysis
        One to six, drawn on one roofline.
    claims_rows : sequence of mappings, optional
        The claim ledger, as ``perfmodel.reports.claims.ledger`` returns it; it comes last, folded.
    sections : sequence of Section
        Further parts, put before the settings and the sources.

    Raises
    ------
    UsageError
        For no analysis, or too many for one picture.
    """
    from perfmodel.reports.roofline_plot import svg_text

    noun, picture = device_noun(analyses), svg_text(analyses, inline=True)
    parts = [
        Section("Roofline", [_roofline_words(analyses)], html=f'<div class="wide figure">{picture}</div>'),
        Section("Operators", [_operator_words(analyses)], _operator_tables(analyses)),
        Section("Memory", [MEMORY_WORDS.format(device=noun)], _memory_tables(analyses)),
        *sections,
        Section("Settings", tables=[_settings_table(analyses)]),
        *_origins(analyses),
        Section("Sources of the numbers", _source_words(analyses), _source_tables(analyses)),
        *([_claims(claims_rows)] if claims_rows else []),
    ]
    common = words.common_settings(analyses)
    text: str = _template().render(
        title=words.title(analyses), subtitle=common[:1].upper() + common[1:], sections=parts, light=LIGHT, dark=DARK,
        bound=basis(analyses) or FOOT_WORDS, fidelity=words.fidelity(analyses),
        kind="bounds" if words.bounds_only(analyses) else "times",
        notices=list(dict.fromkeys(words.one_line(a.notice) for a in analyses if a.notice)),
        summaries=[
            {"key": key, "headline": [{name: _joined(text) for name, text in item.items()} for item in headline(a)],
             "sentences": [_joined(s) for s in sentences(a)]}
            for key, a in zip(words.keys(analyses), analyses, strict=True)
        ],
    )  # fmt: skip
    return text


def _joined(text: str) -> str:
    """A text whose percentages are not torn apart by a line break."""
    return text.replace(" %", "\u00a0%")


ROOFLINE_WORDS = (
    "Each point is an operator of prefill or decode: how many FLOPs it does for each byte of device memory, and the "
    "rate it reaches if it takes {time}. Its area is its share of its phase's time. Left of a ridge, memory "
    "bandwidth limits; right of it, the matrix units do.{drop} FLOPs here are those of the matrix units where an "
    "operator uses them: the softmax of attention runs on other units at the same time."
)
OPERATOR_WORDS = (
    "FLOPs, bytes and times of all runs of an operator in one step, on one {device}; decode is the mean step of the "
    "request. One multiply-add is two FLOPs; causal attention counts the half that is needed."
)
DATASHEET_WORDS = (
    "Times are roofline bounds at datasheet peaks: no kernel that reads its inputs from device memory is faster, most "
    "are slower."
)
MEMORY_WORDS = "GiB is 2³⁰ bytes and GB is 10⁹ bytes. What the fullest {device} holds."
SOURCE_WORDS = (
    "Every hardware number that the page rests on, as its source writes it, and what other sources say. Datasheet "
    "peaks are dense (without structured sparsity) unless they say otherwise."
)
FOOT_WORDS = (
    "Bound: no run whose operators follow one another, each from cold memory, is faster than this on the hardware as "
    "its documents describe it."
)


CALIBRATED_WORDS = (
    "Bound: the roofline at datasheet peaks, which nothing that reads its inputs from device memory beats. Time: what "
    "physics with few parameters, fitted to measured kernels, predicts; low and high: its 80 % interval."
)
MEASURED_WORDS = (
    "Bound: the roofline at datasheet peaks. Time: from the recorded table where it has the shape, interpolated "
    "between its rows, calibrated beyond them, as the last column says; low and high: its 80 % interval."
)
_TIMES = {"bound": DATASHEET_WORDS, "calibrated": CALIBRATED_WORDS, "measured": MEASURED_WORDS}
ORIGIN_WORDS = (
    "Where the times come from, each with its share of a request's time. How far such times are off on shapes that the "
    "fit did not see is in the project's accuracy page."
)


def _roofline_words(analyses: Sequence[Analysis]) -> str:
    if words.bounds_only(analyses):
        return ROOFLINE_WORDS.format(time="its bound time", drop="")
    drop = " The line above a point ends where its bound would put it."
    return ROOFLINE_WORDS.format(time="its predicted time", drop=drop)


def _origins(analyses: Sequence[Analysis]) -> list[Section]:
    """Where the times come from, when they are not bounds alone."""
    columns = (Column("share", "share of the time", show=words.percent), Column("origin", "origin"))
    tables = []
    for name, a in zip(_named(analyses, "Origins"), analyses, strict=True):
        rows = [{"share": share, "origin": words.clip(origin, 300)} for origin, share in a.origins.items()]
        tables += [Table(name, columns, rows)] if rows else []
    return [Section("Origin of the times", [ORIGIN_WORDS], tables)] if tables else []


def _operator_words(analyses: Sequence[Analysis]) -> str:
    measured = basis(analyses)
    if words.bounds_only(analyses):
        times = f"Times are roofline bounds. {measured}" if measured else DATASHEET_WORDS
    else:
        times = " ".join([*dict.fromkeys(_TIMES[a.fidelity] for a in analyses), measured]).strip()
    return f"{OPERATOR_WORDS.format(device=device_noun(analyses))} {times}"


def _source_words(analyses: Sequence[Analysis]) -> list[str]:
    return [" ".join(filter(None, [SOURCE_WORDS, basis(analyses)])), *_model_sources(analyses)]


def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["links"] = links
    return environment.get_template("report.html.j2")


def links(text: str) -> Any:
    """Escape a text, and make the web addresses in it links.

    >>> str(links("see https://example.org/a_b."))
    'see <a href="https://example.org/a_b" rel="noopener noreferrer">https://example.org/a_b</a>.'
    """
    from markupsafe import Markup, escape

    found, end = Markup(), 0
    for match in _URL.finditer(text):
        found += escape(text[end : match.start()])
        found += Markup('<a href="{0}" rel="noopener noreferrer">{0}</a>').format(match[0])
        end = match.end()
    return found + escape(text[end:])


def _named(analyses: Sequence[Analysis], what: str) -> list[str]:
    """A caption for each analysis."""
    return [f"{what}, {key}" if key else what for key in words.keys(analyses)]


def _operator_tables(analyses: Sequence[Analysis]) -> list[Table]:
    tables = []
    for key, analysis in zip(words.keys(analyses), analyses, strict=True):
        rows, columns = roofline_rows([analysis]), operator_columns([analysis])[1:]
        for phase in (analysis.prefill, analysis.decode):
            name = ", ".join(filter(None, [phase.name.capitalize(), key]))
            tables.append(Table(name, columns, [row for row in rows if row["phase"] == phase.name]))
    return tables


def _memory_tables(analyses: Sequence[Analysis]) -> list[Table]:
    columns = (
        Column("part", "part"), Column("bytes", "GiB", show=lambda v: gib(v).removesuffix(" GiB")),
        Column("gb", "GB", show=lambda v: gb(v).removesuffix(" GB")),
        Column("share", "of the usable", show=words.percent),
    )  # fmt: skip
    return [
        Table(name, columns, [{**row, "gb": row["bytes"]} for row in memory_rows(a)])
        for name, a in zip(_named(analyses, f"Memory of one {device_noun(analyses)}"), analyses, strict=True)
    ]


def _settings_table(analyses: Sequence[Analysis]) -> Table:
    """One column an analysis."""
    names = words.keys(analyses)
    columns = [Column("setting", "setting")] + [Column(str(i), name or "value") for i, name in enumerate(names)]
    listed = [_settings(a, device_noun(analyses)) for a in analyses]
    rows = [{"setting": part} | {str(i): s[part] for i, s in enumerate(listed)} for part in listed[0]]
    return Table("What was asked for", columns, rows)


def _settings(a: Analysis, noun: str) -> dict[str, str]:
    plan, topology, batch = a.setup.plan, a.setup.topology, f"{a.batch:,} sequence{'s' if a.batch > 1 else ''}"
    return {
        "model": words.clip(a.setup.model.title), noun: f"{plan.gpus} × {words.clip(a.setup.gpu.title)}",
        "joined by": words.clip(topology.system) if plan.gpus > 1 else "nothing",
        "parallelism": words.parallelism(a.setup) or "none",
        "weights stored as": plan.weights.name, "KV cache stored as": plan.kv.name,
        "linear layers multiply in": words.format_name(plan.linear_math),
        "attention multiplies in": words.format_name(plan.attention_math), "batch": batch,
        "input": f"{a.input_tokens:,} tokens a sequence", "output": f"{a.output_tokens:,} tokens a sequence",
        "fidelity": words.fidelity([a]),
    }  # fmt: skip


def _claims(rows: Sequence[Row]) -> Section:
    from perfmodel.reports.claims import COLUMNS, TITLE, summary

    counts = ", ".join(f"{count:,} {word}" for word, count in summary(dict(row) for row in rows).items())
    return Section(
        "Claims", [f"{TITLE}."], [Table("Claim ledger", COLUMNS, rows)], folded=f"{len(rows):,} lines: {counts}"
    )


def _model_sources(analyses: Sequence[Analysis]) -> list[str]:
    models = {a.setup.model.name: a.setup.model for a in analyses}.values()
    return [f"{words.clip(m.title)}: dimensions from {words.clip(m.source, 300)}" for m in models]


def _source_tables(analyses: Sequence[Analysis]) -> list[Table]:
    from perfmodel.hwspecs.listing import sources

    specs: dict[str, Any] = {}
    for a in analyses:
        specs.setdefault(a.setup.gpu.name, a.setup.gpu)
        if (system := words.system_of(a.setup)) is not None:
            specs.setdefault(system.name, system)
    columns = [
        Column("path", "number"),
        Column("text", "value"),
        Column("source", "source"),
        Column("other", "other sources"),
    ]
    return [
        Table(
            words.clip(spec.title), columns,
            [
                {"path": c.path, "text": c.text, "source": f"{c.source} ({c.note})" if c.note else c.source,
                 "other": "; ".join(f"{o.value}: {o.source} ({o.why})" for o in c.alternatives)}
                for c in sources(spec)
            ],
        )
        for spec in specs.values()
    ]  # fmt: skip
