"""Families whose file is not at hand: the published dimensions alone give the total that the Hub counts.

Totals and dimensions are those of the models' pages on the Hugging Face Hub (number of elements of the safetensors
files, and fields of config.json); what a row leaves out is the default of the model class.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.tensors import tensors

#: id, model type, layers, query heads, KV heads, hidden size, words, width, other fields, elements of its files
ROWS: list[tuple[str, str, int, int, int, int, int, int, dict[str, Any], int]] = [
    ("ibm-granite/granite-3.0-2b-base", "granite", 40, 32, 8, 2048, 49152, 8192, {"tie_word_embeddings": True},
     2_533_525_504),
    ("ibm-granite/granite-4.2-8b", "granite", 40, 32, 8, 4096, 100352, 12800, {}, 8_791_592_960),
    ("allenai/OLMo-7B-0724-hf", "olmo", 32, 32, 32, 4096, 50304, 11008, {}, 6_888_095_744),
    ("allenai/Olmo-3-7B-Instruct", "olmo3", 32, 32, 32, 4096, 100278, 11008, {"sliding_window": 4096}, 7_298_011_136),
    ("allenai/OLMoE-1B-7B-0125-Instruct", "olmoe", 16, 16, 16, 2048, 50304, 1024,
     {"num_experts": 64, "num_experts_per_tok": 8}, 6_919_161_856),
    ("HuggingFaceTB/SmolLM3-3B", "smollm3", 36, 16, 4, 2048, 128256, 11008, {}, 3_075_098_624),
    ("LGAI-EXAONE/EXAONE-4.0-32B", "exaone4", 64, 40, 8, 5120, 102400, 27392,
     {"head_dim": 128, "sliding_window": 4096}, 32_003_216_384),
    ("zai-org/glm-4-9b-hf", "glm", 40, 32, 2, 4096, 151552, 13696, {"head_dim": 128}, 9_399_951_360),
    ("zai-org/GLM-Z1-32B-0414", "glm4", 61, 48, 2, 6144, 151552, 23040, {"head_dim": 128, "attention_bias": False},
     32_566_081_536),
    ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss", 64, 80, 8, 5120, 155136, 27648, {"head_dim": 128},
     36_151_104_512),
    ("baidu/ERNIE-4.5-0.3B-PT", "ernie4_5", 18, 16, 2, 1024, 103424, 3072, {"head_dim": 128}, 360_748_032),
    ("baidu/ERNIE-4.5-21B-A3B-PT", "ernie4_5_moe", 28, 20, 4, 2560, 103424, 12288,
     {"moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2,
      "num_nextn_predict_layers": 1}, 21_948_655_808),
    ("baidu/ERNIE-4.5-300B-A47B-Base-PT", "ernie4_5_moe", 54, 64, 8, 8192, 103424, 28672,
     {"moe_intermediate_size": 3584, "moe_num_experts": 64, "moe_k": 8, "moe_num_shared_experts": 0,
      "moe_layer_start_index": 3, "tie_word_embeddings": False}, 299_484_163_264),
    ("tencent/Hunyuan-0.5B-Instruct", "hunyuan_v1_dense", 24, 16, 8, 1024, 120818, 3584,
     {"head_dim": 128, "tie_word_embeddings": True}, 539_010_048),
    ("tencent/Hunyuan-1.8B-Instruct", "hunyuan_v1_dense", 32, 16, 4, 2048, 120818, 6144,
     {"head_dim": 128, "tie_word_embeddings": True}, 1_791_080_448),
    ("tencent/Hy3", "hy_v3", 80, 64, 8, 4096, 120832, 13312,
     {"head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 192, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "num_nextn_predict_layers": 1}, 298_786_155_776),
    ("swiss-ai/Apertus-8B-Instruct-2509", "apertus", 32, 32, 8, 4096, 131072, 21504, {}, 8_053_338_176),
    ("swiss-ai/Apertus-70B-2509", "apertus", 80, 64, 8, 8192, 131072, 43008, {}, 70_599_864_480),
    ("microsoft/phi-1_5", "phi", 24, 32, 32, 2048, 51200, 8192, {}, 1_418_270_720),
    ("microsoft/Phi-3.5-MoE-instruct", "phimoe", 32, 32, 8, 4096, 32064, 6400,
     {"num_local_experts": 16, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
     41_873_153_344),
    ("ibm-granite/granite-3.0-1b-a400m-instruct", "granitemoe", 24, 16, 8, 1024, 49155, 512,
     {"num_local_experts": 32, "num_experts_per_tok": 8, "tie_word_embeddings": True}, 1_334_628_352),
    ("bigcode/starcoder2-15b", "starcoder2", 40, 48, 4, 6144, 49152, 24576, {"tie_word_embeddings": False},
     15_957_889_024),
    ("stabilityai/stablelm-2-1_6b-chat", "stablelm", 24, 32, 32, 2048, 100352, 5632, {"use_qkv_bias": True},
     1_644_515_328),
    ("Qwen/Qwen-72B", "qwen", 80, 64, 64, 8192, 152064, 49152, {"kv_channels": 128, "no_bias": True}, 72_287_920_128),
    ("EleutherAI/pythia-1.4b-deduped", "gpt_neox", 24, 16, 16, 2048, 50304, 8192, {}, 1_414_647_808),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_dimensions_give_the_total(row: tuple[Any, ...]) -> None:
    """The dimensions of a model's page are the elements of its files, prediction layers included."""
    name, kind, layers, heads, kv_heads, hidden, words, width, more, total = row
    config = {
        "model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden,
        "vocab_size": words, "intermediate_size": width, "max_position_embeddings": 4096, **more,
    }  # fmt: skip
    if kind not in ("gpt_neox", "qwen"):
        config["num_key_value_heads"] = kv_heads
    assert counts.unscaled_params(hf.from_config(config, name, name)) == total


