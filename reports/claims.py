"""The claim ledger: what a chapter on inference acceleration says, beside what is computed here.

Claims live in modules named ``claims_<part>`` beside this one. Each registers functions with ``@claim``; a function
returns lines, each with the chapter's figure, ours and the function it came from. The verdict of a line follows from
the two numbers by one rule (``verdict``); nobody types it in. The rule's limits are ``AGREES`` and ``APPROXIMATE``.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from perfmodel.base.errors import UsageError
from perfmodel.reports.tables import Column, render

#: Largest factor between ours and the chapter's figure, either way, at which it agrees, and at which it is approximate.
AGREES, APPROXIMATE = 1.02, 1.15

#: Sections in the order in which they are shown; others follow by name.
SECTIONS = {
    "H": "hardware and roofline",
    "F": "FLOPs and parameters",
    "A": "attention",
    "S": "speculative decoding",
    "Q": "quantization",
    "T": "the stack",
}

TITLE = "What a chapter on inference acceleration says, and what is computed here"

#: A figure of the chapter: a number, a band (lowest, highest; infinite where open), or none.
Figure = float | tuple[float, float] | None


@dataclass(frozen=True)
class Line:
    """One figure of a claim.

    Attributes
    ----------
    what : str
        What is counted, with the settings that fix it.
    chapter : float, (float, float) or None
        The chapter's figure or band, in ``unit``. ``None``: it gives none, ours stands beside the others.
    ours : float or None
        The figure computed here. ``None``: it cannot be computed; ``reason`` says why.
    unit : str
    by : object
        Our function or property that computes it.
    reason : str
        What is right, shown where the verdict is ``differs``; or why it is not modelled.
    note : str
        What holds whatever the verdict.
    strict : bool
        A count, an order, a datasheet's number, or arithmetic on printed figures: nothing is approximate there.
    """

    what: str
    chapter: Figure
    ours: float | None
    unit: str = ""
    by: object = None
    reason: str = ""
    note: str = ""
    strict: bool = False

    def __post_init__(self) -> None:
        if self.ours is None and not self.reason:
            raise ValueError(f"{self.what!r} is not computed and gives no reason")
        if self.ours is not None and self.by is None:
            raise ValueError(f"{self.what!r} does not name the function that computes it")

    @property
    def band(self) -> tuple[float, float] | None:
        """The chapter's figure as a band of one width or none."""
        if self.chapter is None or isinstance(self.chapter, tuple):
            return self.chapter
        return (self.chapter, self.chapter)

    @property
    def ratio(self) -> float | None:
        """Ours over the chapter's figure, or over the nearest edge of its band; 1 inside; ``None`` without both."""
        if self.band is None or self.ours is None:
            return None
        low, high = self.band
        if low <= self.ours <= high:
            return 1.0
        edge = low if self.ours < low else high
        return self.ours / edge if edge else None

    @property
    def verdict(self) -> str:
        """``agrees``, ``approximate``, ``differs: reason``, ``not modelled: reason``, or empty without a claim."""
        if self.ours is None:
            return f"not modelled: {self.reason}"
        if self.band is None:
            return ""
        word = verdict(self.ours, self.band, self.strict)
        return f"{word}: {self.reason or self._distance()}" if word == "differs" else word

    def _distance(self) -> str:
        ratio = self.ratio
        return "ours is not 0" if ratio is None else f"ours is {ratio:.3g} times the chapter's figure"


