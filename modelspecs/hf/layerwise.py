"""Families whose layers differ one by one: Nemotron Super and Ultra, OpenELM, Step 3.5 and 3.7.

Nemotron's blocks are read as ``modeling_decilm.py`` of the checkpoints has them, OpenELM as Apple's
``modeling_openelm.py``; Step is the class of transformers 5.24.
"""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import (
    KINDS,
    ROUTING,
    Spec,
    base,
    dense,
    effective_window,
    gqa,
    head_dim,
    num_layers,
    schedule,
    words,
)
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.mixtures import sparse_layers
from perfmodel.modelspecs.hf.moe import moe

NAS = words("num_key_value_heads intermediate_size")
OPENELM = words("initializer_range rope_freq_constant rope_max_length normalization_layer_name")
STEP = ROUTING | words(
    "att_impl_type moe_router_activation need_fp32_gate yarn_only_types zero_centered swiglu_limits "
    "swiglu_limits_shared partial_rotary_factors max_seq_len query_pre_attn_scalar moe_router_scaling_factor sink "
    "image_token_id projector_bias"
)


def nemotron_nas(k: Keys) -> Spec:
    """Llama-Nemotron Super and Ultra: each block has its own groups and width, or none of either part."""
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "block_configs")
    k.require("max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    heads = k.dim("num_attention_heads")
    size, bias, mlp_bias = head_dim(k, heads), k.flag("attention_bias", False), k.flag("mlp_bias", False)
    attention: Spec = {}
    ffn: Spec = {}
    names = []
    for block in k.sections("block_configs", n):
        a, f = _block_attention(block, heads), _block_width(block, spec["hidden_size"])
        mixer, mlp = f"groups{a}" if a else "none", f"dense{f}" if f else "none"
        both = {"heads": heads, "kv_heads": a, "head_dim": size, "qkv_bias": bias, "o_bias": bias}
        attention[mixer] = {"kind": "gqa", **both} if a else {"kind": "none"}
        ffn[mlp] = {"kind": "dense", "intermediate_size": f, "bias": mlp_bias} if f else {"kind": "none"}
        names.append(f"{mixer}/{mlp}")
        block.finish(())
    k.text("hidden_act", ("silu",), "silu")
    return spec | {"attention": attention, "ffn": ffn, "layers": schedule(names)}


def _block_attention(block: Keys, heads: int) -> int | None:
    """Key/value heads of a block's attention, or none where it is left out."""
    part = block.section("attention")
    if part is None:
        raise block.error("attention", "is missing")
    for key in ("replace_with_linear", "unshifted_sink", "use_prefill_window_in_sink_attention"):
        part.expect(key, False)
    for key in ("sparsify", "window_length", "num_sink_tokens"):
        part.expect(key)
    absent = part.flag("no_op", False)
    group = None if absent else part.dim("n_heads_in_group")
    part.read.add("n_heads_in_group")
    part.finish(())
    if group is None:
        return None
    if heads % group:
        raise part.error("n_heads_in_group", f"{group} does not divide num_attention_heads ({heads})")
    return heads // group


def _block_width(block: Keys, hidden: int) -> int | None:
    """Width of a block's feed-forward part, or none: ``2/3 mult hidden``, rounded up to a multiple of 256."""
    part = block.section("ffn")
    if part is None:
        raise block.error("ffn", "is missing")
    part.expect("replace_with_linear", False)
    part.expect("sparsify")
    absent = part.flag("no_op", False)
    mult = None if absent else part.number("ffn_mult", 1e-3, 1e3)
    part.read.add("ffn_mult")
    part.finish(())
    return None if mult is None else -(-int(2 * mult * hidden / 3) // 256) * 256


def openelm(k: Keys) -> Spec:
    """OpenELM: heads, groups and width grow from layer to layer; norms on the heads of Q and K."""
    k.alias(hidden_size="model_dim", num_hidden_layers="num_transformer_layers")
    k.alias(max_position_embeddings="max_context_length")
    k.require("hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "max_position_embeddings")
    k.require("num_query_heads", "num_kv_heads", "ffn_multipliers", "ffn_dim_divisor")
    tied = k.flag("share_input_output_layers", True)
    spec, n = base(k, tied=tied), num_layers(k)
    spec["tied_embeddings"] = tied
    k.expect("ffn_with_glu", True)
    k.text("activation_fn_name", ("swish",), "swish")
    norm = "head" if k.flag("normalize_qk_projections", True) else "none"
    k.read |= {"qkv_multipliers", "num_gqa_groups"}
    heads, groups = k.numbers("num_query_heads", n) or [], k.numbers("num_kv_heads", n) or []
    size, divisor = k.dim("head_dim"), k.dim("ffn_dim_divisor")
    attention: Spec = {}
    ffn: Spec = {}
    names = []
    for h, g, m in zip(heads, groups, _multipliers(k, n), strict=True):
        if not g or h % g:
            raise k.error("num_kv_heads", f"{g} does not divide the {h} query heads of its layer")
        width = _divisible(m * spec["hidden_size"], divisor)
        mixer, mlp = f"heads{h}", f"dense{width}"
        if attention.get(mixer, {}).get("kv_heads", g) != g:
            mixer = f"heads{h}groups{g}"
        attention[mixer] = {"kind": "gqa", "heads": h, "kv_heads": g, "head_dim": size, "qk_norm": norm}
        ffn[mlp] = {"kind": "dense", "intermediate_size": width}
        names.append(f"{mixer}/{mlp}")
    return spec | {"attention": attention, "ffn": ffn, "layers": schedule(names)}


def _multipliers(k: Keys, n: int) -> list[float]:
    values = k.data["ffn_multipliers"]
    k.read.add("ffn_multipliers")
    if not isinstance(values, list) or len(values) != n:
        raise k.error("ffn_multipliers", f"must be a list of {n} numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
            raise k.error("ffn_multipliers", "must hold numbers above 0, at most 1000")
    return [float(value) for value in values]


def _divisible(value: float, divisor: int) -> int:
    """The nearest multiple of a divisor, at least it, and not below 90 % of the value (MobileNet's rule)."""
    found = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return found + divisor if found < 0.9 * value else found


def step3(k: Keys) -> Spec:
    """Step 3.5 and 3.7 Flash: gates on the heads, windowed layers with heads of their own, a shared expert."""
    if k.has("text_config"):
        raise k.error("text_config", "Step 3.7 with its vision tower is not understood; the language model alone is")
    k.alias(
        num_key_value_heads="num_attention_groups", num_experts_per_tok="moe_top_k",
        num_experts=("n_routed_experts", "moe_num_experts", "num_local_experts"),
        share_expert_dim="share_expert_dims", num_nextn_predict_layers="num_mtp_layers",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    k.require("vocab_size", "max_position_embeddings", "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    k.require("share_expert_dim", "layer_types", "sliding_window")
    spec, n = base(k, tied=False), num_layers(k)
    after = k.dim("num_nextn_predict_layers", 0, least=0)
    bias = k.flag("attention_bias", False)
    for key, allowed in (("use_head_wise_attn_gate", True), ("use_qk_norm", True), ("use_moe", True)):
        k.expect(key, allowed)
    k.expect("mlp_bias", False)
    k.expect("use_moe_router_bias", True)
    k.expect("n_shared_experts", 1)
    full = gqa(k, dim=128, qk_norm="head", qkv_bias=bias, o_bias=bias, head_gate=True)
    window = effective_window(k, k.dim("sliding_window"), spec["max_context"])
    sliding = {**full, **_sliding_heads(k, full), "window": window}
    kinds, more = _step_kinds(k, n, after)
    shared = k.dim("share_expert_dim")
    ffn = moe(k, k.dim("moe_intermediate_size"), shared_intermediate_size=shared, correction_bias=True)
    names = ["moe" if on else "dense" for on in _step_sparse(k, n)]
    parts, layers = {"full": full, "sliding": sliding}, {"dense": dense(k), "moe": ffn}
    spec |= {
        "attention": {name: parts[name] for name in dict.fromkeys((*kinds, *more))},
        "ffn": {name: layers[name] for name in dict.fromkeys((*names, *(["dense"] if more else [])))},
        "layers": schedule([f"{a}/{f}" for a, f in zip(kinds, names, strict=True)]),
    }  # fmt: skip
    if more:
        if len(set(more)) > 1:
            raise k.error("layer_types", "differs among the prediction layers: not understood")
        spec["mtp"] = {"layers": after, "layer": f"{more[0]}/dense", "own_head": True}
    return spec


def _sliding_heads(k: Keys, full: Spec) -> Spec:
    """Heads of the windowed layers. The published models have 96 there and 64 in the full layers: not to be guessed."""
    other = k.section("attention_other_setting")
    if other is None:
        k.require("num_sliding_attention_heads")
        heads = k.dim("num_sliding_attention_heads")
    else:
        heads = other.dim("num_attention_heads", full["heads"])
        other.expect("attention_type", "sliding_attention")
        other.expect("num_attention_groups", full["kv_heads"])
        for key in ("head_dim", "true_head_dim"):
            other.expect(key, full["head_dim"])
        other.finish(())
        k.expect("num_sliding_attention_heads", heads)
    _expect_heads(k, heads)
    if heads % full["kv_heads"]:
        raise k.error("num_sliding_attention_heads", f"{heads} is not a multiple of the {full['kv_heads']} KV heads")
    return {"heads": heads}


def _expect_heads(k: Keys, heads: int) -> None:
    """transformers writes the heads of the windowed layers a second time, one by one."""
    listed = k.section("per_layer_config")
    for index in listed.data if listed else ():
        inner = listed.section(index) if listed else None
        if inner:
            inner.expect("num_attention_heads", heads)
            inner.finish(())


def _step_kinds(k: Keys, n: int, after: int) -> tuple[list[str], list[str]]:
    """Kinds of the layers and of the prediction layers, which older files list at the end."""
    listed = k.data["layer_types"]
    long = isinstance(listed, list) and len(listed) == n + after
    kinds = [kind.removesuffix("_attention") for kind in k.words("layer_types", n + after if long else n, KINDS) or ()]
    more = [kind.removesuffix("_attention") for kind in k.words("mtp_layer_types", after, KINDS) or ()]
    rest = kinds[n:] if long else []
    if rest and more and rest != more:
        raise k.error("mtp_layer_types", "contradicts the end of layer_types")
    return kinds[:n], (more or rest or ["sliding"] * after)


def _step_sparse(k: Keys, n: int) -> list[bool]:
    """Which layers are mixtures: ``mlp_layer_types``, ``moe_layers_enum``, else all from the fourth on."""
    enum = k.data.get("moe_layers_enum")
    k.read.add("moe_layers_enum")
    k.words("mtp_mlp_layer_types", k.dim("num_nextn_predict_layers", 0, least=0), ("dense",))
    if enum is None:
        return sparse_layers(k, n, k.dim("first_k_dense_replace", 3, least=0))
    items = enum.split(",") if isinstance(enum, str) else enum
    if not isinstance(items, list) or len(items) > n or not all(str(item).strip().isdigit() for item in items):
        raise k.error("moe_layers_enum", "must be a list of layer numbers")
    chosen = {int(item) for item in items}
    found = [i in chosen for i in range(n)]
    if k.has("mlp_layer_types") and sparse_layers(k, n, 3) != found:
        raise k.error("moe_layers_enum", "contradicts mlp_layer_types")
    return found
