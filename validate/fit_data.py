"""Recorded operator tables as cells: rows of one GPU, engine, operator kind and format, with their shapes in SI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.load import system as load_system
from perfmodel.roofline import attention, collectives, ops
from perfmodel.roofline.calibrated.chip import Chip, chip
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.times import Rates
from perfmodel.roofline.topology import Topology

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

#: Names in the tables -> ours.
GPUS = {"a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
MATH = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "float32": "fp32",
        "int8": "int8", "w4a16": "bf16"}  # fmt: skip
#: Bytes an element with block scales (nvfp4: an 8-bit scale for 16 elements; w4a16: a 16-bit scale for 128 weights).
WIDTH = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "float32": 4.0, "int8": 1.0,
         "w4a16": 0.515625}  # fmt: skip
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: Bytes of an activation element, where it is not that of a weight; and of a result's, where it is not 2.
ACTIVATION = {"w4a16": 2.0}
RESULT = {"float32": 4.0}
#: Whose kernels take no tiles or splits that the forms know: their times are fitted by the simple form.
PLAIN_ENGINES = ("torch-cpu",)
TABLES = {
    "gemm": "gemm.csv", "prefill": "context_attention.csv", "decode": "generation_attention.csv",
    "mla": "mla_kernel.csv", "experts": "moe.csv", "collective": "nccl.csv",
}  # fmt: skip

#: Experts of two matrices instead of three, as (hidden, intermediate): the Nemotron shapes in the unquantized tables.
UNGATED = {(2688, 1856), (4096, 2688), (8192, 5120)}
FAMILIES = ("min_latency", "triton", "monolithic", "modular", "trtllmbf16", "deepgemm")


@dataclass(frozen=True)
class Cell:
    """Measured rows that share one set of parameters.

    Attributes
    ----------
    kind, gpu, engine, fmt : str
    version, source : str
        Of the engine, and its kernels as the table names them.
    chip : Chip
    shape : dict
        Arrays and words, as the kind's form takes them.
    measured, bound : Array
        Times. [s]
    groups : Array
        Columns by which shapes are left out.
    simple : dict
        Arrays of the simple form.
    table : str
        File of the rows.
    index : NDArray
        Where the rows stand in the table.
    """

    kind: str
    gpu: str
    engine: str
    fmt: str
    version: str
    source: str
    chip: Chip
    shape: dict[str, Any]
    measured: Array
    bound: Array
    groups: Array
    simple: dict[str, Array]
    table: str = ""
    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def name(self) -> str:
        """Such as ``h100-sxm vllm decode fp8``."""
        return f"{self.gpu} {self.engine} {self.kind} {self.fmt}"

    def take(self, rows: NDArray[Any]) -> Cell:
        """The cell with some of its rows."""
        cut = {k: (v[rows] if isinstance(v, np.ndarray) and v.ndim else v) for k, v in self.shape.items()}
        values = {**self.__dict__, "shape": cut, "simple": {k: v[rows] for k, v in self.simple.items()}}
        for name in ("measured", "bound", "groups", *(["index"] if len(self.index) else [])):
            values[name] = values[name][rows]
        return Cell(**values)


def cells(folder: Path, kinds: tuple[str, ...] = tuple(TABLES)) -> Iterator[Cell]:
    """All cells of the tables ``NAME.csv`` or ``NAME.csv.gz`` in a folder."""
    import pandas as pd

    for kind in kinds:
        path = next(p for p in (folder / TABLES[kind], folder / f"{TABLES[kind]}.gz") if p.exists())
        yield from table_cells(pd.read_csv(path), kind)


def table_cells(frame: pd.DataFrame, kind: str) -> Iterator[Cell]:
    """The cells of one table."""
    keys = {"gemm": ["dtype"], "prefill": ["dtype"], "decode": ["kv_cache_dtype"], "mla": ["phase", "kv_cache_dtype"],
            "experts": ["dtype"], "collective": ["op_name"]}[kind]  # fmt: skip
    frame = frame.reset_index(drop=True)
    for key, rows in frame.groupby(["gpu", "framework", *keys]):
        cell = _cell(rows.reset_index(drop=True), kind, tuple(map(str, key)))
        yield replace(cell, index=rows.index.to_numpy(np.int64))


def _cell(rows: pd.DataFrame, kind: str, key: tuple[str, ...]) -> Cell:
    gpu = load_gpu(GPUS.get(key[0], key[0]))
    system = load_system(gpu.system) if gpu.system else None
    device = chip(gpu, system)
    assert device is not None
    shape, cost, groups = _READERS[kind](rows, key[2:])
    topology = Topology(bandwidth={"scale_up": device.link})
    terms = Rates(gpu, topology).terms(cost)
    zero = np.zeros(len(rows))
    compute = terms.get("matrix", 0.0)
    if gpu.kind == "cpu":  # its cores do the rest of an operator with the same units
        compute = np.maximum(compute, np.maximum(terms.get("vector", 0.0), terms.get("exp", 0.0)))
    simple = {
        "compute": np.maximum(zero, compute),
        "stream": np.maximum(zero, np.maximum(terms.get("hbm", 0.0), terms.get("scale_up", 0.0))),
    }
    if kind == "gemm":  # products of one row may have numbers of their own
        simple["m"] = shape["m"]
    bound = zero + Rates(gpu, topology).bound(cost)
    if key[1].lower() in PLAIN_ENGINES:
        shape = {**shape, **simple}
    if kind == "mla":
        kind = f"mla_{key[2]}"
    fmt = SHORT.get(key[-1], key[-1])
    return Cell(
        kind, gpu.name, key[1].lower(), fmt, str(rows["version"].iloc[0]),
        "; ".join(sorted(set(rows["kernel_source"]))), device, shape,
        rows["latency_us"].to_numpy(float) * 1e-6, bound, groups, simple, TABLES["mla" if kind.startswith("mla") else
        kind],
    )  # fmt: skip


def _columns(rows: pd.DataFrame, *names: str) -> list[Array]:
    return [rows[name].to_numpy(float) for name in names]


def _gemm(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    m, n, k = _columns(rows, "m", "n", "k")
    width, act = WIDTH[key[0]], ACTIVATION.get(key[0], WIDTH[key[0]])
    wide = 4.0 if key[0] == "int8" and rows["framework"].iloc[0].lower() == "torch-cpu" else RESULT.get(key[0], 2.0)
    shape = {
        "m": m,
        "n": n,
        "k": k,
        "weight_bytes": n * k * width,
        "act_bytes": act,
        "out_bytes": wide,
        "math": MATH[key[0]],
    }
    cost = ops.gemm(m, n, k, n * k * width, act, wide, MATH[key[0]])
    return shape, cost, np.stack([n, k], 1)


def _prefill(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    b, q, h, kv, d = _columns(rows, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    math, cache = MATH[key[0]], WIDTH[rows["kv_cache_dtype"].iloc[0]]
    shape = {"batch": b, "q": q, "kv": q, "heads": h, "kv_heads": kv, "dim": d, "kv_bytes": cache, "math": math}
    return shape, attention.gqa(b, h, kv, d, d, q, q, cache, WIDTH[key[0]], math), np.stack([h, kv, d], 1)


def _decode(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    b, n, h, kv, d = _columns(rows, "batch_size", "context_len", "num_heads", "num_key_value_heads", "head_dim")
    shape = {"batch": b, "kv": n, "heads": h, "kv_heads": kv, "dim": d, "kv_bytes": WIDTH[key[0]], "math": MATH[key[0]]}
    act = max(2.0, WIDTH[key[0]])
    return shape, attention.gqa(b, h, kv, d, d, 1.0, n, WIDTH[key[0]], act, MATH[key[0]]), np.stack([h, kv, d], 1)


def _mla(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    b, n, h = _columns(rows, "batch_size", "length", "num_heads")
    phase, cache = key
    if phase == "context":
        shape = {"batch": b, "q": n, "kv": n, "heads": h, "qk_dim": 192.0, "v_dim": 128.0, "cache": 576.0,
                 "kv_bytes": WIDTH[cache], "math": "bf16"}  # fmt: skip
        return shape, attention.gqa(b, h, h, 192.0, 128.0, n, n, 2.0, 2.0, "bf16"), np.stack([h, b], 1)
    gpu = rows["gpu"].iloc[0]
    math = "fp8" if cache == "fp8" and gpu.startswith("b") else "bf16"  # Hopper widens an 8-bit cache for the products
    shape = {"batch": b, "kv": n, "heads": h, "latent": 512.0, "rope": 64.0, "kv_bytes": WIDTH[cache], "math": math}
    return shape, attention.mla(b, h, 512.0, 64.0, 1.0, n, WIDTH[cache], 2.0, math), np.stack([h, b], 1)


def _experts(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    T, H, F, K, E, tp, ep = _columns(
        rows, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
    )
    listed = np.array([(a, b) in UNGATED for a, b in zip(rows["hidden_size"], rows["inter_size"], strict=True)])
    bare = rows["kernel_source"].str.contains("nongated").to_numpy() | (listed & (key[0] == "bfloat16"))
    gate, width, math = np.where(bare, 1.0, 2.0), WIDTH[key[0]], MATH[key[0]]
    shape = {"tokens": T, "hidden": H, "inter": F / tp, "chosen": K, "experts": E, "local": E / ep, "gate": gate,
             "weight_width": width, "act_width": width, "math": math,
             "family": families(rows["kernel_source"])}  # fmt: skip
    mine = T * K / ep
    weights = np.minimum(E / ep, np.maximum(1, mine)) * H * (F / tp) * (1 + gate) * width
    cost = Cost({f"matrix:{math}": 2 * mine * H * (F / tp) * (1 + gate)}, {"weights": weights, "act": 4 * T * H})
    return shape, cost, np.stack([H, F, K, E], 1)


def _collective(rows: pd.DataFrame, key: tuple[str, ...]) -> tuple[dict[str, Any], Cost, Array]:
    n, size = _columns(rows, "num_gpus", "message_bytes")
    cost = (
        collectives.all_reduce(size, n, "scale_up", True)
        if key[0] == "all_reduce"
        else collectives.all_gather(size, n, "scale_up")
    )
    return {"size": size, "ranks": n}, cost, size[:, None]


_READERS = {
    "gemm": _gemm,
    "prefill": _prefill,
    "decode": _decode,
    "mla": _mla,
    "experts": _experts,
    "collective": _collective,
}


def families(sources: Iterable[str]) -> NDArray[np.str_]:
    """Kernel family of each ``kernel_source``; what no name is found in is CUTLASS."""
    return np.array([next((f for f in FAMILIES if f in source), "cutlass") for source in sources])
