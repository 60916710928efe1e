"""Laws that hold for every valid spec, checked on random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS
from perfmodel.modelspecs.hf.common import schedule
from perfmodel.modelspecs.schema import Gqa, ModelSpec
from perfmodel.modelspecs.sizes import tensor_bytes, weight_bytes
from perfmodel.modelspecs.tensors import tensors

CONFIGS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "data" / "configs").glob("*.json")
}
dims = st.integers(1, 300)


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        indexer = {"heads": draw(dims), "head_dim": draw(dims), "topk": draw(dims)}
        return {
            "kind": "mla", "heads": draw(dims), "q_lora_rank": draw(st.none() | dims), "kv_lora_rank": draw(dims),
            "qk_nope_head_dim": draw(dims), "qk_rope_head_dim": draw(dims), "v_head_dim": draw(dims),
            "indexer": draw(st.none() | st.just(indexer)),
        }  # fmt: skip
    kv, group = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    found: dict[str, Any] = {"kind": "gqa", "heads": kv * group, "kv_heads": kv, "head_dim": draw(dims)}
    found["v_head_dim"] = draw(st.none() | dims)
    found |= {key: draw(st.booleans()) for key in ("qkv_bias", "o_bias", "sink_logits", "output_gate")}
    found["qk_norm"] = draw(st.sampled_from(["none", "head", "full"]))
    kind = draw(st.sampled_from(["full", "window", "chunk"]))
    if kind != "full":
        found[kind] = draw(st.integers(1, 5000))
    if kind == "window":
        found["sink_tokens"] = draw(st.integers(0, 8))
    return found


@st.composite
def ffns(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"intermediate_size": draw(dims), "gated": draw(st.booleans()), "bias": draw(st.booleans())}
    if draw(st.booleans()):
        return {"kind": "dense", **found}
    chosen = draw(st.integers(1, 8))
    return {
        "kind": "moe", "experts": chosen + draw(st.integers(0, 60)), "experts_per_token": chosen,
        "shared_intermediate_size": draw(st.integers(0, 300)), "shared_gate": draw(st.booleans()),
        "router_bias": draw(st.booleans()), "correction_bias": draw(st.booleans()), **found,
    }  # fmt: skip


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    attention = draw(st.dictionaries(st.sampled_from("abc"), attentions(), min_size=1))
    ffn = draw(st.dictionaries(st.sampled_from("xyz"), ffns(), min_size=1))
    layer = st.builds("{}/{}".format, st.sampled_from(sorted(attention)), st.sampled_from(sorted(ffn)))
    runs = st.builds(
        lambda n, p: {"repeat": n, "pattern": p}, st.integers(1, 9), st.lists(layer, min_size=1, max_size=4)
    )
    return ModelSpec.model_validate(
        {
            "name": "random", "title": "Random", "source": "made by a test", "hidden_size": draw(dims),
            "vocab_size": draw(dims), "tied_embeddings": draw(st.booleans()),
            "max_context": draw(st.integers(1, 10**6)),
            "native_format": draw(st.sampled_from(sorted(FORMATS))), "attention": attention, "ffn": ffn,
            "norm": {"per_layer": draw(st.sampled_from([1, 2, 4])), "bias": draw(st.booleans())},
            "layers": draw(st.lists(runs, min_size=1, max_size=3)),
            "mtp": draw(st.none() | st.builds(lambda n: {"layer": n, "own_embedding": True}, layer)),
        }
    )  # fmt: skip


@given(specs())
def test_layers_add_up(spec: ModelSpec) -> None:
    """The classes' counts sum to the layers, and each layer is in one class."""
    indices = sorted(i for layer in spec.layer_classes for i in layer.indices)
    assert indices == list(range(spec.num_layers))
    assert sum(layer.count for layer in spec.layer_classes) == spec.num_layers


@given(specs())
def test_totals_add_up(spec: ModelSpec) -> None:
    """The total is the sum by role, without what is counted apart; all stored tensors are no fewer."""
    roles = counts.by_role(spec)
    assert counts.total_params(spec) == sum(n for role, n in roles.items() if role not in counts.APART)
    assert 0 < counts.active_params(spec) <= counts.total_params(spec)
    assert counts.total_params(spec) <= counts.unscaled_params(spec) <= counts.checkpoint_params(spec)


