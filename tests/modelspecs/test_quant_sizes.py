"""``quantize``: sums and laws, recipes, real checkpoints to the byte, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.base.errors import SpecError, UnknownName, UsageError
from perfmodel.modelspecs.counts import by_role, total_params
from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.modelspecs.gguf_presets import PRESETS
from perfmodel.modelspecs.load import MODELS, model
from perfmodel.modelspecs.quant_sizes import quantize, weight_or_preset
from perfmodel.modelspecs.quantized import merged
from perfmodel.modelspecs.safetensors_size import all_parts, header_bytes
from perfmodel.modelspecs.sizes import tensor_format, weight_bytes
from perfmodel.modelspecs.tensors import tensors

#: Presets from small to large: bits a weight of any model whose rows are whole blocks rise in this order.
ORDER = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_XS", "Q4_K_S",
    "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16", "F32",
)  # fmt: skip
SMALL_MODELS = ("llama3-8b", "qwen2.5-7b", "gemma2-9b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt2", "deepseek-v2-lite")
#: Its rows of 10,944 are no whole number of blocks of 128, and nothing stands in for the type.
NOT_STORED = {("deepseek-v2-lite", "Q1_0")}
KEPT = "every recipe leaves it"


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gemma2-9b"])
def test_bits_rise_in_the_order_of_the_presets(name: str) -> None:
    """A larger preset never makes a smaller file."""
    found = [quantize(name, kind).total_bytes for kind in ORDER]
    assert all(a < b for a, b in pairwise(found))


@settings(max_examples=60)
@given(name=st.sampled_from(SMALL_MODELS), kind=st.sampled_from([*PRESETS, "int4", "gptq_g64", "fp8", "nf4_dq"]))
def test_sums(name: str, kind: str) -> None:
    """The total is the sum over tensors, types and roles; bits a weight are its bits over the model's elements."""
    if (name, kind) in NOT_STORED:
        with pytest.raises(UsageError, match="cannot store rows"):
            quantize(name, kind)
        return
    found = quantize(name, kind)
    assert found.total_bytes == sum(t.bytes for t in found.tensors) == sum(t["bytes"] for t in found.by_type.values())
    assert found.total_bytes == sum(t.bytes for t in merged(found.tensors))
    assert sum(t.count for t in merged(found.tensors)) == sum(t.count for t in found.tensors)
    assert found.bits_per_weight == 8 * found.total_bytes / found.elements
    assert found.elements == total_params(model(name))
    assert found.file_bytes >= found.total_bytes + found.header_bytes > found.total_bytes
    roles = by_role(model(name))
    for role in ("embedding", "o_proj"):
        assert sum(t.elements for t in found.tensors if t.role == role) == roles[role]


@pytest.mark.parametrize("name", MODELS.names)
def test_checkpoints_are_what_engines_load(name: str) -> None:
    """In every weight format tried, the sum is `weight_bytes`: one recipe, whoever asks."""
    spec = model(name)
    for fmt in ("int4", "nvfp4", spec.native_format):
        found = quantize(spec, fmt)
        assert found.total_bytes == pytest.approx(weight_bytes(spec, fmt), rel=1e-14)


def test_llama_70b_in_four_bits() -> None:
    """Not a fourth of 141.1 GB: 39.8 GB, for embedding and head stay at 16 bits and each group has a scale."""
    found = quantize("llama3-70b", "int4")
    assert found.total_bytes / 1e9 == pytest.approx(39.8, abs=0.05)
    assert {t.role for t in found.tensors if t.type == "bf16"} == {"embedding", "lm_head", "norm"}
    assert all(t.why == (KEPT if t.type == "bf16" else "") for t in found.tensors)


@pytest.mark.parametrize(
    ("name", "fmt", "gb"),
    [
        ("tinyllama-1.1b", "gptq_g128_act", 0.77), ("tinyllama-1.1b", "gptq_g32_act", 0.82),
        ("tinyllama-1.1b", "gptq8_channel_act", 1.23), ("qwen2.5-7b", "awq_g128", 5.57),
    ],
)  # fmt: skip
def test_published_checkpoints(name: str, fmt: str, gb: float) -> None:
    """Sizes that Hugging Face lists: TheBloke/TinyLlama-1.1B-...-GPTQ, graelo/Qwen2.5-7B-Instruct-1M-AWQ."""
    assert round(quantize(name, fmt).file_bytes / 1e9, 2) == gb


