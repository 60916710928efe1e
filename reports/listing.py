"""What is built in, and a model's counts, as text."""

from __future__ import annotations

from typing import Any

from perfmodel.base.units import gb, gib
from perfmodel.reports.tables import Column, render

_NAME, _TITLE = Column("name", "name"), Column("title", "title", optional=1)


def _billions(value: float) -> str:
    return f"{value / 1e9:.3f} B" if value < 1e12 else f"{value / 1e12:.4f} T"


_GPUS = (
    _NAME, _TITLE, Column("math", "16-bit", last=4), Column("peak_flops", "dense peak", "FLOP/s", last=1),
    Column("bandwidth", "bandwidth", "B/s"), Column("capacity", "memory", "B", gb, last=3),
    Column("usable", "usable", "B", gib, last=2),
    Column("ridge", "ridge", "FLOP/B", lambda v: f"{v:,.0f} FLOP/B", last=5), Column("tdp", "TDP", "W", last=6),
)  # fmt: skip
_SYSTEMS = (
    _NAME, _TITLE, Column("gpu", "GPU", last=1), Column("gpus_per_node", "a node", last=5),
    Column("domain", "domain", last=4), Column("scale_up_kind", "scale-up", last=3),
    Column("scale_up_bandwidth", "scale-up one way", "B/s"), Column("scale_out_kind", "scale-out", last=6),
    Column("scale_out_bandwidth", "scale-out one way", "B/s", last=2),
)  # fmt: skip
_MODELS = (
    _NAME, _TITLE, Column("total_params", "parameters", "", _billions),
    Column("active_params", "active", "", _billions, last=1), Column("layers", "layers", last=5),
    Column("heads", "heads / KV heads", last=6), Column("max_context", "context", last=3),
    Column("kv_bytes_per_token", "KV a token", "B", last=2), Column("native_format", "stored as", last=4),
)  # fmt: skip
_FORMATS = (
    _NAME, _TITLE, Column("bits", "bits", last=1), Column("group", "group", last=5),
    Column("bits_per_weight", "bits a weight", show=lambda v: f"{v:.4g}"), Column("math", "multiplied in", last=2),
    Column("kv_cache", "KV cache", last=3), Column("source", "source", last=4),
)  # fmt: skip
_FORMAT_NOTES = (
    "bits a weight: of a matrix of 4,096 x 4,096, scales and zero points included; a scale a channel (1 x all) adds "
    "its bits over the K inputs of a row, so 16/K for 16 bits; of caches: head size 128, long contexts",
    "presets of llama.cpp mix types by tensor: `perfmodel quantize MODEL --format NAME` has their bits a weight; "
    "type:NAME is a type for every linear layer",
)
_ENGINES = (
    _NAME, _TITLE, Column("versions", "versions read"), Column("share", "default share of the memory"),
    Column("of", "of", last=2), Column("source", "source", last=1),
)  # fmt: skip
_METHODS = (
    _NAME, _TITLE, Column("year", "year", last=6), Column("draft", "drafts with"), Column("shape", "shape", last=3),
    Column("verification", "output", last=5), Column("alphas", "acceptance"), Column("basis", "which is", last=4),
    Column("tau", "tokens a round"), Column("published", "published", last=2), Column("wins", "wins at", last=1),
)  # fmt: skip
_SOURCES = (
    _NAME, Column("path", "number"), Column("text", "value"), Column("source", "source", last=1),
    Column("note", "note", last=2), Column("alternatives", "other sources", last=3),
)  # fmt: skip


def listing_text(what: str, fmt: str, sources: bool = False) -> str:
    """What is built in, of one kind; or, for GPUs and systems, the source of each number."""
    from perfmodel.hwspecs import listing as hardware
    from perfmodel.modelspecs import listing as models
    from perfmodel.reports.speculation_tables import method_rows
    from perfmodel.roofline.engines import listing as engines

    if sources:
        return render(_source_rows(what), _SOURCES, fmt)
    rows, columns = {
        "gpus": (hardware.rows, _GPUS),
        "systems": (hardware.system_rows, _SYSTEMS),
        "models": (models.rows, _MODELS),
        "formats": (models.format_rows, _FORMATS),
        "engines": (engines.rows, _ENGINES),
        "methods": (method_rows, _METHODS),
    }[what]
    found = rows()
    if fmt == "json":
        columns = tuple(Column(key, key) for key in found[0])
    notes = _FORMAT_NOTES if what == "formats" and fmt in ("table", "md") else ()
    return render(found, columns, fmt, notes=notes)


