"""A scanner for the flat JSON of weight files: no recursion, nothing kept that the caller does not ask for.

``json.loads`` turns a hostile header of 100 MB into gigabytes of Python objects. The headers and indices of safetensors
are mappings of mappings of known form, so they can be read from left to right at a cost in proportion to their length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from perfmodel.base.errors import SpecError

#: Longest value that is parsed at once. [bytes]
WINDOW = 4096
#: Keys of one mapping: more than any checkpoint has tensors.
MOST_KEYS = 500_000
#: White space of JSON, as a pattern that never backtracks.
SPACE = rb"[ \t\r\n]*+"

_SPACE = re.compile(SPACE)
_TEXT = re.compile(rb'"((?:[^"\\\x00-\x1f]++|\\.)*+)"')


class Scanner:
    """Reads JSON text from left to right.

    Parameters
    ----------
    data : bytes
        The text.
    path : Path
        For messages.
    """

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def fail(self, key: str, problem: str) -> NoReturn:
        """Refuse the file."""
        raise SpecError(self.path, key, problem)

    def peek(self) -> bytes:
        """Skip white space; the next byte, or none at the end."""
        match = _SPACE.match(self.data, self.at)
        self.at = match.end() if match else self.at
        return self.data[self.at : self.at + 1]

    def expect(self, byte: bytes) -> None:
        """Take one byte that must be there."""
        found = self.peek()
        if found != byte:
            shown = repr(found.decode("latin-1")) if found else "the end"
            self.fail("", f"is not valid: {shown} at byte {self.at} of its JSON, where {byte.decode()!r} belongs")
        self.at += 1

    def text(self) -> str:
        """Take a string."""
        self.peek()
        match = _TEXT.match(self.data, self.at)
        if match is None:
            self.fail("", f"is not valid: no string at byte {self.at} of its JSON")
        self.at = match.end()
        try:
            raw = match[1].decode("utf-8")
            found = raw if "\\" not in raw else str(json.loads(f'"{raw}"'))
            found.encode("utf-8")  # a lone surrogate is no character
        except ValueError as error:
            raise SpecError(
                self.path, "", f"has a string that is not UTF-8 at byte {match.start()} of its JSON"
            ) from error
        return found

    def fields(self) -> Iterator[str]:
        """Take a mapping, key by key; the caller takes each value first. A key that comes twice is refused."""
        self.expect(b"{")
        if self.peek() == b"}":
            self.at += 1
            return
        seen: set[str] = set()
        while True:
            name = self.text()
            if name in seen:
                self.fail(name, "appears twice")
            if len(seen) >= MOST_KEYS:
                self.fail("", f"has a mapping of more than {MOST_KEYS:,} keys: is this the right file?")
            seen.add(name)
            self.expect(b":")
            yield name
            if self.peek() != b",":
                break
            self.at += 1
        self.expect(b"}")

    def value(self, key: str) -> Any:
        """Take any short value; ``key`` is for messages."""
        self.peek()
        text = self.data[self.at : self.at + WINDOW].decode("utf-8", "surrogateescape")
        try:
            found, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError) as error:
            problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
            raise SpecError(self.path, key, f"is not a valid value within {WINDOW} bytes: {problem}") from error
        self.at += len(text[:end].encode("utf-8", "surrogateescape"))
        return found

    def end(self) -> None:
        """Refuse anything but white space from here on."""
        if self.peek():
            self.fail("", f"has {len(self.data) - self.at} bytes after the last brace of its JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number that JSON has")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
