"""More families with mixtures of experts. Class defaults are those of transformers 5.24.

Hunyuan-Large's cross-layer attention is read as the makers' code has it (``modeling_hunyuan.py``, also in Aphrodite's
``hunyuan.py``).
"""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import (
    CORE,
    CORE_KV,
    HARMLESS,
    KINDS,
    Spec,
    base,
    dense,
    effective_window,
    expected,
    gqa,
    num_layers,
    schedule,
    windowed,
    words,
)
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.llamas import exaone_kinds, without_rope
from perfmodel.modelspecs.hf.moe import moe

SPARSE = ("dense", "sparse")
DBRX = HARMLESS | words("moe_jitter_eps moe_loss_weight moe_normalize_expert_weights uniform_expert_assignment")


def every_layer(n: int, attention: Spec, ffn: Spec) -> Spec:
    """Layers that are all mixtures."""
    return {"attention": {"full": attention}, "ffn": {"moe": ffn}, "layers": schedule(["full/moe"] * n)}


def mixed(attention: Spec, kinds: list[str], ffn: Spec, width: Spec | None, first: list[bool]) -> Spec:
    """Layers of one attention that are dense or mixtures, as ``first`` says of each."""
    names = ["moe" if sparse else "dense" for sparse in first]
    layers = {"dense": width, "moe": ffn}
    return {
        "attention": {"full": attention}, "ffn": {name: layers[name] for name in dict.fromkeys(names)},
        "layers": schedule([f"{kind}/{name}" for kind, name in zip(kinds, names, strict=True)]),
    }  # fmt: skip


def sparse_layers(k: Keys, n: int, first: int) -> list[bool]:
    """Which layers are mixtures: ``mlp_layer_types``, else all but the first so many."""
    listed = k.words("mlp_layer_types", n, SPARSE)
    found = [i >= first for i in range(n)] if listed is None else [word == "sparse" for word in listed]
    if k.has("first_k_dense_replace") and found != [i >= k.dim("first_k_dense_replace", least=0) for i in range(n)]:
        raise k.error("mlp_layer_types", "contradicts first_k_dense_replace")
    return found


#: What it means for a total that prediction layers are left out.
HUB_HAS_THEM = "a checkpoint that stores them holds more than is counted here, and so does Hugging Face's total"


def minimax_m2(k: Keys) -> Spec:
    """MiniMax-M2: full attention, norms over all of Q and K, no shared expert. Its MTP modules are not published."""
    k.require(*CORE_KV, "num_experts_per_tok", "num_local_experts")
    spec, n = base(k, tied=False), num_layers(k)
    for key, allowed in (("use_qk_norm", True), ("qk_norm_type", "per_layer"), ("use_routing_bias", True)):
        k.expect(key, allowed)
    k.expect("shared_intermediate_size", 0)
    k.expect("sliding_window")
    k.expect("attn_type_list", [1] * n)
    if k.flag("use_mtp", False):
        modules, depth = k.dim("num_mtp_modules", 0, least=0), k.dim("mtp_transformer_layers", 1)
        k.remarks.append(
            f"{modules} prediction (MTP) modules of {depth} layer(s) are left out: the published checkpoints have none"
        )
    k.read |= {"num_mtp_modules", "mtp_transformer_layers"}
    attention = gqa(k, dim=128, qk_norm="full")
    return spec | every_layer(n, attention, moe(k, k.dim("intermediate_size"), correction_bias=True))


def olmoe(k: Keys) -> Spec:
    """OLMoE: norms over all of Q and K, every layer a mixture."""
    k.require(*CORE, "max_position_embeddings", "num_experts_per_tok")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    attention = gqa(k, mha_if_absent=True, qk_norm="full", qkv_bias=bias, o_bias=bias)
    return spec | every_layer(n, attention, moe(k, k.dim("intermediate_size")))


