"""Operator tables of an installed ``aiconfigurator-core`` (NVIDIA, Apache-2.0) as tables of ours.

The package measured operators on many GPUs. As read in its release 0.12.0, its tables lie in
``aiconfigurator_core/systems/data/<system>/<family>/<engine>/<version>/<table>_perf.parquet`` (for collectives
``comm/nccl/<version>``), times in milliseconds. Tables of the same columns that are written as ``.csv`` or ``.txt`` are
read too.

The shipped calibration rests on none of its rows but those in ``tests/validate/data/measured``. Whoever passes tables
on keeps the notice: Copyright (c) NVIDIA CORPORATION & AFFILIATES, Apache License 2.0.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import SpecError, UnknownName, UsageError
from perfmodel.base.text import printable

if TYPE_CHECKING:
    import pandas as pd

#: A file argument that starts so names a system of the package: ``aiconfigurator:h100_sxm``.
PREFIX = "aiconfigurator:"
PACKAGE = "aiconfigurator_core"
REMEDY = "install perfmodel[aiconfigurator] (Python below 3.14)"
NOTICE = "aiconfigurator-core (Copyright (c) NVIDIA CORPORATION & AFFILIATES, Apache-2.0)"
ENDINGS = (".parquet", ".csv", ".txt")


@dataclass(frozen=True)
class Source:
    """One of the package's tables.

    Attributes
    ----------
    kind : str
        As in ``fit_predict.HEADERS``.
    family, table : str
        Folder, and name of the file before its ending.
    columns : dict[str, str]
        Theirs -> ours.
    drop : Callable
        A frame to reasons: what its rows are that are not ours; ``""`` for those that are.
    """

    kind: str
    family: str
    table: str
    columns: dict[str, str]
    drop: Callable[[pd.DataFrame], Any]


def _nothing(frame: pd.DataFrame) -> Any:
    import numpy as np

    return np.full(len(frame), "", dtype=object)


def _attention(frame: pd.DataFrame) -> Any:
    reasons = _nothing(frame)
    reasons[_numbers(frame, "window_size") != 0] = "sliding windows"
    reasons[_numbers(frame, "beam_width", 1) != 1] = "beam search"
    return reasons


def _context(frame: pd.DataFrame) -> Any:
    reasons = _attention(frame)
    reasons[_numbers(frame, "step") != 0] = "prompts of which a part is cached"
    return reasons


def _balanced(frame: pd.DataFrame) -> Any:
    reasons = _nothing(frame)
    if "distribution" in frame.columns:
        reasons[(frame["distribution"] != "balanced").to_numpy()] = "tokens spread unevenly over the experts"
    return reasons


def _half(frame: pd.DataFrame) -> Any:
    reasons = _nothing(frame)
    reasons[(frame["nccl_dtype"] != "half").to_numpy()] = "elements of other than 16 bits"
    return reasons


_SHAPE = ("num_heads", "num_key_value_heads", "head_dim")
SOURCES = (
    Source("gemm", "gemm", "gemm_perf", {"gemm_dtype": "dtype", **{n: n for n in "mnk"}}, _nothing),
    Source(
        "prefill", "attention", "context_attention_perf",
        {"attn_dtype": "dtype", **{n: n for n in ("kv_cache_dtype", "batch_size", "isl", *_SHAPE)}}, _context,
    ),
    Source(
        "decode", "attention", "generation_attention_perf", {n: n for n in ("kv_cache_dtype", "batch_size", *_SHAPE)},
        _attention,
    ),
    Source(
        "mla", "mla", "context_mla_perf",
        {"isl": "length", **{n: n for n in ("kv_cache_dtype", "num_heads", "batch_size")}}, _context,
    ),
    Source(
        "mla", "mla", "generation_mla_perf", {n: n for n in ("kv_cache_dtype", "num_heads", "batch_size")}, _attention,
    ),
    Source(
        "experts", "moe", "moe_perf",
        {"moe_dtype": "dtype", **{n: n for n in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
                                                 "moe_tp_size", "moe_ep_size", "distribution")}},
        _balanced,
    ),
    Source("collective", "comm", "nccl_perf", {"op_name": "op_name", "num_gpus": "num_gpus"}, _half),
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One of the package's tables as ours.

    Attributes
    ----------
    name : str
        System, engine, version and file.
    kind : str
    frame : DataFrame
        With the header of that kind of table, and ``version`` and ``kernel_source``.
    skipped : dict[str, int]
        Rows that are left out, by reason.
    """

    name: str
    kind: str
    frame: pd.DataFrame
    skipped: dict[str, int]


