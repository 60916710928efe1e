"""From an operator of the graph to what the forms take: the kind, the number format and the shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline import attention, collectives
from perfmodel.roofline.op import Op
from perfmodel.roofline.ops import distinct_experts

#: More new tokens a sequence than this are prefill to the kernels; up to it (a verified tree) they split the keys over
#: the SMs as a decode step does. Whole arrays are of one sort: ``mixed`` cuts those that are not.
DECODE_TOKENS = 64.0
#: Bytes of a weight below which a product that unpacks its weights is one of 4 bits, scales included.
NARROW = 0.75
#: Number format of the arithmetic -> formats of fitted kernels, the likeliest first.
FORMATS = {
    "bf16": ("bf16",), "fp16": ("bf16",), "fp8": ("fp8_block", "fp8", "bf16"), "fp4": ("nvfp4", "fp8_block", "bf16"),
    "int8": ("int8", "fp8_block", "fp8", "bf16"), "fp32": ("fp32", "bf16"),
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """What is asked of a kernel.

    Attributes
    ----------
    kind : str
        Of a fitted kernel, or ``""``: only the simple form applies.
    formats : tuple[str, ...]
        Formats that will do, the best first.
    shape : dict
    keep : tuple[str, ...]
        Parts of the kernel's time that belong to this operator; the others are operators of their own in the graph.
    scale : Num
        Factor on what is kept, but for the launch: the visible share of a windowed attention.
    """

    kind: str
    formats: tuple[str, ...] = ("bf16",)
    shape: dict[str, Any] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    scale: Num = 1.0


def ask(op: Op) -> Ask:
    """What the calibrated forms need to know about an operator."""
    i: dict[str, Any] = dict(op.inputs)
    if op.kind == "gemm":
        narrow = ("w4a16",) if i.get("dequant") and i["weight_bytes"] / (i["n"] * i["k"]) < NARROW else ()
        return Ask("gemm", (*narrow, *FORMATS.get(i["math"], ("bf16",))), i)
    if op.kind == "grouped_gemm":
        return _grouped(i)
    if op.formula is attention.gqa:
        return _attention(i)
    if op.formula is attention.mla:
        kv = i["kv"] if i.get("topk") is None else np.minimum(i["kv"], i["topk"])
        return Ask("mla_generation", _cache(i["kv_bytes"]), {**i, "kv": kv}, ("attention", "combine"))
    if op.kind == "collective":
        return _collective(op, i)
    return Ask("")


def _cache(kv_bytes: float) -> tuple[str, ...]:
    wide = ("fp32",) if kv_bytes >= 4 else ()
    return (*wide, "bf16", "fp8") if kv_bytes >= 2 else ("fp8", "bf16")


def _attention(i: dict[str, Any]) -> Ask:
    q, kv, limit = i["q"], i["kv"], i.get("window")
    keys = attention.distinct_keys(q, kv, limit, i.get("sinks", 0.0), i.get("chunk"))
    if np.max(q) <= DECODE_TOKENS:
        shape = {**i, "kv": keys, "dim": (i["qk_dim"] + i["v_dim"]) / 2}
        return Ask("decode", _cache(i["kv_bytes"]), shape, ("attention", "combine", "transpose"))
    seen = limit if limit is None else limit + i.get("sinks", 0.0)
    share = attention.visible_pairs(q, kv, seen, i.get("chunk")) / attention.visible_pairs(q, kv)
    if i["qk_dim"] != i["v_dim"]:
        return Ask("mla_context", ("bf16", "fp8"), {**i, "cache": i["qk_dim"] + i["v_dim"]}, ("attention",), share)
    wide = ("fp32",) if i["math"] == "fp32" else ()
    formats = ("fp8", "bf16") if i["math"] == "fp8" else (*wide, "bf16", "fp8")
    return Ask("prefill", formats, {**i, "dim": i["qk_dim"]}, ("attention",), share)


def _grouped(i: dict[str, Any]) -> Ask:
    active = distinct_experts(i["experts"], i["chosen"], i["tokens"], i["local"])
    width = i["expert_bytes"] / (i["n"] * i["k"])
    rows = i["tokens"] * i["chosen"] * (i["local"] / i["experts"])
    shape = {**i, "active": active, "rows": rows, "weight_width": width, "act_width": i["act_bytes"]}
    return Ask("experts", FORMATS.get(i["math"], ("bf16",)), shape)


def _collective(op: Op, i: dict[str, Any]) -> Ask:
    if i.get("inside") is not None or i["link"] != "scale_up" or op.formula is collectives.send:
        return Ask("")  # over the network or from stage to stage: no data
    if op.formula is collectives.expert_exchange:
        n = i["ranks"]
        return Ask("collective", ("alltoall",), {"size": op.unit_cost.sent * n / (n - 1), "ranks": n})
    name = "all_reduce" if op.formula is collectives.all_reduce else "all_gather"
    return Ask("collective", (name,), {"size": i["size"], "ranks": i["ranks"]})
