"""GGUF layouts of hybrid, state-space and sparse-attention models: names and shapes against the `gguf` package's map.

`transformers` makes each model on the meta device; its tensors are changed as llama.cpp's converters do it
(conversion/mamba.py, jamba.py, nemotron.py, granite.py, falcon_h1.py, qwen.py, lfm2.py, gemma.py, glm.py of
https://github.com/ggml-org/llama.cpp) and named by the map of the `gguf` package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs import hf
from perfmodel.modelspecs.gguf_layout import architecture, layout
from perfmodel.modelspecs.gguf_presets import preset
from perfmodel.modelspecs.gguf_rules import facts_of, tensor_types
from perfmodel.modelspecs.gguf_size import file_bytes, pair_bytes
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.quant_sizes import quantize
from perfmodel.modelspecs.schema import ModelSpec

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Shape = tuple[int, ...]
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512}
BASE = HEADS | {"hidden_size": 256, "intermediate_size": 512}
SSM = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16, "mamba_n_groups": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
          "linear_value_head_dim": 64, "head_dim": 64}  # fmt: skip
MLA = {"kv_lora_rank": 256, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
       "num_key_value_heads": 4}  # fmt: skip
SPARSE = {"index_n_heads": 2, "index_head_dim": 64, "index_topk": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
          "topk_group": 1}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}

#: Case -> (class of transformers, its configuration, architecture of llama.cpp).
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba2": (
        "mamba2", {"hidden_size": 256, "num_hidden_layers": 3, "vocab_size": 512, "num_heads": 8, "head_dim": 64,
                   "state_size": 16, "n_groups": 2, "tie_word_embeddings": False}, "mamba2",
    ),
    "mamba": (
        "mamba", {"hidden_size": 256, "num_hidden_layers": 3, "vocab_size": 512, "state_size": 16,
                  "time_step_rank": 16, "tie_word_embeddings": True}, "mamba",
    ),
    "bamba": (
        "bamba", BASE | SSM | {"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_expand": 2}, "granitehybrid",
    ),
    "jamba": (
        "jamba", BASE | {"num_hidden_layers": 8, "num_experts": 4, "mamba_d_state": 16, "attn_layer_period": 4,
                         "attn_layer_offset": 2, "pad_token_id": 0, "mamba_dt_rank": 16}, "jamba",
    ),
    "nemotron_h": (
        "nemotron_h", BASE | {"num_hidden_layers": 4, "hybrid_override_pattern": "M-M*", "head_dim": 64,
                              "attention_head_dim": 64, "mamba_num_heads": 8, "mamba_head_dim": 64,
                              "ssm_state_size": 16, "n_groups": 2}, "nemotron_h",
    ),
    "nemotron_h_moe": (
        "nemotron_h", BASE | {"num_hidden_layers": 4, "hybrid_override_pattern": "MEM*", "head_dim": 64,
                              "attention_head_dim": 64, "mamba_num_heads": 8, "mamba_head_dim": 64,
                              "ssm_state_size": 16, "n_groups": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
                              "moe_intermediate_size": 256, "moe_shared_expert_intermediate_size": 512,
                              "moe_latent_size": 256, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
        "nemotron_h_moe",
    ),
    "kimi-linear": (
        "kimi_linear",
        BASE | {"num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                "num_key_value_heads": 4, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                "v_head_dim": 64, "q_lora_rank": None, "num_experts": 4, "num_experts_per_token": 2,
                "moe_intermediate_size": 256, "num_shared_experts": 1, "first_k_dense_replace": 1,
                "linear_attn_config": {"kda_layers": [1, 2, 4], "full_attn_layers": [3], "head_dim": 64,
                                       "num_heads": 4, "short_conv_kernel_size": 4}}, "kimi-linear",
    ),
    "granitehybrid": (
        "granitemoehybrid",
        BASE | SSM | {"num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "mamba"],
                      "intermediate_size": 256, "shared_intermediate_size": 512, "num_local_experts": 4,
                      "num_experts_per_tok": 2, "mamba_expand": 2}, "granitehybrid",
    ),
    "falcon-h1": ("falcon_h1", BASE | SSM | {"num_hidden_layers": 2, "head_dim": 64, "mamba_d_ssm": 512}, "falcon-h1"),
    "qwen3next": (
        "qwen3_next", BASE | LINEAR | EXPERTS | {"num_hidden_layers": 4, "shared_expert_intermediate_size": 256},
        "qwen3next",
    ),
    "qwen35": ("qwen3_5_text", BASE | LINEAR | {"num_hidden_layers": 4}, "qwen35"),
    "qwen35moe": (
        "qwen3_5_moe_text", BASE | LINEAR | EXPERTS | {"num_hidden_layers": 4, "shared_expert_intermediate_size": 256},
        "qwen35moe",
    ),
    "lfm2": (
        "lfm2", BASE | {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"],
                        "block_auto_adjust_ff_dim": False}, "lfm2",
    ),
    "gemma4": (
        "gemma4_text",
        BASE | {"num_experts": 4, "moe_intermediate_size": 256, "num_hidden_layers": 6, "head_dim": 64,
                "global_head_dim": 128, "enable_moe_block": True, "num_global_key_value_heads": 1,
                "hidden_size_per_layer_input": 0, "top_k_experts": 2,
                          "sliding_window": 64, "attention_k_eq_v": True}, "gemma4",
    ),
    "glm-dsa": (
        "glm_moe_dsa", BASE | MLA | SPARSE | {"num_hidden_layers": 4, "num_nextn_predict_layers": 0}, "glm-dsa",
    ),
    "deepseek32": (
        "deepseek_v32", BASE | MLA | SPARSE | {"num_hidden_layers": 4, "num_nextn_predict_layers": 0}, "deepseek32",
    ),
    "mimo2": (
        "mimo_v2_flash", BASE | {"num_hidden_layers": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 256, "head_dim": 64, "v_head_dim": 64, "swa_head_dim": 64,
                                 "swa_v_head_dim": 64}, "mimo2",
    ),
}  # fmt: skip

#: What transformers calls otherwise than checkpoints: class -> pattern -> name.
HUB = (
    (r"\.(?:feed_forward|block_sparse_moe)\.experts\.", ".mlp.experts."),
    (r"\.block_sparse_moe\.router\.", ".block_sparse_moe.router.layer."),
    (r"\.forget_gate\.", "."), (r"^backbone(.*)\.mixer\.experts\.", r"model\1.mlp.experts."),
    (r"\.sinks$", ".attention_sink_bias.weight"),
    (r"e_score_correction_bias", "e_score_correction.bias"), (r"layer_scalar$", "layer_scalar.weight"),
)  # fmt: skip


def tiny(case: str) -> tuple[ModelSpec, Any]:
    """The spec of a case's configuration, and the model of transformers."""
    kind, config, _ = CASES[case]
    made = transformers.AutoConfig.for_model(kind, **config)
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(made)
    written = json.loads(made.to_json_string(use_diff=False)) | {"model_type": kind}
    written["architectures"] = [type(network).__name__]
    return hf.from_config(written, Path(f"{case}.json"), case), network


