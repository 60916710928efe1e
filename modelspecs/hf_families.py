"""The table of families: which function reads a ``model_type``, and which keys are harmless in it.

A family's function reads every key that shapes the model; what it leaves must be in ``HARMLESS`` or in the family's own
set, else the configuration is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.modelspecs import hf_dense, hf_linear, hf_moe, hf_recurrent
from perfmodel.modelspecs.hf_common import GEMMA, IMAGES, LLAMA4, ROUTING, Spec
from perfmodel.modelspecs.hf_keys import Keys
from perfmodel.modelspecs.hf_table import MORE


@dataclass(frozen=True)
class Family:
    """How to read a family: its function, and the keys that are harmless in it beyond the common ones."""

    read: Callable[[Keys], Spec]
    harmless: frozenset[str] = frozenset()


FAMILIES: dict[str, Family] = {
    "llama": Family(hf_dense.llama),
    "mistral": Family(hf_dense.mistral),
    "mixtral": Family(hf_moe.mixtral, ROUTING),
    "qwen2": Family(hf_dense.qwen2),
    "qwen2_moe": Family(lambda k: hf_moe.qwen_moe(k, shared=True), ROUTING),
    "qwen3": Family(hf_dense.qwen3),
    "qwen3_moe": Family(lambda k: hf_moe.qwen_moe(k, shared=False), ROUTING),
    "gpt_oss": Family(hf_moe.gpt_oss, ROUTING | {"initial_context_length"}),
    "gemma": Family(hf_dense.gemma, GEMMA),
    "gemma2": Family(hf_dense.gemma2, GEMMA),
    "gemma3_text": Family(hf_dense.gemma3_text, GEMMA),
    "gemma3": Family(hf_dense.gemma3, GEMMA | IMAGES),
    "llama4_text": Family(hf_moe.llama4_text, LLAMA4),
    "llama4": Family(hf_moe.llama4, IMAGES),
    "phi3": Family(hf_dense.phi3, frozenset({"interpolate_factor"})),
    "olmo2": Family(hf_dense.olmo2),
    "cohere": Family(hf_dense.cohere, frozenset({"logit_scale"})),
    "deepseek_v2": Family(lambda k: hf_moe.deepseek(k, 2), ROUTING),
    "deepseek_v3": Family(lambda k: hf_moe.deepseek(k, 3), ROUTING),
    "kimi_k2": Family(lambda k: hf_moe.deepseek(k, 3), ROUTING),
    "deepseek_v32": Family(lambda k: hf_moe.deepseek(k, 32), ROUTING),
    "glm4_moe": Family(hf_moe.glm4_moe, ROUTING),
    **{kind: Family(*row) for kind, row in MORE.items()},
    "mamba": Family(hf_recurrent.mamba, hf_recurrent.SCAN),
    "falcon_mamba": Family(hf_recurrent.mamba, hf_recurrent.SCAN),
    "mamba2": Family(hf_recurrent.mamba2, hf_recurrent.SCAN),
    "jamba": Family(hf_recurrent.jamba, hf_recurrent.SCAN | ROUTING),
    "bamba": Family(hf_recurrent.bamba, hf_recurrent.SCAN | hf_recurrent.MULTIPLIERS),
    "granitemoehybrid": Family(hf_recurrent.granite_hybrid, hf_recurrent.SCAN | hf_recurrent.MULTIPLIERS | ROUTING),
    "falcon_h1": Family(hf_recurrent.falcon_h1, hf_recurrent.SCAN | hf_recurrent.MULTIPLIERS),
    "nemotron_h": Family(hf_recurrent.nemotron_h, hf_recurrent.SCAN | ROUTING | {"moe_shared_expert_overlap"}),
    "qwen3_next": Family(hf_linear.qwen3_next, ROUTING),
    "qwen3_5_text": Family(hf_linear.qwen3_5_text),
    "qwen3_5_moe_text": Family(hf_linear.qwen3_5_moe_text, ROUTING),
    "qwen3_5": Family(hf_linear.qwen3_5, hf_linear.QWEN_IMAGES),
    "qwen3_5_moe": Family(hf_linear.qwen3_5_moe, hf_linear.QWEN_IMAGES),
    "minimax": Family(hf_linear.minimax, hf_linear.MINIMAX | ROUTING),
    "minimax_text_01": Family(hf_linear.minimax, hf_linear.MINIMAX | ROUTING),
    "minimax_m1": Family(hf_linear.minimax, hf_linear.MINIMAX | ROUTING),
    "kimi_linear": Family(hf_linear.kimi_linear, hf_linear.KIMI | ROUTING),
    "lfm2": Family(hf_linear.lfm2, hf_linear.LFM),
    "lfm2_moe": Family(hf_linear.lfm2_moe, hf_linear.LFM | ROUTING),
}
