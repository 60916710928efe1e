"""A rank's share of the tensor inventory under a plan: the shapes and bytes that one GPU holds and multiplies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

from perfmodel.modelspecs.schema import Gqa, LayerClass, ModelSpec
from perfmodel.modelspecs.sizes import tensor_bytes
from perfmodel.modelspecs.tensors import Tensor, tensors
from perfmodel.roofline.step import Plan


def rank_tensor(t: Tensor, plan: Plan, kv_heads: int = 0, experts: int = 0) -> Tensor:
    """The part of a tensor on one rank: the largest rank's where the vocabulary does not divide.

    Parameters
    ----------
    t : Tensor
        Of the whole model.
    kv_heads : int
        KV heads of its layer; with fewer than ranks each rank holds one whole head.
    experts : int
        Experts of its layer; ``count`` falls to those on one rank.
    """
    shape, count, tp = list(t.shape), t.count, plan.tp
    if t.shard in ("out", "vocab"):
        shape[0] = ceil(shape[0] / tp)
    elif t.shard == "in":
        shape[-1] = ceil(shape[-1] / tp)
    elif t.shard == "kv":
        shape[0] = shape[0] // kv_heads * ceil(kv_heads / tp) if kv_heads else ceil(shape[0] / tp)
    elif t.shard in ("expert_out", "expert_in"):
        count = count * ceil(experts / plan.ep) // experts if experts else ceil(count / plan.ep)
        cut = plan.expert_tp
        if t.shard == "expert_out":
            shape[0] = ceil(shape[0] / cut)
        elif len(shape) == 2:
            shape[1] = ceil(shape[1] / cut)
    return replace(t, shape=tuple(shape), count=count)


def layer_tensors(model: ModelSpec, layer: LayerClass, plan: Plan) -> dict[str, list[Tensor]]:
    """One rank's tensors of one layer of a class, by role, with ``count`` a single layer's."""
    kv_heads = layer.attention.kv_heads if isinstance(layer.attention, Gqa) else 0
    experts = getattr(layer.ffn, "experts", 0)
    found: dict[str, list[Tensor]] = {}
    for t in tensors(model):
        if t.layer == layer.name and t.role != "mtp":
            one = replace(t, count=t.count // layer.count)
            found.setdefault(t.role, []).append(rank_tensor(one, plan, kv_heads, experts))
    return found


def outer_tensors(model: ModelSpec, plan: Plan) -> dict[str, list[Tensor]]:
    """One rank's tensors outside the layers (embedding, final norm, LM head), by role."""
    found: dict[str, list[Tensor]] = {}
    for t in tensors(model):
        if not t.layer and t.role not in ("mtp", "vision", "projector", "buffer"):
            found.setdefault(t.role, []).append(rank_tensor(t, plan))
    if model.tied_embeddings:
        found["lm_head"] = [replace(t, role="lm_head") for t in found["embedding"] if len(t.shape) == 2]
    return found


def stored_bytes(parts: Iterable[Tensor], plan: Plan) -> float:
    """Bytes of tensors in the plan's weight format (embeddings, norms, routers and biases in 16 bits)."""
    return sum(t.count * tensor_bytes(t, plan.weights) for t in parts)


def rank_weight_bytes(model: ModelSpec, plan: Plan, mtp: bool = False) -> float:
    """Weights on the fullest rank. [bytes]

    Layers are spread evenly over pipeline stages; the first holds the embedding and the last the LM head, and the
    larger of the two counts. Vision parts are held whole by every rank of the first stage.
    """
    layers = sum(
        layer.count * sum(stored_bytes(parts, plan) for parts in layer_tensors(model, layer, plan).values())
        for layer in model.layer_classes
    )
    share = ceil(model.num_layers / plan.pp) / model.num_layers
    outer = {role: stored_bytes(parts, plan) for role, parts in outer_tensors(model, plan).items()}
    vision = stored_bytes((t for t in tensors(model) if t.role in ("vision", "projector")), plan)
    extra = stored_bytes((rank_tensor(t, plan) for t in tensors(model) if t.role == "mtp"), plan) if mtp else 0.0
    head = outer.get("lm_head", 0.0) + extra
    if plan.pp == 1:
        tied = outer["embedding"] if model.tied_embeddings else 0.0
        return layers + sum(outer.values()) - tied + vision + extra
    first, last = outer["embedding"] + vision, head + outer.get("norm", 0.0)
    return layers * share + max(first, last)
