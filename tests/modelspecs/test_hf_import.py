"""The importer of Hugging Face configurations: what it reads, what it takes from the model class, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.hf.families import FAMILIES
from perfmodel.modelspecs.load import from_file, model
from perfmodel.modelspecs.schema import Gqa
from perfmodel.modelspecs.sizes import weight_bytes

CONFIGS = Path(__file__).parent / "data" / "configs"


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


def spec_of(name: str = "meta-llama__Llama-3.1-8B", **changes: object) -> Any:
    """The spec of a real configuration with keys changed; ``...`` takes a key away."""
    data = {key: value for key, value in (config(name) | changes).items() if value is not ...}
    return hf.from_config(data, "config.json", "changed")


def test_a_folder_is_named_after_itself(tmp_path: Path) -> None:
    """A folder with a config.json loads, and the model is called by the folder."""
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("meta-llama__Llama-3.1-8B")))
    for path in (folder, folder / "config.json"):
        assert from_file(path).name == "My-Llama"
    assert counts.total_params(model(str(folder))) == 8_030_261_248


def test_a_loose_file_is_named_after_itself() -> None:
    """A file with another name gives the model its own."""
    assert hf.load(CONFIGS / "Qwen__Qwen3-8B.json").name == "Qwen__Qwen3-8B"
    assert hf.load(CONFIGS / "Qwen__Qwen3-8B.json").title == "Qwen/Qwen3-8B"


def test_class_defaults_are_listed() -> None:
    """Gemma 3 4B's file lacks heads and vocabulary: the class has them, and the notes say so."""
    spec = hf.load(CONFIGS / "google__gemma-3-4b-it.json")
    attention = spec.attention["full"]
    assert isinstance(attention, Gqa)
    assert (attention.heads, attention.kv_heads, attention.head_dim, spec.vocab_size) == (8, 4, 256, 262208)
    for word in ("num_attention_heads = 8", "num_key_value_heads = 4", "head_dim = 256", "vocab_size = 262208"):
        assert word in spec.notes


def test_cohere_is_tied_without_saying_so() -> None:
    """Cohere's files omit tie_word_embeddings, and the class ties."""
    assert hf.load(CONFIGS / "CohereForAI__c4ai-command-r-plus.json").tied_embeddings


def test_mistral_window_is_the_class_default() -> None:
    """Mistral 7B v0.1's file at hand has no sliding_window: 4096 by the class; null in v0.3 means none."""
    first = hf.load(CONFIGS / "mistralai__Mistral-7B-v0.1.json").layer_classes[0].attention
    third = hf.load(CONFIGS / "mistralai__Mistral-7B-Instruct-v0.3.json").layer_classes[0].attention
    assert isinstance(first, Gqa)
    assert isinstance(third, Gqa)
    assert (first.window, third.window) == (4096, None)


def test_unused_window_is_ignored() -> None:
    """Qwen's sliding_window counts only with use_sliding_window, and then from max_window_layers on."""
    plain = spec_of("Qwen__Qwen3-8B", sliding_window=4096)
    used = spec_of("Qwen__Qwen3-8B", sliding_window=4096, use_sliding_window=True, max_window_layers=30)
    assert [layer.attention_name for layer in plain.layer_classes] == ["full"]
    assert [(layer.attention_name, layer.count) for layer in used.layer_classes] == [("full", 30), ("sliding", 6)]


def test_mlp_only_layers_are_dense() -> None:
    """Qwen's sparse step and list of plain layers shape the schedule."""
    spec = spec_of("Qwen__Qwen3-30B-A3B", mlp_only_layers=[0, 1], decoder_sparse_step=1)
    assert [(layer.ffn_name, layer.count) for layer in spec.layer_classes] == [("dense", 2), ("moe", 46)]


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        ("Qwen__Qwen3-32B-FP8", "fp8_block"), ("Qwen__Qwen3-235B-A22B-FP8", "fp8_block"),
        ("Qwen__Qwen3-32B-FP8-Static-PerTensor", "fp8_tensor"), ("deepseek-ai__DeepSeek-V3.2", "fp8_block"),
        ("openai__gpt-oss-120b", "mxfp4"), ("meta-llama__Llama-2-7b-hf", "fp16"), ("Qwen__Qwen3-8B", "bf16"),
        ("allenai__OLMo-2-0325-32B", "fp32"), ("google__gemma-3-27b-it", "bf16"),
    ],
)  # fmt: skip
def test_native_format(name: str, fmt: str) -> None:
    """The storage format follows from quantization_config, else from torch_dtype."""
    assert hf.load(CONFIGS / f"{name}.json").native_format == fmt