PICTURES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "Qwen/Qwen2-VL-7B-Instruct": (
        {"model_type": "qwen2_vl"},
        {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 3584},
        8_291_375_616,
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        {"model_type": "qwen2_5_vl"},
        {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
         "in_chans": 3, "out_hidden_size": 3584, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
        8_292_166_656,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_towers_count_with_the_model_and_apart(name: str) -> None:
    """A tower is part of the total, and of the share that a generated token does not pass."""
    kind, tower, total = PICTURES[name]
    patches = {"patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}
    config = {
        **kind, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
        "vocab_size": 152064, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "vision_config": {**tower, **patches},
    }  # fmt: skip
    found = hf.from_config(config, name, name)
    assert counts.total_params(found) == total
    layer = 3584 * (3584 + 2 * 512) + 3584 + 2 * 512 + 3584**2 + 3 * 3584 * 18944 + 2 * 3584
    language = 28 * layer + 2 * 152064 * 3584 + 3584  # as Qwen2-7B: biases on Q, K and V
    assert total - language == sum(t.total for t in tensors(found) if t.role in ("vision", "projector"))


def test_openelm_grows_from_layer_to_layer() -> None:
    """OpenELM-270M: 12 to 20 query heads and widths of 0.5 to 4 hidden sizes give the published 271,527,168."""
    config = {
        "model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 16,
        "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4, "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
        "ffn_multipliers": [
            0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0,
        ],
        "ffn_dim_divisor": 256, "vocab_size": 32000, "max_context_length": 2048,
        "share_input_output_layers": True, "ffn_with_glu": True, "normalize_qk_projections": True,
        "num_gqa_groups": 4, "qkv_multipliers": [0.5, 1.0], "activation_fn_name": "swish",
        "normalization_layer_name": "rms_norm", "rope_freq_constant": 10000, "rope_max_length": 4096,
    }  # fmt: skip
    found = hf.from_config(config, "OpenELM-270M", "openelm-270m")
    assert counts.total_params(found) == 271_527_168
    assert len(found.layer_classes) == 16


def test_step_35_flash_by_its_dimensions() -> None:
    """Step-3.5-Flash: 45 layers with 64 heads, 96 in three of four, and prediction layers that have their own heads.

    The files of Step-3.5-Flash-Base hold 197,764,857,152 elements: one of the prediction layers, whose head has 128,896
    words where the model has 128,815.
    """
    config = {
        "model_type": "step3p5", "num_hidden_layers": 45, "num_attention_heads": 64, "num_attention_groups": 8,
        "head_dim": 128, "hidden_size": 4096, "vocab_size": 128815, "intermediate_size": 11264,
        "max_position_embeddings": 262144, "sliding_window": 512,
        "layer_types": ((["full_attention"] + ["sliding_attention"] * 3) * 12)[:46],
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
            "head_dim": 128, "true_head_dim": 128,
        },
        "num_nextn_predict_layers": 1, "moe_layers_enum": ",".join(map(str, range(3, 45))),
    }  # fmt: skip
    found = hf.from_config(config, "Step-3.5-Flash", "step3.5-flash")
    assert counts.unscaled_params(found) + (128896 - 128815) * 4096 == 197_764_857_152
