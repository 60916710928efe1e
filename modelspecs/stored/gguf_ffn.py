"""The feed-forward part of every layer, from GGUF metadata."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import Spec
from perfmodel.modelspecs.stored.gguf_keys import Header

Layers = tuple[list[str], dict[str, Spec]]

WIDTH, EXPERT_WIDTH = "feed_forward_length", "expert_feed_forward_length"
SHARED_WIDTH = "expert_shared_feed_forward_length"


def dense_layers(h: Header, activation: str) -> Layers:
    """Every layer dense; a width for all, or a list with one for each."""
    widths = h.per_layer(WIDTH)
    names: dict[int, str] = {}
    for width in widths:
        names.setdefault(width, f"dense_{len(names) + 1}" if names else "dense")
    return [names[width] for width in widths], {name: _dense(h, width, activation) for width, name in names.items()}


def _dense(h: Header, width: int, activation: str) -> Spec:
    up, bias = h.stored.get("blk.0.ffn_up.weight"), h.has("blk.0.ffn_up.bias", "blk.0.ffn_down.bias")
    both = up is not None and up.shape[:1] == (2 * width,)  # the gate is stored above it
    gated = both or up is None or h.has("blk.0.ffn_gate.weight")
    return {"kind": "dense", "intermediate_size": width, "activation": activation, "bias": bias, "gated": gated}


def _moe(h: Header, width: int, activation: str, **more: object) -> Spec:
    experts, chosen = h.keys.dim("expert_count"), h.keys.dim("expert_used_count")
    if chosen > experts:
        raise h.keys.error("expert_used_count", f"{chosen} is above expert_count ({experts})")
    last = h.layers - 1
    return {
        "kind": "moe", "experts": experts, "experts_per_token": chosen, "intermediate_size": width,
        "activation": activation, "bias": h.has(f"blk.{last}.ffn_up_exps.bias", f"blk.{last}.ffn_gate_up_exps.bias"),
        "router_bias": h.has(f"blk.{last}.ffn_gate_inp.bias"),
        "correction_bias": h.has(f"blk.{last}.exp_probs_b.bias"), **more,
    }  # fmt: skip


def mixture_layers(h: Header, activation: str) -> Layers:
    """Every layer a mixture of experts, or every layer dense where ``expert_count`` is absent or 0."""
    if not h.count("expert_count"):
        h.keys.expect("expert_used_count", 0)
        return dense_layers(h, activation)
    chosen = h.keys.dim("expert_used_count")
    whole = h.count(WIDTH)
    if h.keys.has(EXPERT_WIDTH):
        width = h.keys.dim(EXPERT_WIDTH)
    elif not whole:
        h.keys.require(EXPERT_WIDTH)
        raise AssertionError("require raises")
    else:  # Mixtral's experts are as wide as a layer; older Qwen files share the width among the chosen
        width = whole // chosen if h.keys.prefix.startswith("qwen") else whole
    more: Spec = {}
    if h.has("blk.0.ffn_gate_shexp.weight"):
        more = {"shared_intermediate_size": h.keys.dim(SHARED_WIDTH, whole or None),
                "shared_gate": h.has("blk.0.ffn_gate_inp_shexp.weight")}  # fmt: skip
    return ["moe"] * h.layers, {"moe": _moe(h, width, activation, **more)}


def glm_layers(h: Header, activation: str) -> Layers:
    """The first layers dense, the others mixtures with shared experts beside them (DeepSeek, GLM 4.5, ERNIE)."""
    first, width = h.count("leading_dense_block_count"), h.keys.dim(EXPERT_WIDTH)
    if first > h.layers:
        raise h.keys.error("leading_dense_block_count", f"{first} is above the {h.layers} layers")
    shared = h.count("expert_shared_count") * (h.count(SHARED_WIDTH) or width)
    h.keys.expect("interleave_moe_layer_step", 1)
    names = ["dense"] * first + ["moe"] * (h.layers - first)
    return names, {
        "dense": _dense(h, h.keys.dim(WIDTH), activation),
        "moe": _moe(h, width, activation, shared_intermediate_size=shared),
    }


def llama4_layers(h: Header, activation: str) -> Layers:
    """Every ``interleave_moe_layer_step``-th layer a mixture with one shared expert as wide as a routed one."""
    step, width = h.keys.dim("interleave_moe_layer_step"), h.keys.dim(EXPERT_WIDTH)
    names = ["dense" if (layer + 1) % step else "moe" for layer in range(h.layers)]
    return names, {
        "dense": _dense(h, h.keys.dim(WIDTH), activation),
        "moe": _moe(h, width, activation, shared_intermediate_size=width),
    }