def converted(case: str, network: Any) -> Iterator[tuple[str, Shape]]:
    """Names and shapes that the converter passes to the map, one by one."""
    arch, config = CASES[case][2], network.config
    tied = config.tie_word_embeddings
    for name, value in network.state_dict().items():
        shape = tuple(value.shape)
        if arch.startswith("nemotron_h"):
            name = re.sub(r"^model\.", "backbone.", name)
        for pattern, new in HUB:
            name = re.sub(pattern, new, name)
        if name == "lm_head.weight" and tied:
            continue
        if re.search(r"experts\.up_proj$", name):
            name += ".weight"
        yield from reshaped(name, shape, arch, config)


def reshaped(name: str, shape: Shape, arch: str, config: Any) -> Iterator[tuple[str, Shape]]:
    if name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), shape
    elif "self_attn.conv1d" in name:  # Kimi's checkpoints have one of each
        for part in "qkv":
            yield name.replace("conv1d", f"{part}_conv1d"), (shape[0] // 3, 1, shape[2])
    elif name.endswith("A_log") and len(shape) == 4:
        yield name, (shape[2], 1)  # the quantizer's writer drops the ones before
    elif "conv1d.weight" in name or "conv.conv" in name:
        yield name, (shape[0], shape[2])
    elif re.search(r"\.(A_log|D)$", name) and len(shape) == 1 and arch not in ("mamba", "jamba", *LINEAR_ARCHS):
        yield name, (*shape, 1)
    elif re.search(r"(mamba|mixer)\.norm\.weight", name):
        yield name, (2, shape[0] // 2)  # two groups in all cases
    elif "in_proj_qkvz" in name:
        yield "blk.{}.attn_qkv.weight".format(name.split(".")[2]), (512, shape[1])  # 2 x 2 x 64 + 4 x 64
        yield "blk.{}.attn_gate.weight".format(name.split(".")[2]), (256, shape[1])
    elif name.endswith("experts.gate_up_proj") and arch == "gemma4":
        yield name + ".weight", shape
    elif name.endswith("experts.gate_up_proj"):
        for part in ("gate", "up"):
            yield name.replace("gate_up", part) + ".weight", (shape[0], shape[1] // 2, shape[2])
    elif name.endswith("experts.down_proj"):
        yield name + ".weight", shape
    elif name.endswith("shared_mlp.input_linear.weight"):
        for part in ("gate", "up"):
            yield f"blk.{name.split('.')[2]}.ffn_{part}_shexp.weight", (shape[0] // 2, shape[1])
    elif name.endswith("kv_b_proj.weight"):
        yield name.replace("kv_b", "k_b"), (4, shape[1], 64)
        yield name.replace("kv_b", "v_b"), (4, 64, shape[1])
    elif name.endswith("router.scale"):
        yield f"blk.{name.split('.')[2]}.ffn_gate_inp.scale", shape
    elif name.endswith("per_expert_scale"):
        yield f"blk.{name.split('.')[2]}.ffn_down_exps.scale", shape
    elif shape[:-1] == (1,):
        yield name, shape[1:]
    else:
        yield name, shape


LINEAR_ARCHS = ("qwen3next", "qwen35", "qwen35moe")


def theirs(case: str, network: Any) -> dict[str, Shape]:
    """The file of a case, by the map of the `gguf` package."""
    arch = CASES[case][2]
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    number = known.get(arch, known["glm-dsa"])  # older packages lack DeepSeek V3.2, whose tensors are GLM 5's
    names = gguf.get_tensor_name_map(number, 16)
    found: dict[str, Shape] = {}
    for name, shape in converted(case, network):
        new = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        assert new, name
        assert new not in found
        found[new] = shape
    if arch == "gemma4":
        found["rope_freqs.weight"] = (64,)  # half a head of the full layers: generate_extra_tensors
    return found


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes(case: str) -> None:
    """Every tensor of the file, its name and its shape, is what converter and map make of the model."""
    spec, network = tiny(case)
    assert architecture(spec).name == CASES[case][2]
    mine = {t.name: t.shape for t in layout(spec)}
    expected = theirs(case, network)
    assert mine == expected, (mine.items() - expected.items(), expected.items() - mine.items())


def q4_k_m(shapes: dict[str, Shape], layers: int, experts: int) -> dict[str, str]:
    """Types under Q4_K_M, as src/llama-quant.cpp of llama.cpp gives them to tensors in order of layer and name."""

    def more(index: int, of: int) -> bool:
        return index < of // 8 or index >= 7 * of // 8 or (index - of // 8) % 3 == 2

    def place(name: str) -> tuple[int, str]:
        return (int(name.split(".")[1]) if name.startswith("blk.") else -1, name)

    order = sorted(shapes, key=place)
    kept = re.compile(r"_norm\.weight$|ffn_gate_inp\.weight$|ssm_conv1d|shortconv\.conv\.")
    values = [name for name in order if re.search(r"attn_(v|qkv|kv_b)\.weight$", name)]
    found: dict[str, str] = {}
    downs = 0
    for name in order:
        if len(shapes[name]) < 2 or not name.endswith("weight") or kept.search(name):
            found[name] = "F32"
            continue
        kind = "Q4_K"
        if name == "output.weight" or (name == "token_embd.weight" and "output.weight" not in shapes):
            kind = "Q6_K"
        elif name in values:
            kind = "Q6_K" if more(values.index(name), len(values)) else kind
        elif "ffn_down" in name:
            kind = "Q6_K" if more(place(name)[0] if experts > 1 else downs, layers) else kind
            downs += 1
        if shapes[name][-1] % 256:
            kind = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}[kind]
            kind = "F16" if shapes[name][-1] % 32 else kind
        found[name] = kind
    return found


def write(path: Path, arch: str, shapes: dict[str, Shape], types: dict[str, str]) -> Path:
    """Write a whole file with the `gguf` package."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_uint32(f"{arch}.block_count", 4)
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType[types[name]]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, np.zeros(shape, np.float32))
        elif kind == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(name, np.zeros(shape, np.float16))
        else:
            data = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("case", CASES)
def test_size_to_the_byte(case: str, tmp_path: Path) -> None:
    """The file that the `gguf` package writes of the model, with the quantizer's types, is as long as predicted."""
    spec, network = tiny(case)
    shapes, arch = theirs(case, network), CASES[case][2]
    found, facts = layout(spec), facts_of(spec)
    types = q4_k_m(shapes, spec.num_layers, facts.experts)
    path = write(tmp_path / "m.gguf", arch, shapes, types)
    mine = tensor_types(found, preset("Q4_K_M"), facts)
    assert {t.name: kind.name for t, kind in zip(found, mine, strict=True)} == types
    pairs = {"general.architecture": arch, f"{arch}.block_count": 4}
    assert file_bytes(found, mine, pair_bytes(pairs)) == path.stat().st_size
    assert quantize(spec, "Q4_K_M").total_bytes == sum(int(t.n_bytes) for t in gguf.GGUFReader(path).tensors)


#: Query heads a KV head as the quantizer sees them: 0 where the first layer has no attention and heads are listed.
GROUPS = {
    "mamba": 0, "mamba2": 0, "bamba": 0, "jamba": 0, "nemotron_h": 0, "nemotron_h_moe": 0, "kimi-linear": 0,
    "granitehybrid": 0, "falcon-h1": 2, "qwen3next": 2, "qwen35": 2, "qwen35moe": 2, "lfm2": 0, "gemma4": 2,
    "glm-dsa": 4, "deepseek32": 4, "mimo2": 2,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_follow_the_first_layer(case: str) -> None:
    """Values get more bits in IQ3_S where four query heads share them in the first layer, as llama.cpp asks."""
    spec, _ = tiny(case)
    assert facts_of(spec).query_group == GROUPS[case]
    types = {t.type for t in quantize(spec, "IQ3_S").tensors if t.name.endswith("attn_v.weight")}
    assert types <= {"Q4_K" if GROUPS[case] >= 4 else "IQ3_S"}


#: Layer 2 of DeepSeek V4: names of https://github.com/ggml-org/llama.cpp (src/models/deepseek4.cpp, constants.py).
DEEPSEEK4 = {
    "attn_norm.weight", "attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv.weight",
    "attn_kv_a_norm.weight", "attn_output_a.weight", "attn_output_b.weight", "attn_sinks.weight",
    "attn_compressor_kv.weight", "attn_compressor_gate.weight", "attn_compressor_ape.weight",
    "attn_compressor_norm.weight", "indexer.proj.weight", "indexer.attn_q_b.weight", "indexer_compressor_kv.weight",
    "indexer_compressor_gate.weight", "indexer_compressor_ape.weight", "indexer_compressor_norm.weight",
    "hc_attn_fn.weight", "hc_attn_base.weight", "hc_attn_scale.weight", "hc_ffn_fn.weight", "hc_ffn_base.weight",
    "hc_ffn_scale.weight", "ffn_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight",
    "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_shexp.weight",
    "ffn_up_shexp.weight", "ffn_down_shexp.weight",
}  # fmt: skip


def test_deepseek_v4() -> None:
    """Compressors, hyper-connections and hash tables have their names; the table of token ids stays in integers."""
    found = quantize("deepseek-v4-flash", "Q4_K_M").tensors
    assert {t.name.removeprefix("blk.2.") for t in found if t.name.startswith("blk.2.")} == DEEPSEEK4
    outside = {t.name for t in found if not t.name.startswith("blk.")}
    assert outside == {"token_embd.weight", "output.weight", "output_norm.weight", "output_hc_fn.weight",
                       "output_hc_base.weight", "output_hc_scale.weight"}  # fmt: skip
    assert {t.type for t in found if "tid2eid" in t.name} == {"I32"}
    later = {t.name.removeprefix("blk.3.") for t in found if t.name.startswith("blk.3.")}
    assert "exp_probs_b.bias" in later
    assert "ffn_gate_tid2eid.weight" not in later


def test_prediction_layers() -> None:
    """GLM 5 and DeepSeek V3.2 keep the prediction layer after the others, its latent halves apart; Qwen's is out."""
    for name, index in (("glm5.2", 78), ("deepseek-v3.2", 61)):
        last = {t.name.removeprefix(f"blk.{index}.") for t in layout(model(name)) if t.layer == index}
        assert {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"} <= last
        assert {"attn_k_b.weight", "attn_v_b.weight", "indexer.attn_q_b.weight", "ffn_down_exps.weight"} <= last
        assert "attn_kv_b.weight" not in last
    assert max(t.layer for t in layout(model("qwen3.5-27b"))) == 63
    assert any("prediction layers" in note for note in quantize("qwen3.5-27b", "Q4_K_M").notes)


@pytest.mark.parametrize("name", ["opt-13b", "mimo-7b", "minimax-text-01", "hunyuan-large"])
def test_models_that_llama_cpp_does_not_have(name: str) -> None:
    """A family without an architecture in llama.cpp is refused in those words."""
    words = r"llama.cpp has no architecture for \w+ForCausalLM: there are no GGUF files of"
    with pytest.raises(UsageError, match=words):
        quantize(name, "Q4_K_M")
