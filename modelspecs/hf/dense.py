"""Families of Hugging Face configurations whose layers are all dense. Class defaults are those of transformers 5.24."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import (
    CORE,
    CORE_KV,
    GEMMA,
    KINDS,
    Spec,
    base,
    dense,
    effective_window,
    gqa,
    nested,
    num_layers,
    schedule,
    windowed,
)
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.vision import gemma3_vision


def llama(k: Keys) -> Spec:
    """Llama 1 to 3.3 and its many descendants."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, mha_if_absent=True, qkv_bias=bias, o_bias=bias)
    ffn = dense(k, bias=k.flag("mlp_bias", False))
    return spec | {"attention": {"full": attention}, "ffn": {"dense": ffn}, "layers": schedule(["full/dense"] * n)}


def mistral(k: Keys) -> Spec:
    """Mistral 7B to Large: a window of 4096 unless the configuration says otherwise (the class default)."""
    k.require(*CORE_KV)
    spec, n = base(k, tied=False), num_layers(k)
    window = effective_window(k, k.optional("sliding_window", 4096), spec["max_context"])
    kinds = ["sliding_attention" if window else "full_attention"] * n
    return spec | {"ffn": {"dense": dense(k)}} | windowed(gqa(k), window, kinds, ["dense"] * n)


def qwen_kinds(k: Keys, n: int, max_context: int) -> tuple[list[str], int | None]:
    """Which layers have a window: those from ``max_window_layers`` on, when ``use_sliding_window``."""
    use = k.flag("use_sliding_window", False)
    k.read |= {"sliding_window", "max_window_layers"}
    kinds = k.words("layer_types", n, KINDS)
    if not use:
        if kinds and "sliding_attention" in kinds:
            raise k.error("layer_types", "has sliding layers, and use_sliding_window is not true")
        return ["full_attention"] * n, None
    if not k.has("sliding_window"):
        raise k.error("sliding_window", "is missing, and use_sliding_window is true")
    window = effective_window(k, k.dim("sliding_window"), max_context)
    if kinds is None:
        first = k.dim("max_window_layers", 28, least=0)
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(n)]
    return kinds, window


def qwen2(k: Keys) -> Spec:
    """Qwen 1.5, 2 and 2.5: biases on Q, K and V."""
    k.require(*CORE_KV)
    k.expect("use_mrope", False)
    spec, n = base(k, tied=False), num_layers(k)
    kinds, window = qwen_kinds(k, n, spec["max_context"])
    return spec | {"ffn": {"dense": dense(k)}} | windowed(gqa(k, qkv_bias=True), window, kinds, ["dense"] * n)


def qwen3(k: Keys) -> Spec:
    """Qwen3: norms on the heads of Q and K, no biases unless ``attention_bias``."""
    k.require(*CORE_KV)
    spec, n = base(k, tied=False), num_layers(k)
    kinds, window = qwen_kinds(k, n, spec["max_context"])
    bias = k.flag("attention_bias", False)
    attention = gqa(k, dim=128, qk_norm="head", qkv_bias=bias, o_bias=bias)
    return spec | {"ffn": {"dense": dense(k)}} | windowed(attention, window, kinds, ["dense"] * n)


def gemma(k: Keys) -> Spec:
    """Gemma 1: wide heads, tied embeddings."""
    k.require(*CORE_KV, "head_dim")
    k.expect("use_bidirectional_attention", False)
    spec, n = base(k, tied=True), num_layers(k)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, qkv_bias=bias, o_bias=bias)
    ffn = dense(k, default_activation="gelu_pytorch_tanh")
    return spec | {"attention": {"full": attention}, "ffn": {"dense": ffn}, "layers": schedule(["full/dense"] * n)}


def gemma2(k: Keys) -> Spec:
    """Gemma 2: four norms a layer, every other layer a window."""
    k.require(*CORE_KV, "head_dim", "sliding_window")
    k.expect("use_bidirectional_attention", False)
    spec, n = base(k, tied=True), num_layers(k)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, qkv_bias=bias, o_bias=bias)
    kinds = k.words("layer_types", n, KINDS) or [KINDS[(i + 1) % 2] for i in range(n)]
    window = effective_window(k, k.dim("sliding_window"), spec["max_context"])
    ffn = dense(k, default_activation="gelu_pytorch_tanh")
    return spec | {"norm": {"per_layer": 4}, "ffn": {"dense": ffn}} | windowed(
        attention, window, kinds, ["dense"] * n
    )  # fmt: skip


def gemma3_text(k: Keys) -> Spec:
    """Gemma 3: five windowed layers to a full one, norms on Q and K. The published files leave out class defaults."""
    k.require("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window")
    spec, n = base(k, tied=True, max_context=131072, vocabulary=262208), num_layers(k)
    k.expect("use_bidirectional_attention", False)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, heads=8, kv_heads=4, dim=256, qk_norm="head", qkv_bias=bias, o_bias=bias)
    pattern = k.dim("sliding_window_pattern", 6) if "layer_types" not in k.data else 6
    k.read |= {"sliding_window_pattern", "_sliding_window_pattern"}
    kinds = k.words("layer_types", n, KINDS) or [KINDS[int((i + 1) % pattern != 0)] for i in range(n)]
    window = effective_window(k, k.dim("sliding_window"), spec["max_context"])
    ffn = dense(k, default_activation="gelu_pytorch_tanh")
    return spec | {"norm": {"per_layer": 4}, "ffn": {"dense": ffn}} | windowed(
        attention, window, kinds, ["dense"] * n
    )  # fmt: skip


def gemma3(k: Keys) -> Spec:
    """Gemma 3 with its vision tower: the text model is a section."""
    text = nested(k, "gemma3_text", gemma3_text, GEMMA)
    vision = k.section("vision_config")
    if vision:
        text["extra_tensors"] = gemma3_vision(vision, text["hidden_size"])
    return text


def phi3(k: Keys) -> Spec:
    """Phi-3 and Phi-4: Llama with Q, K, V and gate, up stored as one matrix each."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        k.expect(key, False)
    k.expect("full_attn_mod", 1)
    window = effective_window(k, k.optional("sliding_window"), spec["max_context"])
    kinds = ["sliding_attention" if window else "full_attention"] * n
    attention = gqa(k, mha_if_absent=True)
    return spec | {"ffn": {"dense": dense(k)}} | windowed(attention, window, kinds, ["dense"] * n)


def olmo2(k: Keys) -> Spec:
    """OLMo 2: norms after attention and feed-forward part, norms over all of Q and K."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, mha_if_absent=True, qk_norm="full", qkv_bias=bias, o_bias=bias)
    return spec | {
        "norm": {"placement": "post"}, "attention": {"full": attention}, "ffn": {"dense": dense(k)},
        "layers": schedule(["full/dense"] * n),
    }  # fmt: skip


def cohere(k: Keys) -> Spec:
    """Command R: attention and feed-forward part side by side, one LayerNorm without bias, tied embeddings."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=True), num_layers(k)
    bias = k.flag("attention_bias", False)
    norm = "full" if k.flag("use_qk_norm", False) else "none"
    attention = gqa(k, mha_if_absent=True, qk_norm=norm, qkv_bias=bias, o_bias=bias)
    return spec | {
        "norm": {"kind": "layernorm", "per_layer": 1}, "attention": {"full": attention}, "ffn": {"dense": dense(k)},
        "layers": schedule(["full/dense"] * n),
    }  # fmt: skip