def phimoe(k: Keys) -> Spec:
    """Phi-3.5-MoE: LayerNorm, a window where the file has one."""
    k.require(*CORE_KV, "num_experts_per_tok")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    if k.flag("lm_head_bias", False):
        spec["extra_tensors"] = [{"name": "lm_head.bias", "role": "lm_head", "shape": (spec["vocab_size"],)}]
    window = effective_window(k, k.optional("sliding_window"), spec["max_context"])
    kinds = ["sliding_attention" if window else "full_attention"] * n
    spec |= {"norm": {"kind": "layernorm", "bias": True}, "ffn": {"moe": moe(k, k.dim("intermediate_size"))}}
    return spec | windowed(gqa(k, qkv_bias=bias, o_bias=bias), window, kinds, ["moe"] * n)


def granitemoe(k: Keys) -> Spec:
    """Granite MoE: Granite with mixtures, with a shared expert in ``granitemoeshared``."""
    k.require(*CORE, "max_position_embeddings", "num_experts_per_tok")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    shared = k.dim("shared_intermediate_size", 0, least=0)
    attention = gqa(k, mha_if_absent=True, qkv_bias=bias, o_bias=bias)
    return spec | every_layer(n, attention, moe(k, k.dim("intermediate_size"), shared_intermediate_size=shared))


