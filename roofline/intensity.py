"""Arithmetic intensity of the parts of a step, each from its own FLOPs and bytes, and where it reaches a figure.

Intensities here are matrix FLOPs over device-memory bytes: weights and inputs read once, results written once. They are
exact for the formulas of ``ops`` and ``attention``; caches are cold.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, Step, prefill


def batch_intensity(batch: Num, weight_bytes: float = 2.0) -> Num:
    """Intensity of a linear layer in which a weight is read once for ``batch`` tokens: ``2 B / b``. [FLOP/byte]

    Parameters
    ----------
    batch : Num
        Tokens a step.
    weight_bytes : float
        Bytes a weight is stored in; activations are left out.

    >>> batch_intensity(295), batch_intensity(148, 1.0)
    (295.0, 296.0)
    """
    return 2 * batch / weight_bytes


def score_intensity(
    heads: int, kv_heads: int, q: Num, kv: Num, head_dim: int, element_bytes: float = 2.0, stored: bool = False
) -> Num:
    """Intensity of the score product ``Q K^T`` alone, without a mask. [FLOP/byte]

    ``2 H q kv d / (b (H q d + H_kv kv d + stored H q kv))``: Q and K read once, S written only by an implementation
    that stores it. In fused prefill of multi-head attention it is ``q / 2``; in decode it tends to the query heads a KV
    head at FP16, whatever the length.

    Parameters
    ----------
    heads, kv_heads : int
        Query and KV heads.
    q, kv : Num
        Query tokens and keys.
    head_dim : int
        Elements of a head.
    stored : bool
        Whether S goes to device memory.

    >>> score_intensity(32, 32, 4096, 4096, 128), round(score_intensity(32, 32, 1, 4096, 128), 2)
    (2048.0, 1.0)
    """
    elements = heads * q * head_dim + kv_heads * kv * head_dim + (heads * q * kv if stored else 0.0)
    return 2.0 * heads * q * kv * head_dim / (element_bytes * elements)


@dataclass(frozen=True)
class OpIntensity:
    """Operators of a step taken together.

    Attributes
    ----------
    flops, bytes : Num
        Matrix FLOPs and device-memory bytes of all their runs in the step.
    """

    flops: Num
    bytes: Num

    def __add__(self, other: OpIntensity) -> OpIntensity:
        return OpIntensity(self.flops + other.flops, self.bytes + other.bytes)

    @property
    def value(self) -> Num:
        """Matrix FLOPs a byte. [FLOP/byte]"""
        return self.flops / self.bytes


def op_intensities(model: ModelSpec, step: Step, plan: Plan | None = None) -> dict[str, OpIntensity]:
    """Every operator with matrix FLOPs in a step, by name; its layer classes are taken together.

    Parameters
    ----------
    model : ModelSpec
    step : Step
        Its numbers may be arrays.
    plan : Plan, optional
        By default one GPU at 16 bits.

    >>> from perfmodel.modelspecs.load import model
    >>> from perfmodel.roofline.step import decode
    >>> round(op_intensities(model("llama3-70b"), decode(8.0, 1024.0))["down_proj"].value, 2)
    7.99
    """
    found: dict[str, OpIntensity] = {}
    for op in graph(model, step, plan or Plan()):
        cost = op.cost()
        if np.any(np.asarray(cost.matrix_flops) > 0):
            mine = OpIntensity(cost.matrix_flops, cost.bytes)
            found[op.name] = found[op.name] + mine if op.name in found else mine
    return found


#: Operators of the parts of a layer, by name.
PARTS = {
    "QKV projections": ("qkv_proj", "q_kv_a_proj", "q_b_proj"),
    "FFN": (
        "gate_up_proj", "up_proj", "down_proj", "experts_gate_up", "experts_up", "experts_down",
        "shared_gate_up_proj", "shared_up_proj", "shared_down_proj",
    ),
    "attention": ("attention",),
}  # fmt: skip


def part_intensity(model: ModelSpec, step: Step, part: str) -> Num:
    """Intensity of a part of all layers: ``"QKV projections"``, ``"FFN"`` or ``"attention"``. [FLOP/byte]

    Attention is scores and weighted sum, fused, with the cache read. The down-projections to MLA's latents count to the
    QKV projections, its expansion and absorption do not.
    """
    found = op_intensities(model, step)
    mine = [found[name] for name in PARTS[part] if name in found]
    return functools.reduce(OpIntensity.__add__, mine).value


#: Longest prompt that ``shortest_prompt`` looks at. [tokens]
LONGEST = 16384


def shortest_prompt(model: ModelSpec, part: str, intensity: float) -> float:
    """Shortest prompt (one sequence) whose prefill brings a part to an intensity; infinite beyond ``LONGEST``. [tokens]

    >>> from perfmodel.modelspecs.load import model
    >>> shortest_prompt(model("llama3-8b"), "QKV projections", 100)    # m n k / (n k + m k + m n), 6144 x 4096
    105.0
    """
    reached = np.nonzero(_of_prompts(model, part) >= intensity)[0]
    return float(reached[0] + 1) if reached.size else float("inf")


@functools.lru_cache(maxsize=64)
def _of_prompts(model: ModelSpec, part: str) -> NDArray[np.float64]:
    """Intensity of a part in prompts of 1 to ``LONGEST`` tokens."""
    lengths = np.arange(1.0, LONGEST + 1)
    return np.asarray(part_intensity(model, prefill(1.0, lengths), part), dtype=np.float64)
