"""What families share, split or compress: caches by hand, stored formats, and what is refused by name."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.modelspecs.tensors import tensors

DATA = Path(__file__).parent / "data" / "configs.jsonl.gz"
with gzip.open(DATA, "rt") as stream:
    CONFIGS: dict[str, dict[str, Any]] = {line["file"]: line["config"] for line in map(json.loads, stream)}

FLASH, PRO = "deepseek-ai__DeepSeek-V4-Flash", "deepseek-ai__DeepSeek-V4-Pro"
SUPER = "nvidia__Llama-3_3-Nemotron-Super-49B-v1"


def spec(file: str, change: dict[str, Any] | None = None) -> ModelSpec:
    """A committed configuration, with some keys (written ``a/b/0``) changed, or taken out where they are None."""
    config = copy.deepcopy(CONFIGS[file])
    for path, value in (change or {}).items():
        *outer, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        inner: Any = config
        for part in outer:
            inner = inner[part]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return hf.from_config(config, f"{file}.json", file)


WINDOW = 128 * 512 * 2  # tokens of a window, one head of 512 in two bytes
CACHES: dict[str, tuple[float, int]] = {  # bytes a sequence of 65,536 tokens, by hand
    # every second layer writes K and V of 8 heads of 80; the others read them
    "tencent__Tencent-Hunyuan-Large": (65536, 32 * 2 * 8 * 80 * 2),
    # 9 full layers of 4 heads, 192 a key and 128 a value; 39 of 8 heads that keep 129 tokens
    "XiaomiMiMo__MiMo-V2-Flash": (1, 65536 * 9 * 4 * (192 + 128) * 2 + 129 * 39 * 8 * (192 + 128) * 2),
    # a latent of 512 + 64 in 78 layers, an index key of 128 + 4 bytes in the 21 that choose
    "zai-org__GLM-5.2": (65536, 78 * 576 * 2 + 21 * 132),
    "zai-org__GLM-5": (65536, 78 * (576 * 2 + 132)),
    # 5 full layers of 2 heads of 512, keys that are values kept as both; 25 of 8 heads of 256 that keep 1024 tokens
    "nvidia__Gemma-4-26B-A4B-NVFP4": (1, 65536 * 5 * 2 * 512 * 2 * 2 + 1024 * 25 * 8 * 256 * 2 * 2),
    # 49 of 80 blocks have attention
    SUPER: (65536, 49 * 2 * 8 * 128 * 2),
    # 2 layers with a window alone, 20 with an entry every 128 tokens, 21 every 4, with an index entry of 128 + 4 bytes
    FLASH: (1, 43 * WINDOW + 20 * 512 * 512 * 2 + 21 * 16384 * (512 * 2 + 132)),
    PRO: (1, 61 * WINDOW + 31 * 512 * 512 * 2 + 30 * 16384 * (512 * 2 + 132)),
}


@pytest.mark.parametrize("file", CACHES)
def test_cache_by_hand(file: str) -> None:
    """Only layers that write keys and values hold them, as many tokens as they see, in their own sizes."""
    times, size = CACHES[file]
    assert counts.kv_bytes(spec(file), 65536.0) == times * size


def test_deepseek_v4_pro_is_its_file_list() -> None:
    """The 64 files of V4-Pro hold 861,608,274,846 elements; two 4-bit ones count as one byte there.

    62 layers, the prediction layer among them, have 384 experts of three 3072 x 7168 matrices.
    """
    experts = 62 * 384 * 3 * 3072 * 7168
    found = model("deepseek-v4-pro")
    assert sum(t.total for t in tensors(found) if t.role.startswith("expert_")) == experts // 62 * 61
    assert counts.checkpoint_params(found) - experts // 2 == 861_608_274_846
    assert counts.unscaled_params(found) == 1_598_839_674_782


def test_a_table_is_no_weight() -> None:
    """The tables that choose experts by token are 8-byte integers: no parameters, no matter what the format is."""
    found = spec(FLASH)
    tables = [t for t in tensors(found) if t.role == "buffer"]
    assert sum(t.total for t in tables) == 3 * 129_280 * 6
    assert counts.total_params(found) + sum(t.total for t in tensors(found) if t.role == "mtp") + 3 * 129_280 * 6 == (
        counts.unscaled_params(found)
    )


FORMATS = [
    ("moonshotai__Kimi-K2.5", "int4_g32", {"expert_up": "int4_g32", "o_proj": "bf16", "ffn_up": "bf16"}),
    ("nvidia__Kimi-K2.5-NVFP4", "nvfp4", {"expert_up": "nvfp4", "q_b_proj": "bf16", "shared_expert_up": "nvfp4"}),
    ("nvidia__Kimi-K2.6-NVFP4", "nvfp4", {"expert_up": "nvfp4", "shared_expert_up": "bf16", "ffn_up": "bf16"}),
    ("nvidia__Gemma-4-26B-A4B-NVFP4", "nvfp4", {"expert_up": "nvfp4", "shared_expert_up": "bf16", "q_proj": "bf16"}),
    ("nvidia__GLM-5.1-NVFP4", "nvfp4", {"expert_up": "nvfp4", "indexer_q": "bf16", "mtp": "bf16"}),
    ("nvidia__MiniMax-M2.5-NVFP4", "nvfp4", {"expert_up": "nvfp4", "q_proj": "bf16"}),
    (FLASH, "mxfp4", {"expert_up": "mxfp4", "q_a_proj": "fp8_block_e8m0", "compressor_k": "bf16"}),
    ("nvidia__DeepSeek-V4-Flash-NVFP4", "nvfp4", {"expert_up": "nvfp4", "o_a_proj": "fp8_block_e8m0"}),
    ("sgl-project__DeepSeek-V4-Flash-FP8", "fp8_block_e8m0", {"expert_up": "fp8_block_e8m0", "indexer_gate": "bf16"}),
    ("zai-org__GLM-5-FP8", "fp8_block", {"expert_up": "fp8_block", "kv_b_proj": "fp8_block"}),
    ("Qwen__Qwen3-32B-FP8-Static-PerTensor", "fp8_tensor", {"ffn_up": "fp8_tensor"}),
]


@pytest.mark.parametrize(("file", "name", "roles"), FORMATS, ids=lambda value: str(value)[:40])
def test_stored_formats(file: str, name: str, roles: dict[str, str]) -> None:
    """What a quantizer's lists leave alone stays at 16 bits, and experts may have a format of their own."""
    found = spec(file)
    assert found.native_format == name
    for role, wanted in roles.items():
        kept = "bf16" if role in found.native_16bit else found.native_roles.get(role, name)
        assert kept == wanted, role


