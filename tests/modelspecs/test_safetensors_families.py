"""Folders that `transformers` saves, of families that are not Llama's: all that is stored is in the inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.modelspecs.counts import total_params
from perfmodel.modelspecs.stored import headers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors", reason="the reference implementation of safetensors is not installed")

GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 256}
BASE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
MHA = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 32}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", GPT), ("gpt_bigcode", GPT), ("gptj", GPT | {"rotary_dim": 8}), ("gpt_neox", MHA),
    ("opt", {**MHA, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    ("bloom", {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256}), ("falcon", SMALL),
    ("falcon", SMALL | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("gpt_neo", {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 256, "intermediate_size": 128,
                 "attention_types": [[["global", "local"], 2]]}),
    ("mpt", {"d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 256, "attn_config": {"alibi": True}}),
    ("phi", BASE), ("starcoder2", BASE), ("stablelm", BASE), ("glm4", BASE | {"head_dim": 16}), ("olmo3", BASE),
    ("exaone4", BASE), ("cohere2", BASE), ("apertus", BASE),
    ("minimax_m2", BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    ("granitemoeshared", BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96}),
    ("olmoe", BASE | {"num_experts": 4, "num_experts_per_tok": 2}), ("hy_v3", BASE | EXPERTS | {"head_dim": 16}),
    ("jamba", BASE | {"num_experts": 4}), ("mamba", {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 256}),
    ("bamba", BASE | MAMBA2 | {"attn_layer_indices": [2]}), ("lfm2", BASE),
    ("falcon_h1", BASE | MAMBA2 | {"head_dim": 16, "mamba_d_ssm": 128}),
    ("qwen3_next", BASE | EXPERTS | {"head_dim": 16, "shared_expert_intermediate_size": 32}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(CASES)])
def test_every_stored_tensor_has_its_place(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Fused matrices, other words for the same tensor and stored tables: the file holds the configuration's model."""
    config = transformers.AutoConfig.for_model(kind, **changes)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    found = headers.describe(tmp_path)
    assert not found.problem
    assert found.comparison is not None
    assert found.agrees, found.comparison.text()
    assert found.total_params == total_params(found.require_model())
    assert found.elements == found.total_params + found.comparison.buffers
