"""Names of Hugging Face checkpoints -> names of the inventory, which are those of Llama's descent.

A stored tensor may be read in several ways (as it is called, in Llama's words, split into the matrices that it holds
side by side); the comparison takes the first that the model has, so a rule does no harm where it does not belong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored.compare import BUFFER, SCALE, VISION, Covers, Names

Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((re.compile(pattern), new) for pattern, new in pairs)


_VISION = re.compile(
    r"^(?:model\.)?(vision_tower|vision_model|visual|vision_encoder|embed_vision|multi_modal_projector|mm_projector)\."
)
SCALES = re.compile(
    r"(?:\.(?:qzeros|scales|g_idx|weight_scale|weight_scale_inv|weight_scale_2|weight_zero_point|weight_g_idx|weight_shape|"
    r"weight_global_scale|input_scale|input_global_scale|output_scale|[kv]_scale)|_scales)$"
)
#: Tables and numbers that the classes compute: rotary frequencies, causal masks, position numbers, decays, constants.
BUFFERS = re.compile(
    r"(?:rotary_emb\.inv_freq|\.masked_bias|\.(?:attn|attention|attn\.attention)\.bias|position_ids|"
    r"\.(?:slope_rate|query_decay|key_decay|diagonal_decay)|\.act_fn\.(?:beta|eps))$"
)
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")

#: Prefixes and packed formats, everywhere.
_COMMON = _rules(
    (r"^(?:model\.language_model\.|language_model\.|model\.text_model\.)(?=.*lm_head)", ""),
    (r"^(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.text_model\.)", "model."),
    (r"\.qweight$|\.weight_packed$", ".weight"),
    (r"(gate_up_proj|down_proj)(?:_blocks)?$", r"\1.weight"),
    (r"(gate_up_proj|down_proj)_bias$", r"\1.bias"),
    (r"\.experts\.\d+\.", ".experts.{expert}."),
    (r"\.experts\.(gate_up_proj|gate_proj|up_proj|down_proj)", r".experts.{expert}.\1"),
)
#: Other words for the same, in order: the trunk, its layers, attention, feed-forward parts, mixtures, norms.
_WORDS = _rules(
    (r"^(?:transformer|gpt_neox|backbone|model\.decoder)\.", "model."),
    (r"^(?=(?:h|layers|blocks|wte|wpe|ln_f|embed_tokens|word_embeddings)\.)", "model."),
    (r"^embed_out\.", "lm_head."),
    (r"^model\.(?:h|blocks)\.", "model.layers."),
    (r"^model\.(?:wte|word_embeddings|embed_in|embeddings|tok_embeddings)\.", "model.embed_tokens."),
    (r"^model\.wpe\.", "model.embed_positions."),
    (r"^model\.word_embeddings_layernorm\.", "model.embed_norm."),
    (r"^model\.(?:ln_f|norm_f|final_layer_norm|final_layernorm|embedding_norm)\.", "model.norm."),
    (
        r"^(model\.layers\.\d+\.)(?:attn\.attention|attn|attention|self_attention|norm_attn_norm\.attn)\.",
        r"\1self_attn.",
    ),
    (r"\.norm_attn_norm\.", "."),
    (r"\.self_attn\.(?:c_proj|dense|out_proj|wo)\.", ".self_attn.o_proj."),
    (r"\.self_attn\.(?:c_attn|query_key_value|Wqkv|wqkv|W_pack)\.", ".self_attn.qkv_proj."),
    (r"\.self_attn\.(?:query_layernorm|q_layernorm)\.", ".self_attn.q_norm."),
    (r"\.self_attn\.(?:key_layernorm|k_layernorm)\.", ".self_attn.k_norm."),
    (r"\.self_attn\.attention_sink_bias$", ".self_attn.sinks"),
    (r"^(model\.layers\.\d+\.)(?:ffn|block_sparse_moe|feed_forward)\.", r"\1mlp."),
    (r"^(model\.layers\.\d+\.)(?=(?:fc1|fc2|experts)\.)", r"\1mlp."),
    (r"^(model\.layers\.\d+\.)(?:shared_mlp|mlp\.shared_mlp|mlp\.shared_expert)\.", r"\1mlp.shared_experts."),
    (r"\.mamba\.", ".mixer."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
    (r"\.mlp\.c_fc_0\.", ".mlp.gate_proj."),
    (r"\.mlp\.c_fc_1\.", ".mlp.up_proj."),
    (r"\.mlp\.(?:c_fc|fc1|fc_in|dense_h_to_4h)\.", ".mlp.up_proj."),
    (r"\.mlp\.(?:c_proj|fc2|fc_out|dense_4h_to_h)\.", ".mlp.down_proj."),
    (r"\.shared_experts\.input_linear\.", ".shared_experts.gate_up_proj."),
    (r"\.shared_experts\.output_linear\.", ".shared_experts.down_proj."),
    (r"\.mlp\.input_linear\.", ".mlp.experts.{expert}.gate_up_proj."),
    (r"\.mlp\.output_linear\.", ".mlp.experts.{expert}.down_proj."),
    (r"\.mlp\.(?:router\.layer|router\.gate|router|gate\.wg)\.", ".mlp.gate."),
    (
        r"\.mlp\.(?:gate\.)?(?:moe_statics\.)?(?:e_score_correction_bias|expert_bias)$",
        ".mlp.gate.e_score_correction_bias",
    ),
    (r"\.(?:ln_1|norm_1|self_attn_layer_norm|ln_attn|attention_layernorm|operator_norm)\.", ".input_layernorm."),
    (r"\.(?:ln_2|norm_2|ln_mlp|feedforward_layernorm|ffn_norm)\.", ".post_attention_layernorm."),
    (r"^(model\.layers\.\d+\.)(?:final_layer_norm|pre_ff_layernorm)\.", r"\1post_attention_layernorm."),
    (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
    (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
)
_MORE = _rules(  # words that mean something else in most models
    (r"^(model\.layers\.\d+\.)norm\.", r"\1input_layernorm."),
    (r"\.mixer\.(?=[qkvo]_proj\.)", ".self_attn."),
    (r"\.mixer\.", ".mlp."),
    (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
)
#: Where a family's word is another's for something else.
_FAMILIES: dict[str, Rules] = {
    "glm4": _rules((r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm.")),
    "glm4v": _rules((r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm.")),
}
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def hugging_face(model: ModelSpec) -> Names:
    """Readings of the names of a Hugging Face checkpoint."""
    family = _FAMILIES.get(model.family, ())

    def names(name: str) -> Iterator[Covers] | list[Covers] | str:
        if BUFFERS.search(name):
            return BUFFER
        if SCALES.search(name):
            return SCALE
        if name.endswith(("lm_head.weight", "embed_out.weight")) and model.tied_embeddings:
            return BUFFER  # a copy that no engine loads
        if match := _VISION.match(name):
            return [(VISION["projector" if match[1].endswith("projector") else "vision"],)]
        return _readings(_renamed(name, family), model.num_layers)

    return names


def _readings(name: str, layers: int) -> Iterator[Covers]:
    plain = _renamed(name, _COMMON)
    yield from _split(_numbered(plain, layers))
    words = _renamed(plain, _WORDS)
    for text in dict.fromkeys((words, *(_renamed(words, (rule,)) for rule in _MORE))):
        yield from _split(_numbered(text, layers))


def _split(text: str) -> Iterator[Covers]:
    """The tensor itself, then the ones that it may hold side by side."""
    yield (text,)
    for fused, parts in _FUSED.items():
        if f".{fused}." in text:
            yield tuple(text.replace(f".{fused}.", f".{part}.") for part in parts)


def _renamed(text: str, rules: Rules) -> str:
    for pattern, new in rules:
        text = pattern.sub(new, text)
    return text


def _numbered(text: str, layers: int) -> str:
    """Layers after the last are those of multi-token prediction."""
    match = _LAYER.match(text)
    if match is None or int(match[1]) < layers:
        return text
    return f"model.mtp.{int(match[1]) - layers}." + text[match.end() :]
