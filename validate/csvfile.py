"""Read a table that someone else wrote: bounded, as text, with one clear line about what is wrong with it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import SpecError

#: The largest table seen has 13 MB; a table is read whole.
MAX_BYTES = 64 * 2**20
MAX_COLUMNS = 1000


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes
    ----------
    number : int
        Of the line on which it ends, for messages; the header is on line 1.
    cells : dict[str, str]
    fields : int
        As many as the header has, unless the row is ragged: then ``cells`` is not to be used.
    """

    number: int
    cells: dict[str, str]
    fields: int


@dataclass(frozen=True)
class Table:
    """A table as it stands in a file."""

    header: tuple[str, ...]
    lines: tuple[Line, ...]


def read(path: Path | str) -> Table:
    """Read a comma-separated table with a header.

    UTF-8 with or without a byte-order mark, any line ends; quoted fields may hold commas and line breaks. Empty lines
    are passed over. A row with more or fewer fields than the header is kept and marked by its ``fields``.

    Raises
    ------
    SpecError
        When the file cannot be read, is too large, is not text or not a table.
    """
    path = Path(path)
    reader = csv.reader(io.StringIO(text_of(path), newline=""))
    try:
        header = tuple(name.strip() for name in next(reader, []))
        _check_header(path, header)
        lines = tuple(
            Line(reader.line_num, dict(zip(header, cells, strict=False)), len(cells))
            for cells in reader
            if any(cell.strip() for cell in cells)
        )
    except csv.Error as error:
        raise SpecError(path, "", f"is not a comma-separated table: {error} (line {reader.line_num})") from error
    if not lines:
        raise SpecError(path, "", "has a header and no rows")
    return Table(header, lines)


def text_of(path: Path) -> str:
    """What a file holds, bounded; raises SpecError when it cannot be read, is too large or is no text."""
    try:
        with path.open("rb") as stream:  # a pipe has no size: the read is what is bounded
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SpecError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise SpecError(path, "", f"has more than {MAX_BYTES:,} bytes, the most that a table may have: split it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(path, "", "is not UTF-8 text: save the table as CSV in UTF-8") from error
    if "\x00" in text:
        raise SpecError(path, "", "contains NUL bytes: save the table as CSV in UTF-8")
    if not text.strip():
        raise SpecError(path, "", "is empty")
    return text


def _check_header(path: Path, header: tuple[str, ...]) -> None:
    if len(header) > MAX_COLUMNS:
        raise SpecError(path, "", f"has {len(header):,} columns; at most {MAX_COLUMNS:,}: is this the right file?")
    if len(header) < 2:
        other = re.search(r"[;\t|]", header[0]) if header else None
        hint = f" (this one is separated by {other[0]!r})" if other else ""
        raise SpecError(path, "", f"has one column only; columns are separated by commas{hint}")
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise SpecError(path, twice[0], "is in the header twice; name the columns apart")
