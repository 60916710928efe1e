"""vLLM's lines of ``--enable-logging-iteration-details``: what each step of the engine held, and how long it took.

Formats, as read in vLLM's sources:

- 0.16 to 0.25, ``vllm/v1/engine/core.py`` (``log_iteration_details``)::

    Iteration(7): 0 context requests, 0 context tokens, 8 generation requests, 8 generation tokens, iteration elapsed
    time: 9.31 ms

  on one line, from 0.24 with `` (dummy)`` behind it for a step that a data-parallel rank ran for the others' sake.
- 0.26 to 0.33, ``vllm/v1/metrics/loggers.py`` (``_log_iteration_details``): the same behind ``Engine 000: ``, and then
  ``, GPU KV cache usage: 3.4%`` and perhaps ``, encoder inputs: 1, encoder output embeddings: 576``.

A context request is one without an output token yet. The elapsed time is how long the engine waited for the step's
result; with asynchronous scheduling (the default) the step began before, so that it can be shorter than the step.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.base.text import printable

#: A longer line is no line of a log; more steps than this are several days of one.
LONGEST, MOST = 1 << 20, 4_000_000

_START = re.compile(r"\bIteration\(\d+\):(?= ?\d| ?$)")
_LINE = re.compile(
    r"\bIteration\((\d{1,12})\): (\d{1,9}) context requests, (\d{1,9}) context tokens, (\d{1,9}) generation requests, "
    r"(\d{1,9}) generation tokens, iteration elapsed time: (\d{1,9}\.\d\d) ms( \(dummy\))?"
    r"(?:, \w+ KV cache usage: (\d{1,3}\.\d)%(?:, encoder inputs: (\d+), encoder output embeddings: \d+)?)?(.?)"
)
_ENGINE = re.compile(r"\bEngine (\d{3}): Iteration|\bEngineCore(?:_DP(\d+))?\b")
_FINE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)[.,](\d{3,9})")
_COARSE = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_POOL = re.compile(r"\b\w+ KV cache size: ([\d,]{1,20}) tokens")
_CONFIG = re.compile(r"LLM engine \(v([^)\s]{1,60})\) with config:")
_MODEL = re.compile(r"\s*model=\\?['\"]([^'\"\\]{1,500})")
#: Settings that the engine prints when it starts.
SETTINGS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "kv_cache_dtype", "speculative_config",
)  # fmt: skip


@dataclass(frozen=True)
class Iteration:
    """One line.

    Attributes
    ----------
    line : int
        Of the file.
    index : int
        The engine's own count of its steps.
    engine : str
        Which of several engines.
    context_requests, context_tokens, generation_requests, generation_tokens : int
        Requests of the step, and the tokens that it computed for them.
    elapsed : float
        How long the engine waited for the result. [s]
    usage : float, optional
        Share of the KV cache's blocks that running requests hold.
    dummy, encoder : bool
        A step for other data-parallel ranks; one that encoded images or sound.
    stamp : float, optional
        When the line was written. [s]
    fine : bool
        Whether the stamp has milliseconds.
    """

    line: int
    index: int
    engine: str
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    elapsed: float
    usage: float | None = None
    dummy: bool = False
    encoder: bool = False
    stamp: float | None = None
    fine: bool = False


@dataclass(frozen=True)
class IterationLog:
    """The steps of a log.

    Attributes
    ----------
    path : Path
    iterations : tuple[Iteration, ...]
    version : str
        Of vLLM; empty when the log starts after the engine.
    settings : dict[str, str]
        Those of ``SETTINGS`` that the engine printed.
    pool : int, optional
        Tokens that the KV cache holds.
    model : str
        As the engine was given it: an HF id or a path; empty when the log starts after the engine.
    """

    path: Path
    iterations: tuple[Iteration, ...]
    version: str = ""
    settings: dict[str, str] | None = None
    pool: int | None = None
    model: str = ""


def read(path: str | Path) -> IterationLog:
    """Read a log; lines of other kinds are passed over.

    Plain, coloured or JSON lines, with any prefix; a ``.gz`` is unpacked.

    Raises
    ------
    SpecError
        When the file cannot be read, has no such line, or one that is cut off or garbled: with the line's number.
    """
    path = Path(path)
    found: list[Iteration] = []
    version, settings, pool, model = "", {}, None, ""
    for number, text in lines(path):
        if _START.search(text):
            found.append(_iteration(path, number, text))
            if len(found) > MOST:
                raise SpecError(path, f"line {number}", f"more than {MOST:,} steps: cut the log into parts")
        elif match := _POOL.search(text):
            pool = int(match[1].replace(",", "") or 0) or pool
        elif match := _CONFIG.search(text):
            version, settings = match[1], _settings(text[match.end() :])
            named = _MODEL.match(text, match.end())
            model = named[1] if named else ""
    if not found:
        raise SpecError(
            path, "", "holds no line 'Iteration(N): ...': start vLLM with --enable-logging-iteration-details"
        )
    return IterationLog(path, tuple(found), version, settings, pool, model)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, bounded in length; what is not UTF-8 is replaced.

    Raises
    ------
    SpecError
        When it cannot be read.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            number = 0
            while data := stream.readline(LONGEST):
                number += 1
                yield number, data.decode("utf-8", "replace")
    except (OSError, EOFError, ValueError) as error:
        raise SpecError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def is_iteration(text: str) -> bool:
    """Whether a line is meant to be one of a step."""
    return bool(_START.search(text))


def _iteration(path: Path, number: int, text: str) -> Iteration:
    match = _LINE.search(text)
    if match is None or match[10] == "," or len(_START.findall(text)) > 1:
        shown = printable(text[_START.search(text).start() :].strip(), 120)  # type: ignore[union-attr]
        raise SpecError(
            path, f"line {number}", f"is cut off or garbled: {shown!r}; remove the line, or log one process to a file"
        )
    numbers = [int(match[i]) for i in range(1, 6)]
    stamp, fine = _stamp(text)
    return Iteration(
        number, numbers[0], _engine(text), numbers[1], numbers[2], numbers[3], numbers[4], float(match[6]) * 1e-3,
        float(match[8]) / 100 if match[8] else None, bool(match[7]), bool(match[9]), stamp, fine,
    )  # fmt: skip


def _engine(text: str) -> str:
    match = _ENGINE.search(text)
    return str(int(match[1] or match[2] or 0)) if match else "0"


def _stamp(text: str) -> tuple[float | None, bool]:
    """When a line was written, as far as it says: the first stamp with milliseconds, else vLLM's own."""
    try:
        if match := _FINE.search(text):
            year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
            whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
            return whole + float(f"0.{match[7]}"), True
        if match := _COARSE.search(text):
            month, day, hour, minute, second = (int(match[i]) for i in range(1, 6))
            return datetime(2000, month, day, hour, minute, second, tzinfo=UTC).timestamp(), False
    except ValueError:
        return None, False
    return None, False


def _settings(text: str) -> dict[str, str]:
    found = {}
    for name in SETTINGS:
        if match := re.search(rf"\b{name}=([\w.]+)", text):
            found[name] = match[1]
    return found
