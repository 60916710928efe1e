"""Families of Hugging Face configurations with Mamba layers. Class defaults are those of transformers 5.24."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from perfmodel.modelspecs.hf.common import (
    CORE_KV,
    Spec,
    activation,
    base,
    dense,
    expected,
    gqa,
    num_layers,
    schedule,
    words,
)
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.moe import moe

#: Numerics of the scan and of its initial values, and switches between kernels that compute the same.
SCAN = words(
    "time_step_rank time_step_floor time_step_init_scheme time_step_limit time_step_max time_step_min time_step_scale "
    "rescale_prenorm_residual residual_in_fp32 use_mamba_kernels use_mambapy use_falcon_mambapy use_associative_scan "
    "use_mem_eff_path fused_add_norm pad_vocab_size_multiple num_logits_to_keep mixer_rms_eps expand mamba_expand "
    "calc_logits_for_entire_prompt mamba_norm_before_gate mamba_act mamba_hidden_act"
)
#: Scalars that multiply activations (muP).
MULTIPLIERS = words(
    "embedding_multiplier lm_head_multiplier logits_scaling residual_multiplier attention_multiplier key_multiplier "
    "attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier ssm_multipliers "
    "mlp_multipliers init_method normalization_function z_loss_coefficient"
)
STATE_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": ""}
#: A model without attention has no longest context; this is as far as tables go.
UNBOUNDED = 262_144


def state_format(k: Keys, key: str) -> str | None:
    """Format of the recurrent state where the configuration names one."""
    return STATE_FORMATS[k.text(key, STATE_FORMATS, "auto")] or None


def mamba2_mixer(k: Keys, heads: int, head_dim: int, state: int, groups: int, **more: object) -> Spec:
    """A Mamba-2 mixer; groups that do not divide the heads are refused."""
    if heads % groups:
        raise k.error("n_groups", f"{groups} does not divide the {heads} heads of the mixer")
    return {"kind": "mamba2", "heads": heads, "head_dim": head_dim, "state": state, "groups": groups, **more}


def rank(k: Keys, key: str) -> int:
    """Rank of the time step's projection: ``"auto"`` is a sixteenth of the width, rounded up."""
    if k.data.get(key, "auto") == "auto":
        k.read.add(key)
        return ceil(k.dim("hidden_size") / 16)
    return k.dim(key)


def _attention_free(k: Keys, tied: bool, mixer: Spec, inner: int) -> Spec:
    """Layers that are a mixer alone."""
    k.expect("intermediate_size", inner)
    k.expect("d_inner", inner)
    k.expect("rms_norm", True)
    k.expect("ssm_cfg", {})
    n = num_layers(k)
    activation(k)
    if not k.has("max_position_embeddings"):
        k.remarks.append(f"no longest context: {UNBOUNDED} tokens")
    return base(k, tied, UNBOUNDED) | {
        "attention": {"mamba": mixer}, "ffn": {"none": {"kind": "none"}}, "layers": schedule(["mamba/none"] * n),
    }  # fmt: skip


def mamba(k: Keys) -> Spec:
    """Mamba and Falcon-Mamba: the selective scan, tied embeddings unless the file says otherwise."""
    k.alias(hidden_size="d_model", num_hidden_layers="n_layer")
    k.require("hidden_size", "num_hidden_layers", "vocab_size", "state_size")
    inner = k.dim("expand", 2) * k.dim("hidden_size")
    mixer: Spec = {
        "kind": "mamba1", "inner": inner, "state": k.dim("state_size"), "dt_rank": rank(k, "time_step_rank"),
        "conv_kernel": k.dim("conv_kernel", 4), "conv_bias": k.flag("use_conv_bias", True),
        "proj_bias": k.flag("use_bias", False),
    }  # fmt: skip
    return _attention_free(k, True, mixer, inner)


def mamba2(k: Keys) -> Spec:
    """Mamba-2 (Mamba-Codestral): state-space duality, heads of ``head_dim`` channels."""
    k.require("hidden_size", "num_hidden_layers", "vocab_size", "num_heads", "head_dim", "state_size", "n_groups")
    heads, size, hidden = k.dim("num_heads"), k.dim("head_dim"), k.dim("hidden_size")
    if k.dim("expand", 2) * hidden != heads * size:
        raise k.error("num_heads", f"{heads} heads of {size} are not expand x hidden_size")
    k.read.add("time_step_rank")  # of Mamba-1's class: the time step is one number a head here
    mixer = mamba2_mixer(
        k, heads, size, k.dim("state_size"), k.dim("n_groups"), conv_kernel=k.dim("conv_kernel", 4),
        conv_bias=k.flag("use_conv_bias", True), proj_bias=k.flag("use_bias", False),
        scan_chunk=k.dim("chunk_size", 256),
    )  # fmt: skip
    return _attention_free(k, False, mixer, heads * size)


