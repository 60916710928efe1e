"""The table of families: which function reads a ``model_type``, and which keys are harmless in it.

A family's function reads every key that shapes the model; what it leaves must be in ``HARMLESS`` or in the family's own
set, else the configuration is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.modelspecs.hf import dense, linear, moe, recurrent
from perfmodel.modelspecs.hf.common import GEMMA, IMAGES, LLAMA4, ROUTING, Spec
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.more_families import MORE


@dataclass(frozen=True)
class Family:
    """How to read a family: its function, and the keys that are harmless in it beyond the common ones."""

    read: Callable[[Keys], Spec]
    harmless: frozenset[str] = frozenset()


FAMILIES: dict[str, Family] = {
    "llama": Family(dense.llama),
    "mistral": Family(dense.mistral),
    "mixtral": Family(moe.mixtral, ROUTING),
    "qwen2": Family(dense.qwen2),
    "qwen2_moe": Family(lambda k: moe.qwen_moe(k, shared=True), ROUTING),
    "qwen3": Family(dense.qwen3),
    "qwen3_moe": Family(lambda k: moe.qwen_moe(k, shared=False), ROUTING),
    "gpt_oss": Family(moe.gpt_oss, ROUTING | {"initial_context_length"}),
    "gemma": Family(dense.gemma, GEMMA),
    "gemma2": Family(dense.gemma2, GEMMA),
    "gemma3_text": Family(dense.gemma3_text, GEMMA),
    "gemma3": Family(dense.gemma3, GEMMA | IMAGES),
    "llama4_text": Family(moe.llama4_text, LLAMA4),
    "llama4": Family(moe.llama4, IMAGES),
    "phi3": Family(dense.phi3, frozenset({"interpolate_factor"})),
    "olmo2": Family(dense.olmo2),
    "cohere": Family(dense.cohere, frozenset({"logit_scale"})),
    "deepseek_v2": Family(lambda k: moe.deepseek(k, 2), ROUTING),
    "deepseek_v3": Family(lambda k: moe.deepseek(k, 3), ROUTING),
    "kimi_k2": Family(lambda k: moe.deepseek(k, 3), ROUTING),
    "deepseek_v32": Family(lambda k: moe.deepseek(k, 32), ROUTING),
    "glm4_moe": Family(moe.glm4_moe, ROUTING),
    **{kind: Family(*row) for kind, row in MORE.items()},
    "mamba": Family(recurrent.mamba, recurrent.SCAN),
    "falcon_mamba": Family(recurrent.mamba, recurrent.SCAN),
    "mamba2": Family(recurrent.mamba2, recurrent.SCAN),
    "jamba": Family(recurrent.jamba, recurrent.SCAN | ROUTING),
    "bamba": Family(recurrent.bamba, recurrent.SCAN | recurrent.MULTIPLIERS),
    "granitemoehybrid": Family(recurrent.granite_hybrid, recurrent.SCAN | recurrent.MULTIPLIERS | ROUTING),
    "falcon_h1": Family(recurrent.falcon_h1, recurrent.SCAN | recurrent.MULTIPLIERS),
    "nemotron_h": Family(recurrent.nemotron_h, recurrent.SCAN | ROUTING | {"moe_shared_expert_overlap"}),
    "qwen3_next": Family(linear.qwen3_next, ROUTING),
    "qwen3_5_text": Family(linear.qwen3_5_text),
    "qwen3_5_moe_text": Family(linear.qwen3_5_moe_text, ROUTING),
    "qwen3_5": Family(linear.qwen3_5, linear.QWEN_IMAGES),
    "qwen3_5_moe": Family(linear.qwen3_5_moe, linear.QWEN_IMAGES),
    "minimax": Family(linear.minimax, linear.MINIMAX | ROUTING),
    "minimax_text_01": Family(linear.minimax, linear.MINIMAX | ROUTING),
    "minimax_m1": Family(linear.minimax, linear.MINIMAX | ROUTING),
    "kimi_linear": Family(linear.kimi_linear, linear.KIMI | ROUTING),
    "lfm2": Family(linear.lfm2, linear.LFM),
    "lfm2_moe": Family(linear.lfm2_moe, linear.LFM | ROUTING),
}
