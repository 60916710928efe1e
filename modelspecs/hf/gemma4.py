"""Gemma 4: heads by kind of layer, values made from keys, shared keys and values, experts beside an MLP.

The classes are those of transformers 5.24 (``models/gemma4``). An audio tower is refused.
"""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import (
    KINDS,
    ROUTING,
    Spec,
    activation,
    base,
    effective_window,
    expected,
    nested,
    num_layers,
    schedule,
    words,
)
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.vision import HARMLESS_VISION, _tensor

TEXT = ROUTING | {"final_logit_softcapping"}
GEMMA4 = words(
    "audio_token_id audio_token_index boa_token_id boa_token_index boi_token_id eoa_token_id eoa_token_index "
    "eoi_token_id image_token_id image_token_index video_token_id vision_soft_tokens_per_image"
)
TOWER = words(
    "default_output_length global_head_dim hidden_activation max_position_embeddings pooling_kernel_size "
    "rope_parameters"
)


def gemma4(k: Keys) -> Spec:
    """Gemma 4 with its vision tower: the text model is a section."""
    text = nested(k, "gemma4_text", gemma4_text, TEXT)
    vision = k.section("vision_config")
    if vision:
        text["extra_tensors"] = (*text["extra_tensors"], *_tower(vision, text["hidden_size"]))
    return text


def gemma4_text(k: Keys) -> Spec:
    """The language model of Gemma 4."""
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    spec, n = base(k, tied=True, max_context=131072, vocabulary=262144), num_layers(k)
    k.expect("use_bidirectional_attention", "vision")
    kinds, shared = _kinds(k, n), k.dim("num_kv_shared_layers", 0, least=0)
    if shared >= n or (shared and set(kinds[n - shared :]) - set(kinds[: n - shared])):
        raise k.error("num_kv_shared_layers", f"{shared} of {n} layers have no layer of their kind to share with")
    names = [kind.removesuffix("_attention") + ("_shared" if i >= n - shared else "") for i, kind in enumerate(kinds)]
    ffn, parts, layer_tensors = _ffn(k, spec["hidden_size"], [name.endswith("_shared") for name in names])
    inner = k.dim("hidden_size_per_layer_input", 256, least=0)
    more, extra = _per_layer(k, spec["hidden_size"], inner, n)
    return spec | {
        "norm": {"per_layer": 4}, "attention": _attention(k, spec["max_context"], names),
        "ffn": {name: ffn[name] for name in dict.fromkeys(parts)},
        "layers": schedule([f"{a}/{f}" for a, f in zip(names, parts, strict=True)]),
        "layer_tensors": (*layer_tensors, *more), "extra_tensors": extra,
    }  # fmt: skip


def _kinds(k: Keys, n: int) -> list[str]:
    kinds = k.words("layer_types", n, KINDS) or [KINDS[int((i + 1) % 6 != 0)] for i in range(n)]
    if kinds[-1] != KINDS[0]:
        k.remarks.append("layer_types: the last layer is full, as the model class makes it")
    return [*kinds[:-1], KINDS[0]]


def _attention(k: Keys, max_context: int, names: list[str]) -> Spec:
    heads, groups = k.dim("num_attention_heads"), k.dim("num_key_value_heads")
    same = k.flag("attention_k_eq_v", False)
    wide = k.dim("num_global_key_value_heads", groups) if same else groups
    k.read.add("num_global_key_value_heads")
    bias = k.flag("attention_bias", False)
    size = k.dim("global_head_dim", 512)
    size, wide = _by_layer(k, [i for i, name in enumerate(names) if name.startswith("full")], size, wide)
    for key, number in (("num_key_value_heads", groups), ("num_global_key_value_heads", wide)):
        if heads % number:
            raise k.error(key, f"{number} does not divide num_attention_heads ({heads})")
    window = effective_window(k, k.dim("sliding_window", 512), max_context)
    both: Spec = {"kind": "gqa", "heads": heads, "qk_norm": "head", "qkv_bias": bias, "o_bias": bias}
    found: Spec = {
        "sliding": {**both, "kv_heads": groups, "head_dim": k.dim("head_dim", 256), "window": window},
        "full": {**both, "kv_heads": wide, "head_dim": size, "v_from_k": same},
    }
    found |= {f"{name}_shared": {**value, "shared_kv": True, "v_from_k": False} for name, value in found.items()}
    return {name: found[name] for name in dict.fromkeys(names)}


def _by_layer(k: Keys, full: list[int], size: int, groups: int) -> tuple[int, int]:
    """Head size and KV heads of the full layers, as ``per_layer_config`` has them where transformers wrote the file."""
    listed = k.section("per_layer_config")
    if listed is None:
        return size, groups
    layers = {int(key): listed.section(key) for key in listed.data if key.isdigit() and len(key) < 6}
    found = {
        (inner.dim("head_dim", size), inner.dim("num_key_value_heads", groups)) for inner in layers.values() if inner
    }
    for inner in layers.values():
        if inner:
            inner.finish(())
    if sorted(layers) != full or len(layers) != len(listed.data) or len(found) != 1:
        raise k.error("per_layer_config", "must say the same of every full layer, and of no other")
    return next(iter(found))


