"""Further rows of the table of families: classic, Llama-like and mixture families, with their harmless keys."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.modelspecs import (
    hf_classic,
    hf_deepseek4,
    hf_gemma4,
    hf_images,
    hf_layerwise,
    hf_llamas,
    hf_mixtures,
    hf_mla,
)
from perfmodel.modelspecs.hf_common import ROUTING, Spec, words
from perfmodel.modelspecs.hf_keys import Keys

NONE: frozenset[str] = frozenset()
#: Rotary embedding under older names.
ROTARY = words("rotary_dim rotary_pct rotary_emb_base")
#: Multipliers of activations, clipping, and what training left behind.
MULTIPLIERS = words(
    "embedding_multiplier residual_multiplier attention_multiplier logits_scaling logit_scale clip_qkv z_loss_weight "
    "gradient_checkpointing _from_model_config use_rope_scaling embd_pdrop rope_type"
)
QWEN = words(
    "attn_dropout_prob emb_dropout_prob bf16 fp16 fp32 onnx_safe scale_attn_weights softmax_in_fp32 use_cache_kernel "
    "use_cache_quantization use_dynamic_ntk use_flash_attn use_logn_attn attention_softmax_in_fp32 "
    "apply_query_key_layer_scaling bias_dropout_fusion fp32_residual_connection layernorm_epsilon rope_ratio "
    "quantization_bit"
)
ERNIE = words("moe_norm_min moe_gate_act moe_aux_loss_lambda")
TOKENS = words("pad_id eod_token_id im_start_id im_end_id im_newline_id text_start_id text_end_id")
HUNYUAN = TOKENS | words(
    "capacity_factor router_scaling_factor enable_moe_fp32_combine route_norm moe_drop_tokens "
    "moe_random_routing_dropped_token "
    "group_limited_greedy enable_lm_head_fp32 enable_attention_fp32_softmax norm_type"
)
MIMO = words("layernorm_epsilon swa_rope_theta attention_value_scale")

Reader = Callable[[Keys], Spec]
MORE: dict[str, tuple[Reader, frozenset[str]]] = {
    "gpt2": (hf_classic.gpt2, hf_classic.GPT2),
    "gpt_bigcode": (hf_classic.gpt_bigcode, hf_classic.GPT2),
    "gpt_neox": (hf_classic.gpt_neox, ROTARY),
    "gptj": (hf_classic.gptj, hf_classic.GPT2 | ROTARY),
    "codegen": (hf_classic.gptj, hf_classic.GPT2 | ROTARY),
    "gpt_neo": (hf_classic.gpt_neo, hf_classic.GPT2),
    "opt": (hf_classic.opt, hf_classic.GPT2),
    "bloom": (hf_classic.bloom, hf_classic.BLOOM),
    "falcon": (hf_classic.falcon, ROTARY | hf_classic.BLOOM),
    "RefinedWeb": (hf_classic.refined_web, ROTARY | hf_classic.BLOOM),
    "RefinedWebModel": (hf_classic.falcon, ROTARY | hf_classic.BLOOM),
    "mpt": (hf_classic.mpt, hf_classic.MPT),
    "phi": (hf_classic.phi, NONE),
    **{kind: (hf_llamas.uniform(variant), MULTIPLIERS | TOKENS) for kind, variant in hf_llamas.VARIANTS.items()},
    "seed_oss": (hf_llamas.seed_oss, words("residual_dropout")),
    "internlm3": (hf_llamas.internlm3, NONE),
    "stablelm": (hf_llamas.stablelm, ROTARY),
    "starcoder2": (hf_llamas.starcoder2, words("residual_dropout embedding_dropout norm_epsilon")),
    "olmo3": (hf_llamas.olmo3, NONE),
    "cohere2": (hf_llamas.cohere2, MULTIPLIERS),
    "exaone4": (hf_llamas.exaone4, NONE),
    "smollm3": (hf_llamas.smollm3, NONE),
    "mimo": (hf_llamas.mimo, NONE),
    "qwen": (hf_llamas.qwen, QWEN | ROTARY),
    "chatglm": (hf_llamas.chatglm, QWEN),
    "minimax_m2": (hf_mixtures.minimax_m2, ROUTING | ROTARY),
    "olmoe": (hf_mixtures.olmoe, ROUTING | MULTIPLIERS),
    "phimoe": (hf_mixtures.phimoe, ROUTING | words("input_jitter_noise")),
    "granitemoe": (hf_mixtures.granitemoe, ROUTING | MULTIPLIERS),
    "granitemoeshared": (hf_mixtures.granitemoe, ROUTING | MULTIPLIERS),
    "ernie4_5_moe": (hf_mixtures.ernie4_5_moe, ROUTING | ERNIE),
    "dbrx": (hf_mixtures.dbrx, ROUTING | words("emb_pdrop")),
    "exaone_moe": (hf_mixtures.exaone_moe, ROUTING),
    "hy_v3": (hf_mixtures.hy_v3, ROUTING | HUNYUAN),
    "hunyuan_v1_moe": (hf_mixtures.hunyuan_moe, ROUTING | HUNYUAN),
    "hunyuan": (hf_mixtures.hunyuan, ROUTING | HUNYUAN),
    "deepseek_v4": (hf_deepseek4.deepseek_v4, ROUTING | hf_deepseek4.DEEPSEEK4),
    "glm_moe_dsa": (hf_mla.glm_moe_dsa, ROUTING | hf_mla.GLM5),
    "glm4_moe_lite": (hf_mla.glm4_moe_lite, ROUTING),
    "qwen3_vl": (hf_images.qwen3_vl, hf_images.IMAGE_TOKENS),
    "qwen3_vl_moe": (hf_images.qwen3_vl_moe, hf_images.IMAGE_TOKENS),
    "qwen2_vl": (hf_images.qwen2_vl, hf_images.IMAGE_TOKENS),
    "qwen2_5_vl": (hf_images.qwen2_5_vl, hf_images.IMAGE_TOKENS),
    "kimi_k25": (hf_images.kimi_k25, hf_images.IMAGE_TOKENS),
    "mistral3": (hf_images.mistral3, hf_images.IMAGE_TOKENS),
    "ministral3": (hf_images.ministral3, NONE),
    "glm4v": (hf_images.glm4v, hf_images.IMAGE_TOKENS),
    "glm4v_moe": (hf_images.glm4v_moe, hf_images.IMAGE_TOKENS),
    "gemma4": (hf_gemma4.gemma4, hf_gemma4.GEMMA4),
    "gemma4_text": (hf_gemma4.gemma4_text, hf_gemma4.TEXT),
    "nemotron-nas": (hf_layerwise.nemotron_nas, hf_layerwise.NAS),
    "openelm": (hf_layerwise.openelm, hf_layerwise.OPENELM),
    "step3p5": (hf_layerwise.step3, hf_layerwise.STEP),
    "step3p7": (hf_layerwise.step3, hf_layerwise.STEP),
    "deepseek_ref": (hf_deepseek4.deepseek_v4, ROUTING | hf_deepseek4.DEEPSEEK4),
    "mimo_v2_flash": (hf_mixtures.mimo_v2_flash, ROUTING | MIMO),
}
