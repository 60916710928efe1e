"""Read what NVIDIA Nsight Compute exports as CSV: the launches of kernels, with their metrics in SI units.

Three layouts are told apart by their header (documented in the Nsight Compute CLI guide,
https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html, sections on output pages and ``--print-summary``):

- ``ncu --csv``: a row a metric, with ``Metric Name``, ``Metric Unit`` and ``Metric Value``;
- ``ncu --csv --page raw``: a row a launch and a column a metric; the row below the header has the units;
- ``ncu --csv --print-summary per-kernel``: a row a metric of a kernel, with ``Invocations`` and ``Average``.

What the profiler and the program print around the table is passed over. Numbers have separators of thousands, in the
manner of the system's language (comma, point, space or apostrophe), and units with prefixes that change from row to row
unless ``--print-units base`` is given; older versions write ``usecond`` where newer ones write ``us``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.validate.csvfile import text_of

#: Of a launch; every other column of a wide table is a metric.
KERNEL, ID, PROCESS = "Kernel Name", "ID", "Process ID"
NAME, UNIT, VALUE, AVERAGE, INVOCATIONS = "Metric Name", "Metric Unit", "Metric Value", "Average", "Invocations"
#: A metric of the profiler, such as ``dram__bytes.sum``: unlike the labels of the details page, such as ``Duration``.
METRIC = re.compile(r"[a-z0-9]+__[A-Za-z0-9_.]+")

_TIME = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
}  # fmt: skip
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNT = re.compile(r"([KMGTP]?)(byte|inst|cycle|op|hz)s?", re.IGNORECASE)
_ENGLISH = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_OTHER = re.compile(r"\d{1,3}(\.\d{3})+(,\d+)?")
#: Thousands by a space (also one that does not break, a narrow or a thin one) or by an apostrophe.
_SPACED = re.compile(r"-?\d{1,3}([ \u00a0\u202f\u2009'\u2019])\d{3}(?:\1\d{3})*([.,]\d+)?")
#: What stands where nothing was measured.
_NOTHING = ("", "n/a", "nan", "no data", "(!) n/a", "(!) nan")

#: A row of the table: number of its line in the file, and its cells.
Row = tuple[int, list[str]]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, or the mean of several.

    Attributes
    ----------
    kernel : str
    capability : str
        Compute capability such as ``9.0``; empty where the export does not say.
    metrics : dict[str, float]
        In SI units: seconds, bytes, Hz, counts. What the profiler could not measure is missing.
    times : int
        How many launches it stands for.
    unread : dict[str, str]
        Metrics that have a value of no use, and what is wrong with it in which line.
    """

    kernel: str
    capability: str
    metrics: dict[str, float]
    times: int = 1
    unread: dict[str, str] = field(default_factory=dict)


def read(path: Path | str) -> list[Launch]:
    """The launches of an export, in their order.

    Raises
    ------
    SpecError
        When the file cannot be read, holds no table of the profiler, or a number or unit that cannot be understood.
    """
    path = Path(path)
    header, rows = _table(path)
    if NAME in header:
        return _long(path, header, rows)
    return _wide(path, header, rows)


def _table(path: Path) -> tuple[list[str], list[Row]]:
    """Header and rows, without what is printed before, between and after them."""
    lines = text_of(path).splitlines()
    start = next((i for i, line in enumerate(lines) if KERNEL in _cells(path, line)), None)
    if start is None:
        hint = "`ncu --import FILE.ncu-rep --csv --page raw` prints the table of a report"
        raise SpecError(path, "", f"has no header with {KERNEL!r}, so it is not what `ncu --csv` prints; {hint}")
    header, quoted = _cells(path, lines[start]), lines[start].startswith('"')
    rows: list[Row] = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not line.strip() or line.startswith("==") or (quoted and not line.startswith('"')):
            continue
        cells = _cells(path, line)
        if len(cells) != len(header):
            raise SpecError(path, f"line {number}", f"has {len(cells)} cells, the header {len(header)}: is it cut off?")
        if cells != header:
            rows.append((number, cells))
    if not any(cells[header.index(KERNEL)] for _, cells in rows):
        raise SpecError(path, "", "has a header and no launch: the program ran no kernel that was profiled")
    return header, rows


def _cells(path: Path, line: str) -> list[str]:
    """One line of the table. The profiler quotes every cell, and no cell goes over a line."""
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise SpecError(path, "", f"is not a comma-separated table: {error}") from error


def _long(path: Path, header: Sequence[str], rows: Sequence[Row]) -> list[Launch]:
    value = VALUE if VALUE in header else AVERAGE
    if value not in header:
        raise SpecError(path, "", f"has {NAME!r} and no {VALUE!r} or {AVERAGE!r} column")
    named = [(line, dict(zip(header, cells, strict=True))) for line, cells in rows]
    kept = [(line, row) for line, row in named if METRIC.fullmatch(row[NAME])]
    number = _reader(path, [row[value] for _, row in kept])
    found: dict[tuple[str, ...], Launch] = {}
    for line, row in kept:
        key = tuple(row.get(part, "") for part in (PROCESS, ID, KERNEL))
        if key not in found:
            found[key] = Launch(row[KERNEL], row.get("CC", ""), {}, _times(path, line, row, number))
        _keep(path, line, found[key], row[NAME], row[value], row.get(UNIT, ""), number)
    if not found:
        raise SpecError(path, "", "names no metric such as dram__bytes.sum, only headings: export it with `--page raw`")
    return list(found.values())


