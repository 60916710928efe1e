"""Wrong numbers that other calculators printed, each with the right value. Named after the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.counts import active_params, kv_bytes, kv_bytes_per_token, total_params
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import Gqa, Mla
from perfmodel.modelspecs.sizes import weight_bytes

GiB = 2**30


def test_vllm_fit_2_and_14() -> None:
    """vllm-fit multiplied by all heads and the hidden size: 8 times too much for a 7B."""
    assert kv_bytes_per_token(model("llama2-7b")) == 524_288
    assert kv_bytes_per_token(model("llama3-8b")) == 131_072


def test_vllm_29736() -> None:
    """2 x hidden size ignores GQA: Llama 3 8B came out 4 times too high."""
    wrong = 32 * 2 * 4096 * 2
    assert kv_bytes_per_token(model("llama3-8b")) == wrong / 4


def test_llms_from_scratch_922() -> None:
    """KV groups are not KV heads: 32 heads and 8 KV heads keep 8 heads, not 4 (the group size)."""
    a = model("llama3-8b").attention["full"]
    assert isinstance(a, Gqa)
    assert (a.heads, a.kv_heads, a.group) == (32, 8, 4)
    assert a.cache_elements == 2 * 8 * 128


def test_lmcache_688() -> None:
    """head_dim is not hidden / heads: Qwen3 4B has 128, not 80; DeepSeek's latent is neither."""
    assert kv_bytes_per_token(model("qwen3-4b")) == 36 * 8 * 128 * 2 * 2 == 147_456
    assert kv_bytes_per_token(model("deepseek-v3")) == 61 * (512 + 64) * 2


def test_llm_viewer_12() -> None:
    """The cache has KV heads, not query heads: 8 times less for Llama 2 70B."""
    wrong = 80 * 2 * 64 * 128 * 2
    assert kv_bytes_per_token(model("llama2-70b")) == wrong / 8 == 327_680


def test_ods_3324() -> None:
    """KV does not follow from the parameter count: 36 layers of 8 x 128 are 4.5 GiB at 32k and 36 GiB at 256k."""
    assert kv_bytes(model("qwen3-8b"), 32768.0) == 4.5 * GiB
    assert kv_bytes(model("qwen3-8b"), 262144.0) == 36 * GiB


def test_distributed_llama_157() -> None:
    """The vocabulary in the place of the sequence length: Llama 3.2 3B at 131072 in FP32 is 28 GiB, not 7.8 GB."""
    assert kv_bytes(model("llama3.2-3b"), 131072.0, "fp32") == 28 * 1024 * 2 * 4 * 131072 == 28 * GiB


def test_ai_engineering_from_scratch_57() -> None:
    """A 7B's cache at 32k is 16 GiB, not 512 MB."""
    assert kv_bytes(model("llama2-7b"), 32768.0) == 16 * GiB


def test_vllm_22291() -> None:
    """Bits taken for bytes, no GQA, and the weights' format for the cache's: Qwen2.5 7B keeps 57,344 B a token."""
    assert kv_bytes_per_token(model("qwen2.5-7b")) == 57_344


def test_xinfer_195() -> None:
    """The layer count comes from the configuration, not from the family: Qwen3 32B has 64 layers."""
    assert model("qwen3-32b").num_layers == 64
    assert kv_bytes_per_token(model("qwen3-32b")) == 64 * 2 * 8 * 128 * 2


def test_sglang_13431() -> None:
    """DeepSeek-V3.2 keeps more than its 576 latent numbers: the indexer's key comes beside it."""
    latent = 61 * 576
    assert kv_bytes_per_token(model("deepseek-v3.2"), "fp8") - latent == 61 * 132


def test_gguf_parser_go_8() -> None:
    """An MLA cache holds the latent: expanding it to 128 heads of 192 + 128 would take 71 times as much."""
    a = model("deepseek-v3").attention["mla"]
    assert isinstance(a, Mla)
    assert a.heads * (a.qk_head_dim + a.v_head_dim) / a.cache_elements == pytest.approx(71.1, abs=0.05)


def test_inferencex_849() -> None:
    """Llama 70B's products with a cached token take 4 x 64 x 128 FLOPs a layer: 32,768 and not 65,536."""
    a = model("llama3-70b").attention["full"]
    assert isinstance(a, Gqa)
    assert 2 * a.heads * (a.head_dim + a.value_dim) == 4 * 64 * 128 == 32_768


@pytest.mark.parametrize(
    ("name", "wrong", "published"),
    [
        ("gpt-oss-120b", 9_309_823_421, 5.1e9),
        ("kimi-k2", 71_634_741_764, 32e9),
        ("deepseek-r1", 54_548_594_820, 37e9),
    ],
)
def test_llmfit_active_parameters(name: str, wrong: int, published: float) -> None:
    """5 % + top-k / experts x 95 % is no count: 1.5 to 2.2 times the published one, which ours meets."""
    found = active_params(model(name))
    assert found == pytest.approx(published, rel=0.0102)
    assert wrong > 1.4 * found


def test_llmfit_230() -> None:
    """All experts are resident: Mixtral's weights are 93.4 GB at 16 bits, not those of 12.9 B parameters."""
    assert weight_bytes(model("mixtral-8x7b")) == 2 * 46_702_792_704