def runs(layers: Sequence[str], longest: int = 24) -> list[Spec]:
    """Runs of a list of layers, each the repeated pattern that reaches furthest from where the last one ended.

    >>> runs(["m", "e", "m", "e", "a", "m", "e", "m", "e", "a", "m"])
    [{'repeat': 2, 'pattern': ('m', 'e', 'm', 'e', 'a')}, {'repeat': 1, 'pattern': ('m',)}]
    """
    found: list[Spec] = []
    start = 0
    while start < len(layers):
        best = (1, 1)
        for period in range(1, min(longest, len(layers) - start) + 1):
            end = start + period
            while end < len(layers) and layers[end] == layers[end - period]:
                end += 1
            repeat = (end - start) // period
            if repeat > 1 and repeat * period > best[0] * best[1]:
                best = (repeat, period)
        repeat, period = best
        found.append({"repeat": repeat, "pattern": tuple(layers[start : start + period])})
        start += repeat * period
    return found


def hybrid(spec: Spec, attention: Spec, ffn: Spec, mixers: Sequence[str], ffns: Sequence[str]) -> Spec:
    """A schedule of ``mixer/ffn``, with the variants that occur in it."""
    return spec | {
        "attention": {name: attention[name] for name in dict.fromkeys(mixers)},
        "ffn": {name: ffn[name] for name in dict.fromkeys(ffns)},
        "layers": runs([f"{a}/{f}" for a, f in zip(mixers, ffns, strict=True)]),
    }


def _every(k: Keys, what: str, n: int) -> list[bool]:
    """Which layers are ``what`` (Jamba): each ``period``-th, from an offset."""
    period, offset = k.dim(f"{what}_layer_period"), k.dim(f"{what}_layer_offset", least=0)
    if offset >= period:
        raise k.error(f"{what}_layer_offset", f"{offset} must be below {what}_layer_period ({period})")
    return [i % period == offset for i in range(n)]


def jamba(k: Keys) -> Spec:
    """Jamba: Mamba layers with norms inside, attention without positions now and then, every other layer a mixture."""
    k.require(
        *CORE_KV, "attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset",
        "mamba_d_state", "num_experts_per_tok",
    )  # fmt: skip
    k.expect("sliding_window")
    k.expect("mamba_inner_layernorms", True)
    spec, n, inner = base(k, tied=False), num_layers(k), k.dim("mamba_expand", 2) * k.dim("hidden_size")
    mixer: Spec = {
        "kind": "mamba1", "inner": inner, "state": k.dim("mamba_d_state"), "dt_rank": rank(k, "mamba_dt_rank"),
        "conv_kernel": k.dim("mamba_d_conv", 4), "conv_bias": k.flag("mamba_conv_bias", True),
        "proj_bias": k.flag("mamba_proj_bias", False), "inner_norms": True,
    }  # fmt: skip
    experts = k.either("num_experts", "num_local_experts")
    ffn = {"dense": dense(k)}
    if experts > 1:
        ffn["moe"] = moe(k, k.dim("intermediate_size"))
    names = ["full" if here else "mamba" for here in _every(k, "attn", n)]
    ffns = ["moe" if here and experts > 1 else "dense" for here in _every(k, "expert", n)]
    k.dim("num_experts_per_tok")
    return hybrid(spec, {"mamba": mixer, "full": gqa(k, rope=False)}, ffn, names, ffns)