def _source_rows(what: str) -> list[dict[str, Any]]:
    from perfmodel.base.errors import UsageError
    from perfmodel.hwspecs.listing import sources
    from perfmodel.hwspecs.load import GPUS, SYSTEMS, gpu, system

    if what not in ("gpus", "systems"):
        raise UsageError(f"--sources shows the numbers of gpus or systems; the source of {what} is in their JSON")
    specs = [gpu(n) for n in GPUS.names] if what == "gpus" else [system(n) for n in SYSTEMS.names]
    return [
        {
            "name": spec.name, "path": c.path, "text": c.text, "source": c.source, "note": c.note,
            "alternatives": "; ".join(f"{a.value} ({a.source}): {a.why}" for a in c.alternatives),
        }
        for spec in specs
        for c in sources(spec)
    ]  # fmt: skip


def params_text(found: dict[str, Any], fmt: str) -> str:
    """A model's counts: totals, by role, and KV-cache bytes by context."""
    if fmt == "csv":
        return render([_flat(found)], [Column(key, key) for key in _flat(found)], fmt)
    stored = _stored_text(found, fmt) if "by_type" in found else ""
    return stored if "by_role" not in found else stored + ("\n" if stored else "") + _counts_text(found, fmt)


_STORED = (
    Column("type", "stored as"), Column("tensors", "tensors"), Column("elements", "elements"),
    Column("bytes", "bytes", "B"), Column("bits_per_weight", "bits an element"),
)  # fmt: skip


def _stored_text(found: dict[str, Any], fmt: str) -> str:
    rows = [{"type": name, **sums} for name, sums in found["by_type"].items()]
    size, bits = found["bytes"], found["bits_per_weight"]
    heading = f"{found['name']}: {found['tensors']:,} tensors in {found['files']} {found['format']} file(s), " + (
        f"{gb(size)} = {gib(size)}" + (f", {bits:.3f} bits a weight" if bits else "")
    )
    notes = [note for note in (found.get("problem"), *found.get("notes", ())) if note]
    if found.get("agrees"):
        notes.append("every stored tensor is one that the model's description has, and none is missing")
    return render(rows, _STORED, fmt, heading, notes + list(found.get("differences", ()))[:10])


def _counts_text(found: dict[str, Any], fmt: str) -> str:
    total = found["total_params"]
    roles = [
        {"role": role, "params": count, "share": count / total}
        for role, count in sorted(found["by_role"].items(), key=lambda item: -item[1])
    ]
    columns = (
        Column("role", "role"), Column("params", "parameters"), Column("share", "of total", "", lambda v: f"{v:.2%}"),
    )  # fmt: skip
    return render(roles, columns, fmt, _heading(found), _params_notes(found))


def _heading(found: dict[str, Any]) -> str:
    published = found.get("published") or {}
    said = ", ".join(f"{k} {v}" for k, v in published.items() if k != "source" and v)
    return (
        f"{found['title']}: {found['total_params']:,} parameters ({_billions(found['total_params'])}), "
        f"{found['active_params']:,} active a token" + (f"; published: {said}" if said else "")
    )


def _params_notes(found: dict[str, Any]) -> list[str]:
    weights = ", ".join(f"{name} {gb(size)} = {gib(size)}" for name, size in found["weights_bytes"].items())
    contexts = list(found["kv_bytes"].items())
    shown = contexts[:: max(len(contexts) // 4, 1)]
    cache = ", ".join(f"{int(context):,} tokens {gib(size)}" for context, size in shown)
    notes = [
        f"{found['layers']} layers, {found['heads']}, hidden size {found['hidden_size']:,}, "
        f"vocabulary {found['vocab_size']:,}",
        f"weights: {weights} (GB = 10^9, GiB = 2^30 bytes)",
        f"KV cache at 16 bits: {found['kv_bytes_per_token']:,.0f} bytes a token at long contexts; {cache}",
        f"recurrent state: {gib(found['state_bytes'])} a sequence, whatever its length" if found["state_bytes"] else "",
        f"{found['counted']}; active: without unchosen experts and input embedding",
        *([] if "by_type" in found else found["notes"]),  # of files they stand beside the stored tensors
    ]
    return [note for note in notes if note]


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    """One row: lists as text, mappings left out."""
    flat = {key: value for key, value in found.items() if not isinstance(value, dict)}
    return {key: "; ".join(map(str, value)) if isinstance(value, list) else value for key, value in flat.items()}
