"""The storage format that a name means: of weights, and of the KV cache.

Beside the names of the table there are patterns: ``gptq_g64``, ``gptq3_g128_act``, ``awq_g32``, ``int4_g64``.
"""

from __future__ import annotations

import functools
import re

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs.format import Format
from perfmodel.modelspecs.format_tables import CACHES, TABLE, ggml_formats
from perfmodel.modelspecs.gguf_presets import is_preset, preset

__all__ = ["FORMATS", "KV_FORMATS", "OFFERED", "OFFERED_KV", "Format", "kv_format", "names_of", "weight_format"]

#: What is offered where something smaller is looked for: formats that engines serve without a recipe of their own.
OFFERED = tuple(f.name for f in TABLE if not f.name.startswith(("nf4", "mxfp6", "mxfp8")))
OFFERED_KV = ("bf16", "fp16", "fp32", "fp8", "int8")

_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "tf32": "fp32",
    "w8a8": "int8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_channel": "fp8",
    "w4a16": "int4", "fp4": "nvfp4", "auto": "bf16", "gptq": "gptq_g128", "awq": "awq_g128", "bnb": "nf4",
    "kivi": "kivi2", "int4_kv": "int4_head", "bnb_nf4": "nf4", "bnb_nf4_dq": "nf4_dq",
}  # fmt: skip

#: Groups that checkpoints have; ``channel`` (or -1): one for a whole row.
GROUPS = ("16", "32", "64", "128", "256", "512", "1024", "channel", "-1")
_GROUPED = re.compile(rf"(gptq|awq|int|w)([2348])?(a16)?(?:_g?({'|'.join(GROUPS)}))?(_sym)?(_act)?")

_GPTQ_SOURCE = (
    "AutoGPTQ checkpoints: qweight, qzeros and g_idx packed into or stored as 32-bit words, 16-bit scales "
    "(auto_gptq/nn_modules/qlinear/qlinear_cuda.py of https://github.com/AutoGPTQ/AutoGPTQ)"
)
_AWQ_SOURCE = (
    "AutoAWQ checkpoints: qweight and qzeros packed into 32-bit words, 16-bit scales "
    "(awq/modules/linear/gemm.py of https://github.com/casper-hansen/AutoAWQ)"
)
_PACKED_SOURCE = (
    "compressed-tensors, pack-quantized: 16-bit scales, no zero points "
    "(https://github.com/vllm-project/compressed-tensors)"
)


@functools.cache
def _grouped(name: str) -> Format | None:
    """An integer format by its parts: quantizer, bits, group, symmetric, act-order. ``None`` for other names."""
    match = _GROUPED.fullmatch(name)
    if match is None:
        return None
    kind, bits, a16, size, symmetric, act = match.groups()
    if (kind in ("int", "w") and (not bits or not size or act or (kind == "w") != bool(a16))) or (
        kind in ("gptq", "awq") and a16
    ):
        return None
    if kind == "awq" and (act or bits not in (None, "4")):
        return None
    width, wide = int(bits or 4), size in ("channel", "-1")
    group, packed = 0 if wide else int(size or 128), kind in ("int", "w")
    symmetric = symmetric or packed
    kind = "int" if packed else kind
    canonical = kind + (str(width) if packed or width != 4 else "") + ("_channel" if wide else f"_g{group}")
    canonical += ("_sym" if symmetric and not packed else "") + ("_act" if act else "")
    each = "a scale a channel" if wide else f"group {group}"
    title = f"{'' if packed else kind.upper() + ', '}INT{width} weights only, {each}"
    title += (", symmetric" if symmetric else "") + (", act-order" if act else "")
    source = _PACKED_SOURCE if packed else _AWQ_SOURCE if kind == "awq" else _GPTQ_SOURCE
    return Format(
        canonical, width, (1, group), 16, 0 if symmetric else width, source=source, title=title,
        input_bits=32 if act else 0,
    )  # fmt: skip


def _examples() -> tuple[Format, ...]:
    """Members of the patterns, for lists."""
    names = [f"{kind}_g{size}" for kind in ("gptq", "awq") for size in (32, 64, 128)]
    names += ["gptq_channel", "gptq_g128_act", "gptq_g128_sym", "awq_channel", "gptq8_g128", "gptq8_channel"]
    names += ["gptq3_g128", "gptq3_channel", "gptq2_g64", "gptq2_g128", "int4_g64", "int4_g128", "int8_g128"]
    return tuple(found for name in names if (found := _grouped(name)) is not None)


FORMATS: dict[str, Format] = {f.name: f for f in (*TABLE, *_examples(), *ggml_formats())}
KV_FORMATS: dict[str, Format] = {f.name: f for f in CACHES}


def weight_format(name: str | Format) -> Format:
    """The storage format of weights that a name means.

    Examples
    --------
    ``type:`` before a type of ggml says that no preset of llama.cpp is meant.

    >>> weight_format("bfloat16").bits, weight_format("type:Q4_K").bits, weight_format("gptq3_g64_act").input_bits
    (16, 4.5, 32)

    Raises
    ------
    UnknownName
    UsageError
        For a preset of llama.cpp, which mixes types: ``perfmodel quantize`` sizes those. For a format of the KV cache.
    """
    if isinstance(name, str):
        if _alias(name) in KV_FORMATS and _alias(name) not in FORMATS:
            raise UsageError(f"{printable(name, 40)} is a format of the KV cache only: give it as --kv {_alias(name)}")
        if (found := _grouped(_alias(name))) is not None:
            return FORMATS.get(found.name, found)
        if _alias(name) not in FORMATS and is_preset(name):
            base = preset(name).base.casefold()
            raise UsageError(
                f"{printable(name, 40)} mixes types tensor by tensor, as `perfmodel quantize MODEL --format "
                f"{printable(name, 40)}` shows; as one weight format take {_ALIASES.get(base, base)}"
            )
    return _find(name, FORMATS, "weight format")


def kv_format(name: str | Format) -> Format:
    """The storage format of the KV cache that a name means.

    >>> kv_format("kivi").kept_tokens
    128

    Raises
    ------
    UnknownName
    UsageError
        For a format of weights.
    """
    if isinstance(name, str) and _alias(name) not in KV_FORMATS and (_alias(name) in FORMATS or _grouped(_alias(name))):
        known = ", ".join(KV_FORMATS)
        raise UsageError(f"{printable(name, 40)} is a format of weights only; the KV cache takes one of {known}")
    return _find(name, KV_FORMATS, "KV-cache format")


def names_of(fmt: Format) -> list[str]:
    """Other names that mean a format.

    >>> names_of(weight_format("bf16"))
    ['auto', 'bfloat16']
    """
    return sorted(alias for alias, name in _ALIASES.items() if name == fmt.name)


def _alias(name: str) -> str:
    key = name.casefold().strip().removeprefix("type:")
    return _ALIASES.get(key, key)


def _find(name: str | Format, table: dict[str, Format], kind: str) -> Format:
    if isinstance(name, Format):
        return name
    key = _alias(name)
    if key not in table:
        raise UnknownName(kind, name, table, "formats")
    return table[key]
