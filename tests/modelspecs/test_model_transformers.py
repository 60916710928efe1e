"""Tensor by tensor against `transformers` on the meta device: full-size models, names and shapes, no weights."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.schema import Gqa, ModelSpec
from perfmodel.modelspecs.tensors import tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = Path(__file__).parent / "data" / "configs"
Shapes = Counter[tuple[str, tuple[int, ...]]]

#: What the classes call otherwise than the checkpoints of Llama's descent.
RENAMED = (
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^model\.(vision_tower|vision_model|multi_modal_projector)\.", r"\1."),
    (r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."),
    (r"\.feed_forward\.", ".mlp."),
    (r"\.mlp\.router\.", ".mlp.gate."),
    (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),
)


def test_that_enough_architectures_are_compared() -> None:
    """The folder holds at least fifteen architectures and forty configurations."""
    kinds = [json.loads(path.read_text())["model_type"] for path in CONFIGS.glob("*.json")]
    assert len(set(kinds)) >= 15
    assert len(kinds) >= 40


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_same_tensors_as_transformers(path: Path) -> None:
    """Every tensor that the class makes of a real configuration is in the inventory, and no other."""
    spec = hf.load(path)
    assert ours(spec) == theirs(json.loads(path.read_text()), spec)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_same_windows_as_transformers(path: Path) -> None:
    """The layers with a window or chunk are those that the configuration class calls so, and the size is its own."""
    config, spec = json.loads(path.read_text()), hf.load(path)
    parsed = parse(config).get_text_config()
    kinds = getattr(parsed, "layer_types", None)
    size = getattr(parsed, "sliding_window", None)
    if kinds is None:  # classes without layer types have one window for all
        kinds = ["sliding_attention" if size else "full_attention"] * parsed.num_hidden_layers
    if size is not None and size >= spec.max_context:
        kinds = ["full_attention"] * len(kinds)
    found = [""] * spec.num_layers
    for layer in spec.layer_classes:
        a = layer.attention
        kind = "full_attention"
        if isinstance(a, Gqa) and a.window:
            kind = "sliding_attention"
            assert a.window == size
        if isinstance(a, Gqa) and a.chunk:
            kind = "chunked_attention"
            assert a.chunk == parsed.attention_chunk_size
        for index in layer.indices:
            found[index] = kind
    assert found == [kind.replace("indexed", "full") for kind in kinds]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_what_transformers_writes_is_read(path: Path) -> None:
    """A configuration that transformers 5 writes out in full, every default in it, gives the same tensors."""
    config = json.loads(path.read_text())
    if config["model_type"] == "llama4" and "vision_config" not in config:
        config = config["text_config"]  # else the class writes out the defaults of a vision tower
    written = json.loads(parse(config).to_json_string(use_diff=False)) | {"model_type": config["model_type"]}
    again, spec = hf.from_config(written, path, "written"), hf.from_config(config, path, "read")
    assert ours(again) == ours(spec)
    assert again.layer_classes == spec.layer_classes


def ours(spec: ModelSpec) -> Shapes:
    """The inventory without the MTP layers, which the classes leave out."""
    found: Shapes = Counter()
    for t in tensors(spec):
        if t.role != "mtp":
            found[t.name, t.shape] += t.count
    return found


def theirs(config: dict[str, object], spec: ModelSpec) -> Shapes:
    """State dictionary of the class, with fused experts, fused projections and layer numbers undone."""
    parsed, kind = parse(config), config["model_type"]
    vision = "vision_config" in config
    auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    if kind == "llama4" and not vision:  # the file at hand has the text section only
        parsed = parsed.text_config
    with torch.device("meta"):
        model = auto.from_config(parsed)
    found: Shapes = Counter()
    for name, value in model.state_dict().items():
        if name.endswith("lm_head.weight") and spec.tied_embeddings:
            continue
        for plain, shape in unfused(renamed(name), tuple(value.shape), str(config["model_type"]), spec):
            found[plain, shape] += 1
    return found


def parse(config: dict[str, object]) -> Any:
    """The configuration object of transformers."""
    kind = {"kimi_k2": "deepseek_v3"}.get(str(config["model_type"]), config["model_type"])
    arguments = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    return transformers.AutoConfig.for_model(kind, **arguments)


def renamed(name: str) -> str:
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    return re.sub(r"layers\.\d+\.", "layers.{layer}.", name)


def unfused(name: str, shape: tuple[int, ...], kind: str, spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The separate tensors that a fused one holds."""
    prefix, _, last = name.rpartition(".")
    if ".mlp.experts." in name:
        transposed = kind in ("gpt_oss", "llama4", "llama4_text")
        part, ending = last.removesuffix("_bias"), "bias" if last.endswith("_bias") else "weight"
        inner = shape[1:][::-1] if transposed and ending == "weight" else shape[1:]
        names = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
        one = (inner[0] // len(names), *inner[1:])
        for each in names * shape[0]:
            yield f"{prefix}.{{expert}}.{each}.{ending}", one
    elif name.endswith("mlp.gate_up_proj.weight"):
        for each in ("gate_proj", "up_proj"):
            yield name.replace("gate_up_proj", each), (shape[0] // 2, shape[1])
    elif name.endswith("self_attn.qkv_proj.weight"):
        attention = next(iter(spec.attention.values()))
        assert isinstance(attention, Gqa)
        rows = {"q_proj": attention.heads, "k_proj": attention.kv_heads, "v_proj": attention.kv_heads}
        assert sum(rows.values()) * attention.head_dim == shape[0]
        for each, heads in rows.items():
            yield name.replace("qkv_proj", each), (heads * attention.head_dim, shape[1])
    elif spec.norm.kind == "layernorm" and name.endswith(("q_norm.weight", "k_norm.weight")):
        yield name, (shape[0] * shape[1],)  # Command R+: a norm with weights of its own for each head
    else:
        yield name, shape
