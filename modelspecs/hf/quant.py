"""The storage format of a checkpoint: ``torch_dtype`` and ``quantization_config`` of a Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfmodel.modelspecs.hf.common import Spec
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.quant_experts import split
from perfmodel.modelspecs.hf.quant_groups import kv_cache
from perfmodel.modelspecs.hf.quant_methods import METHODS, ORIGIN

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}

ATTENTION = (
    "q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "indexer_q", "indexer_k",
    "head_gate",
)  # fmt: skip
#: Modules that a quantizer may be told to leave alone -> roles of our inventory; none where every recipe leaves it.
MODULES: dict[str, tuple[str, ...]] = {
    "self_attn": ATTENTION,
    "q_proj": ("q_proj",), "k_proj": ("k_proj",), "v_proj": ("v_proj",), "o_proj": ("o_proj",),
    "q_a_proj": ("q_a_proj",), "q_b_proj": ("q_b_proj",), "kv_b_proj": ("kv_b_proj",),
    "kv_a_proj_with_mqa": ("kv_a_proj",), "wq_b": ("indexer_q",), "wk": ("indexer_k",),
    "shared_experts": ("shared_expert_gate", "shared_expert_up", "shared_expert_down"),
    "shared_expert": ("shared_expert_gate", "shared_expert_up", "shared_expert_down"),
    "experts": ("expert_gate", "expert_up", "expert_down"),
    "lm_head": (), "embed_tokens": (), "gate": (), "router": (), "e_score_correction_bias": (),
    "shared_expert_gate": (),
    "norm": (), "q_norm": (), "k_norm": (), "k_layernorm": (), "q_layernorm": (), "weights_proj": (),
    "input_layernorm": (), "post_attention_layernorm": (), "pre_feedforward_layernorm": (),
    "post_feedforward_layernorm": (), "q_a_layernorm": (), "kv_a_layernorm": (), "sinks": (), "indexers_proj": (),
    "enorm": (), "hnorm": (), "eh_proj": (), "g_proj": ("head_gate",),
    "vision_tower": (), "vision_model": (), "multi_modal_projector": (), "visual": (), "mtp": ("mtp",),
    "linear_attn": ("mixer_in", "mixer_out"), "in_proj": ("mixer_in",), "in_proj_qkvz": ("mixer_in",),
    "out_proj": ("mixer_out",), "in_proj_ba": (), "in_proj_a": (), "in_proj_b": (), "conv1d": (),
}  # fmt: skip
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_SHARED, _EXPERTS = MODULES["shared_experts"], MODULES["experts"]
#: What lies outside the language model, whatever its modules are called.
OUTER = (
    "vision_tower", "vision_model", "multi_modal_projector", "mm_projector", "embed_vision", "visual", "embed_audio",
)  # fmt: skip
#: Keys of the modules that a quantizer leaves alone.
LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
#: All linear layers that recipes touch.
EVERY = (*ATTENTION, *_DENSE, *_SHARED, *_EXPERTS, "mixer_in", "mixer_out")


def native(k: Keys, layers: int, where: Mapping[str, frozenset[int]] | None = None) -> Spec:
    """``native_format`` and ``native_16bit`` of a configuration (the text section's dtype where it has one).

    Parameters
    ----------
    where : Mapping[str, frozenset[int]], optional
        The layers that have a role, where not all of ``layers`` do.
    """
    quantized = k.section("quantization_config") or inner_quantization(k)
    if quantized is None:
        return {"native_format": _dtype(k)}
    cache = _cache(quantized)
    if (apart := split(k, quantized, where or {})) is not None:
        quantized.finish(ORIGIN)
        return apart | cache
    method = quantized.data.get("quant_method") or ("modelopt" if "quant_algo" in quantized.data else None)
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None:
        raise quantized.error("quant_method", f"{repr(method)[:60]} is not understood; one of {', '.join(METHODS)}")
    read, harmless = found
    name, kept = read(quantized), _kept(quantized, layers, where or {})
    quantized.finish(harmless)
    return {"native_format": name, "native_16bit": kept} | cache


def _cache(q: Keys) -> Spec:
    """``native_kv``: the format of the KV cache that the checkpoint asks for."""
    name = kv_cache(q)
    if name is None:
        return {}
    q.remarks.append(f"the checkpoint asks for an {name.upper()} KV cache: pass --kv {name}")
    return {"native_kv": name}


def inner_quantization(k: Keys) -> Keys | None:
    """The ``quantization_config`` of the text section, where a file has it there (Kimi K2.5)."""
    inner = k.data.get("text_config")
    return Keys(inner, k.file, "text_config.").section("quantization_config") if isinstance(inner, dict) else None


def _dtype(k: Keys) -> str:
    inner = k.data.get("text_config")
    for data in (k.data, inner if isinstance(inner, dict) else {}):
        for key in ("torch_dtype", "dtype"):
            if data.get(key) is not None:
                return DTYPES[Keys(data, k.file).text(key, DTYPES, "")]
    k.remarks.append("no torch_dtype: bf16 is assumed")
    return "bf16"


def _kept(q: Keys, layers: int, where: Mapping[str, frozenset[int]]) -> tuple[str, ...]:
    """Roles that the configuration's list of modules leaves at 16 bits in every layer.

    A list that names a linear layer in some layers only is refused: the inventory has one format a role.
    """
    found: dict[str, set[int]] = {}
    for key in LISTS:
        q.read.add(key)
        entries = q.data.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise q.error(key, "must be a list of module names")
        for entry in entries:
            roles, layer = _module(q, key, entry, layers)
            for role in roles:
                found.setdefault(role, set()).update(range(layers) if layer is None else {layer})
    for role, kept in found.items():
        needed = where.get(role, frozenset()) if where else frozenset(range(layers))
        if kept & needed and not needed <= kept:
            raise q.error(
                "modules_to_not_convert", f"leaves {role} alone in {len(kept & needed)} of {len(needed)} layers only"
            )
    return tuple(role for role in found if not where or (where.get(role) or {-1}) & found[role] or role == "mtp")


def _mlp(q: Keys) -> tuple[str, ...]:
    """Roles of a module called ``mlp``: in Gemma 4 the dense part beside the experts, elsewhere all of it."""
    return _SHARED if str(q.root.data.get("model_type")).startswith("gemma4") else (*_DENSE, *_SHARED, *_EXPERTS)


def _mtp_part(q: Keys, key: str, entry: str, inner: list[str]) -> tuple[tuple[str, ...], int | None]:
    """What an entry below ``mtp`` names: the MTP layers as a whole, or nothing that a recipe touches."""
    if not inner:
        return MODULES["mtp"], None
    if inner[-1] != "fc" and MODULES.get(inner[-1], ("?",)):
        raise q.error(key, f"{entry[:80]!r} leaves a part of the MTP layers alone: not understood")
    return (), None


def _module(q: Keys, key: str, entry: str, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Roles and layer that an entry names, such as ``model.layers.3.self_attn`` or ``re:.*mlp.gate$``."""
    text = entry.removeprefix("re:").replace("\\.", ".").replace(".*", ".").strip("*.$^")
    match = re.search(r"\blayers\.(\d+)\b", text)
    layer = int(match[1]) if match else None
    parts = [part for part in re.split(r"[.*]+", text) if part and part not in ("weight", "linear", "bias")]
    if parts[:1] == ["mtp"]:  # as a whole, or by modules that every recipe leaves alone
        return _mtp_part(q, key, entry, [part for part in parts[1:] if part != "layers" and not part.isdigit()])
    if any(part in OUTER for part in parts):
        return (), layer
    if match and text.endswith(match[0]):  # a whole layer
        if layer and layer * 10 < layers and entry.endswith(f"layers.{layer}*"):  # of 1: layers 10 to 19 as well
            raise q.error(key, f"{entry[:80]!r} names more than layer {layer}: not understood; write a dot before *")
        return (EVERY, layer) if layer is None or layer < layers else (MODULES["mtp"], None)
    roles = MODULES.get(parts[-1] if parts else "")
    if roles is None and parts[-2:-1] == ["mlp"] and parts[-1] in ("gate_proj", "up_proj", "down_proj"):
        roles = ("ffn_" + parts[-1].removesuffix("_proj"),)
    if roles is None and parts[-1:] == [r"(gate|up|gate_up|down)_proj"]:
        roles = _DENSE
    if roles is None and parts[-1:] == ["mlp"]:
        roles = _mlp(q)
    if roles is None:
        raise q.error(key, f"{entry[:80]!r} is not a module that is understood")
    return roles or (), layer