def test_what_is_left_alone_on_request() -> None:
    """Roles and the first and last layers at 16 bits; bytes move by just those matrices."""
    plain = quantize("llama3-8b", "gptq_g128")
    kept = quantize("llama3-8b", "gptq_g128", keep=["o_proj"], keep_first=1, keep_last=2)
    fmt, spec = weight_format("gptq_g128"), model("llama3-8b")
    saved = 0.0
    for t in tensors(spec):
        if t.quantizable:
            layers = 32 if t.role == "o_proj" else 3
            saved += layers * (2 * t.numel - fmt.tensor_bytes(t.shape))
    assert kept.total_bytes - plain.total_bytes == saved
    assert kept.elements == plain.elements
    assert sum(t.count for t in kept.tensors) == sum(t.count for t in plain.tensors)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": ["nothing"]}, r"no matrices of the role 'nothing'; it has ffn_down"),
        ({"keep_first": 20, "keep_last": 20}, "has 32 layers"), ({"keep_first": -1}, "has 32 layers"),
        ({"matrix": True}, "int4 is none"), ({"output": "Q8_0"}, "int4 is none"),
    ],
)  # fmt: skip
def test_refused_options(options: dict[str, Any], words: str) -> None:
    """Options that the model or the format does not have are refused by name."""
    with pytest.raises(UsageError, match=words):
        quantize("llama3-8b", "int4", **options)


def test_refused_options_of_presets() -> None:
    """Recipes are for weight formats, rules have dates, and some presets need a matrix."""
    with pytest.raises(UsageError, match="are for weight formats"):
        quantize("llama3-8b", "Q4_K_M", keep=["o_proj"])
    with pytest.raises(UsageError, match=r"rules '2020' are not known; there are 2026, 2024"):
        quantize("llama3-8b", "Q4_K_M", rules="2020")
    with pytest.raises(UsageError, match="makes no IQ2_M without an importance matrix"):
        quantize("llama3-8b", "IQ2_M", matrix=False)
    with pytest.raises(UnknownName, match=r"unknown type of ggml 'q4_x'"):
        quantize("llama3-8b", "Q4_K_M", output="q4_x")
    with pytest.raises(UsageError, match=r"no architecture for OPTForCausalLM: there are no GGUF files of opt-6.7b"):
        quantize("opt-6.7b", "Q4_K_M")
    with pytest.raises(UnknownName, match=r"unknown format 'q4_k_n'; did you mean .*q4_k_m"):
        quantize("llama3-8b", "q4_k_n")


def test_names_that_two_have() -> None:
    """A name of both means the weight format; `gguf:` asks for llama.cpp's preset."""
    assert weight_or_preset("nvfp4") is FORMATS["nvfp4"]
    assert weight_or_preset("gguf:nvfp4").name == "NVFP4"
    assert weight_or_preset("Q4_0").name == "Q4_0"
    assert quantize("llama3-8b", "bf16").container == "safetensors"
    assert quantize("llama3-8b", "gguf:bf16").container == "gguf"


def test_types_asked_for() -> None:
    """Embedding and head in Q8_0 are what bartowski calls Q4_K_L; the rest is as in Q4_K_M."""
    usual, large = quantize("llama3.1-8b", "Q4_K_M"), quantize("llama3.1-8b", "Q4_K_L")
    mine = quantize("llama3.1-8b", "Q4_K_M", output="q8_0", embedding="q8_0")
    assert large.total_bytes == mine.total_bytes
    assert (large.format, mine.format) == ("Q4_K_L", "Q4_K_M, output Q8_0, embedding Q8_0")
    changed = [a.name for a, b in zip(usual.tensors, large.tensors, strict=True) if a.type != b.type]
    assert changed == ["output.weight", "token_embd.weight"]


def test_latent_halves_and_whole() -> None:
    """DeepSeek's up-projection in halves, whole or both: 671.03 B and 672.05 B elements, as loaders print."""
    sizes = {form: quantize("deepseek-r1", "Q8_0", latent=form) for form in ("split", "whole", "both")}  # type: ignore[arg-type]
    assert sizes["split"].elements == sizes["whole"].elements == 671_026_419_200
    assert sizes["both"].elements == pytest.approx(672.050e9, abs=5e5)
    assert round(sizes["both"].total_bytes / 2**30, 2) == 665.31  # printed of a DeepSeek V3 0324 in Q8_0


