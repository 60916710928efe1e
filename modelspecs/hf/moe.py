"""Families of Hugging Face configurations with mixtures of experts. Class defaults are those of transformers 5.24."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import (
    CORE,
    CORE_KV,
    KINDS,
    LLAMA4,
    Spec,
    activation,
    base,
    dense,
    effective_window,
    gqa,
    nested,
    num_layers,
    schedule,
    windowed,
)
from perfmodel.modelspecs.hf.dense import qwen_kinds
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.vision import llama4_vision

MLA_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
MIXTURE_KEYS = (
    "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace",
)  # fmt: skip


def mixtral(k: Keys) -> Spec:
    """Mixtral: every layer a mixture of experts."""
    k.require(*CORE_KV, "num_experts_per_tok")
    spec, n = base(k, tied=False), num_layers(k)
    window = effective_window(k, k.optional("sliding_window"), spec["max_context"])
    ffn = moe(k, k.dim("intermediate_size"))
    kinds = ["sliding_attention" if window else "full_attention"] * n
    return spec | {"ffn": {"moe": ffn}} | windowed(gqa(k), window, kinds, ["moe"] * n)


#: Names of the number of routed experts: a class reads its own, and files that it wrote may have another.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def moe(k: Keys, width: int, **more: object) -> Spec:
    """A mixture-of-experts layer."""
    total, chosen = k.either(*EXPERTS), k.dim("num_experts_per_tok")
    if chosen > total:
        raise k.error("num_experts_per_tok", f"{chosen} is above the number of experts ({total})")
    return {
        "kind": "moe", "experts": total, "experts_per_token": chosen, "intermediate_size": width,
        "activation": activation(k), **more,
    }  # fmt: skip


def _sparse_layers(k: Keys, n: int) -> list[str]:
    """Qwen's rule: each ``decoder_sparse_step``-th layer is a mixture, but for those in ``mlp_only_layers``."""
    step, plain = k.dim("decoder_sparse_step", 1), set(k.numbers("mlp_only_layers") or ())
    return ["moe" if i not in plain and (i + 1) % step == 0 else "dense" for i in range(n)]


def qwen_moe(k: Keys, shared: bool) -> Spec:
    """Qwen 1.5-MoE and Qwen2-MoE (a gated shared expert, biases on Q, K and V) and Qwen3-MoE (neither)."""
    k.require(*CORE_KV, "num_experts_per_tok", "moe_intermediate_size")
    k.expect("use_sliding_window", False)
    spec, n = base(k, tied=False), num_layers(k)
    width, names = k.dim("moe_intermediate_size"), _sparse_layers(k, n)
    kinds, window = qwen_kinds(k, n, spec["max_context"])
    if shared:
        extra: Spec = {"shared_intermediate_size": k.dim("shared_expert_intermediate_size"), "shared_gate": True}
        attention = gqa(k, qkv_bias=k.flag("qkv_bias", True))
    else:
        k.expect("shared_expert_intermediate_size", 0)
        k.expect("qkv_bias", False)
        k.expect("use_qk_norm", True)
        bias, extra = k.flag("attention_bias", False), {}
        attention = gqa(k, qk_norm="head", qkv_bias=bias, o_bias=bias)
    layers = {"moe": moe(k, width, **extra), "dense": dense(k)}
    return spec | {"ffn": {name: layers[name] for name in dict.fromkeys(names)}} | windowed(
        attention, window, kinds, names
    )  # fmt: skip


def gpt_oss(k: Keys) -> Spec:
    """gpt-oss: sink logits, biases everywhere, every other layer a window of 128."""
    k.require(*CORE_KV, "num_experts_per_tok", "sliding_window")
    k.expect("experts_per_token", k.data["num_experts_per_tok"])
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", True)
    attention = gqa(k, sink_logits=True, qkv_bias=bias, o_bias=bias)
    kinds = k.words("layer_types", n, KINDS) or [KINDS[(i + 1) % 2] for i in range(n)]
    ffn = moe(k, k.dim("intermediate_size"), bias=True, router_bias=True)
    return spec | {"ffn": {"moe": ffn}} | windowed(attention, k.dim("sliding_window"), kinds, ["moe"] * n)


def llama4(k: Keys) -> Spec:
    """Llama 4 with its vision tower: the text model is a section."""
    text = nested(k, "llama4_text", llama4_text, LLAMA4)
    vision = k.section("vision_config")
    if vision:
        text["extra_tensors"] = llama4_vision(vision, text["hidden_size"])
    return text


def llama4_text(k: Keys) -> Spec:
    """Llama 4: chunked attention with rotary embedding, every fourth layer full without; a shared expert."""
    k.require(*CORE_KV, "num_experts_per_tok", "intermediate_size_mlp", "attention_chunk_size")
    spec, n = base(k, tied=False), num_layers(k)
    bias, norm = k.flag("attention_bias", False), k.flag("use_qk_norm", True)
    full = gqa(k, qkv_bias=bias, o_bias=bias, rope=False)
    chunked = {**full, "rope": True, "chunk": k.dim("attention_chunk_size")}
    if norm:  # of rotary layers, and without weights
        chunked |= {"qk_norm": "head", "qk_norm_weights": False}
    width = k.dim("intermediate_size")
    names = [f"{a}/{f}" for a, f in zip(_llama4_attention(k, n), _llama4_ffn(k, n), strict=True)]
    attention, ffn = {"chunked": chunked, "full": full}, {
        "dense": dense(k, "intermediate_size_mlp"),
        "moe": moe(k, width, shared_intermediate_size=width),
    }  # fmt: skip
    used = {part for name in names for part in name.split("/")}
    return spec | {
        "attention": {name: value for name, value in attention.items() if name in used},
        "ffn": {name: value for name, value in ffn.items() if name in used},
        "layers": schedule(names),
    }