def test_modules_left_alone() -> None:
    """gpt-oss leaves the attention at 16 bits; its experts take 4 bits and 8 a group of 32: 4.25."""
    spec = hf.load(CONFIGS / "openai__gpt-oss-120b.json")
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= set(spec.native_16bit)
    matrices = 36 * 128 * 3 * 2880 * 2880
    others = counts.total_params(spec) - matrices
    assert weight_bytes(spec, "mxfp4") == matrices * 4.25 / 8 + 2 * others
    assert weight_bytes(model("gpt-oss-120b"), "mxfp4") == weight_bytes(spec, "mxfp4")


@pytest.mark.parametrize(
    ("quantization", "fmt"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "int4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
        (
            {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "input_activations": {"num_bits": 8}, "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "input_activations": None, "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}},
            "w8a16",
        ),
    ],
)  # fmt: skip
def test_quantizers(quantization: dict[str, Any], fmt: str) -> None:
    """The quantizers whose formats are described."""
    assert spec_of(quantization_config=quantization).native_format == fmt


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "quip"}, r"quantization_config\.quant_method: 'quip' is not understood"),
        ({"bits": 4}, r"quant_method: None is not understood"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 65}, "3 bits in groups of 65 are not understood"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size: \[64, 64\] is not understood"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED"}, "quant_algo: 'MIXED' is not understood"),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128],
             "modules_to_not_convert": ["model.layers.3.self_attn.q_proj"]},
            "leaves q_proj alone in 1 of 32 layers only",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.mystery"]},
            "'model.mystery' is not a module that is understood",
        ),
        ("fp8", "quantization_config: must be a mapping"),
    ],
)  # fmt: skip
def test_quantizers_refused(quantization: object, message: str) -> None:
    """A quantization that the formats do not describe is refused by its name."""
    with pytest.raises(SpecError, match=message):
        spec_of(quantization_config=quantization)


