"""Results of ``vllm bench serve --save-result``: what a client saw of each request, or the medians over all of them.

Keys, as read in ``vllm/benchmarks/serve.py`` of vLLM 0.16 to 0.33: ``model_id``, ``completed``, ``total_input_tokens``,
``total_output_tokens``, ``max_concurrency`` (null without a limit), ``request_rate`` (``"inf"`` or requests a second)
and ``median_ttft_ms``, ``median_tpot_ms``, ``median_itl_ms``. With ``--save-detailed`` one entry a request:
``input_lens``, ``output_lens``, ``ttfts`` [s], ``itls`` (lists) [s], ``start_times`` [s]. ``--append-result`` puts
several results into a file, one a line.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import SpecError
from perfmodel.validate.logs_vllm_iterations import lines

Array = NDArray[np.float64]

#: A result with more is no benchmark that anybody ran.
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Requests:
    """Requests of a detailed result; those that failed are left out.

    Attributes
    ----------
    start, ttft : Array
        When each was sent, and its time to the first token. [s]
    input, output : Array
        Tokens.
    itl : tuple[Array, ...]
        Times between the pieces that followed: one a token, unless several came together. [s]
    """

    start: Array
    ttft: Array
    input: Array
    output: Array
    itl: tuple[Array, ...]


@dataclass(frozen=True)
class BenchResult:
    """One result.

    Attributes
    ----------
    path : Path
    completed, failed : int
    input, output : float
        Mean prompt and output tokens.
    concurrency : int, optional
        Requests in flight at most.
    request_rate : float
        Requests a second that were sent; infinite when they were sent at once.
    medians : dict[str, float]
        ``ttft``, ``tpot``, ``itl``, those that are there. [s]
    speculative : bool
    requests : Requests, optional
        With ``--save-detailed``, and stamps of when requests were sent.
    model : str
        What the client asked for; empty when the result does not tell.
    """

    path: Path
    completed: int
    failed: int
    input: float
    output: float
    concurrency: int | None
    request_rate: float
    medians: dict[str, float]
    speculative: bool = False
    requests: Requests | None = None
    model: str = ""


def read(path: str | Path) -> list[BenchResult]:
    """Read the results of a file.

    Raises
    ------
    SpecError
        When it is not JSON (with the line), or lacks what a result holds, or holds something else there.
    """
    path = Path(path)
    text = _text(path)
    found, at, decoder = [], 0, json.JSONDecoder(parse_constant=_constant)
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        line = text.count("\n", 0, at) + 1
        try:
            data, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise SpecError(path, f"line {error.lineno}", f"is not JSON, or cut off: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise SpecError(path, f"line {line}", f"is not JSON: {str(error)[:100]}") from error
        if not isinstance(data, dict):
            raise SpecError(path, f"line {line}", "is no result: an object with keys is expected")
        found.append(_result(path, data))
    if not found:
        raise SpecError(path, "", "holds no result")
    return found


def is_bench(path: Path) -> bool:
    """Whether a file looks like results of ``vllm bench serve``."""
    head = "".join(text for _, text in zip(range(50), (t[1] for t in lines(path)), strict=False))
    return head.lstrip().startswith("{") and '"total_input_tokens"' in head


def _text(path: Path) -> str:
    parts, size = [], 0
    for _, text in lines(path):
        size += len(text)
        if size > MAX_BYTES:
            raise SpecError(path, "", f"has more than {MAX_BYTES:,} bytes")
        parts.append(text)
    return "".join(parts)


def _constant(name: str) -> float:
    return {"NaN": math.nan, "Infinity": math.inf}.get(name, -math.inf)


def _result(path: Path, data: dict[str, Any]) -> BenchResult:
    completed = int(_number(path, data, "completed"))
    if completed < 1:
        raise SpecError(path, "completed", "is 0: no request was answered")
    for key in ("total_input_tokens", "total_output_tokens"):
        if key not in data:
            raise SpecError(path, key, "is missing: this is no result of `vllm bench serve` for a generating model")
    means = {key: _number(path, data, key) / completed for key in ("total_input_tokens", "total_output_tokens")}
    rate, limit = data.get("request_rate", "inf"), data.get("max_concurrency")
    medians = {
        name: _number(path, data, f"median_{name}_ms") * 1e-3
        for name in ("ttft", "tpot", "itl")
        if data.get(f"median_{name}_ms") is not None
    }
    failed = _number(path, data, "failed") if data.get("failed") else 0
    return BenchResult(
        path, completed, int(failed), means["total_input_tokens"], means["total_output_tokens"],
        None if limit is None else int(_number(path, data, "max_concurrency")),
        math.inf if rate == "inf" else _number(path, data, "request_rate"), medians,
        any(key.startswith("spec_decode_") for key in data), _requests(path, data), str(data.get("model_id") or ""),
    )  # fmt: skip


def _requests(path: Path, data: dict[str, Any]) -> Requests | None:
    names = ("start_times", "ttfts", "input_lens", "output_lens", "itls")
    if not all(isinstance(data.get(name), list) for name in names):
        return None
    columns = [data[name] for name in names]
    if len({len(column) for column in columns}) != 1:
        sizes = ", ".join(f"{name} {len(column):,}" for name, column in zip(names, columns, strict=True))
        raise SpecError(path, "itls", f"the lists of requests differ in length ({sizes}): the result is damaged")
    try:
        numbers = [np.array(column, dtype=np.float64) for column in columns[:4]]
        itl = [np.array(one, dtype=np.float64).reshape(-1) for one in columns[4]]
    except (TypeError, ValueError) as error:
        raise SpecError(path, "itls", f"the lists of requests hold something else than numbers: {error}") from error
    good = np.isfinite(numbers).all(0) & (numbers[1] > 0) & (numbers[2] > 0) & (numbers[3] > 0)
    good &= np.array([np.isfinite(one).all() and bool((one >= 0).all()) for one in itl], bool)
    start, ttft, prompt, output = (n[good] for n in numbers)
    return Requests(start, ttft, prompt, output, tuple(one for one, fine in zip(itl, good, strict=True) if fine))


def _number(path: Path, data: dict[str, Any], key: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        shown = "is missing" if value is None else f"is no number of 0 or more: {str(value)[:40]!r}"
        raise SpecError(path, key, f"{shown}; is this a result of `vllm bench serve --save-result`?")
    return float(value)
