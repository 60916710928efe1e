"""Families with a vision tower around a text model that another family reads: Qwen-VL, Kimi K2.5, Mistral 3, GLM-V.

The towers are those of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.modelspecs.hf import dense, llamas, moe
from perfmodel.modelspecs.hf.common import HARMLESS, ROUTING, Spec, expected, nested, words
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.qwen_vision import qwen_vision
from perfmodel.modelspecs.hf.vision import HARMLESS_VISION, _linear, _norm, _tensor

#: Token ids of images and videos, and names of what stands for them in a text.
IMAGE_TOKENS = words(
    "image_token_id video_token_id vision_start_token_id vision_end_token_id vision_token_id image_token_index "
    "image_start_token_id image_end_token_id video_start_token_id video_end_token_id media_placeholder_token_id "
    "ignore_index use_unified_vision_chunk video_placeholder spatial_merge_size projector_hidden_act "
    "vision_feature_layer vision_feature_select_strategy"
)
Tower = Callable[[Keys, int], list[Spec]]


def with_tower(k: Keys, kinds: tuple[str, ...], read: Callable[[Keys], Spec], tower: Tower, harmless: frozenset[str]
) -> Spec:  # fmt: skip
    """The text section, or the flat file of older checkpoints, and the tensors of ``vision_config``."""
    if k.has("text_config"):
        text = nested(k, kinds, read, harmless)
    else:
        text = read(k)
        k.read |= harmless
    vision = k.section("vision_config")
    if vision:
        text["extra_tensors"] = (*text.get("extra_tensors", ()), *tower(vision, text["hidden_size"]))
    return text


def qwen3_vl(k: Keys) -> Spec:
    """Qwen3-VL: Qwen3 and a tower with deep-stack mergers."""
    kinds = ("qwen3_vl", "qwen3_vl_vision")
    return with_tower(
        k, ("qwen3_vl_text",), dense.qwen3, lambda v, width: qwen_vision(v, width, kinds, deep=True), frozenset()
    )


def qwen3_vl_moe(k: Keys) -> Spec:
    """Qwen3-VL with experts."""
    kinds = ("qwen3_vl_moe", "qwen3_vl_moe_vision")
    return with_tower(
        k, ("qwen3_vl_moe_text",), lambda t: moe.qwen_moe(t, shared=False),
        lambda v, width: qwen_vision(v, width, kinds, deep=True), ROUTING,
    )  # fmt: skip


def qwen2_vl(k: Keys) -> Spec:
    """Qwen2-VL: Qwen2 and a tower without positions of its own."""
    return with_tower(k, ("qwen2_vl_text",), dense.qwen2, _qwen2_tower, IMAGE_TOKENS)


def qwen2_5_vl(k: Keys) -> Spec:
    """Qwen2.5-VL: Qwen2 and a tower with windows, RMSNorm and gated layers."""
    return with_tower(k, ("qwen2_5_vl_text",), dense.qwen2, _qwen25_tower, IMAGE_TOKENS)


QWEN2_TOWER = words("num_heads rope_parameters spatial_patch_size tokens_per_second window_size fullatt_block_indexes")


def _patches(k: Keys, width: int) -> list[Spec]:
    k.alias(in_channels="in_chans")
    patch, frames = k.dim("patch_size", 14), k.dim("temporal_patch_size", 2)
    k.expect("spatial_patch_size", patch)
    return [_tensor("visual.patch_embed.proj.weight", (width, k.dim("in_channels", 3), frames, patch, patch))]


def _qwen2_tower(k: Keys, text_width: int) -> list[Spec]:
    expected(k)
    k.require("depth", "embed_dim")
    k.expect("model_type", "qwen2_vl", "qwen2_vl_vision")
    k.expect("hidden_size", text_width)
    d, n, merge, ratio = k.dim("embed_dim"), k.dim("depth"), k.dim("spatial_merge_size", 2), k.dim("mlp_ratio", 4)
    block, merged = "visual.blocks.{layer}.", d * merge**2
    found = _patches(k, d) + _norm(f"{block}norm1", d, n) + _norm(f"{block}norm2", d, n)
    found += _linear(f"{block}attn.qkv", 3 * d, d, n) + _linear(f"{block}attn.proj", d, d, n)
    found += _linear(f"{block}mlp.fc1", ratio * d, d, n) + _linear(f"{block}mlp.fc2", d, ratio * d, n)
    merger = _norm("visual.merger.ln_q", d) + _linear("visual.merger.mlp.0", merged, merged, 1)
    merger += _linear("visual.merger.mlp.2", text_width, merged, 1)
    k.finish(HARMLESS_VISION | QWEN2_TOWER)
    return found + [{**t, "role": "projector"} for t in merger]


def _qwen25_tower(k: Keys, text_width: int) -> list[Spec]:
    expected(k)
    k.require("depth", "hidden_size", "intermediate_size")
    k.expect("model_type", "qwen2_5_vl", "qwen2_5_vl_vision")
    k.expect("out_hidden_size", text_width)
    d, n, width, merge = k.dim("hidden_size"), k.dim("depth"), k.dim("intermediate_size"), 2
    merge = k.dim("spatial_merge_size", merge)
    block, merged = "visual.blocks.{layer}.", d * merge**2
    found = _patches(k, d)
    found += [_tensor(f"{block}{name}.weight", (d,), n) for name in ("norm1", "norm2")]
    found += _linear(f"{block}attn.qkv", 3 * d, d, n) + _linear(f"{block}attn.proj", d, d, n)
    found += _linear(f"{block}mlp.gate_proj", width, d, n) + _linear(f"{block}mlp.up_proj", width, d, n)
    found += _linear(f"{block}mlp.down_proj", d, width, n)
    merger = [_tensor("visual.merger.ln_q.weight", (d,)), *_linear("visual.merger.mlp.0", merged, merged, 1)]
    merger += _linear("visual.merger.mlp.2", text_width, merged, 1)
    k.finish(HARMLESS_VISION | QWEN2_TOWER)
    return found + [{**t, "role": "projector"} for t in merger]


def kimi_k25(k: Keys) -> Spec:
    """Kimi K2.5 to K2.7: Kimi K2 and a tower with learned positions of a 64 x 64 grid."""
    projection = k.optional("projection_hidden_size")
    k.read.add("projection_layer_norm_eps")
    return with_tower(
        k, ("kimi_k2", "deepseek_v3"), lambda t: moe.deepseek(t, 3), lambda v, w: _kimi_tower(v, w, projection), KIMI
    )


#: The text section's own format is read with the whole.
KIMI = ROUTING | words("quantization_config")
KIMI_TOWER = words(
    "init_pos_emb_time pos_emb_time pos_emb_type video_attn_type merge_type projector_ln_eps projector_hidden_act "
    "vt_num_attention_heads rope_parameters"
)


def _kimi_tower(k: Keys, text_width: int, projection: int | None) -> list[Spec]:
    expected(k)
    k.alias(hidden_size="vt_hidden_size", num_hidden_layers="vt_num_hidden_layers")
    k.alias(intermediate_size="vt_intermediate_size")
    k.alias(pos_emb_height="init_pos_emb_height", pos_emb_width="init_pos_emb_width")
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "pos_emb_height", "pos_emb_width")
    k.expect("model_type", "kimi_k25_vision", "")
    k.expect("mm_projector_type", "patchmerger")
    k.expect("text_hidden_size", text_width)
    d, width, n = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("num_hidden_layers")
    k.expect("mm_hidden_size", d)
    kernel = k.numbers("merge_kernel_size", 2) or [2, 2]
    patch, merged, layer = k.dim("patch_size", 14), d * kernel[0] * kernel[1], "vision_tower.layers.{layer}."
    if not merged:
        raise k.error("merge_kernel_size", "must be two numbers from 1")
    found = [
        _tensor("vision_tower.patch_embed.proj.weight", (d, 3, patch, patch)),
        _tensor("vision_tower.patch_embed.proj.bias", (d,)),
        _tensor(
            "vision_tower.patch_embed.pos_emb.position_embeddings", (k.dim("pos_emb_height"), k.dim("pos_emb_width"), d)
        ),
    ]
    found += _norm(f"{layer}norm1", d, n) + _norm(f"{layer}norm2", d, n)
    for name in ("q_proj", "k_proj", "v_proj", "proj"):
        found += _linear(f"{layer}attn.{name}", d, d, n)
    found += _linear(f"{layer}mlp.fc1", width, d, n) + _linear(f"{layer}mlp.fc2", d, width, n)
    found += _norm("vision_tower.final_layernorm", d)
    merger = _norm("mm_projector.pre_norm", projection or d) + _linear("mm_projector.in_proj", merged, merged, 1)
    merger += _linear("mm_projector.out_proj", text_width, merged, 1)
    k.finish(HARMLESS_VISION | KIMI_TOWER)
    return found + [{**t, "role": "projector"} for t in merger]


def mistral3(k: Keys) -> Spec:
    """Mistral Small 3.1 and later, Ministral 3: Mistral and the Pixtral tower."""
    merge = k.dim("spatial_merge_size", 2)
    k.expect("multimodal_projector_bias", False)
    return with_tower(k, ("mistral", "ministral3"), ministral3, lambda v, width: _pixtral(v, width, merge), frozenset())


def ministral3(k: Keys) -> Spec:
    """Mistral without a window unless the file has one."""
    if "sliding_window" not in k.data and k.data.get("model_type") == "ministral3":
        k.data = {**k.data, "sliding_window": None}
    return dense.mistral(k)


def _pixtral(k: Keys, text_width: int, merge: int) -> list[Spec]:
    expected(k)
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size")
    k.expect("model_type", "pixtral")
    d, width, n = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("num_hidden_layers")
    heads, patch, channels = k.dim("num_attention_heads"), k.dim("patch_size"), k.dim("num_channels", 3)
    k.expect("head_dim", d // heads)
    layer = "vision_tower.transformer.layers.{layer}."
    found = [
        _tensor("vision_tower.patch_conv.weight", (d, channels, patch, patch)),
        _tensor("vision_tower.ln_pre.weight", (d,)),
    ]
    found += [_tensor(f"{layer}{name}.weight", (d,), n) for name in ("attention_norm", "ffn_norm")]
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    found += [_tensor(f"{layer}attention.{name}.weight", (d, d), n) for name in attention]
    found += [_tensor(f"{layer}feed_forward.{name}.weight", (width, d), n) for name in ("gate_proj", "up_proj")]
    found.append(_tensor(f"{layer}feed_forward.down_proj.weight", (d, width), n))
    shapes = {
        "norm": (d,), "patch_merger.merging_layer": (d, d * merge**2), "linear_1": (text_width, d),
        "linear_2": (text_width, text_width),
    }  # fmt: skip
    projector = [
        _tensor(f"multi_modal_projector.{name}.weight", shape, role="projector") for name, shape in shapes.items()
    ]
    k.finish(HARMLESS_VISION | words("image_size rope_parameters rope_theta vocab_size"))
    return found + projector


def glm4v(k: Keys) -> Spec:
    """GLM-4.1V: GLM-4 with four norms a layer and its tower."""
    variant = llamas.Variant(norm={"per_layer": 4}, qkv="attention_bias", on=True, kv_heads=2)
    return with_tower(k, ("glm4v_text",), llamas.uniform(variant), _glm_tower, frozenset())


def glm4v_moe(k: Keys) -> Spec:
    """GLM-4.5V, GLM-4.6V: GLM-4.5-Air and the tower of GLM-4.1V."""
    return with_tower(k, ("glm4v_moe_text",), moe.glm4_moe, _glm_tower, ROUTING)


def _glm_tower(k: Keys, text_width: int) -> list[Spec]:
    expected(k)
    k.require("depth", "hidden_size", "intermediate_size", "image_size", "patch_size", "out_hidden_size")
    k.expect("model_type", "glm4v", "glm4v_vision", "glm4v_moe", "glm4v_moe_vision")
    k.expect("attention_bias", False)
    k.expect("out_hidden_size", text_width)
    d, n, width, out = k.dim("hidden_size"), k.dim("depth"), k.dim("intermediate_size"), k.dim("out_hidden_size")
    patch, frames, merge = k.dim("patch_size"), k.dim("temporal_patch_size", 2), k.dim("spatial_merge_size", 2)
    channels, block = k.dim("in_channels", 3), "visual.blocks.{layer}."
    found = [
        _tensor("visual.embeddings.position_embedding.weight", ((k.dim("image_size") // patch) ** 2, d)),
        _tensor("visual.patch_embed.proj.weight", (d, channels, frames, patch, patch)),
        _tensor("visual.patch_embed.proj.bias", (d,)),
    ]
    found += [_tensor(f"{block}{name}.weight", (d,), n) for name in ("norm1", "norm2")]
    found += [_tensor(f"{block}attn.qkv.weight", (3 * d, d), n), _tensor(f"{block}attn.proj.weight", (d, d), n)]
    found += [_tensor(f"{block}mlp.{name}.weight", (out, d), n) for name in ("gate_proj", "up_proj")]
    found += [_tensor(f"{block}mlp.down_proj.weight", (d, out), n)]
    found += [_tensor(f"visual.{name}.weight", (d,)) for name in ("post_conv_layernorm", "post_layernorm")]
    merger = [
        _tensor("visual.downsample.weight", (out, d, merge, merge)), _tensor("visual.downsample.bias", (out,)),
        _tensor("visual.merger.proj.weight", (out, out)), *_norm("visual.merger.post_projection_norm", out),
        _tensor("visual.merger.gate_proj.weight", (width, out)), _tensor("visual.merger.up_proj.weight", (width, out)),
        _tensor("visual.merger.down_proj.weight", (out, width)),
    ]  # fmt: skip
    k.finish(HARMLESS_VISION | words("num_heads rope_parameters"))
    return found + [{**t, "role": "projector"} for t in merger]


OUTER = HARMLESS | IMAGE_TOKENS
