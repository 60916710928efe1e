"""Names of the tensors of GGUF files -> names of the inventory, and which rule a kind of file has."""

from __future__ import annotations

import re

from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored import hf_names
from perfmodel.modelspecs.stored.compare import BUFFER, SCALE, Covers, Names
from perfmodel.modelspecs.stored.gguf_keys import BESIDE, BUFFERS

_GGUF_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GGUF_INSIDE: dict[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm",),
    "attn_q": ("self_attn.q_proj",), "attn_k": ("self_attn.k_proj",), "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn_output": ("self_attn.o_proj",),
    "attn_q_norm": ("self_attn.q_norm",), "attn_k_norm": ("self_attn.k_norm",),
    "attn_q_a": ("self_attn.q_a_proj",), "attn_q_b": ("self_attn.q_b_proj",),
    "attn_q_a_norm": ("self_attn.q_a_layernorm",), "attn_kv_a_norm": ("self_attn.kv_a_layernorm",),
    "attn_kv_a_mqa": ("self_attn.kv_a_proj_with_mqa",), "attn_kv_b": ("self_attn.kv_b_proj",),
    "attn_k_b": ("self_attn.kv_b_proj",), "attn_v_b": ("self_attn.kv_b_proj",),  # its two halves
    "post_attention_norm": ("post_attention_layernorm",), "post_ffw_norm": ("post_feedforward_layernorm",),
    "ffn_gate": ("mlp.gate_proj",), "ffn_up": ("mlp.up_proj",), "ffn_down": ("mlp.down_proj",),
    "ffn_gate_inp": ("mlp.gate",), "ffn_gate_inp_shexp": ("mlp.shared_expert_gate",),
    "ffn_gate_exps": ("mlp.experts.{expert}.gate_proj",), "ffn_up_exps": ("mlp.experts.{expert}.up_proj",),
    "ffn_down_exps": ("mlp.experts.{expert}.down_proj",),
    "ffn_gate_up_exps": ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
    "ffn_gate_shexp": ("mlp.shared_experts.gate_proj",), "ffn_up_shexp": ("mlp.shared_experts.up_proj",),
    "ffn_down_shexp": ("mlp.shared_experts.down_proj",),
    "indexer.attn_q_b": ("self_attn.indexer.wq_b",), "indexer.attn_k": ("self_attn.indexer.wk",),
    "indexer.k_norm": ("self_attn.indexer.k_norm",), "indexer.proj": ("self_attn.indexer.weights_proj",),
    "nextn.eh_proj": ("eh_proj",), "nextn.enorm": ("enorm",), "nextn.hnorm": ("hnorm",),
    "nextn.embed_tokens": ("embed_tokens",), "nextn.shared_head_head": ("shared_head.head",),
    "nextn.shared_head_norm": ("shared_head.norm",),
}  # fmt: skip
#: Whole names, where there is no ``.weight`` in the inventory.
_GGUF_WHOLE = {"attn_sinks.weight": "self_attn.sinks", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_GGUF_EXPERT = re.compile(r"ffn_(gate|up|down)\.\d+")
_GGUF_SCALE = re.compile(r"\.(?:scale|input_scale)$")


def gguf(model: ModelSpec) -> Names:
    """Names of a GGUF file. Source: ``gguf-py/gguf/constants.py`` of https://github.com/ggml-org/llama.cpp."""
    inside = dict(_GGUF_INSIDE)
    inside["ffn_norm"] = ("pre_feedforward_layernorm" if model.norm.per_layer == 4 else "post_attention_layernorm",)
    if model.family in ("phi3", "glm4"):
        inside["ffn_up"] = ("mlp.gate_proj", "mlp.up_proj")

    def names(name: str) -> list[Covers] | str:
        if _GGUF_SCALE.search(name):
            return SCALE
        match = _GGUF_LAYER.fullmatch(name)
        if match is None:
            stem, _, kind = name.rpartition(".")
            if name in BESIDE:
                return [(BESIDE[name][0],)]
            return [(f"{_GGUF_OUTSIDE[stem]}.{kind}",)] if stem in _GGUF_OUTSIDE else []
        layer, stem, kind = int(match[1]), match[2], match[3]
        mtp = layer - model.num_layers
        prefix = f"model.layers.{layer}." if mtp < 0 else f"model.mtp.{mtp}."
        if whole := _GGUF_WHOLE.get(f"{stem}.{kind}"):
            return [(prefix + whole,)]
        if expert := _GGUF_EXPERT.fullmatch(stem):
            return [(f"{prefix}mlp.experts.{{expert}}.{expert[1]}_proj.{kind}",)]
        return [tuple(f"{prefix}{one}.{kind}" for one in inside[stem])] if stem in inside else []

    return names


#: Stored tables of GGUF files that are no parameters.
TABLES = frozenset(BUFFERS)


def rule(kind: str, model: ModelSpec | None) -> Names:
    """The rule for a kind of file; without a model every name stands for itself, but for scales and buffers."""
    if model is not None:
        return gguf(model) if kind == "gguf" else hf_names.hugging_face(model)
    scale = _GGUF_SCALE if kind == "gguf" else hf_names.SCALES
    buffer = None if kind == "gguf" else hf_names.BUFFERS

    def names(name: str) -> list[Covers] | str:
        if scale.search(name):
            return SCALE
        return BUFFER if buffer is not None and buffer.search(name) else []

    return names