def _bamba_mixer(k: Keys, inner: int, **more: object) -> Spec:
    """Mamba-2 under the key names of Bamba, Granite 4 and Falcon-H1."""
    heads = k.dim("mamba_n_heads")
    if k.data.get("mamba_d_head", "auto") == "auto":
        k.read.add("mamba_d_head")
        size = inner // heads
    else:
        size = k.dim("mamba_d_head")
    if heads * size != inner:
        raise k.error("mamba_n_heads", f"{heads} heads of {size} are not the {inner} channels of the mixer")
    return mamba2_mixer(
        k, heads, size, k.dim("mamba_d_state"), k.dim("mamba_n_groups"), conv_kernel=k.dim("mamba_d_conv", 4),
        conv_bias=k.flag("mamba_conv_bias", True), proj_bias=k.flag("mamba_proj_bias", False),
        scan_chunk=k.dim("mamba_chunk_size", 256), **more,
    )  # fmt: skip


BAMBA = ("mamba_n_heads", "mamba_d_state", "mamba_n_groups")


def bamba(k: Keys) -> Spec:
    """Bamba: Mamba-2 layers with an attention layer now and then, a dense feed-forward part in each."""
    k.require(*CORE_KV, *BAMBA)
    spec, n = base(k, tied=False), num_layers(k)
    bias, chosen = k.flag("attention_bias", False), set(k.numbers("attn_layer_indices") or ())
    mixer = _bamba_mixer(k, k.dim("mamba_expand", 2) * k.dim("hidden_size"))
    names = ["full" if i in chosen else "mamba" for i in range(n)]
    attention = {"mamba": mixer, "full": gqa(k, qkv_bias=bias, o_bias=bias)}
    return hybrid(spec, attention, {"dense": dense(k, bias=k.flag("mlp_bias", False))}, names, ["dense"] * n)


def granite_hybrid(k: Keys) -> Spec:
    """Granite 4: Mamba-2 and attention layers, each with a shared feed-forward part and, in some models, experts."""
    k.alias(layer_types="layers_block_type")
    k.require(*CORE_KV, "shared_intermediate_size", "layer_types", *BAMBA)
    spec, n = base(k, tied=False), num_layers(k)
    kinds = k.words("layer_types", n, ("mamba", "attention", "linear_attention", "full_attention")) or []
    names = ["full" if kind in ("attention", "full_attention") else "mamba" for kind in kinds]
    rope = k.text("position_embedding_type", ("rope", "nope"), "nope") == "rope"
    bias, shared = k.flag("attention_bias", False), k.dim("shared_intermediate_size")
    attention = {
        "mamba": _bamba_mixer(k, k.dim("mamba_expand", 2) * k.dim("hidden_size")),
        "full": gqa(k, rope=rope, qkv_bias=bias, o_bias=bias),
    }
    width = k.dim("intermediate_size")
    k.read |= {"num_experts_per_tok"}
    if k.dim("num_local_experts", 8, least=0):
        return hybrid(spec, attention, {"moe": moe(k, width, shared_intermediate_size=shared)}, names, ["moe"] * n)
    return hybrid(spec, attention, {"dense": dense(k, "shared_intermediate_size")}, names, ["dense"] * n)


def falcon_h1(k: Keys) -> Spec:
    """Falcon-H1: attention heads and a Mamba-2 mixer side by side in every layer, their outputs added."""
    k.require(*CORE_KV, *BAMBA)
    k.expect("attn_layer_indices")
    k.expect("mamba_use_mlp", True)
    k.expect("projectors_bias", k.flag("mamba_proj_bias", False))
    spec, n, bias = base(k, tied=False), num_layers(k), k.flag("attention_bias", False)
    wide = k.optional("mamba_d_ssm") or k.dim("mamba_expand", 2) * k.dim("hidden_size")
    mixer = _bamba_mixer(k, wide, gated_norm=k.flag("mamba_rms_norm", False))
    both = gqa(k, qkv_bias=bias, o_bias=bias, beside=mixer)
    k.read |= {"mlp_expansion_factor"}  # intermediate_size says it
    return hybrid(
        spec, {"both": both}, {"dense": dense(k, bias=k.flag("mlp_bias", False))}, ["both"] * n, ["dense"] * n
    )


NEMOTRON = {
    "M": "mamba", "*": "full", "E": "moe", "-": "mlp",
    "mamba": "mamba", "linear_attention": "mamba", "attention": "full", "full_attention": "full",
    "moe": "moe", "mlp": "mlp",
}  # fmt: skip
#: A layer of Nemotron-H is one part alone.
ALONE = {"mamba": "mamba/none", "full": "full/none", "moe": "none/moe", "mlp": "none/mlp"}