def folder() -> Path:
    """Where the installed package keeps its tables.

    Raises
    ------
    UsageError
        When it is not installed, or keeps them elsewhere.
    """
    found = importlib.util.find_spec(PACKAGE)  # not imported: it loads a compiled library
    places = [Path(p) for p in (found.submodule_search_locations or [])] if found else []
    if not places:
        raise UsageError(f"{PREFIX}SYSTEM needs the package aiconfigurator-core, which is not installed: {REMEDY}")
    data = places[0] / "systems" / "data"
    if not data.is_dir():
        raise UsageError(f"the installed aiconfigurator-core has no {data}: its tables are elsewhere in this release")
    return data


def tables(system: str, engine: str | None = None, data: Path | None = None) -> list[Table]:
    """The operator tables of a system: of each engine and kind the version with most rows.

    Parameters
    ----------
    system : str
        As the package calls it: ``h100_sxm``.
    engine : str, optional
        ``vllm``, ``trtllm`` or ``sglang``; all when left out. Collectives belong to none and go to the named one.
    data : Path, optional
        A folder of the package's layout; that of the installed package when left out.

    Raises
    ------
    UsageError
        When the package is not installed, or has no table of the engine.
    UnknownName
        For a system that it does not have.
    SpecError
        For a table that cannot be read or lacks a column.
    """
    root = folder() if data is None else data
    if not re.fullmatch(r"\w+", system) or not (root / system).is_dir():
        known = sorted(p.name for p in root.iterdir() if p.is_dir())
        raise UnknownName("system of aiconfigurator-core", system, known, "gpus")
    found = []
    for source in SOURCES:
        family = root / system / source.family
        for maker in sorted(p for p in family.iterdir() if p.is_dir()) if family.is_dir() else ():
            if (engine or maker.name) == maker.name or source.kind == "collective":
                found += [t for t in [_fullest(maker, source, system, engine)] if t]
    if not found:
        raise UsageError(f"aiconfigurator-core has no operator tables of {system} under {engine or 'any engine'}")
    return found


def _fullest(maker: Path, source: Source, system: str, engine: str | None) -> Table | None:
    """The table with most of our rows among an engine's versions, of equals the newest; some versions hold few."""
    listed = []
    for version in sorted((p for p in maker.iterdir() if p.is_dir()), key=lambda p: _order(p.name), reverse=True):
        for path in (version / f"{source.table}{ending}" for ending in ENDINGS):
            if path.is_file():
                name = f"{system} {maker.name} {version.name} {path.name}"
                listed.append(_table(path, source, name, system, engine))
                break
    return max(listed, key=lambda t: len(t.frame), default=None)


def _order(version: str) -> tuple[tuple[int, int], ...]:
    """By which versions are compared: numbers as numbers, a release after its candidates.

    >>> sorted(["1.3.0", "1.3.0rc20", "1.3.0rc3", "0.24.0"], key=_order)
    ['0.24.0', '1.3.0rc3', '1.3.0rc20', '1.3.0']
    """
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    words = {"dev": -4, "a": -3, "b": -2, "rc": -1, "post": 1}
    return (*((1, int(p)) if p.isdigit() else (words.get(p, -1), 0) for p in parts), (0, 0))


def _table(path: Path, source: Source, name: str, system: str, engine: str | None) -> Table:
    frame = _read(path)
    needed = {*source.columns, "latency", *(["nccl_dtype", "message_size"] if source.kind == "collective" else [])}
    if source.table.startswith("generation"):
        needed |= {"isl", "step"}
    if lacking := sorted(needed - set(frame.columns)):
        raise SpecError(
            path, lacking[0], f"is missing from the table; it has {printable(', '.join(frame.columns), 200)}"
        )
    reasons = source.drop(frame)
    kept = frame[reasons == ""]
    out = kept[list(source.columns)].rename(columns=source.columns)
    out.insert(0, "gpu", system)
    maker = engine if source.kind == "collective" and engine else path.parent.parent.name
    out.insert(1, "framework", maker)
    out.insert(2, "version", kept.get("version", path.parent.name))
    out.insert(3, "kernel_source", kept.get("kernel_source", ""))
    if source.table.startswith("generation"):
        out["length" if source.kind == "mla" else "context_len"] = kept["isl"] + kept["step"]
    if source.kind == "mla":
        out["phase"] = "generation" if source.table.startswith("generation") else "context"
    if source.kind == "collective":
        out["message_bytes"] = kept["message_size"] * 2
    out["latency_us"] = kept["latency"] * 1e3
    counts = {str(r): int((reasons == r).sum()) for r in dict.fromkeys(reasons) if r}
    return Table(name, source.kind, out.reset_index(drop=True), counts)


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as error:
        raise UsageError(f"{path.name} is a Parquet file, and pyarrow is not installed: {REMEDY}") from error
    except (OSError, ValueError) as error:
        raise SpecError(path, "", f"cannot be read as a table: {str(error)[:200]}") from error


def _numbers(frame: pd.DataFrame, name: str, default: int = 0) -> Any:
    """A column, or its usual value where a table does not have it."""
    import numpy as np

    return frame[name].to_numpy(float) if name in frame.columns else np.full(len(frame), float(default))
