"""What an engine does by default, by version: rules read from YAML, each with the file in which it was found."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml

DATA = Path(__file__).parent / "data"

#: Name -> other names that people write.
ENGINES = {
    "vllm": (),
    "sglang": ("sgl",),
    "trtllm": ("tensorrt-llm", "tensorrt_llm", "trt-llm"),
    "llamacpp": ("llama.cpp", "llama-cpp", "llama_cpp"),
}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Rule(_Frozen):
    """A value that holds from a version on, until the next rule."""

    since: str
    value: float | int | str | bool | list[float] | dict[str, float]
    source: str = Field(min_length=3)
    note: str = ""


class EngineRules(_Frozen):
    """The rules of one engine. ``oldest`` and ``newest`` are the versions whose source was read."""

    title: str
    oldest: str
    newest: str
    notes: str = ""
    parameters: dict[str, tuple[Rule, ...]]

    @field_validator("parameters")
    @classmethod
    def _ordered(cls, found: dict[str, tuple[Rule, ...]]) -> dict[str, tuple[Rule, ...]]:
        for name, rules in found.items():
            keys = [version_key(rule.since) for rule in rules]
            if not rules or keys != sorted(set(keys)):
                raise ValueError(f"{name}: rules must be one a version, oldest first")
        return found


@dataclass(frozen=True)
class Rules:
    """The rules of an engine that hold at one version.

    Attributes
    ----------
    engine, title, version : str
        ``version`` is the newest one whose source was read when none is asked for.
    note : str
        What to know when the version is outside those read.
    """

    engine: str
    title: str
    version: str
    note: str
    chosen: Mapping[str, Rule]

    def __getitem__(self, name: str) -> Any:
        """The value of a parameter."""
        return self.chosen[name].value

    def number(self, name: str) -> float:
        """The value of a parameter as a number."""
        return float(self[name])

    def source(self, name: str) -> str:
        """Where a parameter was read."""
        return self.chosen[name].source


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparison; what follows them (rc1, post5, dev) does not count.

    >>> version_key("0.26.1rc1.dev608") == version_key("v0.26.1") > version_key("0.9")
    True
    >>> version_key("2026-04-01")
    (2026, 4, 1)
    """
    match = re.match(r"v?(\d+(?:[.\-]\d+)*)", version.strip())
    if match is None:
        raise UsageError(f"version {version[:40]!r} is not understood; write one such as 0.19.0")
    parts = tuple(int(part) for part in re.split(r"[.\-]", match[1])[:4])
    return parts + (0,) * (3 - len(parts))


def engine_name(name: str) -> str:
    """The name of an engine, from any way in which it is written.

    >>> engine_name("TensorRT-LLM")
    'trtllm'
    """
    key = name.strip().casefold()
    for engine, others in ENGINES.items():
        if key == engine or key in others:
            return engine
    raise UnknownName("engine", name, [*ENGINES, *(other for others in ENGINES.values() for other in others)])


@functools.cache
def engine_rules(engine: str) -> EngineRules:
    """All rules of an engine."""
    path = DATA / f"{engine_name(engine)}.yaml"
    return build(EngineRules, load_yaml(path), path.name)


def rules(engine: str, version: str | None = None) -> Rules:
    """The rules of an engine at a version.

    Parameters
    ----------
    version : str, optional
        Defaults to the newest version whose source was read. Older ones than were read get the oldest rules, newer ones
        the newest, and ``note`` says so. llama.cpp has no versions: write the date of a build, ``2026-04-01``.

    Raises
    ------
    UnknownName, UsageError
    """
    found, name = engine_rules(engine), engine_name(engine)
    version = version or found.newest
    at, note = version_key(version), ""
    if at < version_key(found.oldest):
        note = f"{found.title} {version} was not read: the rules of {found.oldest} are used"
    elif at > version_key(found.newest):
        note = f"{found.title} {version} was not read: the rules of {found.newest} are used"
    chosen = {
        key: next((rule for rule in reversed(listed) if version_key(rule.since) <= at), listed[0])
        for key, listed in found.parameters.items()
    }
    return Rules(name, found.title, version, note, chosen)