def _pattern(k: Keys, pattern: str, kinds: str, default: str) -> list[str]:
    """Kinds of the layers: a string with a letter a layer, or a list with a word a layer."""
    k.read |= {pattern, kinds}
    text, listed = k.data.get(pattern), k.data.get(kinds)
    if text is not None and (not isinstance(text, str) or not set(text) <= set("M*E-") or len(text) > 10_000):
        raise k.error(pattern, "must be a string of M, *, E and -")
    found = k.words(kinds, len(listed), NEMOTRON) if isinstance(listed, list) else k.words(kinds, 0, ())
    if text is not None and found is not None and [NEMOTRON[c] for c in text] != [NEMOTRON[w] for w in found]:
        raise k.error(kinds, f"and {pattern} disagree")
    return [NEMOTRON[name] for name in (found or text or default)]


def nemotron_h(k: Keys) -> Spec:
    """Nemotron-H and Nemotron 3: a layer is one of Mamba-2, attention without positions, feed-forward or experts."""
    k.alias(head_dim="attention_head_dim", n_groups="mamba_n_groups", conv_kernel="mamba_d_conv")
    k.alias(use_conv_bias="mamba_conv_bias", chunk_size="mamba_chunk_size")
    k.require("hidden_size", "vocab_size", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
    k.require("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    expected(k)
    k.expect("sliding_window")
    k.expect("use_bias", False)
    k.expect("n_shared_experts", 1, 0)
    kinds = _pattern(k, "hybrid_override_pattern", "layers_block_type", "")
    if not kinds:
        raise k.error("layers_block_type", "is missing, as is hybrid_override_pattern; one of them is needed")
    k.expect("num_hidden_layers", len(kinds))
    bias = k.flag("attention_bias", False)
    parts: Spec = {
        "mamba": mamba2_mixer(
            k, k.dim("mamba_num_heads"), k.dim("mamba_head_dim"), k.dim("ssm_state_size"), k.dim("n_groups"),
            conv_kernel=k.dim("conv_kernel", 4), conv_bias=k.flag("use_conv_bias", True),
            proj_bias=k.flag("mamba_proj_bias", False), scan_chunk=k.dim("chunk_size", 128),
            state_format=state_format(k, "mamba_ssm_cache_dtype"),
        ),
        "full": gqa(k, dim=128, rope=False, qkv_bias=bias, o_bias=bias),
        "none": {"kind": "none"},
    }  # fmt: skip
    return base(k, tied=False) | _nemotron_layers(k, kinds, parts)


def _nemotron_layers(k: Keys, kinds: list[str], parts: Spec) -> Spec:
    mtp: Spec = {}
    steps = _pattern(k, "mtp_hybrid_override_pattern", "mtp_layers_block_type", "*E")
    if count := k.dim("num_nextn_predict_layers", 0, least=0):
        names = [ALONE[kind] for kind in steps]
        mtp = {"mtp": {"layers": count, "layer": names[0], "more": names[1:]}}
    used = [ALONE[kind] for kind in kinds] + ([ALONE[kind] for kind in steps] if count else [])
    act = k.text("mlp_hidden_act", ("relu2", "silu", "gelu"), "relu2")
    bias = k.flag("mlp_bias", False)
    ffn: Spec = {"none": parts["none"]}
    mixture = ("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size")
    k.read |= {"intermediate_size", "num_experts_per_tok", "n_routed_experts", "num_local_experts", *mixture}
    if "none/mlp" in used:
        size = k.dim("intermediate_size")
        ffn["mlp"] = {"kind": "dense", "intermediate_size": size, "gated": False, "activation": act, "bias": bias}
    if "none/moe" in used:
        k.require("moe_intermediate_size", "moe_shared_expert_intermediate_size")
        k.expect("n_shared_experts", 1)
        k.expect("mlp_bias", False)
        ffn["moe"] = moe(
            k, k.dim("moe_intermediate_size"), shared_intermediate_size=k.dim("moe_shared_expert_intermediate_size"),
            gated=False, correction_bias=True, latent_size=k.optional("moe_latent_size"),
        ) | {"activation": act}  # fmt: skip
    attention, feed = ({layer.split("/")[i] for layer in used} for i in (0, 1))
    return mtp | {
        "attention": {name: part for name, part in parts.items() if name in attention},
        "ffn": {name: part for name, part in ffn.items() if name in feed},
        "layers": runs([ALONE[kind] for kind in kinds]),
    }