def ernie4_5_moe(k: Keys) -> Spec:
    """ERNIE 4.5: first layers dense, shared experts, a bias switch for all but the router."""
    k.alias(num_experts="moe_num_experts", num_experts_per_tok="moe_k")
    k.require(*CORE_KV, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    spec, n = base(k, tied=True), num_layers(k)
    k.expect("use_bias", False)
    k.expect("mlp_bias", False)
    start, step = k.dim("moe_layer_start_index", 1, least=0), k.dim("moe_layer_interval", 1)
    last = k.data.get("moe_layer_end_index", -1)
    k.read.add("moe_layer_end_index")
    if type(last) is not int or last < -1:
        raise k.error("moe_layer_end_index", "must be a whole number from -1 (the last layer)")
    last = n - 1 if last == -1 else last
    width = k.dim("moe_intermediate_size")
    shared = width * k.dim("moe_num_shared_experts", 2, least=0)
    ffn = moe(k, width, shared_intermediate_size=shared, correction_bias=True)
    sparse = [(i + 1) % step == 0 and start <= i <= last for i in range(n)]
    spec |= mixed(gqa(k), ["full"] * n, ffn, dense(k), sparse)
    layers = k.dim("num_nextn_predict_layers", 0, least=0)
    if layers:
        spec["ffn"]["dense"] = dense(k)
        spec["mtp"] = {"layers": layers, "layer": "full/dense", "final_norm": False}
    return spec


def dbrx(k: Keys) -> Spec:
    """DBRX: LayerNorm without bias, clipped Q, K and V."""
    k.alias(
        hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads",
        max_position_embeddings="max_seq_len",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    k.require("attn_config", "ffn_config")
    attention, inner = k.section("attn_config"), k.section("ffn_config")
    if attention is None or inner is None:
        raise AssertionError("require raises")
    expected(attention)
    expected(inner)
    groups = attention.dim("kv_n_heads")
    attention.finish(HARMLESS | words("attn_pdrop clip_qkv"))
    total, chosen = inner.dim("moe_num_experts"), inner.dim("moe_top_k")
    if chosen > total:
        raise inner.error("moe_top_k", f"{chosen} is above the number of experts ({total})")
    ffn = {
        "kind": "moe", "experts": total, "experts_per_token": chosen, "intermediate_size": inner.dim("ffn_hidden_size"),
    }  # fmt: skip
    inner.expect("ffn_act_fn", {"name": "silu"})
    inner.expect("hidden_size", spec["hidden_size"])
    inner.finish(DBRX)
    k.expect("num_key_value_heads", groups)
    return spec | {"norm": {"kind": "layernorm"}} | every_layer(n, gqa(k, kv_heads=groups), ffn)


def exaone_moe(k: Keys) -> Spec:
    """K-EXAONE: windowed layers by a pattern, norms on the heads of Q and K, shared experts."""
    k.require(*CORE_KV, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    spec, n = base(k, tied=False), num_layers(k)
    width = k.dim("moe_intermediate_size")
    shared = width * k.dim("num_shared_experts", 1, least=0)
    kinds, window = exaone_kinds(k, spec, n)
    ffn = moe(k, width, shared_intermediate_size=shared, correction_bias=True)
    names = ["moe" if on else "dense" for on in sparse_layers(k, n, 1)]
    layers = {"dense": dense(k), "moe": ffn}
    spec |= {"ffn": {name: layers[name] for name in dict.fromkeys(names)}}
    spec |= without_rope(windowed(gqa(k, qk_norm="head"), window, kinds, names))
    if k.dim("num_nextn_predict_layers", 0, least=0):
        k.remarks.append(
            f"num_nextn_predict_layers: prediction (MTP) layers are left out, no key describes them: {HUB_HAS_THEM}"
        )
    return spec


def hy_v3(k: Keys) -> Spec:
    """Hunyuan 3: first layer dense, norms on the heads of Q and K, a score correction an expert."""
    k.require(*CORE_KV, "num_experts_per_tok", "moe_intermediate_size")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    k.expect("mlp_bias", False)
    k.expect("qk_norm", True)
    k.expect("moe_router_use_sigmoid", True)
    k.expect("moe_router_enable_expert_bias", True)
    width = k.dim("moe_intermediate_size")
    k.expect("expert_hidden_dim", width)
    shared = width * k.dim("num_shared_experts", 1, least=0)
    ffn = moe(k, width, shared_intermediate_size=shared, correction_bias=True)
    attention = gqa(k, dim=128, qk_norm="head", qkv_bias=bias, o_bias=bias)
    spec |= mixed(attention, ["full"] * n, ffn, dense(k), sparse_layers(k, n, 1))
    layers = k.dim("num_nextn_predict_layers", 0, least=0)
    return spec | ({"mtp": {"layers": layers, "layer": "full/moe"}} if layers else {})


def hunyuan_moe(k: Keys) -> Spec:
    """Hunyuan A13B: a shared expert beside the routed ones, norms on the heads of Q and K."""
    k.require(*CORE, "max_position_embeddings", "num_experts", "moe_topk")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    k.expect("mlp_bias", False)
    k.expect("use_cla", False)
    k.expect("use_qk_norm", True)
    k.expect("use_mixed_mlp_moe", True)
    attention = gqa(k, mha_if_absent=True, qk_norm="head", qkv_bias=bias, o_bias=bias)
    return spec | every_layer(n, attention, _hunyuan_experts(k, n))


def _hunyuan_experts(k: Keys, n: int) -> Spec:
    """One routed mixture with one shared expert of the same width, in every layer."""
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        value = k.data.get(key)
        if isinstance(value, list):
            if len(value) != n or any(item != value[0] for item in value):
                raise k.error(key, f"differs among layers or has not {n} entries: not understood")
            k.data = {**k.data, key: value[0]}
    k.alias(num_experts_per_tok="moe_topk")
    width = k.dim("intermediate_size")
    k.expect("moe_intermediate_size", width)
    k.expect("num_shared_expert", 1)
    return moe(k, width, shared_intermediate_size=width)


def hunyuan(k: Keys) -> Spec:
    """Hunyuan-Large: every second layer attends to the keys and values of the layer before (CLA)."""
    k.require(*CORE_KV, "num_experts", "moe_topk")
    spec, n = base(k, tied=False), num_layers(k)
    k.expect("use_mixed_mlp_moe", True)
    k.expect("attention_bias", False)
    share = k.dim("cla_share_factor", 1) if k.flag("use_cla", False) else 1
    k.read.add("cla_share_factor")
    norm = "head" if k.flag("use_qk_norm", False) else "none"
    own = gqa(k, qk_norm=norm)
    names = ["own" if i % share == 0 else "shared" for i in range(n)]
    attention = {"own": own, "shared": {**own, "shared_kv": True, "norms_shared_k": True}}
    return spec | {
        "attention": {name: attention[name] for name in dict.fromkeys(names)}, "ffn": {"moe": _hunyuan_experts(k, n)},
        "layers": schedule([f"{name}/moe" for name in names]),
    }  # fmt: skip


def mimo_v2_flash(k: Keys) -> Spec:
    """MiMo-V2-Flash: keys wider than values, windowed layers with heads and sinks of their own, first layer dense."""
    k.require(*CORE_KV, "moe_intermediate_size", "num_experts_per_tok", "head_dim", "v_head_dim", "sliding_window")
    spec, n = base(k, tied=False), num_layers(k)
    bias = k.flag("attention_bias", False)
    k.expect("attention_projection_layout", "split")
    k.expect("topk_method", "noaux_tc")
    k.expect("n_shared_experts", 0)
    sinks = k.flag("add_full_attention_sink_bias", False)
    full = gqa(k, v_head_dim=k.dim("v_head_dim"), qkv_bias=bias, sink_logits=sinks)
    kinds, window = _mimo_kinds(k, n)
    heads = k.dim("swa_num_attention_heads", full["heads"])
    groups = k.dim("swa_num_key_value_heads", 2 * full["kv_heads"])
    if heads % groups:
        raise k.error("swa_num_key_value_heads", f"{groups} does not divide swa_num_attention_heads ({heads})")
    swa: Spec = {
        **full, "heads": heads, "kv_heads": groups, "head_dim": k.dim("swa_head_dim", full["head_dim"]),
        "v_head_dim": k.dim("swa_v_head_dim", full["v_head_dim"]), "window": window,
        "sink_logits": k.flag("add_swa_attention_sink_bias", True),
    }  # fmt: skip
    k.remarks.append(f"prediction (MTP) layers are left out, no key describes them: {HUB_HAS_THEM}")
    ffn = moe(k, k.dim("moe_intermediate_size"), correction_bias=True)
    parts, names = {"full": full, "sliding": swa}, [f"{a}/{f}" for a, f in zip(kinds, _mimo_ffn(k, n), strict=True)]
    layers = {"dense": dense(k), "moe": ffn}
    used = {part for name in names for part in name.split("/")}
    return spec | {
        "attention": {name: value for name, value in parts.items() if name in used},
        "ffn": {name: value for name, value in layers.items() if name in used}, "layers": schedule(names),
    }  # fmt: skip


def _mimo_kinds(k: Keys, n: int) -> tuple[list[str], int]:
    """Attention of each layer and the window. sliding_window_size, SGLang's word, leaves out the query itself."""
    window = k.dim("sliding_window_size") + 1 if k.has("sliding_window_size") else k.dim("sliding_window")
    k.read |= {"sliding_window", "sliding_window_size", "attention_chunk_size"}
    pattern = k.numbers("hybrid_layer_pattern", n)
    listed = k.words("layer_types", n, KINDS)
    if pattern is None and listed is None:
        raise k.error("hybrid_layer_pattern", "is missing, as is layer_types; one of them is needed")
    if pattern is not None and not set(pattern) <= {0, 1}:
        raise k.error("hybrid_layer_pattern", f"must be {n} zeros and ones")
    named = [word.removesuffix("_attention") for word in listed or ()]
    kinds = named if pattern is None else ["sliding" if on else "full" for on in pattern]
    if named and kinds != named:
        raise k.error("hybrid_layer_pattern", "contradicts layer_types")
    return kinds, window


def _mimo_ffn(k: Keys, n: int) -> list[str]:
    freq, listed = k.numbers("moe_layer_freq", n), k.words("mlp_layer_types", n, SPARSE)
    if freq is None and listed is None:
        raise k.error("moe_layer_freq", "is missing, as is mlp_layer_types; one of them is needed")
    if freq is not None and not set(freq) <= {0, 1}:
        raise k.error("moe_layer_freq", f"must be {n} zeros and ones")
    named = ["moe" if word == "sparse" else "dense" for word in listed or ()]
    found = named if freq is None else ["moe" if on else "dense" for on in freq]
    if named and found != named:
        raise k.error("moe_layer_freq", "contradicts mlp_layer_types")
    return found
