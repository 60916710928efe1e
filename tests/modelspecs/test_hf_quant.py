"""`quantization_config` is read strictly: every key understood or known to be harmless, per quantizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf

DATA = Path(__file__).parent / "data" / "configs"
LLAMA = json.loads((DATA / "meta-llama__Llama-3.1-8B.json").read_text())

GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "lm_head": False,
    "checkpoint_format": "gptq", "pack_dtype": "int32", "static_groups": False, "true_sequential": True,
    "damp_percent": 0.01, "meta": {"quantizer": ["gptqmodel:1.4.0"], "uri": "u"}, "dynamic": {},
}  # fmt: skip
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip
NVFP4 = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"},
    "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
        "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}},
}  # fmt: skip


def tensors_of(weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    """A section of compressed-tensors as llm-compressor writes it."""
    common = {"dynamic": False, "symmetric": True, "observer": "minmax", "observer_kwargs": {}, "actorder": None,
              "block_structure": None, "group_size": None}  # fmt: skip
    group = {"targets": ["Linear"], "weights": common | weights, "output_activations": None,
             "input_activations": common | activations if activations else None}  # fmt: skip
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"],
            "global_compression_ratio": 1.5, "sparsity_config": {}, "kv_cache_scheme": None,
            "config_groups": {"group_0": group}} | more  # fmt: skip


FP8_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
FP8 = tensors_of(FP8_CHANNEL, TOKEN, format="float-quantized")


def imported(quantization: dict[str, Any], **more: object) -> Any:
    """Llama 3.1 8B with a quantization."""
    return hf.from_config({**LLAMA, "quantization_config": quantization, **more}, "config.json", "quantized")


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        (GPTQ, "int4"),
        (GPTQ | {"bits": 8}, "w8a16"),
        (GPTQ | {"bits": 8, "group_size": -1}, "w8a16"),
        (GPTQ | {"bits": 3}, "gptq3_g128"),
        (GPTQ | {"group_size": 32}, "gptq_g32"),
        (GPTQ | {"bits": 2, "group_size": -1}, "gptq2_channel"),
        (AWQ | {"group_size": 64}, "awq_g64"),
        (tensors_of(INT4 | {"group_size": 64}, format="pack-quantized"), "int4_g64"),
        (AWQ, "int4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, "int4"),
        (NVFP4, "nvfp4"),
        (FP8, "fp8"),
        (tensors_of(FP8_TENSOR, FP8_TENSOR, format="float-quantized"), "fp8_tensor"),
        (tensors_of(INT4, format="pack-quantized"), "int4"),
        (tensors_of(INT4 | {"group_size": 32}, format="pack-quantized"), "int4_g32"),
        (tensors_of({"num_bits": 8, "type": "int", "strategy": "channel"}, format="pack-quantized"), "w8a16"),
        (tensors_of({"num_bits": 8, "type": "int", "strategy": "channel"}, TOKEN | {"type": "int"}), "int8"),
        (tensors_of({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), "nvfp4"),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8_tensor"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8_tensor"),
    ],
)
def test_common_checkpoints_are_read(quantization: dict[str, Any], name: str) -> None:
    """What quantizers commonly write gives the storage format."""
    assert imported(quantization).native_format == name


def group(**change: object) -> dict[str, Any]:
    """NVFP4 with a change in its weights."""
    return {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16} | change}}
    }


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        (GPTQ | {"dynamic": {"-:.*down.*": {}}}, "quantization_config.dynamic: "),
        (GPTQ | {"modules_in_block_to_quantize": [["q_proj"]]}, "modules_in_block_to_quantize: "),
        (GPTQ | {"lm_head": True}, "lm_head: "),
        (GPTQ | {"bits": 5}, "group_size: 5 bits in groups of 128"),
        (GPTQ | {"group_size": 48}, "group_size: 4 bits in groups of 48"),
        (GPTQ | {"zebra": 1}, "quantization_config.zebra: not understood"),
        (AWQ | {"zebra": 1}, "zebra: not understood"),
        (AWQ | {"bits": 8}, "group_size: 8 bits"),
        ({"quant_method": "awq"}, "bits: is missing|w_bit: is missing"),
        (NVFP4 | {"group_size": 32}, "quantization_config.group_size: 32"),
        (NVFP4 | group(group_size=32), r"group_0.weights.group_size: 32 is not understood; only 16 is"),
        (NVFP4 | group(num_bits=8), r"weights.num_bits: 8"),
        (NVFP4 | group(zebra=8), r"weights.zebra: not understood"),
        (NVFP4 | {"quantized_layers": {"a": {}}}, "quantized_layers"),
        (tensors_of(INT4, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config: "),
        (tensors_of(INT4, transform_config={"config_groups": {}}), "transform_config: "),
        (tensors_of(INT4, quantization_status="calibration"), "quantization_status: "),
        (tensors_of(INT4, format="marlin-24"), "format: 'marlin-24'"),
        (tensors_of(INT4 | {"group_size": 48}), "groups of 48"),
        (tensors_of(INT4, zebra=[1]), "zebra: not understood"),
        (tensors_of(FP8_CHANNEL | {"symmetric": False}, TOKEN), "symmetric: False"),
        (tensors_of(FP8_CHANNEL, TOKEN | {"num_bits": 4}), "input_activations.num_bits: 4"),
        (tensors_of(FP8_CHANNEL, TOKEN | {"zebra": 4}), "input_activations.zebra"),
        ({"quant_method": "mxfp4", "zebra": 4}, "zebra: not understood"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"}, "fmt: 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "zebra": 0}, "zebra: not understood"),
        (tensors_of(INT4, kv_cache_scheme={"num_bits": 4, "type": "float"}), "kv_cache_scheme.num_bits: 4"),
        (NVFP4 | {"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo: 'NVFP4'"),
    ],
)
def test_what_is_not_understood_is_refused(quantization: dict[str, Any], key: str) -> None:
    """A key or value that may change what is stored is refused by its name."""
    with pytest.raises(SpecError, match=key):
        imported(quantization)


@pytest.mark.parametrize("targets", [["re:.*down_proj"], ["Linear", "Embedding"], ["LlamaAttention"], []])
def test_only_all_linear_layers_are_one_format(targets: list[str]) -> None:
    """A group for some modules only is refused, whichever they are."""
    some = json.loads(json.dumps(FP8))
    some["config_groups"]["group_0"]["targets"] = targets
    with pytest.raises(SpecError, match=r"group_0.targets: .* is not understood; only \['Linear'\] is"):
        imported(some)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int", "strategy": "tensor"}}, "int8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, None),
    ],
)
def test_kv_cache_is_said(asked: dict[str, Any], name: str | None) -> None:
    """An 8-bit cache that a checkpoint asks for is in the spec and in the notes of its summary."""
    spec = imported(FP8 | asked)
    assert spec.native_kv == name
    said = [note for note in counts.notes(spec) if "KV cache" in note]
    assert said == ([f"the checkpoint asks for an {name.upper()} KV cache: pass --kv {name}"] if name else [])


@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
def test_rotary_sections_are_strict(section: str) -> None:
    """A key of the rotary embedding that nothing knows is refused, in a layer type's own part too."""
    known = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    assert imported(FP8, **{section: known})
    with pytest.raises(SpecError, match=f"{section}.zebra"):
        imported(FP8, **{section: known | {"zebra": 1}})
    with pytest.raises(SpecError, match=f"{section}.full_attention.zebra"):
        imported(FP8, **{section: {"full_attention": known | {"zebra": 1}}})


def test_a_quantizers_file_is_strict(tmp_path: Path) -> None:
    """hf_quant_config.json has a producer and a quantization, and nothing else that may be passed over."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert hf.load(tmp_path / "config.json").native_kv == "fp8"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside | {"zebra": 1}))
    with pytest.raises(SpecError, match="zebra: not understood"):
        hf.load(tmp_path / "config.json")
