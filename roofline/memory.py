"""Whether a model fits: weights and KV cache of the fullest rank against the memory that a process can be given."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.base.units import gib
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.counts import cache_bytes_per_token, compressed_bytes_per_token, held_tokens
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, OFFERED, OFFERED_KV, Format
from perfmodel.modelspecs.schema import Gqa, LayerClass, ModelSpec
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.sharding import layers_in, rank_state_bytes, stage_layers, stage_weight_bytes
from perfmodel.roofline.step import Plan


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest rank. [bytes]

    Attributes
    ----------
    weights, kv : Num
        Weights, and the KV cache of all sequences at their full length with their recurrent states.
    activations : Num
        The largest two activation tensors of a step.
    usable : float
        Device memory as the driver reports it.
    """

    weights: Num
    kv: Num
    activations: Num
    usable: float

    @property
    def needed(self) -> Num:
        """Sum of the parts."""
        return self.weights + self.kv + self.activations

    @property
    def fits(self) -> bool:
        """Whether the parts are within the usable memory; of arrays, whether all are."""
        return bool(np.all(self.needed <= self.usable))

    def sentence(self) -> str:
        """The sum in words."""
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"{verdict}: weights {gib(self.weights)} + KV cache {gib(self.kv)} + activations {gib(self.activations)} = "
            f"{gib(self.needed)} of {gib(self.usable)} a GPU"
        )


def rank_token_bytes(layer: LayerClass, plan: Plan) -> float:
    """Bytes that a kept token occupies in one layer's cache on one rank, at long contexts.

    KV heads are cut by tensor parallelism down to one whole head; a latent cache is held whole by every rank.
    """
    return _rank_share(layer, plan) * float(cache_bytes_per_token(layer, plan.kv))


def _rank_share(layer: LayerClass, plan: Plan) -> float:
    a = layer.attention
    return ceil(a.kv_heads / plan.tp) / a.kv_heads if isinstance(a, Gqa) else 1.0


def rank_kv_bytes(model: ModelSpec, plan: Plan, batch: Num, context: Num, stage: int | None = None) -> Num:
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
    fullest: Num = 0.0
    for here in stages:
        total: Num = 0.0
        for layer in model.layer_classes:
            held = held_tokens(layer, context)
            one = _rank_share(layer, plan) * cache_bytes_per_token(layer, plan.kv, held) * held
            one = one + compressed_bytes_per_token(layer, plan.kv) * context
            total = total + layers_in(layer, here) * one
        fullest = np.maximum(fullest, total)
    return fullest * np.ceil(batch / plan.dp)


def rank_cache_bytes(model: ModelSpec, plan: Plan, batch: Num, context: Num, stage: int) -> Num:
    """What ``batch`` sequences leave on one rank: their KV cache and their recurrent states. [bytes]"""
    states = rank_state_bytes(model, plan, stage) * np.ceil(batch / plan.dp)
    return rank_kv_bytes(model, plan, batch, context, stage) + states


def memory(model: ModelSpec, gpu: Gpu, plan: Plan, batch: Num, context: Num, step_tokens: Num) -> Memory:
    """Memory of the fullest rank for ``batch`` sequences of ``context`` tokens; numbers may be arrays.

    Parameters
    ----------
    step_tokens : float
        Most tokens of one forward pass; engines bound it (8192 is a usual budget), so more are taken in chunks.
    """
    widest = max(
        [2 * getattr(f, "intermediate_size", 0) / plan.tp for f in model.ffn.values()] + [float(model.hidden_size)]
    )
    tokens = np.minimum(step_tokens, 8192.0)
    activations = tokens * (widest + 2 * model.hidden_size) * plan.act_bytes
    weights: Num = stage_weight_bytes(model, plan, 0)
    kv: Num = rank_cache_bytes(model, plan, batch, context, 0)
    for stage in range(1, plan.pp):
        other = stage_weight_bytes(model, plan, stage), rank_cache_bytes(model, plan, batch, context, stage)
        fuller = other[0] + other[1] > weights + kv
        weights, kv = np.where(fuller, other[0], weights), np.where(fuller, other[1], kv)
    return Memory(as_num(weights), as_num(kv), as_num(activations), gpu.usable_memory)


def remedies(ready: Setup, batch: float, context: float, tokens: float) -> list[str]:
    """What would fit and can be run: the smallest tensor parallelism, the widest smaller weight or cache format."""
    model, gpu, plan, system = ready.model, ready.gpu, ready.plan, ready.system or ready.gpu.system

    def fits(tp: int = plan.tp, weights: Format = plan.weights, kv: Format = plan.kv) -> bool:
        try:
            other = setup(
                model, gpu, tp=tp, pp=plan.pp, ep=plan.ep, dp=plan.dp, weights=weights, kv=kv, system=system
            )  # fmt: skip
        except UsageError:
            return False
        return memory(model, gpu, other.plan, batch, context, tokens).fits

    degrees = (2**n for n in range(11) if 2**n > plan.tp)
    found = [f"--tp {tp}" for tp in degrees if fits(tp=tp)][:1]
    found += [f"--weights {f.name}" for f in _narrower(FORMATS, OFFERED, plan.weights) if fits(weights=f)][:1]
    return found + [f"--kv {f.name}" for f in _narrower(KV_FORMATS, OFFERED_KV, plan.kv) if fits(kv=f)][:1]


def _narrower(formats: dict[str, Format], offered: tuple[str, ...], than: Format) -> list[Format]:
    return sorted((f for name in offered if (f := formats[name]).bits < than.bits), key=lambda f: -f.bits)
