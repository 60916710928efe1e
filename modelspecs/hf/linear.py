"""Families of Hugging Face configurations with linear attention. Class defaults are those of transformers 5.24."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import CORE, CORE_KV, ROUTING, Spec, base, dense, gqa, nested, num_layers, words
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.moe import MLA_KEYS, _sparse_layers, moe
from perfmodel.modelspecs.hf.qwen_vision import qwen_vision
from perfmodel.modelspecs.hf.recurrent import hybrid, state_format

LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
QWEN_IMAGES = words("image_token_id video_token_id vision_start_token_id vision_end_token_id language_model_only")
MINIMAX = words(
    "layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha "
    "layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta full_attn_alpha_factor "
    "full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor "
    "postnorm rotary_dim shared_moe_mode"
)
KIMI = words("moe_renormalize moe_router_activation_func use_grouped_topk num_expert_group")
LFM = words("block_norm_eps block_mlp_init_scale block_out_init_scale block_use_swiglu block_use_xavier_init theta "
            "conv_dim conv_dim_out conv_use_xavier_init use_pos_enc num_heads")  # fmt: skip
LAYER_KINDS = ("linear_attention", "full_attention")


def _kinds(k: Keys, n: int) -> list[str]:
    """``"delta"`` or ``"full"`` for each layer: as listed, or every ``full_attention_interval``-th full."""
    interval = k.dim("full_attention_interval", 4)
    kinds = k.words("layer_types", n, LAYER_KINDS)
    kinds = kinds or [LAYER_KINDS[int((i + 1) % interval == 0)] for i in range(n)]
    return ["full" if kind == "full_attention" else "delta" for kind in kinds]


def _delta(k: Keys, fused: bool) -> Spec:
    keys, values = k.dim("linear_num_key_heads"), k.dim("linear_num_value_heads")
    if values % keys:
        raise k.error("linear_num_value_heads", f"{values} is not a multiple of linear_num_key_heads ({keys})")
    return {
        "kind": "gated_delta", "key_heads": keys, "value_heads": values, "key_head_dim": k.dim("linear_key_head_dim"),
        "value_head_dim": k.dim("linear_value_head_dim"), "conv_kernel": k.dim("linear_conv_kernel_dim", 4),
        "fused": fused, "state_format": state_format(k, "mamba_ssm_dtype"),
    }  # fmt: skip


def _qwen_attention(k: Keys, fused: bool) -> Spec:
    k.expect("attn_output_gate", True)
    bias = k.flag("attention_bias", False)
    full = gqa(k, dim=256, qk_norm="head", output_gate=True, qkv_bias=bias, o_bias=bias)
    return {"delta": _delta(k, fused), "full": full}


def _qwen_mixture(k: Keys) -> Spec:
    k.require("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
    shared = k.dim("shared_expert_intermediate_size")
    return moe(k, k.dim("moe_intermediate_size"), shared_intermediate_size=shared, shared_gate=True)


def qwen3_next(k: Keys) -> Spec:
    """Qwen3-Next: three gated delta nets to a gated attention layer, mixtures with a gated shared expert.

    The checkpoints hold one MTP layer, of which the configuration says nothing.
    """
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", *LINEAR)
    k.require("max_position_embeddings")
    k.expect("use_sliding_window", False)
    spec, n = base(k, tied=False), num_layers(k)
    ffns = _sparse_layers(k, n)
    k.read.add("intermediate_size")
    ffn = {"moe": _qwen_mixture(k)} | ({"dense": dense(k)} if "dense" in ffns else {})
    attention = _qwen_attention(k, fused=True)
    if not k.has("num_nextn_predict_layers"):
        k.remarks.append("one MTP layer, which the checkpoints hold")
    k.expect("num_nextn_predict_layers", 1)
    spec["mtp"] = {"layers": 1, "layer": "full/moe"}
    return hybrid(spec, attention, ffn, _kinds(k, n), ffns) | {"attention": attention, "ffn": ffn}


def _qwen35(k: Keys, ffn: Spec) -> Spec:
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", *LINEAR)
    k.require("max_position_embeddings")
    k.expect("mtp_use_dedicated_embeddings", False)
    k.expect("mlp_only_layers", [])
    k.read.add("intermediate_size")
    spec, n, name = base(k, tied=False), num_layers(k), next(iter(ffn))
    attention = _qwen_attention(k, fused=False)
    steps = k.dim("mtp_num_hidden_layers", 0, least=0)
    if steps:
        k.expect("mtp_num_hidden_layers", 1)
        spec["mtp"] = {"layers": steps, "layer": f"full/{name}"}
    found = hybrid(spec, attention, ffn, _kinds(k, n), [name] * n)
    return found | ({"attention": attention} if steps else {})


def qwen3_5_text(k: Keys) -> Spec:
    """Qwen3.5 and 3.6, dense: three gated delta nets to a gated attention layer."""
    k.require("intermediate_size")
    return _qwen35(k, {"dense": dense(k)})


def qwen3_5_moe_text(k: Keys) -> Spec:
    """Qwen3.5 and 3.6 with mixtures of experts and a gated shared expert."""
    return _qwen35(k, {"moe": _qwen_mixture(k)})


def qwen3_5(k: Keys) -> Spec:
    """Qwen3.5 with its vision tower: the text model is a section."""
    return _with_vision(k, nested(k, "qwen3_5_text", qwen3_5_text, words("")), "qwen3_5")


def qwen3_5_moe(k: Keys) -> Spec:
    """Qwen3.5 with experts and its vision tower: the text model is a section."""
    return _with_vision(k, nested(k, "qwen3_5_moe_text", qwen3_5_moe_text, ROUTING), "qwen3_5_moe")


def _with_vision(k: Keys, text: Spec, kind: str) -> Spec:
    vision = k.section("vision_config")
    if vision:
        text["extra_tensors"] = qwen_vision(vision, text["hidden_size"], (kind, f"{kind}_vision"))
    return text


def minimax(k: Keys) -> Spec:
    """MiniMax-Text-01 and M1: lightning attention with a softmax layer now and then, a mixture in every layer."""
    k.alias(layer_types="attn_type_list", max_position_embeddings="model_max_length")
    k.require(*CORE_KV, "num_experts_per_tok")
    k.expect("sliding_window")
    k.expect("shared_intermediate_size", 0)
    spec, n = base(k, tied=False), num_layers(k)
    k.read |= {"layer_types", "attn_type_list"}
    listed = k.data.get("layer_types")
    if isinstance(listed, list) and any(isinstance(entry, int) for entry in listed):
        numbers = k.numbers("layer_types", n) or []
        if not set(numbers) <= {0, 1}:
            raise k.error("attn_type_list", "must be zeros (lightning) and ones (softmax)")
        kinds = [LAYER_KINDS[number] for number in numbers]
    else:
        kinds = k.words("layer_types", n, LAYER_KINDS) or [LAYER_KINDS[(i + 1) % 2] for i in range(n)]
    full = gqa(k)
    lightning: Spec = {
        "kind": "lightning", "heads": full["heads"], "head_dim": full["head_dim"],
        "scan_chunk": k.dim("block_size", 256),
    }  # fmt: skip
    names = ["full" if kind == "full_attention" else "lightning" for kind in kinds]
    mixture = moe(k, k.dim("intermediate_size"))
    return hybrid(spec, {"lightning": lightning, "full": full}, {"moe": mixture}, names, ["moe"] * n)


def kimi_linear(k: Keys) -> Spec:
    """Kimi Linear: three Kimi delta attention layers to a latent attention layer without positions."""
    k.alias(max_position_embeddings="model_max_length", num_experts_per_tok="num_experts_per_token")
    k.alias(n_shared_experts="num_shared_experts")
    k.require(*CORE, *MLA_KEYS, "max_position_embeddings", "num_experts_per_tok", "moe_intermediate_size")
    k.expect("mla_use_nope", True)
    k.expect("moe_layer_freq", 1)
    k.expect("num_nextn_predict_layers", 0)
    k.expect("num_key_value_heads", k.dim("num_attention_heads"))
    k.expect("attention_bias", False)
    k.expect("qk_head_dim", k.dim("qk_nope_head_dim") + k.dim("qk_rope_head_dim"))
    k.read.add("head_dim")  # of no tensor: the linear layers have their own
    spec, n = base(k, tied=False), num_layers(k)
    mla: Spec = {
        "kind": "mla", "heads": k.dim("num_attention_heads"), "q_lora_rank": k.optional("q_lora_rank"),
        "kv_lora_rank": k.dim("kv_lora_rank"), "qk_nope_head_dim": k.dim("qk_nope_head_dim"),
        "qk_rope_head_dim": k.dim("qk_rope_head_dim"), "v_head_dim": k.dim("v_head_dim"),
    }  # fmt: skip
    mixer, kinds = _kda(k, n)
    width, first = k.dim("moe_intermediate_size"), k.dim("first_k_dense_replace", 1, least=0)
    ffns = k.words("mlp_layer_types", n, ("dense", "sparse")) or ["dense" if i < first else "sparse" for i in range(n)]
    shared = k.dim("n_shared_experts", 1, least=0) * width
    ffn = {"dense": dense(k), "sparse": moe(k, width, shared_intermediate_size=shared, correction_bias=True)}
    return hybrid(spec, {"kda": mixer, "mla": mla}, ffn, kinds, ffns)


def _kda(k: Keys, n: int) -> tuple[Spec, list[str]]:
    """The delta mixer, and which layers have it: the section counts layers from 1."""
    kinds = k.words("layer_types", n, LAYER_KINDS)
    inner = k.section("linear_attn_config")
    if inner is None:
        heads, size, kernel = (
            k.dim("linear_num_heads", 32),
            k.dim("linear_head_dim", 128),
            k.dim("linear_conv_kernel_dim", 4),
        )
    else:
        heads, size, kernel = (
            inner.dim("num_heads", 32),
            inner.dim("head_dim", 128),
            inner.dim("short_conv_kernel_size", 4),
        )
        full, linear = inner.numbers("full_attn_layers"), inner.numbers("kda_layers")
        if kinds is None and full is not None and linear is not None:
            if sorted([*full, *linear]) != list(range(1, n + 1)):
                raise inner.error("kda_layers", f"and full_attn_layers must be the layers 1 to {n}, each once")
            kinds = [LAYER_KINDS[int(i + 1 in set(full))] for i in range(n)]
        inner.finish(())
        k.read |= {"linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"}
    if kinds is None:
        kinds = [LAYER_KINDS[int(i > 0 and i % 4 == 0)] for i in range(n)]
    mixer: Spec = {"kind": "kda", "heads": heads, "head_dim": size, "conv_kernel": kernel}
    return mixer, ["mla" if kind == "full_attention" else "kda" for kind in kinds]


def lfm2(k: Keys) -> Spec:
    """LFM2: gated short convolutions with an attention layer now and then, a dense feed-forward part in each."""
    k.alias(intermediate_size="block_ff_dim", tie_word_embeddings="tie_embedding", hidden_size="block_dim")
    k.alias(num_attention_heads="num_heads")
    k.require(*CORE_KV)
    width, factor = k.dim("intermediate_size"), 1.0
    if k.flag("block_auto_adjust_ff_dim", True):
        if k.has("block_ffn_dim_multiplier"):
            factor = k.number("block_ffn_dim_multiplier", 1e-3, 1e3)
        multiple = k.dim("block_multiple_of", 256)
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    k.read |= {"block_ffn_dim_multiplier", "block_multiple_of"}
    ffn: Spec = {"dense": {"kind": "dense", "intermediate_size": width}}
    return _lfm2(k, ffn, ["dense"] * num_layers(k))


def lfm2_moe(k: Keys) -> Spec:
    """LFM2 with mixtures of experts after the first layers."""
    k.alias(tie_word_embeddings="tie_embedding")
    k.require(*CORE_KV, "moe_intermediate_size", "num_experts_per_tok")
    n, first = num_layers(k), k.dim("num_dense_layers", 2, least=0)
    mixture = moe(k, k.dim("moe_intermediate_size"), correction_bias=k.flag("use_expert_bias", True))
    ffn = {"dense": dense(k), "moe": mixture}
    return _lfm2(k, ffn, ["dense" if i < first else "moe" for i in range(n)])


def _lfm2(k: Keys, ffn: Spec, ffns: list[str]) -> Spec:
    spec, n = base(k, tied=True), num_layers(k)
    chosen = k.numbers("full_attn_idxs")
    kinds = k.words("layer_types", n, ("conv", "full_attention"))
    if kinds is None:
        if chosen is None:
            raise k.error("layer_types", "is missing, as is full_attn_idxs; one of them is needed")
        kinds = ["full_attention" if i in set(chosen) else "conv" for i in range(n)]
    mixer: Spec = {
        "kind": "short_conv", "channels": k.dim("hidden_size"), "conv_kernel": k.dim("conv_L_cache", 3),
        "bias": k.flag("conv_bias", False),
    }  # fmt: skip
    attention = {"conv": mixer, "full": gqa(k, qk_norm="head")}
    return hybrid(spec, attention, ffn, ["full" if kind == "full_attention" else "conv" for kind in kinds], ffns)
