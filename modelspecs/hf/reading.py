"""Strict JSON for Hugging Face configurations: bounded, unique keys, a mapping at the top.

``NaN`` and ``Infinity`` are read: real configurations have them as time limits. Where a size is meant they are refused
by the key that holds them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.base.yamlio import read_text


def load_json(path: Path) -> dict[str, Any]:
    """Read and parse one JSON file.

    Raises
    ------
    SpecError
        When it is missing, larger than 4 MB, not UTF-8, not JSON, nested too deeply, or has a key twice.
    """
    text = read_text(path)
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_int=_whole)
    except RecursionError:
        raise SpecError(path, "", "is nested too deeply; a configuration has a few levels") from None
    except ValueError as error:
        raise SpecError(path, "", f"is not a valid JSON configuration: {str(error)[:200]}") from error
    if not isinstance(data, dict):
        raise SpecError(path, "", f"must be a mapping of keys to values, not {type(data).__name__}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key[:80]!r}")
        found[key] = value
    return found


def _whole(text: str) -> int:
    if len(text) > 40:
        raise ValueError(f"the number {text[:40]}... has {len(text)} digits")
    return int(text)