def test_prediction_layers_and_vision_parts_are_said() -> None:
    """What is not counted is named, with its bytes where they are known."""
    assert any("MTP layers" in note for note in quantize("deepseek-v3").notes)
    assert any("mmproj" in note for note in quantize("gemma3-4b", "Q4_0").notes)
    assert any("group indices" in note for note in quantize("llama3-8b", "gptq_g128").notes)


def test_json_holds_the_contract() -> None:
    """Plain data: total_bytes, bits_per_weight, and tensors with name, shape, type, count and bytes."""
    found = json.loads(json.dumps(pm.quantize("llama3-8b", "Q4_K_M").to_dict()))
    assert found["total_bytes"] == sum(t["bytes"] for t in found["tensors"])
    assert found["bits_per_weight"] == pytest.approx(4.8944, abs=1e-4)
    assert {"name", "shape", "type", "count", "bytes", "bits"} <= found["tensors"][0].keys()
    assert len(pm.quantize("llama3-8b", "int4").frame) == 12
    assert "Q4_K" in pm.quantize("llama3-8b", "Q4_K_M")._repr_html_()


@pytest.mark.parametrize(
    "fmt",
    ["bf16", "gptq_g128_act", "gptq_g128", "gptq_g64_sym", "int4_g64", "awq_g32", "fp8", "nvfp4", "int8", "gptq3_g32"],
)
def test_a_checkpoint_to_the_byte(fmt: str, tmp_path: Path) -> None:
    """A tiny Llama saved by the safetensors package has just the bytes predicted, header included."""
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    kinds = {
        "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32, "I8": torch.int8,
        "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64,
    }  # fmt: skip
    spec = model("tinyllama-1.1b").model_copy(update={"hidden_size": 256, "vocab_size": 320})
    stored = [(t, tensor_format(t, fmt)) for t in tensors(spec) if t.role not in ("mtp", "buffer")]
    layers = {layer.name: layer.indices for layer in spec.layer_classes}
    parts = list(all_parts(stored, layers))
    path = tmp_path / "model.safetensors"
    safetensors.save_file({p.name: torch.zeros(p.shape, dtype=kinds[p.dtype]) for p in parts}, path, {"format": "pt"})
    assert path.stat().st_size == header_bytes(parts, {"format": "pt"}) + sum(p.bytes for p in parts)
    found = quantize(spec, fmt)
    assert found.header_exact
    assert found.file_bytes == path.stat().st_size
    real = quantize(path)
    assert real.total_bytes == found.total_bytes + found.unloaded_bytes
    assert sum(p.bytes for p in parts if p.loaded) == found.total_bytes
    assert real.file_bytes == path.stat().st_size


def test_group_indices_are_stored_whatever_the_order() -> None:
    """Files of GPTQ hold an index an input of every matrix; what engines load has it with act-order alone."""
    plain, act = quantize("llama3-8b", "gptq_g128"), quantize("llama3-8b", "gptq_g128_act")
    inputs = 32 * (4096 * 6 + 14_336)  # q, k, v, o, gate, up and down projections
    assert plain.unloaded_bytes == 4 * inputs == act.total_bytes - plain.total_bytes
    assert act.unloaded_bytes == 0
    assert plain.file_bytes == act.file_bytes


def test_a_file_whose_model_is_unknown(tmp_path: Path) -> None:
    """Without a configuration the header alone is reported, and why the model is not."""
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"a": np.zeros((4, 8), np.float16), "b": np.zeros(3, np.float32)}, tmp_path / "m.safetensors")
    found = quantize(tmp_path / "m.safetensors")
    assert {t.name: (t.type, t.bytes) for t in found.tensors} == {"a": ("F16", 64), "b": ("F32", 12)}
    assert found.file_bytes == (tmp_path / "m.safetensors").stat().st_size
    assert any("config.json" in note for note in found.notes)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    """A header that promises more than the file has is refused."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16)
    with pytest.raises(SpecError):
        quantize(tmp_path / "m.gguf")
    (tmp_path / "m.safetensors").write_bytes((10**9).to_bytes(8, "little"))
    with pytest.raises(SpecError):
        quantize(str(tmp_path / "m.safetensors"))
