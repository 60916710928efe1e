"""Families before Llama: learned positions or ALiBi, LayerNorm, plain feed-forward layers.

Class defaults are those of transformers 5.24.
"""

from __future__ import annotations

from typing import Any

from perfmodel.modelspecs.hf.common import (
    CORE,
    HARMLESS,
    Spec,
    activation,
    base,
    expected,
    gqa,
    num_layers,
    schedule,
    windowed,
    words,
)
from perfmodel.modelspecs.hf.keys import MAX_LAYERS, Keys

#: Keys of GPT-2 and its descendants that shape nothing: the unused classification head, dropout, order of scaling.
GPT2 = words(
    "summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels attn_pdrop "
    "scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn attention_softmax_in_fp32 "
    "scale_attention_softmax_in_fp32 runner_max_sequence_length embed_dropout resid_dropout layerdrop "
    "activation_dropout output_projection"
)
BLOOM = words(
    "slow_but_exact bias_dropout_fusion masked_softmax_fusion skip_bias_add skip_bias_add_qkv offset_alibi "
    "attention_softmax_in_fp32 apply_residual_connection_post_layernorm"
)
MPT = words(
    "emb_pdrop init_config init_device learned_pos_emb logit_scale verbose tokenizer_name norm_type use_pad_tok_in_ffn "
    "fc_type"
)
MPT_ATTENTION = HARMLESS | words(
    "attn_pdrop attn_impl clip_qkv softmax_scale alibi_bias_max rope_impl rope_dail_config rope_hf_config"
)
MPT_GROUPS = ("multihead", "multiquery", "grouped_query")
LAYER_NORM: Spec = {"kind": "layernorm", "bias": True}


def uniform(n: int, attention: Spec, ffn: Spec) -> Spec:
    """Layers that are all alike."""
    return {"attention": {"full": attention}, "ffn": {"dense": ffn}, "layers": schedule(["full/dense"] * n)}


def plain(k: Keys, default: str, bias: bool, width: int | None = None) -> Spec:
    """A feed-forward layer of two matrices; ``width`` is the class's when the file has none."""
    size = k.dim("intermediate_size", width)
    return {
        "kind": "dense", "intermediate_size": size, "gated": False, "bias": bias, "activation": activation(k, default),
    }  # fmt: skip


def positions(rows: int, hidden: int) -> list[Spec]:
    """A table of learned positions."""
    return [{"name": "model.embed_positions.weight", "role": "position", "shape": (rows, hidden)}]


def head_bias(vocabulary: int) -> list[Spec]:
    """A bias on the LM head."""
    return [{"name": "lm_head.bias", "role": "lm_head", "shape": (vocabulary,)}]


