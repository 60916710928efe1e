"""All keys that a configuration lacks, in one message: each is filled in to see which the reader asks for next."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.hf.keys import MissingKeys

T = TypeVar("T")
#: Rounds at most; a reader asks for a few groups of keys.
ROUNDS = 40
#: Divisible by what heads and groups come in; used for nothing but to read on.
STAND_IN = 2**12 * 3 * 5 * 7


def read_all(config: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
    """``read(config)``; where keys are missing, the error names all that can be found, not only the first group.

    Raises
    ------
    SpecError
        What ``read`` raises; of several ``MissingKeys`` one with all names.
    """
    try:
        return read(config)
    except MissingKeys as error:
        raise _all(config, read, error) from None


def _all(config: dict[str, Any], read: Callable[[dict[str, Any]], T], first: MissingKeys) -> MissingKeys:
    shown, names, filled, error = list(first.shown), list(first.names), copy.deepcopy(config), first
    for _ in range(ROUNDS):
        section = _section(filled, error.prefix)
        if section is None:
            break
        for name in error.names:
            section[name] = _stand_in(name)
        try:
            read(filled)
        except MissingKeys as more:
            if set(more.shown) <= set(shown):
                break
            error = more
            shown += [name for name in more.shown if name not in shown]
            names += more.names
        except SpecError:
            break
        else:
            break
    return MissingKeys(first.file, shown, names, first.prefix)


def _section(config: dict[str, Any], prefix: str) -> dict[str, Any] | None:
    found: Any = config
    for part in prefix.split(".")[:-1]:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _stand_in(name: str) -> object:
    """A value that lets most readers go on."""
    if name.endswith("_config"):
        return {}
    small = ("head" in name and "dim" not in name) or "layer" in name or "per_tok" in name or "window" in name
    return 1 if small or name == "first_k_dense_replace" else STAND_IN
