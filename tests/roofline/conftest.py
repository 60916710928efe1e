"""Small models and a machine with round numbers, for arithmetic that can be followed by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec

GQA = {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_dim": 16}
MLA = {
    "kind": "mla", "heads": 8, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}  # fmt: skip
COMPRESSED = {
    "kind": "compressed", "heads": 8, "head_dim": 16, "rope_head_dim": 8, "q_lora_rank": 24, "o_groups": 8,
    "o_lora_rank": 12, "window": 16,
}  # fmt: skip
DENSE = {"kind": "dense", "intermediate_size": 192}
MOE = {"kind": "moe", "experts": 8, "experts_per_token": 2, "intermediate_size": 64}
MAMBA2 = {"kind": "mamba2", "heads": 16, "head_dim": 16, "state": 8, "groups": 8, "scan_chunk": 16}
NONE = {"kind": "none"}

#: One model a structure: name -> attention variants, feed-forward variants, schedule.
STRUCTURES: dict[str, dict[str, Any]] = {
    "mha": {"attention": {"a": GQA | {"kv_heads": 8}}, "ffn": {"f": DENSE}, "layers": [[4, ["a/f"]]]},
    "gqa": {"attention": {"a": GQA}, "ffn": {"f": DENSE}, "layers": [[4, ["a/f"]]]},
    "mqa": {"attention": {"a": GQA | {"kv_heads": 1, "v_head_dim": 8}}, "ffn": {"f": DENSE}, "layers": [[4, ["a/f"]]]},
    "plain": {
        "attention": {"a": GQA | {"qkv_bias": True, "o_bias": True, "output_gate": True, "rope": False}},
        "ffn": {"f": DENSE | {"gated": False, "bias": True}}, "layers": [[4, ["a/f"]]], "tied_embeddings": True,
    },
    "windows": {
        "attention": {"w": GQA | {"window": 16, "qk_norm": "head", "sink_logits": True}, "a": GQA},
        "ffn": {"f": DENSE}, "layers": [[2, ["w/f", "a/f"]]],
    },
    "streaming": {
        "attention": {"w": GQA | {"window": 16, "sink_tokens": 4}}, "ffn": {"f": DENSE}, "layers": [[4, ["w/f"]]],
    },
    "chunks": {
        "attention": {"c": GQA | {"chunk": 16}, "a": GQA | {"rope": False}},
        "ffn": {"f": DENSE, "m": MOE | {"experts_per_token": 1, "shared_intermediate_size": 64}},
        "layers": [[1, ["c/f", "c/m", "c/f", "a/m"]]],
    },
    "moe": {"attention": {"a": GQA}, "ffn": {"m": MOE}, "layers": [[4, ["a/m"]]]},
    "shared": {
        "attention": {"a": GQA},
        "ffn": {"f": DENSE, "m": MOE | {"shared_intermediate_size": 128, "shared_gate": True, "bias": True}},
        "layers": [[1, ["a/f"]], [3, ["a/m"]]],
    },
    "mla": {
        "attention": {"a": MLA}, "ffn": {"f": DENSE, "m": MOE | {"correction_bias": True}},
        "layers": [[1, ["a/f"]], [3, ["a/m"]]],
    },
    "mla_direct": {"attention": {"a": MLA | {"q_lora_rank": None}}, "ffn": {"f": DENSE}, "layers": [[4, ["a/f"]]]},
    "indexer": {
        "attention": {"a": MLA | {"indexer": {"heads": 4, "head_dim": 8, "topk": 16}}}, "ffn": {"f": DENSE},
        "layers": [[4, ["a/f"]]],
    },
    "shared_keys": {
        "attention": {
            "a": GQA | {"v_from_k": True, "qk_norm": "head"}, "b": GQA | {"shared_kv": True, "head_gate": True},
        },
        "ffn": {"f": DENSE}, "layers": [[2, ["a/f", "b/f"]]],
    },
    "shared_indexer": {
        "attention": {
            "a": MLA | {"indexer": {"heads": 4, "head_dim": 8, "topk": 16}}, "b": MLA | {"shared_topk": 16},
        },
        "ffn": {"f": DENSE}, "layers": [[2, ["a/f", "b/f"]]],
    },
    "compressed": {
        "attention": {
            "w": COMPRESSED, "h": COMPRESSED | {"ratio": 8},
            "s": COMPRESSED | {"ratio": 4, "overlap": True, "indexer": {"heads": 4, "head_dim": 8, "topk": 4}},
        },
        "ffn": {"h": MOE | {"hash_table": True}, "m": MOE | {"correction_bias": True}},
        "layers": [[1, ["w/h", "h/m", "s/m", "h/m"]]],
    },
    "mamba2": {"attention": {"s": MAMBA2}, "ffn": {"n": NONE}, "layers": [[4, ["s/n"]]]},
    "mamba1": {
        "attention": {"s": {"kind": "mamba1", "inner": 256, "state": 8, "dt_rank": 8, "inner_norms": True}, "a": GQA},
        "ffn": {"f": DENSE, "m": MOE}, "layers": [[1, ["s/f", "s/m", "a/f", "s/m"]]],
    },
    "delta": {
        "attention": {
            "s": {"kind": "gated_delta", "key_heads": 8, "value_heads": 16, "key_head_dim": 8, "value_head_dim": 12,
                  "fused": True, "scan_chunk": 16},
            "a": GQA,
        },
        "ffn": {"m": MOE | {"shared_intermediate_size": 64, "shared_gate": True}},
        "layers": [[2, ["s/m", "a/m"]]], "mtp": {"layer": "a/m"},
    },
    "kda": {
        "attention": {"s": {"kind": "kda", "heads": 8, "head_dim": 16, "scan_chunk": 16}, "a": MLA},
        "ffn": {"f": DENSE}, "layers": [[2, ["s/f", "a/f"]]],
    },
    "lightning": {
        "attention": {"s": {"kind": "lightning", "heads": 8, "head_dim": 16, "scan_chunk": 16}, "a": GQA},
        "ffn": {"m": MOE}, "layers": [[2, ["s/m", "a/m"]]],
    },
    "short_conv": {
        "attention": {"s": {"kind": "short_conv", "channels": 128}, "a": GQA}, "ffn": {"f": DENSE},
        "layers": [[2, ["s/f", "a/f"]]],
    },
    "beside": {"attention": {"a": GQA | {"beside": MAMBA2}}, "ffn": {"f": DENSE}, "layers": [[4, ["a/f"]]]},
    "alone": {
        "attention": {"s": MAMBA2, "a": GQA | {"rope": False}, "n": NONE},
        "ffn": {"m": MOE | {"gated": False, "latent_size": 64, "shared_intermediate_size": 64}, "n": NONE},
        "layers": [[1, ["s/n", "n/m", "a/n", "n/m"]]], "mtp": {"layer": "a/n", "more": ["n/m"]},
    },
}  # fmt: skip


def make_model(name: str = "toy", **fields: Any) -> ModelSpec:
    """A model of hidden size 128 and 512 words; ``layers`` as ``[[repeat, pattern], ...]``."""
    schedule = [{"repeat": n, "pattern": pattern} for n, pattern in fields.pop("layers")]
    base = {"title": name, "source": "made for this test", "hidden_size": 128, "vocab_size": 512, "max_context": 4096}
    return ModelSpec.model_validate({"name": name, **base, "layers": schedule, **fields})


@pytest.fixture(scope="session")
def build_model() -> Callable[..., ModelSpec]:
    """The function that makes a small model."""
    return make_model


@pytest.fixture(scope="session")
def structures() -> dict[str, ModelSpec]:
    """A small model of each structure."""
    return {name: make_model(name, **fields) for name, fields in STRUCTURES.items()}


@pytest.fixture(scope="session", params=STRUCTURES)
def spec(request: pytest.FixtureRequest, structures: dict[str, ModelSpec]) -> ModelSpec:
    """Each of the small models in turn."""
    return structures[request.param]


def _quantity(value: str) -> dict[str, str]:
    return {"value": value, "source": "made for this test"}


@pytest.fixture(scope="session")
def toy_gpu() -> Gpu:
    """100 TFLOP/s at 16 bits, twice that at 8, 10 in vectors, 1 T exponentials a second; 1 TB/s; 10 GB."""
    rates = {"bf16": "100 TFLOP/s", "fp16": "100 TFLOP/s", "fp8": "200 TFLOP/s", "int8": "200 TOP/s"}
    compute = {
        "tensor": {math: _quantity(rate) for math, rate in rates.items()},
        "vector": {"fp32": _quantity("10 TFLOP/s")},
        "exp": _quantity("1 TOP/s"),
    }
    hbm = {"capacity": _quantity("10 GB"), "bandwidth": _quantity("1 TB/s")}
    spec = {"name": "toy", "title": "Toy", "vendor": "none", "architecture": "none", "system": None}
    return Gpu.model_validate({**spec, "compute": compute, "memory": {"hbm": hbm}})


@pytest.fixture(scope="session")
def toy_system() -> System:
    """Domains of 4 GPUs at 100 GB/s each way, and a network at 10 GB/s a GPU."""
    scale_up = {"kind": "switch", "bandwidth": _quantity("100 GB/s")}
    scale_out = {"kind": "network", "bandwidth": _quantity("10 GB/s")}
    return System.model_validate(
        {
            "name": "toy-node", "title": "Toy node", "gpu": "toy", "gpus_per_node": _quantity("4"),
            "domain": _quantity("4"), "scale_up": scale_up, "scale_out": scale_out,
        }
    )  # fmt: skip