def _times(path: Path, line: int, row: dict[str, str], number: _Reader) -> int:
    """Launches that a row stands for."""
    text = row.get(INVOCATIONS, "")
    count = number(text) if text else 1.0
    if count is None or not count >= 1 or count != int(count):
        raise SpecError(path, f"line {line}", f"{INVOCATIONS} is {text[:40]!r}, no number of launches")
    return int(count)


def _wide(path: Path, header: Sequence[str], rows: list[Row]) -> list[Launch]:
    kernel, names = header.index(KERNEL), [i for i, name in enumerate(header) if METRIC.fullmatch(name)]
    if not names:
        raise SpecError(path, "", f"has no metric beside {KERNEL!r}: it is not what `ncu --csv --page raw` prints")
    units = rows.pop(0)[1] if not rows[0][1][kernel] else [""] * len(header)
    number = _reader(path, [cells[i] for _, cells in rows for i in names])
    place = header.index("CC") if "CC" in header else None
    found = []
    for line, cells in rows:
        launch = Launch(cells[kernel], cells[place] if place is not None else "", {})
        for i in names:
            _keep(path, line, launch, header[i], cells[i], units[i], number)
        found.append(launch)
    return found


def _keep(path: Path, line: int, launch: Launch, name: str, text: str, unit: str, number: _Reader) -> None:
    """Keep a metric in SI units, if it was measured; else what is wrong with it."""
    if text.casefold() in _NOTHING:
        return
    value, factor = number(text), scale(unit)
    shown = f"line {line}: {name} of {launch.kernel[:60]!r} is {f'{text[:40]} {unit[:20]}'.strip()!r}"
    if value is None:
        launch.unread[name] = f"{shown}, which is no number"
    elif factor is None:
        launch.unread[name] = f"{shown}, a unit that is not known here; --print-units base writes plain ones"
    elif value < 0:
        launch.unread[name] = f"{shown}: nothing takes less than 0"
    elif name in launch.metrics and not math.isclose(launch.metrics[name], value * factor, rel_tol=1e-2):
        raise SpecError(path, name, f"has two values for one launch of {launch.kernel[:80]}: give one export a file")
    else:
        launch.metrics[name] = value * factor


def scale(unit: str) -> float | None:
    """Factor of a unit of the profiler to SI; None for units of no use here, such as ``%``.

    >>> scale("Gbyte/s"), scale("usecond"), scale("inst/cycle"), scale("%")
    (1000000000.0, 1e-06, 1.0, None)
    """
    top, _, bottom = unit.strip().partition("/")
    factor = _plain(top)
    if factor is None or not bottom:
        return factor
    below = _plain(bottom)
    return None if below is None else factor / below


def _plain(unit: str) -> float | None:
    if unit in ("", "1"):
        return 1.0
    if unit in _TIME:
        return _TIME[unit]
    found = _COUNT.fullmatch(unit)
    return _PREFIX[found[1].lower()] if found else None


class _Reader:
    """Numbers of a file, in whose language separators stand for what."""

    def __init__(self, comma_is_decimal: bool, spaced: bool) -> None:
        self.comma_is_decimal, self.spaced = comma_is_decimal, spaced

    def __call__(self, text: str) -> float | None:
        """The number; None where there is none."""
        if _SPACED.fullmatch(text):
            text = re.sub(r"[^\d.,-]", "", text)
        if self.comma_is_decimal:
            plain = (text if self.spaced else text.replace(".", "")).replace(",", ".")
        else:
            plain = text if self.spaced else text.replace(",", "")
        try:
            value = float(plain) if plain.isascii() and "_" not in plain else math.nan
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def _reader(path: Path, texts: Sequence[str]) -> _Reader:
    """How the numbers of a file are written: told by those that can be read in one way only.

    Where spaces or apostrophes group thousands, point and comma do not: either is the decimal mark.
    """
    spaced = [t for t in texts if _SPACED.fullmatch(t)]
    if spaced:
        english = [t for t in texts if _decimal(t, ".")]
        other = [t for t in texts if _decimal(t, ",")]
    else:
        english = [t for t in texts if _only(t, ",", ".", _ENGLISH)]
        other = [t for t in texts if _only(t, ".", ",", _OTHER)]
    if english and other:
        raise SpecError(path, "", f"mixes two ways to write numbers, {english[0][:40]} and {other[0][:40]}")
    return _Reader(bool(other), bool(spaced))


def _decimal(text: str, mark: str) -> bool:
    """Whether a number has this as its decimal mark, in a file whose thousands have other separators."""
    before, _, after = text.partition(mark)
    return after.isdigit() and (before.isdigit() or bool(_SPACED.fullmatch(before)))


def _only(text: str, thousands: str, decimal: str, form: re.Pattern[str]) -> bool:
    """Whether a number can only mean this: both separators, several of thousands, or a point that groups nothing."""
    if thousands in text and form.fullmatch(text):
        return decimal in text or text.count(thousands) > 1
    before, mark, after = text.partition(decimal)
    return bool(mark) and before.isdigit() and after.isdigit() and (len(after) != 3 or len(before) > 3 or before == "0")
