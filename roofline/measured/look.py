"""Where an operator stands in a recorded table: its kind, number format and sizes, as the tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.shapes import Ask, ask
from perfmodel.roofline.op import Op

#: Kind -> sizes between whose values a table is interpolated.
SIZES = {
    "gemm": ("m", "n", "k"),
    "prefill": ("batch", "q", "heads", "kv_heads"),
    "decode": ("batch", "kv", "heads", "kv_heads"),
    "mla_context": ("batch", "q", "heads"),
    "mla_generation": ("batch", "kv", "heads"),
    "experts": ("tokens", "hidden", "inter", "chosen", "experts", "local"),
    "collective": ("size", "ranks"),
}
#: Of those, the sizes that belong to a model, not to a batch: tables hold many batches of few models.
MODEL_SIZES = {
    "gemm": ("n", "k"), "prefill": ("heads", "kv_heads"), "decode": ("heads", "kv_heads"), "mla_context": ("heads",),
    "mla_generation": ("heads",), "experts": ("hidden", "inter", "chosen", "experts", "local"),
    "collective": ("ranks",),
}  # fmt: skip
#: Kinds of which a model that is in no row is not interpolated between others: engines tune a kernel for each model
#: (interpolated so, the shipped tables of vLLM's experts err by 10 to 21 % against 11 to 17 % of calibrated times).
TUNED = ("experts",)
#: Kind -> what has kernels of its own for each value, and has to be the same.
SAME = {"prefill": ("dim", "kv_bytes"), "decode": ("dim",), "experts": ("gate",)}
#: Bytes an element of the formats in tables, block scales included, and how far a layer's may be off (scales, biases).
WIDTHS = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "fp32": 4.0, "int8": 1.0,
}  # fmt: skip
TOLERANCE = 0.03
#: Number format of the arithmetic -> formats of tables that are the same kernels.
TABLES = {
    "bf16": ("bf16",), "fp16": ("fp16",), "fp8": ("fp8_block", "fp8"), "fp4": ("nvfp4",), "fp32": ("fp32",),
    "int8": ("int8",),
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Where to look.

    Attributes
    ----------
    kind : str
    formats : tuple[str, ...]
        Any of them will do, the first one best.
    sizes : dict[str, Num]
        By the names of ``SIZES``.
    same : dict[str, float | None]
        By the names of ``SAME``; ``None`` where the operator does not tell.
    asked : Ask
        What is asked of the calibrated kernel beside it.
    valid : bool or NDArray
        Where tables have its like at all.
    """

    kind: str
    formats: tuple[str, ...]
    sizes: Mapping[str, Num]
    same: Mapping[str, float | None]
    asked: Ask
    valid: Any = True


def look(op: Op) -> Look | None:
    """Where an operator stands in tables; ``None`` where no table has its like.

    Not in tables: prompts behind a cached prefix, several queries a decode, windows in prefill, sparse latent
    attention, weights in formats without a table, groups over several domains, and all small kernels.
    """
    asked = ask(op)
    i: dict[str, Any] = dict(op.inputs)
    if asked.kind == "gemm":
        return _look(asked, _stored(i["math"], float(i["weight_bytes"]) / (i["n"] * i["k"])), i)
    if asked.kind == "experts":
        return _experts(op, asked, i)
    if asked.kind == "collective":
        return _look(asked, asked.formats, asked.shape)
    if asked.kind in ("prefill", "decode", "mla_context", "mla_generation"):
        return _attention(asked, i)
    return None


def _look(asked: Ask, formats: tuple[str, ...], shape: Mapping[str, Any]) -> Look | None:
    if not formats:
        return None
    sizes = {name: shape[name] for name in SIZES[asked.kind]}
    return Look(asked.kind, formats, sizes, {name: shape.get(name) for name in SAME.get(asked.kind, ())}, asked)


def _stored(math: str, width: float) -> tuple[str, ...]:
    """Formats of tables in which weights of so many bytes are multiplied so."""
    return tuple(f for f in TABLES.get(math, ()) if abs(width / WIDTHS[f] - 1) <= TOLERANCE)


def _experts(op: Op, asked: Ask, i: Mapping[str, Any]) -> Look | None:
    """A layer's experts by one of their grouped GEMMs: the one down does not tell whether there is a gate."""
    up = "down" not in op.name
    gate = (2.0 if "gate" in op.name else 1.0) if up else None
    hidden, wide = (i["k"], i["n"]) if up else (i["n"], i["k"])
    shape = {**i, "hidden": hidden, "inter": wide / (gate or 1.0), "gate": gate}
    return _look(asked, _stored(i["math"], float(i["expert_bytes"]) / (i["n"] * i["k"])), shape)


def _attention(asked: Ask, i: Mapping[str, Any]) -> Look | None:
    s, cache = asked.shape, _cache(float(i["kv_bytes"]))
    if asked.kind == "mla_generation":
        found = _look(asked, cache, s) if (i["latent"], i["rope"]) == (512, 64) and i.get("topk") is None else None
        return found and replace(found, valid=np.equal(i["q"], 1))
    if asked.kind == "decode":
        found = _look(asked, cache, s) if i["qk_dim"] == i["v_dim"] else None
        return found and replace(found, valid=np.equal(i["q"], 1))
    if asked.kind == "mla_context":
        found = _look(asked, ("bf16",), s) if (i["qk_dim"], i["v_dim"]) == (192, 128) else None
    else:
        found = _look(asked, TABLES.get(i["math"], ()), s)
    return found and replace(found, valid=np.equal(i["q"], i["kv"]) & np.equal(asked.scale, 1))


def _cache(width: float) -> tuple[str, ...]:
    return {4.0: ("fp32",), 2.0: ("bf16",), 1.0: ("fp8",)}.get(width, ())
