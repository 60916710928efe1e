"""Rows of operator tables as text: whether one can be predicted, and many of them as a frame."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.text import printable
from perfmodel.hwspecs import kept
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.load import system as load_system
from perfmodel.validate.fit_data import MATH
from perfmodel.validate.rows import Row, Skip, measured, printed, whole

if TYPE_CHECKING:
    import pandas as pd

#: Whole numbers that a double holds exactly end here; no dimension of an operator comes near.
MOST = 2**53
#: Words that a column may hold.
WORDS = {
    "dtype": tuple(MATH), "kv_cache_dtype": ("bfloat16", "float16", "fp8", "float32"),
    "phase": ("context", "generation"), "op_name": ("all_gather", "all_reduce", "alltoall", "reduce_scatter"),
}  # fmt: skip
#: Pairs of columns of which the first divides the second.
DIVIDES = (
    ("num_key_value_heads", "num_heads"), ("moe_ep_size", "num_experts"), ("moe_tp_size", "inter_size"),
)  # fmt: skip
#: Other ways to write an engine.
ENGINES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}


@dataclass(frozen=True)
class Operators:
    """One kind of operator table.

    Attributes
    ----------
    kind : str
        As in ``fit_predict.HEADERS``.
    title : str
    numbers, words : tuple[str, ...]
        Columns that say the shape; and the GPU, the engine and the formats.
    """

    kind: str
    title: str
    numbers: tuple[str, ...]
    words: tuple[str, ...]


def reason(table: Operators, row: Row) -> str:
    """Why a row cannot be predicted, as far as its cells tell; ``""`` when they are in order."""
    try:
        if measured(row, "latency_us") is None:
            return "latency_us is missing"
        numbers = {name: whole(row, name) for name in table.numbers}
    except Skip as skip:
        return str(skip)
    if large := next((name for name, value in numbers.items() if value > MOST), ""):
        return f"{large} is too large"
    return _words(table, row) or _sizes(numbers) or _elsewhere(table, row, numbers)


def _words(table: Operators, row: Row) -> str:
    for name in table.words:
        text = row[name].strip()
        if not text:
            return f"{name} is missing"
        if name in WORDS and text not in WORDS[name]:
            return f"{name} {printable(text, 60)} is not known; known are {', '.join(WORDS[name])}"
    if canonical(row["gpu"].strip()) is None:
        return f"the GPU {printable(row['gpu'].strip(), 60)} is not known"
    gpu, math = load_gpu(row["gpu"].strip()), _math(table, row)
    return f"{gpu.name} does not compute in {math}" if math and not gpu.supports(math) else ""


def _math(table: Operators, row: Row) -> str:
    """The format of a row's matrix products, as its form takes it; ``""`` where there are none."""
    if "dtype" in table.words:
        return MATH[row["dtype"].strip()]
    return {"decode": MATH.get(row.get("kv_cache_dtype", "").strip(), ""), "mla": "bf16"}.get(table.kind, "")


def _sizes(numbers: dict[str, int]) -> str:
    for part, total in DIVIDES:
        if part in numbers and numbers[total] % numbers[part]:
            return f"{part} does not divide {total}"
    if numbers.get("topk", 0) > numbers.get("num_experts", MOST):
        return "topk is above num_experts"
    return ""


def _elsewhere(table: Operators, row: Row, numbers: dict[str, int]) -> str:
    """What stands in order in the row and is not what was modelled."""
    spread = row.get("distribution", "balanced").strip()
    if table.kind == "experts" and spread not in ("", "balanced"):
        return "tokens are spread unevenly over the experts: only a balanced distribution is predicted"
    if table.kind == "collective":
        most = domain(row["gpu"].strip())
        if numbers["num_gpus"] < 2:
            return "a collective of one GPU sends nothing"
        if numbers["num_gpus"] > most:
            return f"more GPUs than one scale-up domain of {most} holds"
    return ""


def canonical(name: str) -> str | None:
    """Our name of a table's GPU; ``None`` for one that is not known."""
    return _canonical(name, tuple(kept.names()))


@functools.lru_cache(maxsize=1024)
def _canonical(name: str, measured_here: tuple[str, ...]) -> str | None:
    """The same, as long as no other device is measured here."""
    try:
        return load_gpu(name).name
    except PerfmodelError:
        return None


@functools.lru_cache(maxsize=1024)
def domain(name: str) -> int:
    """GPUs in the scale-up domain of a GPU's usual system; 1 where there is none."""
    system = load_gpu(name).system
    size = load_system(system).domain if system else None
    return int(size.value) if size else 1


def read(table: Operators, rows: Sequence[Row]) -> pd.DataFrame:
    """Rows that are in order as ``fit_predict.predict_frame`` takes them: one name a GPU and an engine, numbers."""
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    for name in ("version", "kernel_source"):
        frame[name] = frame[name].str.strip() if name in frame else ""
    for name in table.words:
        frame[name] = frame[name].str.strip()
    frame["gpu"] = frame["gpu"].map(canonical)
    frame["framework"] = frame["framework"].str.lower().map(lambda name: ENGINES.get(name, name))
    for name in (*table.numbers, "latency_us"):
        frame[name] = [_number(text) for text in frame[name]]
    return frame


def _number(text: str) -> float:
    found = printed(text)
    assert found is not None  # ``reason`` has passed the row
    return found.value