def test_accelerate_3379() -> None:
    """Llama 3.1 70B at FP16 is 131.4 GiB, not 64.73 GB: the type was applied twice."""
    assert weight_bytes(model("llama3.1-70b"), "fp16") / GiB == pytest.approx(131.4, abs=0.05)


def test_gpu_poor_configs() -> None:
    """A table of configurations without num_key_value_heads makes MHA of GQA: 8, 8 and 4 times too much cache."""
    for name, factor in (("llama2-70b", 8), ("codellama-34b", 8), ("mistral-7b-v0.3", 4)):
        a = model(name).attention["full"]
        assert isinstance(a, Gqa)
        assert a.heads // a.kv_heads == factor


def test_slime_1980() -> None:
    """A GQA configuration is no MLA because a program's arguments default to ranks: MLA needs its own keys."""
    data = {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
        "head_dim": 16,
    }  # fmt: skip
    assert isinstance(hf.from_config(data, "config.json", "small").layer_classes[0].attention, Gqa)


def test_aiconfigurator_gpt_oss_window() -> None:
    """Billing full layers for windowed ones nearly doubles the cache of gpt-oss: 18 of 36 layers hold 128 tokens."""
    spec = model("gpt-oss-120b")
    as_full = 36 * 2 * 8 * 64 * 2 * 131072
    assert as_full / kv_bytes(spec, 131072.0) == pytest.approx(1.998, abs=0.001)


def test_peer_llm_para_total() -> None:
    """69.5 B leaves the input embedding out: Llama 3 70B has 70.55 B."""
    spec = model("llama3-70b")
    assert total_params(spec) == 70_553_706_496
    assert total_params(spec) - 128256 * 8192 == pytest.approx(69.5e9, rel=1e-3)


def test_peer_llm_analysis_tied() -> None:
    """Llama 3's embeddings are not tied; assuming so loses 1.05 B."""
    assert not model("llama3-70b").tied_embeddings
    assert counts.by_role(model("llama3-70b"))["lm_head"] == 128256 * 8192


def test_peer_llm_analysis_ffn() -> None:
    """Llama 2 70B's feed-forward width is 28672; 32768 makes another model."""
    assert model("llama2-70b").ffn["dense"].intermediate_size == 28672


def test_peer_genz_embedding() -> None:
    """Llama 3 8B is 16.06 GB at 16 bits; 15.0 GB is without the input embedding."""
    assert weight_bytes(model("llama3-8b")) / 1e9 == pytest.approx(16.06, abs=0.005)
    assert (weight_bytes(model("llama3-8b")) - 2 * 128256 * 4096) / 1e9 == pytest.approx(15.0, abs=0.05)


def test_chapter_qwen_72b_by_hand() -> None:
    """A layer of Qwen2.5 72B has 151 M + 727 M = 878 M parameters, not 1.26 B; 80 of them and two embeddings 72.7 B."""
    spec = model("qwen2.5-72b")
    layer = spec.layer_classes[0]
    roles = counts.by_role(spec)
    attention = sum(roles[f"{name}_proj"] for name in "qkvo") / layer.count
    feed_forward = sum(roles[f"ffn_{name}"] for name in ("gate", "up", "down")) / layer.count
    assert attention / 1e6 == pytest.approx(151, abs=0.5)
    assert feed_forward / 1e6 == pytest.approx(727, abs=0.5)
    assert (attention + feed_forward) / 1e6 == pytest.approx(878, abs=0.5)
    assert roles["embedding"] + roles["lm_head"] == 2 * 152064 * 8192
    assert total_params(spec) == 72_706_203_648


def test_chapter_deepseek_cache() -> None:
    """DeepSeek-V3 keeps 512 + 64 numbers a token and layer: 70,272 B a token at 16 bits."""
    assert kv_bytes_per_token(model("deepseek-v3")) == 70_272


@pytest.mark.parametrize(("name", "share"), [("llama3-8b", 0.065), ("llama3.1-405b", 0.005)])
def test_chapter_head_share(name: str, share: float) -> None:
    """The LM head is 6.5 % of Llama 3 8B's weights and 0.5 % of 405B's, not below 0.1 %."""
    spec = model(name)
    assert counts.by_role(spec)["lm_head"] / total_params(spec) == pytest.approx(share, abs=0.0005)


def test_chapter_kv_heads() -> None:
    """Not every model after 2024 has at most 8 KV heads: the chapter's own Gemma 3 27B has 16."""
    a = model("gemma3-27b").attention["full"]
    assert isinstance(a, Gqa)
    assert (a.heads, a.kv_heads) == (32, 16)


def test_chapter_scout_and_maverick() -> None:
    """Scout and Maverick use the same parameters a token to 0.1 %, as the chapter says."""
    scout, maverick = active_params(model("llama4-scout")), active_params(model("llama4-maverick"))
    assert scout / maverick == pytest.approx(1, abs=0.001)


def test_gguf_parser_2_an_embedding_model_is_given_no_cache(tmp_path: Path) -> None:
    """gpustack/gguf-parser-go #2: bge-m3 was given a KV pool of gigabytes. An encoder keeps none: refused by name."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "xlm-roberta", "hidden_size": 1024, "num_hidden_layers": 24}')
    with pytest.raises(SpecError, match="'xlm-roberta' is not supported"):
        model(str(config))