@given(specs())
def test_layers_are_as_their_classes(spec: ModelSpec) -> None:
    """Each tensor of a layer class comes a whole number of times a layer, and in no other class."""
    for layer in spec.layer_classes:
        own = [t for t in tensors(spec) if t.layer == layer.name and t.role != "mtp"]
        assert own
        assert all(t.count % layer.count == 0 for t in own)


@given(specs(), st.integers(0, 2 * 10**6), st.integers(0, 10**6), st.sampled_from(sorted(KV_FORMATS)))
def test_kv_grows_at_most_linearly(spec: ModelSpec, context: int, more: int, kv: str) -> None:
    """A longer context never needs less cache, and never more than proportionally."""
    short, long = counts.kv_bytes(spec, context, kv), counts.kv_bytes(spec, context + more, kv)
    assert long >= short
    assert long * context <= short * (context + more) * (1 + 1e-12)


@given(specs(), st.integers(1, 10**6))
def test_windowed_at_most_full(spec: ModelSpec, context: int) -> None:
    """Taking the windows away never saves cache."""
    full = spec.model_copy(
        update={
            "attention": {
                name: a.model_copy(update={"window": None, "chunk": None, "sink_tokens": 0})
                if isinstance(a, Gqa)
                else a
                for name, a in spec.attention.items()
            }
        }
    )
    assert counts.kv_bytes(spec, context) <= counts.kv_bytes(full, context)
    assert counts.kv_bytes_per_token(spec) <= counts.kv_bytes_per_token(full)


@given(specs(), st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_scalar_equals_vector(spec: ModelSpec, contexts: list[int]) -> None:
    """One context at a time or all at once: the same bytes."""
    together = counts.kv_bytes(spec, np.array(contexts, dtype=np.float64))
    assert list(np.atleast_1d(together)) == [counts.kv_bytes(spec, float(context)) for context in contexts]


@given(specs())
def test_growth_is_the_slope(spec: ModelSpec) -> None:
    """At a context where every window is full, one more token adds kv_bytes_per_token."""
    step = counts.kv_bytes(spec, 20_001.0) - counts.kv_bytes(spec, 20_000.0)
    assert step == pytest.approx(counts.kv_bytes_per_token(spec), rel=1e-6, abs=1e-6)


@given(specs())
def test_sizes_follow_bits(spec: ModelSpec) -> None:
    """Plain formats are elements times bits; the weights are the sum of their tensors in every format."""
    loaded = [t for t in tensors(spec) if t.role not in counts.APART]
    assert weight_bytes(spec, "bf16") == 2 * sum(t.total for t in loaded)
    assert weight_bytes(spec, "fp32") == 2 * weight_bytes(spec, "bf16")
    for name, fmt in FORMATS.items():
        assert weight_bytes(spec, name) == pytest.approx(sum(t.count * tensor_bytes(t, fmt) for t in loaded))
        assert all(tensor_bytes(t, fmt) * 8 >= min(fmt.bits, 16) * t.numel for t in loaded)


@given(st.lists(st.sampled_from(["a/x", "a/y", "b/x"]), min_size=1, max_size=40))
def test_schedule_is_the_list(layers: list[str]) -> None:
    """Runs written out give the list back."""
    assert [layer for run in schedule(layers) for _ in range(run["repeat"]) for layer in run["pattern"]] == layers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


QUANTIZED = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn"]},
    {"quant_method": "compressed-tensors", "ignore": ["re:.*mlp.gate$"], "config_groups": {"group_0": {
        "input_activations": None, "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
]  # fmt: skip


@settings(max_examples=400)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_any_value_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Whatever stands in a key of a real configuration, the importer gives a spec or a SpecError: it never breaks."""
    config = json.loads(json.dumps(CONFIGS[name]))
    if data.draw(st.booleans()):
        config["quantization_config"] = json.loads(json.dumps(data.draw(st.sampled_from(QUANTIZED))))
    target = config
    while inner := [value for value in target.values() if isinstance(value, dict) and value]:
        if not data.draw(st.booleans()):
            break
        target = data.draw(st.sampled_from(inner))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    try:
        spec = hf.from_config(config, "config.json", "changed")
    except SpecError:
        return
    assert counts.total_params(spec) > 0
