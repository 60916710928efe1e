"""Small models written with the `gguf` package, with the types that llama.cpp would choose: predicted to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.validation import build
from perfmodel.modelspecs.gguf_layout import layout
from perfmodel.modelspecs.gguf_presets import preset
from perfmodel.modelspecs.gguf_rules import facts_of, tensor_types
from perfmodel.modelspecs.gguf_size import file_bytes, info_bytes, pair_bytes
from perfmodel.modelspecs.quant_sizes import of_file, quantize
from perfmodel.modelspecs.schema import ModelSpec

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")

Types = Callable[[str, int], str]
LAYERS = 16


def spec(family: str, d: int, ff: int, ffn: dict[str, Any] | None = None, **more: Any) -> ModelSpec:
    """A model of 16 layers, 4 heads of 64 and one KV head."""
    data: dict[str, Any] = {
        "name": f"tiny-{family}", "title": f"Tiny {family}", "source": "made for this test", "family": family,
        "hidden_size": d, "vocab_size": 320, "max_context": 1024,
        "layers": [{"repeat": LAYERS, "pattern": ["full/ffn"]}],
        "attention": {"full": {"kind": "gqa", "heads": 4, "kv_heads": 1, "head_dim": 64}},
        "ffn": {"ffn": ffn or {"kind": "dense", "intermediate_size": ff}},
    }  # fmt: skip
    return build(ModelSpec, data | more, "test")


def llama() -> ModelSpec:
    return spec("llama", 256, 512)


def mixtral() -> ModelSpec:
    moe = {"kind": "moe", "experts": 8, "experts_per_token": 2, "intermediate_size": 256}
    return spec("mixtral", 256, 256, moe)


def gemma() -> ModelSpec:
    """Tied, four norms a layer, 320 wide: 1.25 blocks of 256."""
    return spec("gemma3", 320, 768, tied_embeddings=True, norm={"per_layer": 4})


def qwen() -> ModelSpec:
    """A mixture with a shared expert and biases, as Qwen 2 has them."""
    moe = {"kind": "moe", "experts": 4, "experts_per_token": 2, "intermediate_size": 256,
           "shared_intermediate_size": 512, "shared_gate": True}  # fmt: skip
    full = {"kind": "gqa", "heads": 4, "kv_heads": 4, "head_dim": 64, "qkv_bias": True}
    return spec("qwen2_moe", 256, 256, moe, attention={"full": full})


def falcon() -> ModelSpec:
    more = {"norm": {"kind": "layernorm", "per_layer": 1, "bias": True}, "tied_embeddings": True}
    return spec("falcon", 256, 1024, {"kind": "dense", "intermediate_size": 1024, "gated": False}, **more)


#: Layers of 16 that have more bits: the first and last two, and every third between (2 + 2, 2 + 5, ...).
RAISED = {0, 1, 4, 7, 10, 13, 14, 15}


def llama_q4_k_m(name: str, layer: int) -> str:
    if name == "output.weight":
        return "Q6_K"
    return "Q6_K" if layer in RAISED and name.endswith(("attn_v.weight", "ffn_down.weight")) else "Q4_K"


def llama_q2_k(name: str, layer: int) -> str:
    """Four query heads share the values: Q4_K; down and output projections Q3_K."""
    if name == "output.weight":
        return "Q6_K"
    return "Q4_K" if "attn_v" in name else "Q3_K" if "ffn_down" in name or "attn_output" in name else "Q2_K"


def mixtral_q3_k_m(name: str, layer: int) -> str:
    """Eight experts: keys and values Q8_0, output projections Q5_K; the first sixteenth of down projections Q5_K."""
    if name == "output.weight":
        return "Q6_K"
    if "attn_k.weight" in name or "attn_v.weight" in name:
        return "Q8_0"
    if "attn_output" in name:
        return "Q5_K"
    return ("Q5_K" if layer < 1 else "Q4_K") if "ffn_down" in name else "Q3_K"


def gemma_q4_k_m(name: str, layer: int) -> str:
    """Rows of 320 fall back: Q4_K to Q5_0, Q6_K to Q8_0; rows of 256 and 768 do not. The tied embedding is Q8_0."""
    if name == "token_embd.weight":
        return "Q8_0"
    raised = layer in RAISED and name.endswith(("attn_v.weight", "ffn_down.weight"))
    wide = name.endswith(("ffn_down.weight", "attn_output.weight"))
    return ("Q6_K" if raised else "Q4_K") if wide else "Q8_0" if raised else "Q5_0"


def qwen_iq2_m(name: str, layer: int) -> str:
    """Four and more experts: values Q4_K. The first two of all down projections, shared ones counted, are IQ3_S."""
    if name in ("output.weight", "token_embd.weight"):
        return "Q5_K" if name == "output.weight" else "IQ3_S"
    if "attn_v" in name:
        return "Q4_K"
    if "ffn_down" in name:  # met by name: exps before shexp
        return "IQ3_S" if layer == 0 else "IQ2_S"
    return "IQ3_S" if "attn_output" in name else "IQ2_S"


def falcon_q4_k_m(name: str, layer: int) -> str:
    """Fused Q, K and V are like values; a sixteenth of the down projections is Q6_K, others Q5_K; tied: Q8_0."""
    if name == "token_embd.weight":
        return "Q8_0"
    if "attn_qkv" in name:
        return "Q6_K" if layer in RAISED else "Q4_K"
    if "ffn_down" in name:
        return "Q6_K" if layer < 1 else "Q5_K" if layer in RAISED else "Q4_K"
    return "Q4_K"


CASES: list[tuple[Callable[[], ModelSpec], str, Types]] = [
    (llama, "Q4_K_M", llama_q4_k_m), (llama, "Q2_K", llama_q2_k), (mixtral, "Q3_K_M", mixtral_q3_k_m),
    (gemma, "Q4_K_M", gemma_q4_k_m), (qwen, "IQ2_M", qwen_iq2_m), (falcon, "Q4_K_M", falcon_q4_k_m),
]  # fmt: skip
IDS = [f"{make.__name__}-{kind}" for make, kind, _ in CASES]


def metadata(model: ModelSpec) -> dict[str, Any]:
    arch = {"qwen2_moe": "qwen2moe", "mixtral": "llama"}.get(model.family, model.family)
    return {
        "general.architecture": arch, "general.name": model.title, f"{arch}.block_count": LAYERS,
        f"{arch}.embedding_length": model.hidden_size, "general.file_type": 15,
        "tokenizer.ggml.tokens": [f"<{n}>" for n in range(model.vocab_size)],
        "tokenizer.ggml.scores": [0.5] * model.vocab_size,
    }  # fmt: skip


def write(path: Path, model: ModelSpec, types: Types, pairs: dict[str, Any]) -> Path:
    """Write a whole file: the `gguf` package lays out header, padding and data."""
    writer = gguf.GGUFWriter(path, pairs["general.architecture"])
    for key, value in pairs.items():
        if key == "general.architecture":
            continue  # the writer's own
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}[type(value)]
        add(key, value)
    for t in layout(model):
        plain = t.f32
        kind = gguf.GGMLQuantizationType.F32 if plain else gguf.GGMLQuantizationType[types(t.name, t.layer)]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if plain:
            writer.add_tensor(t.name, np.zeros(t.shape, np.float32))
            continue
        assert t.shape[-1] % block == 0
        data = np.zeros((*t.shape[:-1], t.shape[-1] // block * size), np.uint8)
        writer.add_tensor(t.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("make", "kind", "types"), CASES, ids=IDS)
def test_size_to_the_byte(make: Callable[[], ModelSpec], kind: str, types: Types, tmp_path: Path) -> None:
    """The file that the `gguf` package writes under the rules is as long as predicted, header and padding included."""
    model = make()
    pairs = metadata(model)
    path = write(tmp_path / "m.gguf", model, types, pairs)
    found = layout(model)
    chosen = tensor_types(found, preset(kind), facts_of(model, matrix=kind == "IQ2_M"))
    expected = ["F32" if t.f32 else types(t.name, t.layer) for t in found]
    assert [one.name for one in chosen] == expected
    assert path.stat().st_size == file_bytes(found, chosen, pair_bytes(pairs))


@pytest.mark.parametrize(("make", "kind", "types"), CASES, ids=IDS)
def test_a_written_file_reports_what_was_predicted(
    make: Callable[[], ModelSpec], kind: str, types: Types, tmp_path: Path
) -> None:
    """A real file's header, reported: the same tensors, types and bytes, and its length is header + padding + data."""
    model = make()
    pairs = metadata(model)
    path = write(tmp_path / "m.gguf", model, types, pairs)
    real, predicted = of_file(path), quantize(model, kind)
    assert {t.name: (t.type, t.bytes, t.shape) for t in real.tensors} == {
        t.name: (t.type, t.bytes, t.shape) for t in predicted.tensors
    }
    assert real.total_bytes == predicted.total_bytes
    assert real.bits_per_weight == predicted.bits_per_weight
    assert real.file_bytes == path.stat().st_size
    assert real.header_bytes == -(-(24 + info_bytes(layout(model)) + pair_bytes(pairs)) // 32) * 32
    assert predicted.file_bytes == pytest.approx(real.file_bytes, abs=40_000)  # the tokenizer's bytes are estimated
