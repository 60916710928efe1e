"""Safe YAML: no code, no duplicate keys, no anchors (they are how bombs are built), bounded size and depth."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from perfmodel.base.errors import SpecError

#: A spec is a few kilobytes; the largest configuration seen in the wild is under 1 MB.
MAX_BYTES = 4 * 2**20
MAX_DEPTH = 40

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """The safe loader, refusing duplicate keys."""


def _construct_mapping(loader: Any, node: Any) -> Any:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key.value, str):
            raise yaml.YAMLError(f"a key that is not plain text at line {key.start_mark.line + 1}")
        if key.value in seen:
            raise yaml.YAMLError(f"duplicate key {key.value[:80]!r} at line {key.start_mark.line + 1}")
        seen.add(key.value)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def _refuse_bombs(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise yaml.YAMLError(f"anchors and aliases are not allowed (line {line}); write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read a text file of bounded size.

    Raises
    ------
    SpecError
        When the file is missing, unreadable, too large or not text.
    """
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # it would be waited for until somebody writes
            raise SpecError(path, "", "is a pipe, not a file; write it to a file first")
        size = path.stat().st_size
        if size > limit:
            raise SpecError(path, "", f"{size:,} bytes; a spec has at most {limit:,}: is this the right file?")
        with path.open("rb") as stream:  # a pipe has no size: bound the read as well
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SpecError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > limit:
        raise SpecError(path, "", f"more than {limit:,} bytes; a spec has at most that: is this the right file?")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(path, "", "is not UTF-8 text: is this the right file?") from error
    if "\x00" in text:
        raise SpecError(path, "", "contains NUL bytes: is this the right file?")
    return text


def parse_yaml(text: str, file: object) -> dict[str, Any]:
    """Parse YAML text whose top level is a mapping.

    Raises
    ------
    SpecError
        On anything that is not plain, alias-free YAML with unique keys.
    """
    try:
        _refuse_bombs(text)
        data = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(getattr(error, "problem", None) or error).split("\n")[0]
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise SpecError(file, "", f"is not a valid spec: {problem}{line}") from error
    if not isinstance(data, dict):
        raise SpecError(file, "", f"must be a mapping of keys to values, not {type(data).__name__}")
    return data


def load_yaml(path: Path) -> dict[str, Any]:
    """Read and parse one YAML spec file."""
    return parse_yaml(read_text(path), path)
