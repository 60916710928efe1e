"""Rows of the listings and the facts of `params`."""

from __future__ import annotations

import json

import pytest

from perfmodel.modelspecs.counts import contexts, held_tokens, kv_bytes, recurrent_part, state_bytes, summary
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS
from perfmodel.modelspecs.gguf_presets import PRESETS
from perfmodel.modelspecs.listing import format_rows, rows
from perfmodel.modelspecs.load import MODELS, model


def test_models_are_listed() -> None:
    """A row a built-in, with plain values only."""
    found = rows()
    assert [row["name"] for row in found] == MODELS.names
    assert json.dumps(found)
    llama = next(row for row in found if row["name"] == "llama3-70b")
    assert llama["total_params"] == 70_553_706_496
    assert llama["heads"] == "64/8 heads"
    assert llama["kv_bytes_per_token"] == 327_680
    assert "meta-llama/Meta-Llama-3-70B" in llama["aliases"]


def test_formats_are_listed() -> None:
    """A row a format, each with bits, group, bits a weight and a source."""
    found = {row["name"]: row for row in format_rows()}
    assert found.keys() == FORMATS.keys() | KV_FORMATS.keys() | PRESETS.keys()
    assert all((row["bits_per_weight"] is None) == row["preset"] for row in found.values())
    assert {name for name, row in found.items() if row["kv_cache"]} == set(KV_FORMATS)
    assert found["kivi2"]["bits_per_weight"] == 3
    assert all(row["source"] and row["title"] for row in found.values())
    assert found["int4"]["bits_per_weight"] == 4 + 20 / 128
    assert found["fp8_block"]["group"] == "128 x 128"
    assert found["fp8"]["group"] == "1 x all"
    assert found["bf16"]["group"] == "none"
    assert found["fp8"]["kv_cache"]
    assert not found["int4"]["kv_cache"]


def test_summary_holds_the_contract() -> None:
    """The keys that scripts rely on, and their values for DeepSeek-V3."""
    facts = summary(model("deepseek-v3"))
    assert facts["total_params"] == 671_026_419_200
    assert facts["checkpoint_params"] == 684_531_386_000
    assert facts["kv_bytes_per_token"] == 70_272
    assert facts["state_bytes"] == 0
    assert facts["heads"] == "128 heads, latent 512+64"
    assert facts["layer_classes"] == {"mla/dense": 3, "mla/moe": 58}
    kv = facts["kv_bytes"]
    assert isinstance(kv, dict)
    assert list(kv) == [2**k for k in range(10, 18)] + [163840]
    assert kv[1024] == 1024 * 70_272
    assert json.dumps(facts)


@pytest.mark.parametrize("name", MODELS.names)
def test_summary_of_every_model(name: str) -> None:
    """Each built-in has a summary whose roles sum to its total, and a recurrent state where it has such layers."""
    facts = summary(model(name))
    roles = facts["by_role"]
    assert isinstance(roles, dict)
    assert sum(n for role, n in roles.items() if role not in ("mtp", "buffer")) == facts["total_params"]
    recurrent = any(recurrent_part(layer) for layer in model(name).layer_classes)
    assert (state_bytes(model(name)) > 0) == recurrent
    assert json.dumps(facts)


def test_contexts() -> None:
    """Powers of two to the longest context, and that context."""
    assert contexts(model("llama3-70b")) == [1024, 2048, 4096, 8192]
    assert contexts(model("qwen3-8b")) == [1024, 2048, 4096, 8192, 16384, 32768, 40960]


def test_streaming_cache_does_not_grow() -> None:
    """StreamingLLM keeps 4 first and 2044 recent tokens: 1 GiB of cache for Llama 2 7B, at any length."""
    spec = model("llama2-7b-streaming")
    assert held_tokens(spec.layer_classes[0], 1000.0) == 1000
    assert held_tokens(spec.layer_classes[0], 4e6) == 2048
    assert kv_bytes(spec, 4e6) == 2048 * 524_288 == 2**30
    assert summary(spec)["kv_bytes_per_token"] == 0


def test_gemma_cache_by_hand() -> None:
    """Gemma 3 27B at 131072 tokens: 10 full layers and 52 of 1024, 16 KV heads of 128, K and V of 2 bytes."""
    token_and_layer = 2 * 16 * 128 * 2
    assert kv_bytes(model("gemma3-27b"), 131072.0) == token_and_layer * (10 * 131072 + 52 * 1024)
    assert summary(model("gemma3-27b"))["kv_bytes_per_token"] == 10 * token_and_layer


def test_indexer_cache_by_hand() -> None:
    """DeepSeek-V3.2 at FP8 keeps 576 bytes of latent and 128 + 4 of indexer key a token and layer."""
    assert kv_bytes(model("deepseek-v3.2"), 1000.0, "fp8") == 61 * (576 + 132) * 1000
