"""Rows for ``perfmodel list models`` and ``perfmodel list formats``: plain dictionaries."""

from __future__ import annotations

from typing import Any

from perfmodel.modelspecs.counts import active_params, heads_text, kv_bytes_per_token, total_params
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS
from perfmodel.modelspecs.load import MODELS, model


def rows() -> list[dict[str, Any]]:
    """One row a built-in model, by name. Counts are elements, ``kv_bytes_per_token`` bytes at 16 bits."""
    return [_row(name) for name in MODELS.names]


def _row(name: str) -> dict[str, Any]:
    spec = model(name)
    return {
        "name": name,
        "title": spec.title,
        "total_params": total_params(spec),
        "active_params": active_params(spec),
        "layers": spec.num_layers,
        "heads": heads_text(spec.layer_classes[0]),
        "max_context": spec.max_context,
        "kv_bytes_per_token": kv_bytes_per_token(spec),
        "native_format": spec.native_format,
        "aliases": ", ".join(spec.aliases),
        "source": spec.source,
    }


def format_rows() -> list[dict[str, Any]]:
    """One row a storage format: bits an element, the group of a scale, bits a weight with them, where it is used."""
    return [
        {
            "name": fmt.name,
            "title": fmt.title,
            "bits": fmt.bits,
            "group": _group(fmt.group),
            "scale_bits": fmt.scale_bits,
            "zero_bits": fmt.zero_bits,
            "bits_per_weight": fmt.tensor_bytes((4096, 4096)) * 8 / 4096**2,
            "math": ", ".join(fmt.math),
            "weights": True,
            "kv_cache": fmt.name in KV_FORMATS,
            "source": fmt.source,
        }
        for fmt in FORMATS.values()
    ]


def _group(group: tuple[int, int] | None) -> str:
    if group is None:
        return "none"
    return " x ".join("all" if size == 0 else str(size) for size in group)