def test_int4_of_kimi_is_its_size() -> None:
    """Kimi-K2.5's experts of 4 bits and a 2-byte scale a group of 32 are 4.5 bits: 595 GB in all, as its page shows."""
    found = spec("moonshotai__Kimi-K2.5")
    experts = 60 * 384 * 3 * 7168 * 2048
    rest = sum(t.total for t in tensors(found)) - experts
    assert weight_bytes(found, "int4_g32") == pytest.approx(experts * 4.5 / 8 + 2 * rest, rel=1e-3)
    assert weight_bytes(found, "int4_g32") == pytest.approx(595e9, rel=0.01)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (FLASH, {"compress_ratios/5": 16}, "compress_ratios: 16 is not understood"),
    (FLASH, {"compress_ratios": [4, 4]}, "compress_ratios: has 2 entries"),
    (FLASH, {"compress_ratios": None}, "compress_ratios"),
    (FLASH, {"o_groups": 7}, "o_groups: 7 does not divide"),
    (FLASH, {"hc_mult": None}, "hc_mult"),
    (FLASH, {"expert_dtype": "int3"}, "expert_dtype"),
    (FLASH, {"quantization_config/weight_block_size": [64, 64]}, "quant_method"),
    ("nvidia__DeepSeek-V4-Flash-NVFP4", {"quantization_config/moe_quant_algo": "MXFP6"}, "moe_quant_algo"),
    ("nvidia__DeepSeek-V4-Flash-NVFP4", {"quantization_config/quantized_layers": {}}, "quantized_layers"),
    (SUPER, {"block_configs/3/attention/replace_with_linear": True}, "replace_with_linear"),
    (SUPER, {"block_configs/3/ffn/replace_with_linear": True}, "replace_with_linear"),
    (SUPER, {"block_configs/3/attention/n_heads_in_group": 7}, "n_heads_in_group: 7 does not divide"),
    (SUPER, {"block_configs/3/attention/window_length": 512}, "window_length"),
    (SUPER, {"block_configs/3/attention/new_thing": 1}, "new_thing"),
    (SUPER, {"block_configs/3": None}, "block_configs"),
    ("tencent__Tencent-Hunyuan-Large", {"cla_share_factor": 0}, "cla_share_factor"),
    ("zai-org__GLM-5.2", {"indexer_types/4": "maybe"}, "indexer_types"),
    ("moonshotai__Kimi-K2.5", {"text_config/quantization_config/quant_method": "magic"}, "magic"),
    ("nvidia__Gemma-4-26B-A4B-NVFP4", {"audio_config": {"hidden_size": 8}}, "audio_config"),
    (
        "zai-org__GLM-5-FP8",
        {"quantization_config/modules_to_not_convert": ["model.layers.5.self_attn"]},
        "of 78 layers",
    ),
    ("zai-org__GLM-5-FP8", {"quantization_config/modules_to_not_convert": ["model.layers.7*"]}, "more than layer 7"),
    ("zai-org__GLM-5-FP8", {"quantization_config/modules_to_not_convert": ["wings"]}, "'wings' is not a module"),
    ("stepfun-ai__Step-3.7-Flash-FP8", {}, "num_sliding_attention_heads"),
]


@pytest.mark.parametrize(("file", "change", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_refused_by_name(file: str, change: dict[str, Any], words: str) -> None:
    """One key that is not understood stops the import, and the message says which."""
    with pytest.raises(SpecError) as raised:
        spec(file, change)
    assert words in str(raised.value)
