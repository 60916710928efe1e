"""Where a model's counts come from: its parameters tensor by tensor, and its cache layer class by layer class."""

from __future__ import annotations

from typing import Any

from perfmodel.base.text import printable
from perfmodel.base.trace import Traced, show
from perfmodel.base.units import gib
from perfmodel.modelspecs.counts import APART, active_params, kv_bytes, state_bytes, total_params
from perfmodel.modelspecs.formats import kv_format
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import tensors
from perfmodel.reports.tables import Column, render

#: What ``perfmodel explain --op`` takes beside operators; they need no GPU.
SUBJECTS = ("parameters", "kv_cache")

_COLUMNS = (
    Column("layer", "layer class"), Column("name", "tensor"), Column("role", "role"), Column("shape", "shape"),
    Column("elements", "elements"), Column("count", "count"), Column("total", "total"),
)  # fmt: skip


def explain_model(model: str | ModelSpec, subject: str, context: int, kv: str = "bf16") -> dict[str, Any]:
    """The terms of a model's parameter count, or of its KV cache at a context.

    Parameters
    ----------
    subject : str
        ``parameters`` or ``kv_cache``.
    context : int
        Tokens in the cache.
    kv : str
        Storage format of the cache.
    """
    spec = load_model(model)
    return _parameters(spec) if subject == "parameters" else _cache(spec, context, kv)


def _parameters(spec: ModelSpec) -> dict[str, Any]:
    rows = [
        {
            "layer": t.layer, "name": t.name, "role": t.role, "shape": " x ".join(f"{n:,}" for n in t.shape),
            "elements": t.numel, "count": t.count, "total": t.total, "counted": t.role not in APART,
        }
        for t in tensors(spec)
    ]  # fmt: skip
    return {
        "model": spec.name, "title": spec.title, "subject": "parameters", "tensors": rows,
        "total_params": total_params(spec), "active_params": active_params(spec), "source": spec.source,
    }  # fmt: skip


def _cache(spec: ModelSpec, context: int, kv: str) -> dict[str, Any]:
    size = kv_bytes(spec, Traced.named("context", float(context)), kv)  # type: ignore[arg-type]
    traced = size if isinstance(size, Traced) else None
    layers = [
        {"layer": layer.name, "layers": layer.count, "elements": getattr(layer.attention, "cache_elements", 0)}
        for layer in spec.layer_classes
    ]
    return {
        "model": spec.name, "title": spec.title, "subject": "kv_cache", "format": kv_format(kv).name,
        "context": context, "layers": layers, "symbols": traced.symbols() if traced else show(float(size)),
        "numbers": traced.numbers() if traced else show(float(size)), "bytes": float(size),
        "state_bytes": state_bytes(spec), "source": spec.source,
    }  # fmt: skip


def explain_model_text(found: dict[str, Any], fmt: str) -> str:
    """The explanation as text."""
    if found["subject"] == "kv_cache":
        return _cache_text(found)
    notes = [
        f"sum of all but MTP layers and stored buffers: {found['total_params']:,} parameters; "
        f"{found['active_params']:,} of them for a token",
        f"dimensions from {found['source']}",
    ]
    return render(found["tensors"], _COLUMNS, fmt, f"{found['title']}: parameters", notes)


def _cache_text(found: dict[str, Any]) -> str:
    lines = [f"{printable(found['title'])}: KV cache of one sequence, {found['format']}, in bytes"]
    lines += [
        f"  {printable(row['layer'])}: {row['layers']} layers, {row['elements']:,} elements a token"
        for row in found["layers"]
    ]
    lines += [f"  = {found['symbols']}", f"  = {found['numbers']}"]
    lines.append(f"  = {show(found['bytes'])} bytes = {gib(found['bytes'])} at {found['context']:,} tokens")
    if found["state_bytes"]:
        lines.append(f"  and {gib(found['state_bytes'])} of recurrent state, whatever the length")
    return "\n".join(lines)