def test_quantizer_file_beside_the_configuration(tmp_path: Path) -> None:
    """NVIDIA's hf_quant_config.json is read from the folder."""
    (tmp_path / "config.json").write_text(json.dumps(config("nvidia__Llama-3.1-70B-Instruct-FP8")))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps(
            {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        )
    )
    assert hf.load(tmp_path / "config.json").native_format == "fp8_tensor"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model_type": "mystery"}, "model_type: 'mystery' is not supported"),
        ({"model_type": ...}, "model_type: is missing"),
        ({"model_type": ["llama"]}, "model_type: .* is not supported"),
        ({"hidden_size": ...}, "hidden_size: is missing"),
        ({"num_hidden_layers": ..., "vocab_size": None}, "num_hidden_layers: is missing, and so are vocab_size"),
        ({"hidden_size": 0}, "hidden_size: must be a whole number from 1 to 1,000,000,000, not 0"),
        ({"hidden_size": -4096}, "hidden_size: must be a whole number .* not -4096"),
        ({"hidden_size": 4096.0}, r"hidden_size: must be a whole number .* not 4096\.0"),
        ({"hidden_size": 1e30}, r"hidden_size: must be a whole number .* not 1e\+30"),
        ({"hidden_size": float("nan")}, "hidden_size: must be a whole number .* not nan"),
        ({"intermediate_size": float("inf")}, "intermediate_size: must be a whole number .* not inf"),
        ({"hidden_size": True}, "hidden_size: must be a whole number .* not True"),
        ({"hidden_size": "4096"}, "hidden_size: must be a whole number .* not '4096'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 layers; at most 10000"),
        ({"num_key_value_heads": 5}, r"num_key_value_heads: 5 does not divide num_attention_heads \(32\)"),
        ({"hidden_size": 4097}, "hidden_size: 4097 is not a multiple of num_attention_heads"),
        ({"attention_bias": "no"}, "attention_bias: must be true or false"),
        ({"hidden_act": "mystery"}, "hidden_act: 'mystery' is not understood"),
        ({"torch_dtype": "int3"}, "torch_dtype: 'int3' is not understood"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: True is not understood"),
        ({"num_experts": 8}, "num_experts: not understood: num_experts = 8"),
        ({"lora_rank": 4, "mystery": {}}, "lora_rank = 4, mystery = a mapping of 0"),
    ],
)
def test_refused(changes: dict[str, Any], key: str) -> None:
    """What is missing, out of range or not understood is refused by name; nothing is guessed."""
    with pytest.raises(SpecError, match=key) as raised:
        spec_of(**changes)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Qwen__Qwen3-30B-A3B", {"num_experts_per_tok": 200}, r"200 is above the number of experts \(128\)"),
        ("Qwen__Qwen3-30B-A3B", {"use_qk_norm": False}, "use_qk_norm: False is not understood"),
        ("Qwen__Qwen3-8B", {"layer_types": ["full_attention"]}, "layer_types: has 1 entries for 36 layers"),
        ("Qwen__Qwen3-8B", {"layer_types": ["linear_attention"] * 36}, "'linear_attention' is not understood"),
        ("Qwen__Qwen3-8B", {"use_sliding_window": True}, "sliding_window: is missing"),
        ("Qwen__Qwen3-30B-A3B", {"use_sliding_window": True}, "use_sliding_window: True is not understood"),
        ("Qwen__Qwen3-30B-A3B", {"num_local_experts": 64}, "num_experts: contradicts itself: num_experts = 128"),
        ("Qwen__Qwen3-30B-A3B", {"num_experts": ...}, "num_experts .*: is missing"),
        ("openai__gpt-oss-120b", {"experts_per_token": 8}, "experts_per_token: 8 is not understood"),
        ("deepseek-ai__DeepSeek-V3.2", {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not understood"),
        ("deepseek-ai__DeepSeek-V3.2", {"first_k_dense_replace": 99}, "99 is above num_hidden_layers"),
        ("deepseek-ai__DeepSeek-V3.2", {"q_lora_rank": ...}, "q_lora_rank: is missing; write null for none"),
        ("deepseek-ai__DeepSeek-V3.2", {"index_topk": ...}, "index_topk: is missing"),
        ("deepseek-ai__DeepSeek-V3.2", {"num_key_value_heads": 8}, "num_key_value_heads: 8 is not understood"),
        ("google__gemma-3-4b-it", {"text_config": ...}, "text_config: is missing"),
        ("google__gemma-3-4b-it", {"text_config": 5}, "text_config: must be a mapping"),
        ("google__gemma-3-4b-it", {"audio_config": {}}, "audio_config: not understood"),
    ],
)
def test_refused_by_family(name: str, changes: dict[str, Any], message: str) -> None:
    """Each family refuses what its formulas do not hold for."""
    with pytest.raises(SpecError, match=message):
        spec_of(name, **changes)


def test_unknown_key_of_a_section_has_its_path() -> None:
    """A key of a section is named with the section."""
    text = config("google__gemma-3-4b-it")["text_config"] | {"per_layer_inputs": 256}
    with pytest.raises(SpecError, match=r"text_config\.per_layer_inputs: not understood"):
        spec_of("google__gemma-3-4b-it", text_config=text)


def test_families_are_listed_when_unknown() -> None:
    """An unknown architecture is told which ones are known."""
    with pytest.raises(SpecError) as raised:
        spec_of(model_type="rwkv7")
    assert all(kind in str(raised.value) for kind in FAMILIES)
    assert len(FAMILIES) >= 20


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_shaping_key_matters(path: Path) -> None:
    """Taking away any key that is a whole number either changes nothing that costs, or is refused: never a crash."""
    data = json.loads(path.read_text())
    inner = data.get("text_config", data)
    refused: dict[str, str] = {}
    for key in [key for key, value in inner.items() if isinstance(value, int) and not isinstance(value, bool)]:
        less = {name: value for name, value in inner.items() if name != key}
        try:
            hf.from_config(data | {"text_config": less} if inner is not data else less, "config.json", "less")
        except SpecError as error:
            refused[key] = str(error)
    assert refused
    assert all(key in message or "sliding_window" in message for key, message in refused.items())
