"""Predictions for measured rows: the harness's time of one call, with its interval and the physics alone."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import PerfmodelError, UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.chip import chip
from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.calibrated.shapes import FORMATS
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.efficiency import ENGINES, Efficiency, load
from perfmodel.validate.fit_data import GPUS, MATH, Cell, table_cells

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

#: Columns by which a table of operator times is told, and those that are numbers.
HEADERS: dict[str, set[str]] = {
    "gemm": {"gpu", "framework", "dtype", "m", "n", "k", "latency_us"},
    "prefill": {"gpu", "framework", "dtype", "kv_cache_dtype", "batch_size", "isl", "num_heads", "num_key_value_heads",
                "head_dim", "latency_us"},
    "decode": {"gpu", "framework", "kv_cache_dtype", "batch_size", "context_len", "num_heads", "num_key_value_heads",
               "head_dim", "latency_us"},
    "mla": {"gpu", "framework", "phase", "kv_cache_dtype", "num_heads", "batch_size", "length", "latency_us"},
    "experts": {"gpu", "framework", "dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
                "moe_tp_size", "moe_ep_size", "latency_us"},
    "collective": {"gpu", "framework", "op_name", "num_gpus", "message_bytes", "latency_us"},
}  # fmt: skip
WORDS = {"gpu", "framework", "dtype", "kv_cache_dtype", "phase", "op_name"}
NUMBERS = set().union(*HEADERS.values()) - WORDS


@dataclass(frozen=True)
class Prediction:
    """Predicted times of a cell's rows. [s]

    Attributes
    ----------
    predicted, physics : Array
        With and without the smooth correction; never below the bound.
    low, high : Array
        80 % interval.
    origin : str
        Where the parameters come from.
    """

    predicted: Array
    physics: Array
    low: Array
    high: Array
    origin: str


def formats(cell: Cell) -> tuple[str, ...]:
    """Formats of fitted kernels that can answer for a cell, its own first."""
    if cell.kind == "collective":
        return (cell.fmt,)
    math = str(cell.shape.get("math", "bf16"))
    chain = FORMATS.get(math, ("bf16",)) if cell.kind in ("gemm", "experts") else ("bf16", "fp8")
    return tuple(dict.fromkeys((cell.fmt, *chain)))


def predict(cell: Cell, efficiency: Efficiency | None = None) -> Prediction:
    """Predict the rows of a cell by the fit of its GPU and engine, or the nearest one.

    Parameters
    ----------
    cell : Cell
        From ``fit_data.cells`` or ``fit_data.table_cells``.
    efficiency : Efficiency, optional
        By default the shipped one of the cell's GPU and engine.
    """
    found = efficiency or (_shipped if cell.engine in ENGINES else _nearest)(cell.gpu, cell.engine)
    kernel = found.kernel(cell.kind, formats(cell))
    physics, correction = _times(kernel, cell)
    predicted = np.maximum(physics * correction, cell.bound)
    low, high = kernel.interval(predicted, cell.bound)
    rows = cell.measured.shape
    return Prediction(
        predicted,
        np.maximum(physics, cell.bound),
        np.broadcast_to(low, rows),
        np.broadcast_to(high, rows),
        kernel.origin,
    )


@functools.cache
def _shipped(gpu: str, engine: str) -> Efficiency:
    """The shipped efficiencies."""
    return load(gpu, engine)


def _nearest(gpu: str, engine: str) -> Efficiency:
    """Those of another engine: of this machine's own fit, else of shipped ones, with their interval widened."""
    return replace(load(gpu), engine=engine, _cache={})


def _times(kernel: Kernel, cell: Cell) -> tuple[Array, Array]:
    shape = cell.simple if kernel.form is SIMPLE else cell.shape
    physics = np.broadcast_to(kernel.physics(shape, cell.chip), cell.measured.shape)
    return physics, np.broadcast_to(kernel.correction(shape, cell.chip), cell.measured.shape)


def table_kind(columns: Iterable[str]) -> str | None:
    """Which operator table a header is: gemm, prefill, decode, mla, experts or collective; ``None`` for another."""
    having = set(columns)
    return next((kind for kind, needed in HEADERS.items() if having >= needed), None)


def predict_frame(frame: pd.DataFrame, kind: str | None = None) -> pd.DataFrame:
    """A table of measured operators with predictions beside it.

    Adds ``predicted_us``, ``physics_us``, ``low_us``, ``high_us``, ``bound_us``, ``origin`` and ``skipped`` (the reason
    why a row has none). Rows keep their order.

    Parameters
    ----------
    frame : DataFrame
        With the columns of one of the tables in ``tests/validate/data/measured``.
    kind : str, optional
        By default told by the columns.

    Raises
    ------
    UsageError
        When the columns are those of no operator table.
    """
    kind = kind or table_kind(frame.columns)
    if kind is None:
        raise UsageError(f"the columns {', '.join(map(str, frame.columns))} are those of no table of operator times")
    out = frame.reset_index(drop=True).assign(skipped=unknown(frame, kind))
    for name in ("predicted_us", "physics_us", "low_us", "high_us", "bound_us"):
        out[name] = np.nan
    out["origin"] = ""
    usable = out[out["skipped"] == ""]
    for cell in table_cells(usable, kind):
        at = usable.index[cell.index]
        found = predict(cell)
        columns = (found.predicted, found.physics, found.low, found.high, cell.bound)
        for name, seconds in zip(("predicted_us", "physics_us", "low_us", "high_us", "bound_us"), columns, strict=True):
            out.loc[at, name] = np.broadcast_to(seconds, len(at)) * 1e6
        out.loc[at, "origin"] = found.origin
    return out


def unknown(frame: pd.DataFrame, kind: str) -> list[str]:
    """Why each row cannot be predicted; ``""`` where it can."""
    numbers = frame[sorted(HEADERS[kind] & NUMBERS | {"latency_us"})].apply(pandas_number)
    good = np.isfinite(numbers.to_numpy(float)).all(1) & (numbers.to_numpy(float) > 0).all(1)
    gpus = {name: _gpu_problem(str(name), kind, frame) for name in frame["gpu"].unique()}
    reasons = []
    for i, (gpu, fine) in enumerate(zip(frame["gpu"], good, strict=True)):
        words = [str(frame[column].iloc[i]) for column in ("dtype", "kv_cache_dtype") if column in HEADERS[kind]]
        strange = [word for word in words if word not in MATH]
        problem = "a number is missing or not above zero" if not fine else gpus[gpu]
        reasons.append(problem or (f"the number format {strange[0]} is not known" if strange else ""))
    return reasons


def pandas_number(column: pd.Series[Any]) -> pd.Series[float]:
    """A column as numbers; what is none becomes NaN."""
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")


def _gpu_problem(name: str, kind: str, frame: pd.DataFrame) -> str:
    try:
        gpu = load_gpu(GPUS.get(name, name))
    except PerfmodelError:
        return f"the GPU {name} is not known"
    if chip(gpu) is None:
        return f"the spec of {name} lacks its SMs, clock or L2"
    if "dtype" in HEADERS[kind]:
        maths = {MATH[d] for d in frame.loc[frame["gpu"] == name, "dtype"].astype(str) if d in MATH}
        if lacking := sorted(m for m in maths if not gpu.supports(m)):
            return f"{gpu.name} does not compute in {lacking[0]}"
    return ""
