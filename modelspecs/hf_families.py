"""The table of families: which function reads a ``model_type``, and which keys are harmless in it.

A family's function reads every key that shapes the model; what it leaves must be in ``HARMLESS`` or in the family's own
set, else the configuration is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.modelspecs import hf_dense, hf_moe
from perfmodel.modelspecs.hf_common import GEMMA, IMAGES, LLAMA4, ROUTING, Spec
from perfmodel.modelspecs.hf_keys import Keys


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
}
