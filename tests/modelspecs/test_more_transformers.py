"""Tensor by tensor against `transformers` on the meta device: every further architecture, with the defaults of its
class and with the switches that change its tensors."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.schema import Gqa, ModelSpec
from perfmodel.modelspecs.tensors import tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Shape = tuple[int, ...]
Shapes = Counter[tuple[str, Shape]]

#: What the classes call otherwise than the inventory, for every architecture.
RENAMED = (
    (r"^(transformer|gpt_neox|model\.decoder)\.", "model."),
    (r"^model\.language_model\.", "model."),
    (r"^model\.(visual|vision_tower|mm_projector|embed_vision|multi_modal_projector)\.", r"\1."),
    (r"\.(h|blocks)\.(\d+)\.(?!norm1|norm2|attn\.qkv\.|attn\.proj\.|mlp\.linear)", r".layers.\2."),
    (r"^model\.(wte|word_embeddings|embed_in)\.", "model.embed_tokens."),
    (r"^model\.wpe\.", "model.embed_positions."),
    (r"^model\.word_embeddings_layernorm\.", "model.embed_norm."),
    (r"^model\.(ln_f|norm_f|final_layer_norm|final_layernorm)\.", "model.norm."),
    (r"\.(ln_1|norm_1|self_attn_layer_norm|ln_attn|attention_layernorm)\.", ".input_layernorm."),
    (r"\.(ln_2|norm_2|ln_mlp|feedforward_layernorm)\.", ".post_attention_layernorm."),
    (r"\.layers\.(\d+)\.final_layer_norm\.", r".layers.\1.post_attention_layernorm."),
    (r"\.norm_attn_norm\.attn\.", ".self_attn."),
    (r"\.norm_attn_norm\.", "."),
    (r"\.layers\.(\d+)\.(attn\.attention|attn|attention|self_attention)\.", r".layers.\1.self_attn."),
    (r"\.self_attn\.(c_proj|dense|out_proj)\.", ".self_attn.o_proj."),
    (r"\.self_attn\.(c_attn|query_key_value|Wqkv)\.", ".self_attn.qkv_proj."),
    (r"\.(query_layernorm|q_layernorm)\.", ".q_norm."),
    (r"\.(key_layernorm|k_layernorm)\.", ".k_norm."),
    (r"\.layers\.(\d+)\.fc(\d)\.", r".layers.\1.mlp.fc\2."),
    (r"\.layers\.(\d+)\.(ffn|block_sparse_moe)\.", r".layers.\1.mlp."),
    (r"\.layers\.(\d+)\.experts\.", r".layers.\1.mlp.experts."),
    (r"(?<!tower)\.mlp\.(c_fc|fc1|fc_in|dense_h_to_4h)\.", ".mlp.up_proj."),
    (r"\.mlp\.(c_proj|fc2|fc_out|dense_4h_to_h)\.", ".mlp.down_proj."),
    (r"\.mlp\.(router\.layer|router|gate\.wg)\.", ".mlp.gate."),
    (r"(\.mlp)?\.(shared_mlp|shared_expert)\.", ".mlp.shared_experts."),
    (r"\.shared_experts\.input_linear\.", ".shared_experts.gate_up_proj."),
    (r"\.shared_experts\.output_linear\.", ".shared_experts.down_proj."),
    (r"\.mlp\.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    (r"\.gate\.moe_statics\.", ".gate."),
)  # fmt: skip


def small(kind: str, **changes: object) -> Any:
    """The configuration object of a class with its defaults and some changes."""
    return transformers.AutoConfig.for_model(kind, **changes)


#: Architectures and what is changed: sizes that a class leaves open, and switches that add or take away tensors.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}), ("gpt2", {"n_inner": 1000, "tie_word_embeddings": False}), ("gpt_bigcode", {}),
    ("gpt_bigcode", {"multi_query": False}), ("gpt_neox", {}), ("gpt_neox", {"attention_bias": False}), ("gptj", {}),
    ("gpt_neo", {}), ("opt", {}), ("bloom", {"hidden_size": 1024, "n_layer": 4, "n_head": 16}), ("falcon", {}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096}),
    ("falcon", {
        "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True, "hidden_size": 2048,
        "num_attention_heads": 32}),
    ("falcon", {
        "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 4, "num_attention_heads": 32,
        "hidden_size": 2048}),
    ("mpt", {"attn_config": {"alibi": True}}), ("phi", {}), ("phi", {"num_key_value_heads": 8}), ("codegen", {}),
    ("stablelm", {}), ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}), ("starcoder2", {}),
    ("starcoder2", {"use_bias": False, "sliding_window": 2048}), ("granite", {"attention_bias": True}), ("olmo", {}),
    ("olmo3", {}), ("smollm3", {}), ("exaone4", {}), ("glm", {}), ("glm4", {}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 32}),
    ("seed_oss", {}), ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}), ("cohere2", {}), ("ernie4_5", {}),
    ("hunyuan_v1_dense", {"head_dim": 128}), ("apertus", {}), ("nemotron", {"num_key_value_heads": 8}), ("helium", {}),
    ("arcee", {}), ("exaone", {}), ("internlm3", {}), ("internlm3", {"qkv_bias": True, "bias": True}),
    ("minimax_m2", {}), ("mimo_v2_flash", {}), ("olmoe", {}), ("phimoe", {"lm_head_bias": True}), ("granitemoe", {}),
    ("granitemoeshared", {"shared_intermediate_size": 1024}), ("ernie4_5_moe", {}), ("exaone_moe", {}), ("hy_v3", {}),
    ("hunyuan_v1_moe", {"head_dim": 128, "num_experts": 8}), ("glm_moe_dsa", {}),
    ("glm_moe_dsa", {"indexer_types": ["full"] * 3 + ["full", "shared", "shared"] * 25}), ("glm4_moe_lite", {}),
    ("deepseek_v4", {}), ("deepseek_v4", {"num_hash_layers": 0, "hc_mult": 2}), ("gemma4", {"audio_config": None}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2}),
    ("gemma4_text", {
        "enable_moe_block": True, "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 512,
        "hidden_size_per_layer_input": 0}),
    ("gemma4_text", {"num_kv_shared_layers": 12, "use_double_wide_mlp": True}),
    ("kimi_k25", {"text_config": {"model_type": "deepseek_v3"}}), ("qwen3_vl", {"text_config": {"hidden_size": 3584}}),
    ("qwen3_vl_moe", {"vision_config": {"out_hidden_size": 2048}}),
    ("qwen2_vl", {"text_config": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}}),
    ("qwen2_5_vl", {"text_config": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}}),
    ("mistral3", {}), ("ministral3", {}), ("glm4v", {}),
    ("glm4v_moe", {"text_config": {"hidden_size": 4096, "num_attention_heads": 32, "use_qk_norm": False}}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(CASES)])
def test_same_tensors(kind: str, changes: dict[str, Any]) -> None:
    """Every tensor that the class makes is in the inventory of the configuration that it writes, and no other."""
    config = small(kind, **changes)
    spec = hf.from_config(written(config), "config.json", kind)
    found, expected = ours(spec), theirs(config, kind, spec)
    assert found - expected == Counter()
    assert expected - found == Counter()


def written(config: Any) -> dict[str, Any]:
    """The configuration as the class writes it to a file, every default in it."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return data


