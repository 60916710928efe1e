"""llama.cpp's architectures as data: which family of models is which, and what their tensors are called in a file.

Read in ``convert_hf_to_gguf.py`` and ``conversion/*.py``, ``gguf-py/gguf/constants.py`` and ``tensor_mapping.py``, and
``src/models/*.cpp`` of https://github.com/ggml-org/llama.cpp; a test compares the names with the ``gguf`` package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Names = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Architecture:
    """What llama.cpp makes of a family.

    Attributes
    ----------
    name : str
        ``general.architecture``.
    fused_qkv, fused_ffn, fused_experts : bool
        Q, K and V in one tensor; gate and up projection in one; those of the experts in one.
    names : tuple of pairs
        Stems, or whole names, of the inventory whose names in the file differ from the usual ones.
    mtp : bool
        Whether prediction layers are stored.
    kv_by_layer : bool
        Whether the file's metadata list the KV heads layer by layer, with 0 where a layer has no attention.
    rope_freqs : bool
        Whether the converter adds the frequencies of the full layers' rotary embedding.
    """

    name: str
    fused_qkv: bool = False
    fused_ffn: bool = False
    fused_experts: bool = False
    names: Names = ()
    mtp: bool = False
    kv_by_layer: bool = False
    rope_freqs: bool = False


_ATTN_POST: Names = (("post_attention_layernorm", "post_attention_norm"),)
_AFTER: Names = (*_ATTN_POST, ("post_feedforward_layernorm", "post_ffw_norm"))
_FOUR: Names = (*_AFTER, ("pre_feedforward_layernorm", "ffn_norm"))
_GEMMA4: Names = (
    *_FOUR, ("mlp.shared_experts.gate_proj", "ffn_gate"), ("mlp.shared_experts.up_proj", "ffn_up"),
    ("mlp.shared_experts.down_proj", "ffn_down"), ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"), ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
)  # fmt: skip
_MLA = Architecture("deepseek2")
_NEXT: dict[str, str] = {"qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"}

#: Family of a spec -> its architecture. Others are refused.
ARCHITECTURES: dict[str, Architecture] = {
    **{name: Architecture("llama") for name in ("llama", "mistral", "mistral3", "mixtral")},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_vl", "kimi_k25"), _MLA),
    **{name: Architecture(name) for name in ("gemma", "starcoder2", "orion", "olmoe", "smollm3", "granite")},
    **{name: Architecture(name, names=_FOUR) for name in ("gemma2", "gemma3")},
    **{name: Architecture("olmo2", names=_AFTER) for name in ("olmo2", "olmo3")},
    **{name: Architecture(name, fused_qkv=True) for name in ("falcon", "bloom", "gpt2", "mpt")},
    "stablelm": Architecture("stablelm"),
    "qwen2": Architecture("qwen2"), "qwen2_moe": Architecture("qwen2moe"), "qwen2_5_vl": Architecture("qwen2vl"),
    "qwen3": Architecture("qwen3"), "qwen3_moe": Architecture("qwen3moe"), "qwen3_vl": Architecture("qwen3vl"),
    "qwen3_vl_moe": Architecture("qwen3vlmoe"), "internlm2": Architecture("internlm2"),
    "phi": Architecture("phi2"), "phi3": Architecture("phi3", True, True), "phimoe": Architecture("phimoe"),
    "gpt_neox": Architecture("gptneox", True), "gpt_bigcode": Architecture("starcoder", True),
    "cohere": Architecture("command-r"), "cohere2": Architecture("cohere2"),
    "glm4_moe": Architecture("glm4moe", names=_ATTN_POST, mtp=True),
    "gpt_oss": Architecture("gpt-oss", names=_ATTN_POST), "seed_oss": Architecture("seed_oss", names=_ATTN_POST),
    "minimax_m2": Architecture("minimax-m2"), "llama4": Architecture("llama4"), "nemotron-nas": Architecture("deci"),
    "gemma4": Architecture("gemma4", fused_experts=True, names=_GEMMA4, rope_freqs=True),
    "glm_moe_dsa": Architecture("glm-dsa", mtp=True), "deepseek_v32": Architecture("deepseek32", mtp=True),
    "deepseek_v4": Architecture("deepseek4"), "mimo_v2_flash": Architecture("mimo2"),
    **{family: Architecture(name, names=_ATTN_POST) for family, name in _NEXT.items()},
    "mamba2": Architecture("mamba2", kv_by_layer=True), "jamba": Architecture("jamba", kv_by_layer=True),
    "nemotron_h": Architecture("nemotron_h", kv_by_layer=True), "mamba": Architecture("mamba", kv_by_layer=True),
    "falcon_h1": Architecture("falcon-h1", names=(("post_attention_layernorm.weight", "ffn_norm"),)),
    "bamba": Architecture("granitehybrid", kv_by_layer=True),
    "granitemoehybrid": Architecture("granitehybrid", kv_by_layer=True),
    "lfm2": Architecture("lfm2", names=(("model.norm", "token_embd_norm"),), kv_by_layer=True),
    "kimi_linear": Architecture("kimi-linear", kv_by_layer=True),
}  # fmt: skip

#: Families with built-in models for which llama.cpp has no architecture: class of their checkpoints.
UNSUPPORTED: dict[str, str] = {
    "opt": "OPTForCausalLM", "mimo": "MiMoForCausalLM", "minimax_text_01": "MiniMaxText01ForCausalLM",
    "hunyuan": "HunYuanForCausalLM",
}  # fmt: skip

#: Stems outside the layers.
OUTSIDE: Mapping[str, str] = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.embed_positions": "position_embd", "model.embed_norm": "token_embd_norm",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
#: Whole names without a kind of their own, below a layer and outside.
WHOLE: Mapping[str, str] = {
    "self_attn.sinks": "attn_sinks.weight", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight", "mlp.gate.scale": "ffn_gate_inp.scale",
    "mlp.gate.per_expert_scale": "ffn_down_exps.scale", "layer_scalar": "layer_output_scale.weight",
    "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias", "self_attn.A_log": "ssm_a",
    **{f"{part}_hc.{kind}": f"hc_{part}_{kind}.weight" for part in ("attn", "ffn") for kind in ("fn", "base", "scale")},
    **{f"model.hc_head.hc_{kind}": f"output_hc_{kind}.weight" for kind in ("fn", "base", "scale")},
    "self_attn.compressor.position_bias": "attn_compressor_ape.weight",
    "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape.weight",
}  # fmt: skip
#: Stems below a layer: of the inventory -> of the file.
INSIDE: Mapping[str, str] = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj",
    "self_attn.q_a_norm": "attn_q_a_norm", "self_attn.kv_proj": "attn_kv", "self_attn.kv_norm": "attn_kv_a_norm",
    "self_attn.o_a_proj": "attn_output_a", "self_attn.o_b_proj": "attn_output_b",
    "self_attn.compressor.kv_proj": "attn_compressor_kv", "self_attn.compressor.gate_proj": "attn_compressor_gate",
    "self_attn.compressor.kv_norm": "attn_compressor_norm",
    "self_attn.compressor.indexer.kv_proj": "indexer_compressor_kv",
    "self_attn.compressor.indexer.gate_proj": "indexer_compressor_gate",
    "self_attn.compressor.indexer.kv_norm": "indexer_compressor_norm",
    "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.experts.{expert}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{expert}.up_proj": "ffn_up_exps", "mlp.experts.{expert}.down_proj": "ffn_down_exps",
    "mlp.fc1_latent_proj": "ffn_latent_down", "mlp.fc2_latent_proj": "ffn_latent_up",
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm", "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt",
    "mixer.dt_layernorm": "ssm_dt_norm", "mixer.b_layernorm": "ssm_b_norm", "mixer.c_layernorm": "ssm_c_norm",
    "mixer.norm": "ssm_norm", "mixer.out_proj": "ssm_out",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    **{f"self_attn.{x}_conv1d": f"ssm_conv1d_{x}" for x in "qkv"}, "self_attn.b_proj": "ssm_beta",
    **{f"self_attn.{x}_{y}_proj": f"ssm_{x}_{y}" for x in "fg" for y in "ab"}, "self_attn.o_norm": "ssm_norm",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
}  # fmt: skip
