"""A rank's share of the tensor inventory under a plan: the shapes and bytes that one GPU holds and multiplies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from math import ceil

from perfmodel.modelspecs.counts import layer_state_bytes
from perfmodel.modelspecs.formats import Format
from perfmodel.modelspecs.schema import Gqa, LayerClass, ModelSpec
from perfmodel.modelspecs.schema_recurrent import rank_rows
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
    elif t.shard == "parts":
        shape[0] = sum(rank_rows(t.parts, tp))
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
        if t.layer == layer.name and t.role not in ("mtp", "buffer"):
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
        tied = [replace(t, role="lm_head") for t in found["embedding"] if len(t.shape) == 2]
        found["lm_head"] = tied + found.get("lm_head", [])
    return found


def stored_bytes(parts: Iterable[Tensor], plan: Plan) -> float:
    """Bytes of tensors in the plan's weight format (embeddings, norms, routers and biases in 16 bits)."""
    return sum(t.count * tensor_bytes(t, plan.weights) for t in parts)


def stage_layers(layers: int, stages: int) -> list[range]:
    """Layers of each pipeline stage: neighbours, as many each as evenly goes.

    What is left over goes to the stages before the last, from the back: the last one has the LM head. Source:
    ``get_pp_indices`` in vLLM's vllm/distributed/utils.py.

    >>> stage_layers(22, 4)
    [range(0, 5), range(5, 11), range(11, 17), range(17, 22)]
    """
    size, rest = divmod(layers, stages)
    sizes = [size] * stages
    for i in range(rest):
        sizes[-2 - i] += 1
    ends = list(accumulate(sizes))
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def layers_in(layer: LayerClass, stage: range) -> int:
    """How many layers of a class lie in a stage."""
    return sum(index in stage for index in layer.indices)


def rank_state_bytes(
    model: ModelSpec, plan: Plan, stage: int | None = None, state: str | Format | None = None,
    conv: str | Format = "bf16",
) -> float:  # fmt: skip
    """Recurrent state of ONE sequence on one rank; 0 for a model without recurrent mixers. [bytes]

    Heads are cut by tensor parallelism, layers by pipeline stages; sequences are spread over data-parallel ranks.

    Parameters
    ----------
    stage : int, optional
        Pipeline stage, 0 to ``plan.pp - 1``; the fullest one when left out.
    state, conv : str or Format
        As of ``counts.state_bytes``.
    """
    stages = stage_layers(model.num_layers, plan.pp)
    one = {layer.name: layer_state_bytes(layer, state, conv, plan.tp) for layer in model.layer_classes}
    return max(
        sum((layers_in(layer, here) * one[layer.name] for layer in model.layer_classes), 0.0)
        for here in (stages if stage is None else [stages[stage]])
    )


def stage_weight_bytes(model: ModelSpec, plan: Plan, stage: int, mtp: bool = False) -> float:
    """Weights on a rank of one pipeline stage, 0 to ``plan.pp - 1``. [bytes]

    The first stage holds the embedding and, whole on every rank, the vision parts; the last one the final norm, the LM
    head and, when asked for, the MTP layers. Tied embeddings are stored again where the last stage is not the first.
    """
    first, last = stage == 0, stage == plan.pp - 1
    here = stage_layers(model.num_layers, plan.pp)[stage]
    total = 0.0
    for layer in model.layer_classes:
        one = sum(stored_bytes(parts, plan) for parts in layer_tensors(model, layer, plan).values())
        total += layers_in(layer, here) * one
    for role, parts in outer_tensors(model, plan).items():
        if role in ("embedding", "position"):
            total += stored_bytes(parts, plan) if first else 0.0
        elif last and not (first and role == "lm_head" and model.tied_embeddings):
            total += stored_bytes(parts, plan)
    if first:
        total += stored_bytes((t for t in tensors(model) if t.role in ("vision", "projector")), plan)
    return total + (stored_bytes(_mtp_tensors(model, plan), plan) if mtp and last else 0.0)


def _mtp_tensors(model: ModelSpec, plan: Plan) -> Iterator[Tensor]:
    for t in tensors(model):
        if t.role == "mtp":
            layer = model.layer_class(t.layer) if t.layer else None
            kv_heads = layer.attention.kv_heads if layer and isinstance(layer.attention, Gqa) else 0
            yield rank_tensor(t, plan, kv_heads, getattr(layer.ffn, "experts", 0) if layer else 0)


def rank_weight_bytes(model: ModelSpec, plan: Plan, mtp: bool = False) -> float:
    """Weights on the fullest rank: the largest of ``stage_weight_bytes``. [bytes]"""
    return max(stage_weight_bytes(model, plan, stage, mtp) for stage in range(plan.pp))
