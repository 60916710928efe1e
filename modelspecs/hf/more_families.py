"""Further rows of the table of families: classic, Llama-like and mixture families, with their harmless keys."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.modelspecs.hf import classic, deepseek4, gemma4, images, layerwise, llamas, mixtures, mla
from perfmodel.modelspecs.hf.common import ROUTING, Spec, words
from perfmodel.modelspecs.hf.keys import Keys

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
    "gpt2": (classic.gpt2, classic.GPT2),
    "gpt_bigcode": (classic.gpt_bigcode, classic.GPT2),
    "gpt_neox": (classic.gpt_neox, ROTARY),
    "gptj": (classic.gptj, classic.GPT2 | ROTARY),
    "codegen": (classic.gptj, classic.GPT2 | ROTARY),
    "gpt_neo": (classic.gpt_neo, classic.GPT2),
    "opt": (classic.opt, classic.GPT2),
    "bloom": (classic.bloom, classic.BLOOM),
    "falcon": (classic.falcon, ROTARY | classic.BLOOM),
    "RefinedWeb": (classic.refined_web, ROTARY | classic.BLOOM),
    "RefinedWebModel": (classic.falcon, ROTARY | classic.BLOOM),
    "mpt": (classic.mpt, classic.MPT),
    "phi": (classic.phi, NONE),
    **{kind: (llamas.uniform(variant), MULTIPLIERS | TOKENS) for kind, variant in llamas.VARIANTS.items()},
    "seed_oss": (llamas.seed_oss, words("residual_dropout")),
    "internlm3": (llamas.internlm3, NONE),
    "stablelm": (llamas.stablelm, ROTARY),
    "starcoder2": (llamas.starcoder2, words("residual_dropout embedding_dropout norm_epsilon")),
    "olmo3": (llamas.olmo3, NONE),
    "cohere2": (llamas.cohere2, MULTIPLIERS),
    "exaone4": (llamas.exaone4, NONE),
    "smollm3": (llamas.smollm3, NONE),
    "mimo": (llamas.mimo, NONE),
    "qwen": (llamas.qwen, QWEN | ROTARY),
    "chatglm": (llamas.chatglm, QWEN),
    "minimax_m2": (mixtures.minimax_m2, ROUTING | ROTARY),
    "olmoe": (mixtures.olmoe, ROUTING | MULTIPLIERS),
    "phimoe": (mixtures.phimoe, ROUTING | words("input_jitter_noise")),
    "granitemoe": (mixtures.granitemoe, ROUTING | MULTIPLIERS),
    "granitemoeshared": (mixtures.granitemoe, ROUTING | MULTIPLIERS),
    "ernie4_5_moe": (mixtures.ernie4_5_moe, ROUTING | ERNIE),
    "dbrx": (mixtures.dbrx, ROUTING | words("emb_pdrop")),
    "exaone_moe": (mixtures.exaone_moe, ROUTING),
    "hy_v3": (mixtures.hy_v3, ROUTING | HUNYUAN),
    "hunyuan_v1_moe": (mixtures.hunyuan_moe, ROUTING | HUNYUAN),
    "hunyuan": (mixtures.hunyuan, ROUTING | HUNYUAN),
    "deepseek_v4": (deepseek4.deepseek_v4, ROUTING | deepseek4.DEEPSEEK4),
    "glm_moe_dsa": (mla.glm_moe_dsa, ROUTING | mla.GLM5),
    "glm4_moe_lite": (mla.glm4_moe_lite, ROUTING),
    "qwen3_vl": (images.qwen3_vl, images.IMAGE_TOKENS),
    "qwen3_vl_moe": (images.qwen3_vl_moe, images.IMAGE_TOKENS),
    "qwen2_vl": (images.qwen2_vl, images.IMAGE_TOKENS),
    "qwen2_5_vl": (images.qwen2_5_vl, images.IMAGE_TOKENS),
    "kimi_k25": (images.kimi_k25, images.IMAGE_TOKENS),
    "mistral3": (images.mistral3, images.IMAGE_TOKENS),
    "ministral3": (images.ministral3, NONE),
    "glm4v": (images.glm4v, images.IMAGE_TOKENS),
    "glm4v_moe": (images.glm4v_moe, images.IMAGE_TOKENS),
    "gemma4": (gemma4.gemma4, gemma4.GEMMA4),
    "gemma4_text": (gemma4.gemma4_text, gemma4.TEXT),
    "nemotron-nas": (layerwise.nemotron_nas, layerwise.NAS),
    "openelm": (layerwise.openelm, layerwise.OPENELM),
    "step3p5": (layerwise.step3, layerwise.STEP),
    "step3p7": (layerwise.step3, layerwise.STEP),
    "deepseek_ref": (deepseek4.deepseek_v4, ROUTING | deepseek4.DEEPSEEK4),
    "mimo_v2_flash": (mixtures.mimo_v2_flash, ROUTING | MIMO),
}