def _gpt_names(k: Keys) -> None:
    k.alias(
        hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head", intermediate_size="n_inner",
        max_position_embeddings=("n_positions", "n_ctx"), hidden_act="activation_function",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")


def gpt2(k: Keys) -> Spec:
    """GPT-2: learned positions, biases everywhere, tied embeddings."""
    _gpt_names(k)
    spec, n = base(k, tied=True), num_layers(k)
    spec["extra_tensors"] = positions(spec["max_context"], spec["hidden_size"])
    k.expect("num_key_value_heads", k.data["num_attention_heads"])
    attention = gqa(k, mha_if_absent=True, qkv_bias=True, o_bias=True, rope=False)
    ffn = plain(k, "gelu_new", True, 4 * spec["hidden_size"])
    return spec | {"norm": LAYER_NORM} | uniform(n, attention, ffn)


def gpt_bigcode(k: Keys) -> Spec:
    """SantaCoder, StarCoder: GPT-2 with one key/value head."""
    _gpt_names(k)
    spec, n = base(k, tied=True), num_layers(k)
    spec["extra_tensors"] = positions(spec["max_context"], spec["hidden_size"])
    groups = 1 if k.flag("multi_query", True) else k.dim("num_attention_heads")
    k.expect("num_key_value_heads", groups)
    attention = gqa(k, kv_heads=groups, qkv_bias=True, o_bias=True, rope=False)
    ffn = plain(k, "gelu_pytorch_tanh", True, 4 * spec["hidden_size"])
    return spec | {"norm": LAYER_NORM} | uniform(n, attention, ffn)


def gpt_neox(k: Keys) -> Spec:
    """GPT-NeoX, Pythia, RedPajama: two norms whether attention and feed-forward part are side by side or not."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    k.flag("use_parallel_residual", True)
    bias = k.flag("attention_bias", True)
    attention = gqa(k, mha_if_absent=True, qkv_bias=bias, o_bias=bias)
    return spec | {"norm": LAYER_NORM} | uniform(n, attention, plain(k, "gelu", True))


def gptj(k: Keys) -> Spec:
    """GPT-J: one norm, attention without biases, a bias on the LM head."""
    _gpt_names(k)
    spec, n = base(k, tied=False), num_layers(k)
    spec["extra_tensors"] = head_bias(spec["vocab_size"])
    ffn = plain(k, "gelu_new", True, 4 * spec["hidden_size"])
    return spec | {"norm": {**LAYER_NORM, "per_layer": 1}} | uniform(n, gqa(k, mha_if_absent=True), ffn)


def gpt_neo(k: Keys) -> Spec:
    """GPT-Neo: global and local (window of 256) layers by turns, a bias on the output projection only."""
    k.alias(num_hidden_layers="num_layers", num_attention_heads="num_heads", hidden_act="activation_function")
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    spec, n = base(k, tied=True), num_layers(k)
    spec["extra_tensors"] = positions(spec["max_context"], spec["hidden_size"])
    attention = gqa(k, mha_if_absent=True, o_bias=True, rope=False)
    kinds = [f"{'full' if kind == 'global' else 'sliding'}_attention" for kind in _neo_kinds(k, n)]
    ffn = plain(k, "gelu_new", True, 4 * spec["hidden_size"])
    window = k.dim("window_size", 256)
    return spec | {"norm": LAYER_NORM, "ffn": {"dense": ffn}} | windowed(attention, window, kinds, ["dense"] * n)


def _neo_kinds(k: Keys, n: int) -> list[str]:
    listed = k.words("attention_layers", n, ("global", "local"))
    types: Any = k.data.get("attention_types")
    k.read.add("attention_types")
    if types is None and listed is None:
        raise k.error("attention_types", "is missing; nothing is guessed: add it from the model's own config.json")
    found: list[str] = []
    for item in types if isinstance(types, list) else []:
        pattern, times = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(pattern, list) or type(times) is not int or not 0 <= times * len(pattern) <= MAX_LAYERS:
            raise k.error("attention_types", "must be a list of pairs: a list of 'global' and 'local', and a number")
        found += pattern * times
    kinds = listed if types is None else found
    if kinds is None or len(kinds) != n or not all(kind in ("global", "local") for kind in kinds):
        raise k.error("attention_types", f"must say 'global' or 'local' for each of {n} layers")
    if listed not in (None, kinds):
        raise k.error("attention_layers", "contradicts attention_types")
    return kinds


def opt(k: Keys) -> Spec:
    """OPT: learned positions with two rows more than the context, biases everywhere. The 350M variant is refused."""
    k.alias(intermediate_size="ffn_dim", hidden_act="activation_function")
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=True), num_layers(k)
    k.expect("word_embed_proj_dim", spec["hidden_size"])
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        k.expect(key, True)
    k.expect("_remove_final_layer_norm", False)
    spec["extra_tensors"] = positions(spec["max_context"] + 2, spec["hidden_size"])
    k.expect("num_key_value_heads", k.data["num_attention_heads"])
    attention = gqa(k, mha_if_absent=True, qkv_bias=True, o_bias=True, rope=False)
    return spec | {"norm": LAYER_NORM} | uniform(n, attention, plain(k, "relu", True))


def bloom(k: Keys) -> Spec:
    """BLOOM: ALiBi instead of positions, a norm on the embedding."""
    k.alias(
        hidden_size="n_embed", num_hidden_layers="n_layer", num_attention_heads=("n_head",),
        max_position_embeddings="seq_length",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    spec, n = base(k, tied=True, max_context=2048), num_layers(k)
    spec["extra_tensors"] = [
        {"name": f"model.embed_norm.{part}", "role": "norm", "shape": (spec["hidden_size"],)}
        for part in ("weight", "bias")
    ]
    k.expect("num_key_value_heads", k.data["num_attention_heads"])
    k.expect("intermediate_size", 4 * spec["hidden_size"])
    attention = gqa(k, mha_if_absent=True, qkv_bias=True, o_bias=True, rope=False)
    width = 4 * spec["hidden_size"]
    ffn = {"kind": "dense", "intermediate_size": width, "gated": False, "bias": True, "activation": "gelu"}
    return spec | {"norm": LAYER_NORM} | uniform(n, attention, ffn)


def refined_web(k: Keys) -> Spec:
    """Falcon 40B under its first name, whose class has the grouped architecture only."""
    k.require("n_head_kv")
    k.data = {"new_decoder_architecture": True, **k.data}
    return falcon(k)


def falcon(k: Keys) -> Spec:
    """Falcon: attention and MLP side by side; 7B has one key/value head and one norm, 40B and 180B groups and two."""
    k.alias(
        hidden_size="n_embed", num_hidden_layers="n_layer", num_attention_heads="n_head",
        num_kv_heads=("n_head_kv",), intermediate_size="ffn_hidden_size", hidden_act="activation",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    spec, n = base(k, tied=True, max_context=2048), num_layers(k)
    if not any(k.has(key) for key in ("new_decoder_architecture", "multi_query", "num_kv_heads")):
        k.require("new_decoder_architecture", "multi_query")  # the class would make a 40B model one of one KV head
    grouped, heads = k.flag("new_decoder_architecture", False), k.dim("num_attention_heads")
    multi, parallel = k.flag("multi_query", True), k.flag("parallel_attn", True)
    groups = k.dim("num_kv_heads", heads) if grouped else 1 if multi else heads
    if not grouped and not multi:
        k.expect("num_kv_heads", heads)
    elif (
        not grouped and k.optional("num_kv_heads") not in (None, 1, heads) and "new_decoder_architecture" not in k.data
    ):
        k.require("new_decoder_architecture")  # without it the class ignores the groups
    k.read.add("num_kv_heads")
    k.expect("num_key_value_heads", groups)
    bias, alibi = k.flag("bias", False), k.flag("alibi", False)
    k.read.add("num_ln_in_parallel_attn")
    norms = k.dim("num_ln_in_parallel_attn", 2 if grouped else 1) if parallel else 2
    if norms not in (1, 2):
        raise k.error("num_ln_in_parallel_attn", f"{norms} is not understood; 1 or 2")
    attention = gqa(k, kv_heads=groups, qkv_bias=bias, o_bias=bias, rope=not alibi)
    ffn = plain(k, "gelu", bias, 4 * spec["hidden_size"])
    return spec | {"norm": {**LAYER_NORM, "per_layer": norms}} | uniform(n, attention, ffn)


def mpt(k: Keys) -> Spec:
    """MPT: ALiBi, no biases at all, tied embeddings."""
    k.alias(
        hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads",
        max_position_embeddings="max_seq_len",
    )  # fmt: skip
    k.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    spec, n = base(k, tied=True), num_layers(k)
    k.expect("no_bias", True)
    k.expect("embedding_fraction", 1.0, 1)
    width = k.dim("expansion_ratio", 4) * spec["hidden_size"]
    heads = k.dim("num_attention_heads")
    groups = _mpt_groups(k, heads)
    ffn = {"kind": "dense", "intermediate_size": width, "gated": False, "activation": "gelu"}
    attention = gqa(k, kv_heads=groups, rope=False)
    return spec | {"norm": {"kind": "layernorm"}} | uniform(n, attention, ffn)


def _mpt_groups(k: Keys, heads: int) -> int:
    section = k.section("attn_config")
    if section is None:
        raise k.error("attn_config", "is missing; nothing is guessed: add it from the model's own config.json")
    expected(section)
    section.expect("alibi", True)
    if not section.has("alibi"):
        raise section.error("alibi", "is missing, and only ALiBi is understood")
    for key in ("qk_ln", "prefix_lm", "attn_uses_sequence_id", "qk_gn", "rope"):
        section.expect(key, False)
    section.expect("sliding_window_size", -1)
    kind = section.text("attn_type", [f"{kind}_attention" for kind in MPT_GROUPS], "multihead_attention")
    groups = section.dim("kv_n_heads", {"multihead_attention": heads, "multiquery_attention": 1}.get(kind))
    section.finish(MPT_ATTENTION)
    return groups


def phi(k: Keys) -> Spec:
    """Phi 1 to 2: attention and MLP side by side on one norm, biases everywhere, the LM head too."""
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=False), num_layers(k)
    k.expect("qk_layernorm", False)
    spec["extra_tensors"] = head_bias(spec["vocab_size"])
    attention = gqa(k, mha_if_absent=True, qkv_bias=True, o_bias=True)
    return spec | {"norm": {**LAYER_NORM, "per_layer": 1}} | uniform(n, attention, plain(k, "gelu_new", True))
