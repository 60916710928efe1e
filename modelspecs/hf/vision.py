"""The tensors of vision towers and projectors, which totals count and text does not pass."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import HARMLESS, Spec, expected, words
from perfmodel.modelspecs.hf.keys import Keys

#: Keys of vision sections that shape no tensor.
HARMLESS_VISION = HARMLESS | words(
    "hidden_act vision_use_head vision_feature_layer vision_feature_select_strategy pixel_shuffle_ratio "
    "projector_dropout num_attention_heads"
)


def _tensor(name: str, shape: tuple[int, ...], count: int = 1, role: str = "vision") -> Spec:
    return {"name": name, "role": role, "shape": shape, "count": count}


def _linear(name: str, out: int, inp: int, count: int) -> list[Spec]:
    return [_tensor(f"{name}.weight", (out, inp), count), _tensor(f"{name}.bias", (out,), count)]


def _norm(name: str, size: int, count: int = 1) -> list[Spec]:
    return [_tensor(f"{name}.weight", (size,), count), _tensor(f"{name}.bias", (size,), count)]


def gemma3_vision(k: Keys, text_width: int) -> list[Spec]:
    """SigLIP without its pooling head, and the projector into the text model's width."""
    expected(k)
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size")
    k.expect("model_type", "siglip_vision_model")
    k.expect("vision_use_head", False)
    d, width, n = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("num_hidden_layers")
    patch, channels = k.dim("patch_size"), k.dim("num_channels", 3)
    patches = (k.dim("image_size") // patch) ** 2
    layer = "vision_tower.vision_model.encoder.layers.{layer}."
    found = [
        _tensor("vision_tower.vision_model.embeddings.patch_embedding.weight", (d, channels, patch, patch)),
        _tensor("vision_tower.vision_model.embeddings.patch_embedding.bias", (d,)),
        _tensor("vision_tower.vision_model.embeddings.position_embedding.weight", (patches, d)),
    ]
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        found += _linear(f"{layer}self_attn.{name}", d, d, n)
    found += _linear(f"{layer}mlp.fc1", width, d, n) + _linear(f"{layer}mlp.fc2", d, width, n)
    found += _norm(f"{layer}layer_norm1", d, n) + _norm(f"{layer}layer_norm2", d, n)
    found += _norm("vision_tower.vision_model.post_layernorm", d)
    found += [
        _tensor("multi_modal_projector.mm_input_projection_weight", (d, text_width), role="projector"),
        _tensor("multi_modal_projector.mm_soft_emb_norm.weight", (d,), role="projector"),
    ]
    k.finish(HARMLESS_VISION)
    return found


def llama4_vision(k: Keys, text_width: int) -> list[Spec]:
    """Llama 4's vision encoder, the pixel-shuffle adapter (two matrices) and the projector."""
    expected(k)
    k.require(
        "hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size", "projector_input_dim",
        "projector_output_dim", "vision_output_dim",
    )  # fmt: skip
    k.expect("model_type", "llama4_vision_model")
    k.expect("multi_modal_projector_bias", False)
    d, width, n = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("num_hidden_layers")
    patch, channels = k.dim("patch_size"), k.dim("num_channels", 3)
    patches = (k.dim("image_size") // patch) ** 2 + 1  # one more for the class
    into, out, last = k.dim("projector_input_dim"), k.dim("projector_output_dim"), k.dim("vision_output_dim")
    layer = "vision_model.model.layers.{layer}."
    found = [
        _tensor("vision_model.class_embedding", (d,)),
        _tensor("vision_model.positional_embedding_vlm", (patches, d)),
        _tensor("vision_model.patch_embedding.linear.weight", (d, channels * patch * patch)),
    ]
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        found += _linear(f"{layer}self_attn.{name}", d, d, n)
    found += _linear(f"{layer}mlp.fc1", width, d, n) + _linear(f"{layer}mlp.fc2", d, width, n)
    found += _norm(f"{layer}input_layernorm", d, n) + _norm(f"{layer}post_attention_layernorm", d, n)
    found += _norm("vision_model.layernorm_pre", d) + _norm("vision_model.layernorm_post", d)
    found += [
        _tensor("vision_model.vision_adapter.mlp.fc1.weight", (into, width)),
        _tensor("vision_model.vision_adapter.mlp.fc2.weight", (out, out)),
        _tensor("multi_modal_projector.linear_1.weight", (text_width, last), role="projector"),
    ]
    k.finish(HARMLESS_VISION)
    return found
