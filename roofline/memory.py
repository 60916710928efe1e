"""Whether a model fits: weights and KV cache of the fullest rank against the memory that a process can be given."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from perfmodel.base.errors import UsageError
from perfmodel.base.units import gib
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.counts import cache_bytes_per_token, compressed_bytes_per_token, held_tokens
from perfmodel.modelspecs.formats import FORMATS, Format
from perfmodel.modelspecs.schema import Gqa, LayerClass, ModelSpec
from perfmodel.roofline.sharding import layers_in, rank_state_bytes, stage_layers, stage_weight_bytes
from perfmodel.roofline.step import Plan, make_plan


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest rank. [bytes]

    Attributes
    ----------
    weights, kv : float
        Weights, and the KV cache of all sequences at their full length with their recurrent states.
    activations : float
        The largest two activation tensors of a step.
    usable : float
        Device memory as the driver reports it.
    """

    weights: float
    kv: float
    activations: float
    usable: float

    @property
    def needed(self) -> float:
        """Sum of the parts."""
        return self.weights + self.kv + self.activations

    @property
    def fits(self) -> bool:
        """Whether the parts are within the usable memory."""
        return self.needed <= self.usable

    def sentence(self) -> str:
        """The sum in words."""
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"{verdict}: weights {gib(self.weights)} + KV cache {gib(self.kv)} + activations {gib(self.activations)} = "
            f"{gib(self.needed)} of {gib(self.usable)} a GPU"
        )


def rank_token_bytes(layer: LayerClass, plan: Plan) -> float:
    """Bytes that a kept token occupies in one layer's cache on one rank.

    KV heads are cut by tensor parallelism down to one whole head; a latent cache is held whole by every rank.
    """
    a = layer.attention
    share = ceil(a.kv_heads / plan.tp) / a.kv_heads if isinstance(a, Gqa) else 1.0
    return share * cache_bytes_per_token(layer, plan.kv)


def rank_kv_bytes(model: ModelSpec, plan: Plan, batch: float, context: float, stage: int | None = None) -> float:
    """KV cache on one rank for ``batch`` sequences of ``context`` tokens. [bytes]

    Sequences are spread over data-parallel ranks, layers over pipeline stages; a rank's share of a token is
    ``rank_token_bytes``.

    Parameters
    ----------
    stage : int, optional
        Pipeline stage, 0 to ``plan.pp - 1``; the fullest one when left out.
    """
    stages = stage_layers(model.num_layers, plan.pp)
    if stage is not None:
        stages = [stages[stage]]
    totals = [0.0] * len(stages)
    for layer in model.layer_classes:
        one = rank_token_bytes(layer, plan) * float(held_tokens(layer, context))
        one += compressed_bytes_per_token(layer, plan.kv) * context
        totals = [total + layers_in(layer, here) * one for total, here in zip(totals, stages, strict=True)]
    return max(totals) * ceil(batch / plan.dp)


def rank_cache_bytes(model: ModelSpec, plan: Plan, batch: float, context: float, stage: int) -> float:
    """What ``batch`` sequences leave on one rank: their KV cache and their recurrent states. [bytes]"""
    states = rank_state_bytes(model, plan, stage) * ceil(batch / plan.dp)
    return rank_kv_bytes(model, plan, batch, context, stage) + states


def memory(model: ModelSpec, gpu: Gpu, plan: Plan, batch: float, context: float, step_tokens: float) -> Memory:
    """Memory of the fullest rank for ``batch`` sequences of ``context`` tokens.

    Parameters
    ----------
    step_tokens : float
        Most tokens of one forward pass; engines bound it (8192 is a usual budget), so more are taken in chunks.
    """
    widest = max(
        [2 * getattr(f, "intermediate_size", 0) / plan.tp for f in model.ffn.values()] + [float(model.hidden_size)]
    )
    tokens = min(step_tokens, 8192.0)
    activations = tokens * (widest + 2 * model.hidden_size) * plan.act_bytes
    weights, kv = max(
        (
            (stage_weight_bytes(model, plan, stage), rank_cache_bytes(model, plan, batch, context, stage))
            for stage in range(plan.pp)
        ),
        key=sum,
    )
    return Memory(weights, kv, activations, gpu.usable_memory)


def remedies(model: ModelSpec, gpu: Gpu, plan: Plan, batch: float, context: float, tokens: float) -> list[str]:
    """What would fit: the smallest tensor parallelism, and the widest smaller weight format at this one."""
    found: list[str] = []

    def fits(tp: int, fmt: Format) -> bool:
        try:
            other = make_plan(model, gpu, tp, plan.pp, plan.ep, plan.dp, fmt, plan.kv)
        except UsageError:
            return False
        return memory(model, gpu, other, batch, context, tokens).fits

    degrees = (2**n for n in range(11) if 2**n > plan.tp)
    smaller = sorted((f for f in FORMATS.values() if f.bits < plan.weights.bits), key=lambda f: -f.bits)
    if tp := next((tp for tp in degrees if fits(tp, plan.weights)), None):
        found.append(f"--tp {tp}")
    if fmt := next((fmt for fmt in smaller if fits(plan.tp, fmt)), None):
        found.append(f"--weights {fmt.name}")
    return found