def _llama4_attention(k: Keys, n: int) -> list[str]:
    every = k.dim("no_rope_layer_interval", 4)
    rope = k.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(n)]
    if len(rope) != n or not set(rope) <= {0, 1}:
        raise k.error("no_rope_layers", f"must be {n} zeros and ones")
    kinds = k.words("layer_types", n, ("chunked_attention", "full_attention"))
    if kinds and [int(kind == "chunked_attention") for kind in kinds] != rope:
        raise k.error("layer_types", "and no_rope_layers disagree on which layers are chunked; not understood")
    return ["chunked" if on else "full" for on in rope]


def _llama4_ffn(k: Keys, n: int) -> list[str]:
    step = k.dim("interleave_moe_layer_step", 1)
    sparse = k.numbers("moe_layers")
    chosen = set(range(step - 1, n, step) if sparse is None else sparse)
    return ["moe" if i in chosen else "dense" for i in range(n)]


def _mixture(k: Keys, n: int, attention: str, **more: object) -> Spec:
    """The first layers dense, the others routed with shared experts (DeepSeek, GLM 4.5)."""
    first, width = k.dim("first_k_dense_replace", least=0), k.dim("moe_intermediate_size")
    if first > n:
        raise k.error("first_k_dense_replace", f"{first} is above num_hidden_layers ({n})")
    k.expect("moe_layer_freq", 1)
    shared = k.dim("n_shared_experts", least=0) * width
    ffn = {"dense": dense(k), "moe": moe(k, width, shared_intermediate_size=shared, **more)}
    names = ["dense"] * first + ["moe"] * (n - first)
    layers = schedule([f"{attention}/{name}" for name in names])
    return {"ffn": {name: ffn[name] for name in dict.fromkeys(names)}, "layers": layers}


def _mtp(k: Keys, attention: str) -> Spec:
    """Multi-token-prediction layers, apart from the model: a layer, a projection, and embedding and head again."""
    key = "num_mtp_layers" if k.has("num_mtp_layers") else "num_nextn_predict_layers"
    layers = k.dim(key, 0, least=0)
    return {"mtp": {"layers": layers, "layer": f"{attention}/moe", "own_embedding": True}} if layers else {}


def deepseek(k: Keys, version: int) -> Spec:
    """DeepSeek V2 (2), V3, R1, V3.1 and Kimi K2 (3), V3.2 with its indexer (32)."""
    k.require(*CORE, *MLA_KEYS, *MIXTURE_KEYS, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    heads, nope, rope = k.dim("num_attention_heads"), k.dim("qk_nope_head_dim"), k.dim("qk_rope_head_dim")
    k.expect("num_key_value_heads", heads)
    k.expect("head_dim", rope)
    k.expect("qk_head_dim", nope + rope)
    k.expect("attention_bias", False)
    k.expect("mlp_bias", False)
    if "q_lora_rank" not in k.data:
        raise k.error("q_lora_rank", "is missing; write null for none")
    mla: Spec = {
        "kind": "mla", "heads": heads, "q_lora_rank": k.optional("q_lora_rank"), "kv_lora_rank": k.dim("kv_lora_rank"),
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": k.dim("v_head_dim"),
    }  # fmt: skip
    if version == 32:
        first = min(k.dim("first_k_dense_replace", least=0), n)
        k.expect("mlp_layer_types", ["dense"] * first + ["sparse"] * (n - first))
        k.expect("layer_types", ["indexed_attention"] * n)
        mla["indexer"] = {
            "heads": k.dim("index_n_heads"), "head_dim": k.dim("index_head_dim"), "topk": k.dim("index_topk"),
        }  # fmt: skip
    methods = ("greedy", "group_limited_greedy") if version == 2 else ("noaux_tc",)
    k.expect("topk_method", *methods)
    mixture = _mixture(k, n, "mla", correction_bias=version != 2)
    return spec | {"attention": {"mla": mla}} | mixture | _mtp(k, "mla")


def glm4_moe(k: Keys) -> Spec:
    """GLM 4.5 to 4.7: biases on Q, K and V; a mixture like DeepSeek's."""
    k.require(*CORE_KV, *MIXTURE_KEYS)
    spec, n = base(k, tied=False), num_layers(k)
    norm = "head" if k.flag("use_qk_norm", False) else "none"
    attention = gqa(k, qkv_bias=k.flag("attention_bias", False), qk_norm=norm)
    k.expect("topk_method", "noaux_tc")
    mixture = _mixture(k, n, "full", correction_bias=True)
    return spec | {"attention": {"full": attention}} | mixture | _mtp(k, "full")