def _ffn(k: Keys, hidden: int, shared: list[bool]) -> tuple[Spec, list[str], list[Spec]]:
    """Feed-forward variants, which one each layer has, and what the layers have besides."""
    width, form = k.dim("intermediate_size"), activation(k, "gelu_pytorch_tanh")
    small: list[Spec] = [{"name": "layer_scalar", "role": "scale", "shape": (1,)}]
    double = k.flag("use_double_wide_mlp", False)
    if not k.flag("enable_moe_block", False):
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            k.expect(key)
        plain: Spec = {"kind": "dense", "intermediate_size": width, "activation": form}
        ffn = {"dense": plain, "wide": {**plain, "intermediate_size": 2 * width}}
        return ffn, ["wide" if double and on else "dense" for on in shared], small
    if double and any(shared):
        raise k.error("use_double_wide_mlp", "is not understood together with enable_moe_block")
    experts, chosen = k.dim("num_experts"), k.dim("top_k_experts")
    if chosen > experts:
        raise k.error("top_k_experts", f"{chosen} is above the number of experts ({experts})")
    moe = {
        "kind": "moe", "experts": experts, "experts_per_token": chosen, "activation": form,
        "intermediate_size": k.dim("moe_intermediate_size"), "shared_intermediate_size": width,
    }  # fmt: skip
    names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    small += [{"name": f"{name}.weight", "role": "norm", "shape": (hidden,)} for name in names]
    small.append({"name": "mlp.gate.scale", "role": "router", "shape": (hidden,)})
    small.append({"name": "mlp.gate.per_expert_scale", "role": "router", "shape": (experts,)})
    return {"moe": moe}, ["moe"] * len(shared), small


def _per_layer(k: Keys, hidden: int, inner: int, n: int) -> tuple[list[Spec], list[Spec]]:
    """An input of its own for each layer: a table of ``n x inner`` features, a gate and a projection a layer."""
    k.read.add("vocab_size_per_layer_input")
    if not inner:
        return [], []
    layer = [
        {"name": "per_layer_input_gate.weight", "role": "input_gate", "shape": (inner, hidden)},
        {"name": "per_layer_projection.weight", "role": "input_out", "shape": (hidden, inner)},
        {"name": "post_per_layer_input_norm.weight", "role": "norm", "shape": (hidden,)},
    ]
    rows = k.dim("vocab_size_per_layer_input", 262144)
    outer = [
        {"name": "model.embed_tokens_per_layer.weight", "role": "position", "shape": (rows, n * inner)},
        {"name": "model.per_layer_model_projection.weight", "role": "hyper", "shape": (n * inner, hidden)},
        {"name": "model.per_layer_projection_norm.weight", "role": "norm", "shape": (inner,)},
    ]
    return layer, outer


def _tower(k: Keys, text_width: int) -> list[Spec]:
    expected(k)
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim", "patch_size")
    k.expect("model_type", "gemma4_vision")
    k.expect("attention_bias", False)
    k.expect("use_clipped_linears", False)
    d, width, n, size = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("num_hidden_layers"), k.dim("head_dim")
    heads = k.dim("num_attention_heads")
    groups = k.dim("num_key_value_heads", heads)
    patch, grid = k.dim("patch_size"), k.dim("position_embedding_size", 10240)
    name, layer = "vision_tower.patch_embedder.", "vision_tower.encoder.layers.{layer}."
    found = [
        _tensor(f"{name}input_proj.weight", (d, 3 * patch**2)),
        _tensor(f"{name}position_embedding_table", (2, grid, d)),
    ]
    for part, out, inp in (
        ("self_attn.q_proj", heads * size, d), ("self_attn.k_proj", groups * size, d),
        ("self_attn.v_proj", groups * size, d), ("self_attn.o_proj", d, heads * size),
        ("mlp.gate_proj", width, d), ("mlp.up_proj", width, d), ("mlp.down_proj", d, width),
    ):  # fmt: skip
        found.append(_tensor(f"{layer}{part}.linear.weight", (out, inp), n))
    found += [_tensor(f"{layer}self_attn.{norm}.weight", (size,), n) for norm in ("q_norm", "k_norm")]
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    found += [_tensor(f"{layer}{norm}.weight", (d,), n) for norm in norms]
    if k.flag("standardize", False):
        found += [_tensor(f"vision_tower.{part}", (d,)) for part in ("std_bias", "std_scale")]
    found.append(_tensor("embed_vision.embedding_projection.weight", (text_width, d), role="projector"))
    k.finish(HARMLESS_VISION | TOWER)
    return found
