"""Rows for ``perfmodel list models`` and ``perfmodel list formats``: plain dictionaries."""

from __future__ import annotations

from typing import Any

from perfmodel.modelspecs.counts import active_params, heads_text, kv_bytes_per_token, total_params
from perfmodel.modelspecs.format import Format
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, names_of
from perfmodel.modelspecs.gguf_presets import PRESETS, Preset
from perfmodel.modelspecs.gguf_rules import BY_NAME
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
    """One row a storage format: bits an element and with its scales, the group of a scale, where it is used, a source.

    First the formats of weights, then those that a KV cache alone has, then llama.cpp's presets, whose bits a weight
    depend on the model (``null`` here; ``perfmodel quantize`` has them).
    """
    weights = [_format_row(fmt, True, fmt.name in KV_FORMATS) for fmt in FORMATS.values()]
    caches = [_format_row(fmt, False, True) for fmt in KV_FORMATS.values() if fmt.name not in FORMATS]
    return weights + caches + [_preset_row(one) for one in PRESETS.values()]


def _format_row(fmt: Format, weights: bool, cache: bool) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "title": fmt.title,
        "bits": fmt.bits,
        "group": _group(fmt.group),
        "scale_bits": fmt.scale_bits,
        "zero_bits": fmt.zero_bits,
        "bits_per_weight": fmt.bits_per_weight() if weights else float(fmt.cache_bits(128)),
        "math": ", ".join(fmt.math),
        "weights": weights,
        "kv_cache": cache,
        "preset": False,
        "aliases": ", ".join(names_of(fmt)),
        "source": fmt.source,
    }


def _preset_row(one: Preset) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": f"preset of llama.cpp: mostly {one.base}",
        "bits": BY_NAME[one.base].bits,
        "group": "by type",
        "scale_bits": None,
        "zero_bits": None,
        "bits_per_weight": None,
        "math": "",
        "weights": False,
        "kv_cache": False,
        "preset": True,
        "aliases": "",
        "source": "src/llama-quant.cpp of https://github.com/ggml-org/llama.cpp",
    }


def _group(group: tuple[int, int] | None) -> str:
    if group is None:
        return "none"
    return " x ".join("all" if size == 0 else str(size) for size in group)
