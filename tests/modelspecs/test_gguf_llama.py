"""Llama files written by hand: published sizes, layers that differ, and refusals that name the key or the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.counts import held_tokens, kv_bytes, total_params
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.stored import headers

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")

TYPES = gguf.GGMLQuantizationType
Shapes = dict[str, tuple[int, ...]]


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


LLAMA31_8B = {
    "block_count": 32, "embedding_length": 4096, "context_length": 131_072, "feed_forward_length": 14_336,
    "attention.head_count": 32, "attention.head_count_kv": 8, "rope.freq_base": 5e5, "rope.dimension_count": 128,
    "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 128_256,
}  # fmt: skip


def llama_shapes(layers: int, d: int, kv: int, ff: int, vocab: int) -> Shapes:
    found: Shapes = {"rope_freqs.weight": (64,), "token_embd.weight": (vocab, d), "output_norm.weight": (d,),
                     "output.weight": (vocab, d)}  # fmt: skip
    for i in range(layers):
        found |= {
            f"blk.{i}.attn_q.weight": (d, d), f"blk.{i}.attn_k.weight": (kv, d), f"blk.{i}.attn_v.weight": (kv, d),
            f"blk.{i}.attn_output.weight": (d, d), f"blk.{i}.attn_norm.weight": (d,), f"blk.{i}.ffn_norm.weight": (d,),
            f"blk.{i}.ffn_gate.weight": (ff, d), f"blk.{i}.ffn_up.weight": (ff, d), f"blk.{i}.ffn_down.weight": (d, ff),
        }  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("kind", "gib", "bits"), [("F16", 14.96, 16.0005), ("Q8_0", 7.95, 8.5008), ("Q6_K", 6.14, 6.5633)]
)
def test_published_sizes_of_llama_31_8b(kind: str, gib: float, bits: float, tmp_path: Path) -> None:
    """Bytes and bits a weight of Llama 3.1 8B are those that llama.cpp's quantization table prints, to all its digits.

    Source: tools/quantize/README.md of https://github.com/ggml-org/llama.cpp. In these three files every matrix has the
    one type, and norms and rotary frequencies have 32 bits.
    """
    types = {1: TYPES.F32, 2: TYPES[kind]}
    shapes = llama_shapes(32, 4096, 1024, 14_336, 128_256)
    path = write(tmp_path / "m.gguf", "llama", LLAMA31_8B, shapes, lambda name, shape: types[len(shape)])
    found = headers.summary(path)
    assert found["agrees"], found["differences"]
    assert found["total_params"] == 8_030_261_248 == total_params(model("llama3.1-8b"))
    assert found["stored_elements"] == 8_030_261_248 + 64
    assert found["tensors"] == 292
    assert round(found["bytes"] / 2**30, 2) == gib
    assert round(found["bits_per_weight"], 4) == bits
    assert found["kv_bytes_per_token"] == 131_072  # 2 x 8 heads x 128 x 2 bytes x 32 layers


def tiny(path: Path, shapes: Shapes | None = None, arch: str = "llama", **more: Any) -> headers.StoredModel:
    """A Llama of two layers: 4 heads of 16, 2 KV heads."""
    keys = {
        "block_count": 2, "embedding_length": 64, "context_length": 512, "feed_forward_length": 128,
        "attention.head_count": 4, "attention.head_count_kv": 2,
    } | {key.replace("__", "."): value for key, value in more.items()}  # fmt: skip
    keys = {key: value for key, value in keys.items() if value is not None}
    chosen = llama_shapes(2, 64, 32, 128, 100) if shapes is None else shapes
    return headers.describe(write(path / "m.gguf", arch, keys, chosen, f16))


def test_kv_heads_that_differ_by_layer(tmp_path: Path) -> None:
    """Lists of heads and widths by layer become layer classes, and the cache is summed layer by layer."""
    shapes = llama_shapes(2, 64, 32, 128, 100)
    shapes |= {"blk.1.attn_k.weight": (64, 64), "blk.1.attn_v.weight": (64, 64)}
    shapes |= {"blk.1.ffn_gate.weight": (96, 64), "blk.1.ffn_up.weight": (96, 64), "blk.1.ffn_down.weight": (64, 96)}
    lists = {"attention__head_count_kv": [2, 4], "feed_forward_length": [128, 96]}
    spec = tiny(tmp_path, shapes, **lists).require_model()
    assert [(c.attention.kv_heads, c.ffn.intermediate_size) for c in spec.layer_classes] == [(2, 128), (4, 96)]  # type: ignore[union-attr]
    assert kv_bytes(spec, 10.0) == 10 * (2 + 4) * 2 * 16 * 2  # tokens x KV heads x (K and V) x head x bytes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"arch": "mamba"}, "general.architecture: 'mamba' is not understood; llama, mistral3, "),
        ({"attention__head_count_kv": [2, 0]}, "llama.attention.head_count_kv: is 0 in layer 1: layers without it"),
        ({"attention__head_count_kv": [2]},
         "llama.attention.head_count_kv: must be a whole number, or one for each of 2"),
        ({"attention__head_count_kv": 3}, "llama.attention.head_count_kv: 3 does not divide 4 heads"),
        ({"attention__head_count": None}, "llama.attention.head_count: is missing"),
        ({"attention__head_count": 5}, "llama.attention.key_length: is missing, and 5 heads do not divide 64"),
        ({"block_count": 10**6}, "llama.block_count: 1000000 layers, 0 of them MTP, and 22 tensors"),
        ({"block_count": 0}, "llama.block_count: must be a whole number from 1"),
        ({"block_count": 2.0}, "llama.block_count: must be a whole number from 1"),
        ({"nextn_predict_layers": 2}, "llama.block_count: 2 layers, 2 of them MTP"),
        ({"embedding_length": 32}, "llama.embedding_length: 32, and token_embd.weight is 64 wide"),
        ({"vocab_size": 99}, "llama.vocab_size: 99 is not understood; only 100 is"),
        ({"context_length": None}, "llama.context_length: is missing"),
        ({"feed_forward_length": "wide"}, "llama.feed_forward_length: must be a whole number"),
        ({"ssm__state_size": 16}, "llama.ssm.state_size: not understood: ssm.state_size = 16"),
        ({"attention__sliding_window": 64}, "llama.attention.sliding_window: not understood"),
        ({"attention__causal": False}, "llama.attention.causal: False is not understood; only True is"),
        ({"expert_count": 4, "expert_used_count": 5}, "llama.expert_used_count: 5 is above expert_count"),
        ({"expert_used_count": 2}, "llama.expert_used_count: 2 is not understood; only 0 is"),
        ({"arch": "gpt-oss", "expert_count": 4, "expert_used_count": 2},
         "gpt-oss.attention.sliding_window: is missing"),
        ({"arch": "qwen3moe", "expert_count": 4, "expert_used_count": 2, "feed_forward_length": None},
         "qwen3moe.expert_feed_forward_length: is missing"),
        ({"arch": "deepseek2", "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8,
          "leading_dense_block_count": 3}, "deepseek2.leading_dense_block_count: 3 is above the 2 layers"),
        ({"arch": "gemma3", "attention__sliding_window": 64, "attention__sliding_window_pattern": [True]},
         "gemma3.attention.sliding_window_pattern: must be a number, or 2 booleans"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    """An architecture, a key or a value that is not understood is refused by name; sizes are still reported."""
    found = tiny(tmp_path, **more)
    assert message in found.problem
    assert found.model is None
    assert found.total_params == sum(prod(shape) for shape in llama_shapes(2, 64, 32, 128, 100).values()) - 64
    with pytest.raises(SpecError, match=re.escape(message[:40])):
        found.require_model()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.1.ffn_up.weight", None, "model.layers.1.mlp.up_proj.weight: 8,192 elements expected, none stored"),
        ("blk.0.attn_q.weight", (32, 64),
         "model.layers.0.self_attn.q_proj.weight: 4,096 elements expected, 2,048 stored"),
        ("blk.0.ffn_up.weight", (64, 128), None),  # the same dimensions in another order: no difference in size
        ("blk.0.ffn_up.weight", (256, 32), "blk.0.ffn_up.weight: the shape [128, 64] expected, [256, 32] stored"),
        ("blk.0.surprise.weight", (3, 5),
         "blk.0.surprise.weight: 15 elements stored, and the model has no such tensor"),
        ("blk.2.attn_q.weight", (64, 64),
         "blk.2.attn_q.weight: 4,096 elements stored, and the model has no such tensor"),
        ("blk.0.attn_qkv.weight", (128, 64),
         "blk.0.attn_qkv.weight: stores model.layers.0.self_attn.q_proj.weight a second"),
        ("blk.0.attn_q.scale", (1,), None),  # the scale of a format is counted apart
    ],
)  # fmt: skip
def test_differences_are_named(name: str, shape: tuple[int, ...] | None, message: str | None, tmp_path: Path) -> None:
    """A tensor that is missing, too many or of another shape is named with both sizes; the model is not handed out."""
    shapes = llama_shapes(2, 64, 32, 128, 100)
    shapes = {key: value for key, value in shapes.items() if key != name} if shape is None else shapes | {name: shape}
    found = tiny(tmp_path, shapes)
    if message is None:
        assert found.agrees
        return
    assert message in found.comparison.text(1)  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="stores another model than it describes"):
        found.require_model()
    assert headers.summary(tmp_path / "m.gguf")["problem"] == "the files store another model than the description"


def test_a_window_pattern_in_the_file(tmp_path: Path) -> None:
    """Booleans by layer say which layers have a window; a window as long as the context is none."""
    gemma = {"arch": "gemma2", "attention__sliding_window_pattern": [False, True]}
    shapes = {key: value for key, value in llama_shapes(2, 64, 32, 128, 100).items() if key != "rope_freqs.weight"}
    shapes |= {f"blk.{i}.post_{part}_norm.weight": (64,) for i in range(2) for part in ("attention", "ffw")}
    spec = tiny(tmp_path, shapes, attention__sliding_window=100, **gemma).require_model()
    assert [held_tokens(layer, 400.0) for layer in spec.layer_classes] == [400, 100]
    spec = tiny(tmp_path, shapes, attention__sliding_window=512, **gemma).require_model()
    assert [held_tokens(layer, 400.0) for layer in spec.layer_classes] == [400]
    spec = tiny(tmp_path, shapes, arch="gemma2", attention__sliding_window_pattern=2).require_model()
    assert [held_tokens(layer, 9000.0) for layer in spec.layer_classes] == [9000]  # Gemma 2's 4096 is above 512
