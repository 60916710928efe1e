"""Recurrent mixers tensor by tensor against `transformers` on the meta device: names and shapes of full-size models."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.counts import recurrent_part
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = sorted((Path(__file__).parent / "data" / "configs_recurrent").glob("*.json"))
EACH = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
Shapes = Counter[tuple[str, tuple[int, ...]]]

#: What the classes call otherwise than the inventory.
RENAMED = (
    (r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual."), (r"^backbone\.", "model."),
    (r"^model\.embeddings\.", "model.embed_tokens."),
    (r"^model\.(norm_f|final_layernorm|embedding_norm)\.", "model.norm."),
    (r"^visual\.blocks\.\d+\.", "visual.blocks.{layer}."), (r"\blayers\.\d+\.", "layers.{layer}."),
    (r"\{layer\}\.(norm|operator_norm)\.", "{layer}.input_layernorm."),
    (r"\.(pre_ff_layernorm|ffn_norm)\.", ".post_attention_layernorm."),
    (r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."), (r"\.mixer\.(up_proj|down_proj)\.", r".mlp.\1."),
    (r"\.mixer\.(experts|gate|shared_experts|fc[12]_latent_proj)\.", r".mlp.\1."),
    (r"\.mamba\.", ".mixer."), (r"\.(feed_forward|block_sparse_moe)\.", ".mlp."), (r"\.mlp\.router\.", ".mlp.gate."),
    (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."), (r"\.mlp\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
    (r"\.mlp\.w1\.", ".mlp.gate_proj."), (r"\.mlp\.w3\.", ".mlp.up_proj."), (r"\.mlp\.w2\.", ".mlp.down_proj."),
    (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."), (r"\.self_attn\.forget_gate\.", ".self_attn."),
)  # fmt: skip
#: Tables that a class computes and no checkpoint holds.
COMPUTED = re.compile(r"\.(slope_rate|query_decay|key_decay|diagonal_decay)$")


def test_that_enough_architectures_are_compared() -> None:
    """Fifteen architectures and 26 configurations, each kind of mixer among them."""
    kinds = {json.loads(path.read_text())["model_type"] for path in CONFIGS}
    mixers = {part.kind for path in CONFIGS for layer in hf.load(path).layer_classes if (part := recurrent_part(layer))}
    assert len(kinds) >= 15
    assert len(CONFIGS) >= 26
    assert mixers == {"mamba1", "mamba2", "gated_delta", "kda", "lightning", "short_conv"}


@EACH
def test_same_tensors_as_transformers(path: Path) -> None:
    """Every tensor that the class makes of a configuration is in the inventory, and no other but the MTP layers."""
    spec = hf.load(path)
    assert ours(spec) == theirs(json.loads(path.read_text()), spec)


@EACH
def test_same_schedule_as_transformers(path: Path) -> None:
    """The layers that keep a state, and those that keep a cache, are those that the configuration class names."""
    spec, parsed = hf.load(path), parse(json.loads(path.read_text())).get_text_config()
    stateful, cached = [False] * spec.num_layers, [False] * spec.num_layers
    for layer in spec.layer_classes:
        for index in layer.indices:
            stateful[index] = recurrent_part(layer) is not None
            cached[index] = layer.attention.cache_elements > 0
    kinds = parsed.layer_types
    assert stateful == [kind in ("linear_attention", "conv", "hybrid") for kind in kinds]
    assert cached == [kind in ("full_attention", "hybrid") for kind in kinds]


@EACH
def test_what_transformers_writes_is_read(path: Path) -> None:
    """A configuration that transformers 5 writes out in full, every default in it, gives the same tensors."""
    config = json.loads(path.read_text())
    written = json.loads(parse(config).to_json_string(use_diff=False)) | {"model_type": config["model_type"]}
    again, spec = hf.from_config(written, path, "written"), hf.from_config(config, path, "read")
    assert ours(again) == ours(spec)
    assert [layer.name for layer in again.layer_classes] == [layer.name for layer in spec.layer_classes]


def ours(spec: ModelSpec) -> Shapes:
    """The inventory without the MTP layers, which the classes leave out."""
    found: Shapes = Counter()
    for t in tensors(spec):
        if t.role != "mtp":
            found[t.name, t.shape] += t.count
    return found


def theirs(config: dict[str, Any], spec: ModelSpec) -> Shapes:
    """State dictionary of the class, with fused tensors and layer numbers undone."""
    auto = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(parse(config))
    found: Shapes = Counter()
    for name, value in model.state_dict().items():
        if COMPUTED.search(name) or (name.endswith("lm_head.weight") and spec.tied_embeddings):
            continue
        for pattern, new in RENAMED:
            name = re.sub(pattern, new, name)
        for plain, shape in unfused(name, tuple(value.shape), config["model_type"], spec):
            found[plain, shape] += 1
    return found


def parse(config: dict[str, Any]) -> Any:
    """The configuration object of transformers; MiniMax's own files have other names for its keys."""
    arguments = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    kind = config["model_type"]
    if kind == "minimax_text_01":
        kind, listed = "minimax", arguments.pop("attn_type_list")
        arguments["layer_types"] = ["full_attention" if one else "linear_attention" for one in listed]
    return transformers.AutoConfig.for_model(kind, **arguments)


def unfused(name: str, shape: tuple[int, ...], kind: str, spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The separate tensors that a fused one holds."""
    prefix, _, last = name.rpartition(".")
    half = (shape[0] // 2, *shape[1:])
    if ".mlp.experts." in name:
        names = {"gate_up_proj": ("gate_proj", "up_proj")}.get(last, (last,))
        for each in names * shape[0]:
            yield f"{prefix}.{{expert}}.{each}.weight", (shape[1] // len(names), shape[2])
    elif ".shared_mlp." in name:  # Granite 4: the shared expert, or the whole feed-forward part
        where = "mlp.shared_experts" if "moe" in spec.ffn else "mlp"
        parts = ("gate_proj", "up_proj") if "input_linear" in name else ("down_proj",)
        for each in parts:
            yield f"{prefix.rpartition('.shared_mlp')[0]}.{where}.{each}.weight", half if len(parts) == 2 else shape
    elif kind == "kimi_linear" and name.endswith("self_attn.conv1d.weight"):
        for each in "qkv":
            yield name.replace("conv1d", f"{each}_conv1d"), (shape[0] // 3, *shape[1:])
    elif kind.startswith("lfm2") and name.endswith("self_attn.out_proj.weight"):
        yield name.replace("out_proj", "o_proj"), shape
    else:
        yield name, shape