def verdict(ours: float, band: tuple[float, float], strict: bool = False) -> str:
    """The verdict of a figure against a band (of width 0 for a single number).

    A number agrees within a factor of 1.02 and is approximate within 1.15, either way. A band of some width agrees
    inside only, and is approximate within 1.15 of its nearest edge. A strict figure agrees or differs.

    >>> verdict(2.039, (2.0, 2.0)), verdict(2.1, (2.0, 2.0)), verdict(4.0, (2.0, 2.0)), verdict(8.5, (0.0, 8.0))
    ('agrees', 'approximate', 'differs', 'approximate')
    >>> verdict(16, (0.0, 8.0), strict=True), verdict(8, (0.0, 8.0), strict=True)
    ('differs', 'agrees')
    """
    low, high = band
    if low <= ours <= high:
        return "agrees"
    edge = low if ours < low else high
    if edge <= 0 or ours <= 0:
        return "differs"
    factor = max(ours / edge, edge / ours)
    if low == high and factor <= AGREES:
        return "agrees"
    return "approximate" if factor <= APPROXIMATE and not strict else "differs"


@dataclass(frozen=True)
class Claim:
    """A claim of the chapter: where it stands, what it says, and the function that returns its lines."""

    id: str
    where: str
    says: str
    lines: Callable[[], Iterable[Line]]

    @property
    def section(self) -> str:
        """The letter of the id."""
        return self.id[0]

    @property
    def key(self) -> tuple[int, str, int]:
        """Order in the ledger."""
        known = list(SECTIONS)
        place = known.index(self.section) if self.section in known else len(known)
        return (place, self.section, int(self.id[1:]))


_CLAIMS: dict[str, Claim] = {}


def claim(id: str, *, where: str, says: str) -> Callable[[Callable[[], Iterable[Line]]], Callable[[], Iterable[Line]]]:
    """Register a function that returns the lines of a claim.

    Parameters
    ----------
    id : str
        A letter (the section) and a number, such as ``"H5"``; each once.
    where : str
        Section of the chapter.
    says : str
        What the chapter says, in one line.

    Raises
    ------
    ValueError
        For another form of id, or one that is taken.
    """
    if not re.fullmatch(r"[A-Z]\d{1,3}", id):
        raise ValueError(f"claim id {id!r} must be a capital letter and a number, such as H5")

    def register(function: Callable[[], Iterable[Line]]) -> Callable[[], Iterable[Line]]:
        if id in _CLAIMS:
            raise ValueError(f"claim id {id} is taken by {dotted(_CLAIMS[id].lines)}")
        _CLAIMS[id] = Claim(id, where, says, function)
        return function

    return register


@functools.cache
def claims() -> tuple[Claim, ...]:
    """All claims in the order of the ledger, from every module ``perfmodel.reports.claims_*``."""
    package = importlib.import_module("perfmodel.reports")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        if module.startswith("claims_"):
            importlib.import_module(f"perfmodel.reports.{module}")
    return tuple(sorted(_CLAIMS.values(), key=lambda c: c.key))


def dotted(by: object) -> str:
    """Dotted path of a function, method or property.

    >>> from perfmodel.hwspecs.schema import Gpu
    >>> dotted(Gpu.ridge), dotted(Gpu.bandwidth)
    ('perfmodel.hwspecs.schema.Gpu.ridge', 'perfmodel.hwspecs.schema.Gpu.bandwidth')
    """
    function: Any = getattr(by, "fget", None) or getattr(by, "func", None) or by
    return f"{function.__module__}.{function.__qualname__}"


T = TypeVar("T")


def known(value: T | None) -> T:
    """A value of a built-in spec that a claim needs.

    Raises
    ------
    ValueError
        When the spec does not have it: the ledger would be wrong without it.
    """
    if value is None:
        raise ValueError("a built-in spec lacks a value that the claim ledger needs")
    return value


def rows_of(found: Claim) -> list[dict[str, Any]]:
    """The ledger rows of one claim; see ``ledger``."""
    return [_row(found, line) for line in found.lines()]


def _row(found: Claim, line: Line) -> dict[str, Any]:
    low, high = line.band or (None, None)
    return {
        "id": found.id, "section": found.section, "where": found.where, "says": found.says, "what": line.what,
        "chapter": band_words(line.band) if isinstance(line.chapter, tuple) else line.chapter,
        "chapter_low": low, "chapter_high": high, "ours": line.ours, "unit": line.unit, "ratio": line.ratio,
        "strict": line.strict, "verdict": line.verdict, "note": line.note,
        "function": dotted(line.by) if line.by is not None else "",
    }  # fmt: skip