def ours(spec: ModelSpec) -> Shapes:
    """The inventory without prediction layers, which the classes leave out."""
    found: Shapes = Counter()
    for t in tensors(spec):
        if t.role != "mtp":
            found[t.name, t.shape] += t.count
    return found


def theirs(config: Any, kind: str, spec: ModelSpec) -> Shapes:
    """State dictionary of the class, with fused experts and projections and layer numbers undone."""
    vision = getattr(config, "vision_config", None) is not None
    auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    found: Shapes = Counter()
    for name, value in model.state_dict().items():
        if name.endswith("lm_head.weight") and spec.tied_embeddings:
            continue
        if name.endswith((".act_fn.beta", ".act_fn.eps")):  # constants, which no checkpoint stores
            continue
        for plain, shape in unfused(renamed(name, kind), tuple(value.shape), kind, spec):
            found[plain, shape] += 1
    return found


def renamed(name: str, kind: str) -> str:
    """The name that the inventory has."""
    if not re.search(r"visual|vision_tower|mm_projector|embed_vision|multi_modal", name):
        for pattern, new in RENAMED:
            name = re.sub(pattern, new, name)
    name = re.sub(r"^model\.(visual|vision_tower|mm_projector|embed_vision|multi_modal_projector)\.", r"\1.", name)
    if kind in ("glm4", "glm4v"):
        name = name.replace(".post_attention_layernorm.", ".pre_feedforward_layernorm.")
        name = name.replace(".post_self_attn_layernorm.", ".post_attention_layernorm.")
        name = name.replace(".post_mlp_layernorm.", ".post_feedforward_layernorm.")
    if kind.startswith("gemma4"):
        moved = {".mlp.": ".mlp.shared_experts.", ".router.proj.": ".mlp.gate.", ".router.": ".mlp.gate."}
        for old, new in moved.items() if ".mlp.experts." not in name and "tower" not in name else ():
            name = name.replace(old, new)
    return re.sub(r"(layers|blocks|deepstack_merger_list)\.\d+\.", r"\1.{layer}.", name)


def unfused(name: str, shape: Shape, kind: str, spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    """The separate tensors that a fused one holds, each (out, in)."""
    if kind == "gpt2" and len(shape) == 2 and ("_proj." in name):
        shape = shape[::-1]
    if (
        kind.startswith("gemma4")
        and ".mlp.shared_experts." in name
        and not any(f.kind == "moe" for f in spec.ffn.values())
    ):
        name = name.replace("shared_experts.", "")
    prefix, _, last = name.rpartition(".")
    if ".mlp.experts." in name:
        names = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        for each in names * shape[0]:
            yield f"{prefix}.{{expert}}.{each}.weight", (shape[1] // len(names), *shape[2:])
    elif name.endswith(".gate_up_proj.weight"):
        for each in ("gate_proj", "up_proj"):
            yield name.replace("gate_up_proj", each), (shape[0] // 2, *shape[1:])
    elif ".self_attn.qkv_proj." in name:
        a = next(iter(spec.attention.values()))
        assert isinstance(a, Gqa)
        heads = {"q_proj": a.heads, "k_proj": a.kv_heads, "v_proj": a.kv_heads}
        assert sum(heads.values()) * a.head_dim == shape[0]
        for each, number in heads.items():
            yield name.replace("qkv_proj", each), (number * a.head_dim, *shape[1:])
    elif name.endswith("e_score_correction_bias"):
        yield name, shape[-1:]
    else:
        yield name, shape