def band_words(band: tuple[float, float] | None) -> str | None:
    """A band in words.

    >>> band_words((55.0, 100.0)), band_words((0.0, 8.0)), band_words((1.0, float("inf")))
    ('55 to 100', 'at most 8', 'at least 1')
    """
    if band is None:
        return None
    low, high = (_number(edge) for edge in band)
    if math.isinf(band[1]):
        return f"at least {low}"
    return f"at most {high}" if band[0] == 0 else f"{low} to {high}"


def _number(value: Any) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "unlimited" if value == math.inf else str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def ledger(section: str | None = None) -> list[dict[str, Any]]:
    """Every line of the ledger.

    Parameters
    ----------
    section : str, optional
        A section's letter (``"H"``) or one claim (``"H5"``), in either case; all by default.

    Returns
    -------
    list of dict
        ``id, section, where, says, what, chapter, chapter_low, chapter_high, ours, unit, ratio, strict, verdict, note,
        function``. ``chapter`` is a number, a band in words, or ``None`` where the chapter gives no figure; then the
        verdict is empty.

    Raises
    ------
    UsageError
        For a section that there is not.

    >>> [(row["what"], row["verdict"]) for row in ledger("a7")]
    [('merged from 7 parts against the whole: largest error of m, l and o, FP64', 'agrees')]
    """
    return [row for found in _chosen(section) for row in rows_of(found)]


def _chosen(section: str | None) -> list[Claim]:
    if section is None:
        return list(claims())
    name = section.strip().upper()
    found = [c for c in claims() if name in (c.section, c.id)]
    if not found:
        known = ", ".join(dict.fromkeys(c.section for c in claims()))
        raise UsageError(f"--section {section[:40]!r} is not in the ledger; it has {known}, or one claim such as H5")
    return found


#: What a table shows, and what CSV and JSON carry.
COLUMNS = (
    Column("id", "id"),
    Column("what", "what"),
    Column("chapter", "chapter", show=_number),
    Column("ours", "ours", show=_number),
    Column("unit", "unit"),
    Column("ratio", "ratio", show=lambda value: f"{value:.3g}"),
    Column("verdict", "verdict"),
    Column("function", "computed by"),
)
DATA_COLUMNS = tuple(
    Column(key, key)
    for key in (
        "id", "section", "where", "says", "what", "chapter", "chapter_low", "chapter_high", "ours", "unit", "ratio",
        "strict", "verdict", "note", "function",
    )
)  # fmt: skip


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Lines by verdict, the reasons left out; lines without a claim of the chapter under ``no claim``."""
    counts: dict[str, int] = {}
    for row in rows:
        word = row["verdict"].partition(":")[0] or "no claim"
        counts[word] = counts.get(word, 0) + 1
    return counts


def claims_text(fmt: str = "table", section: str | None = None) -> str:
    """The ledger as text.

    Parameters
    ----------
    fmt : str
        ``table``, ``json``, ``csv`` or ``md``.
    section : str, optional
        As ``ledger`` takes it.

    Raises
    ------
    UsageError
        For another format or section.
    """
    rows = ledger(section)
    if fmt in ("json", "csv"):
        return render(rows, DATA_COLUMNS, fmt)
    counts = ", ".join(f"{count} {word}" for word, count in summary(rows).items())
    notes = [
        f"{len(rows)} lines: {counts}",
        f"ratio = ours / chapter (its nearest edge for a band); agrees within a factor of {AGREES}, approximate within "
        f"{APPROXIMATE}; GB = 10^9 and GiB = 2^30 bytes",
        *dict.fromkeys(f"{row['id']}: {row['note']}" for row in rows if row["note"]),
    ]
    shown = [{**row, "function": row["function"].removeprefix("perfmodel.")} for row in rows]
    return render(shown, COLUMNS, fmt, TITLE, notes)
