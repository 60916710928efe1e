"""Checkpoints whose experts have another format than the rest: DeepSeek V4, and its NVFP4 variants."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.modelspecs.hf.common import Spec
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.quant_groups import group, only_group, scheme

#: Linear layers of DeepSeek V4 that its checkpoints store as FP8 blocks with 8-bit scales, beside the experts.
FP8_ROLES = (
    "q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_proj", "indexer_q", "shared_expert_gate", "shared_expert_up",
    "shared_expert_down", "mtp_proj",
)  # fmt: skip
#: What they store in 16 bits: the small projections of the compressors.
PLAIN_ROLES = ("compressor_k", "compressor_gate", "indexer_k", "indexer_gate")


def split(k: Keys, q: Keys, where: Mapping[str, frozenset[int]]) -> Spec | None:
    """Formats of a checkpoint with experts apart, or ``None`` where the configuration speaks of none.

    ``expert_dtype: fp4`` is MXFP4 (E2M1 elements, an 8-bit scale a group of 32), ``moe_quant_algo: NVFP4`` NVIDIA's;
    ``quantized_layers`` must then name the experts of every layer.
    """
    compressed = "compressor_k" in where or "o_a_proj" in where
    dtype, algorithm = _expert_dtype(k, q), q.data.get("moe_quant_algo")
    if algorithm is not None:
        _check_nvfp4(q, algorithm, len(where.get("expert_up", ())))
    if dtype is None and algorithm is None and not compressed:
        return None
    if not compressed:
        raise q.error("moe_quant_algo" if algorithm else "expert_dtype", "is understood for DeepSeek V4 only")
    if q.data.get("weight_block_size") != [128, 128] or q.data.get("quant_method") != "fp8":
        raise q.error("quant_method", "is not understood with compressed attention; fp8 in 128 x 128 blocks is")
    _check_rest(q, algorithm)
    rest = "fp8_block_e8m0" if q.data.get("scale_fmt") == "ue8m0" else "fp8_block"
    name = "nvfp4" if algorithm else "mxfp4" if dtype == "fp4" else rest
    others = {} if name == rest else dict.fromkeys(FP8_ROLES, rest)
    return {"native_format": name, "native_16bit": PLAIN_ROLES, "native_roles": {"mtp_proj": rest} | others}


def _expert_dtype(k: Keys, q: Keys) -> object:
    found: object = None
    for keys in (k, q):
        keys.expect("expert_dtype", "fp4", "fp8")
        found = keys.data.get("expert_dtype") or found
    return found


def _check_nvfp4(q: Keys, algorithm: object, layers: int) -> None:
    if algorithm != "NVFP4":
        raise q.error("moe_quant_algo", f"{str(algorithm)[:40]!r} is not understood; NVFP4 is")
    named = q.data.get("quantized_layers")
    wanted = {f"layers.{i}.ffn.experts" for i in range(layers)}
    if not isinstance(named, dict) or set(named) != wanted:
        raise q.error("quantized_layers", f"must name the experts of all {layers} layers")
    if any(
        entry not in ({"quant_algo": "NVFP4"}, {"quant_algo": "NVFP4", "group_size": 16}) for entry in named.values()
    ):
        raise q.error("quantized_layers", "has an algorithm that is not NVFP4 in groups of 16: not understood")


#: What the NVFP4 variants list as left in FP8 or 16 bits: all but the experts.
LEFT = {"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"}


def _check_rest(q: Keys, algorithm: object) -> None:
    """The keys that say no more than the format does; others must not be there."""
    q.read |= {"quant_method", "weight_block_size", "moe_quant_algo", "quantized_layers"}
    q.text("activation_scheme", ("dynamic", "static"), "dynamic")
    q.expect("fmt", "e4m3", "float8_e4m3fn")
    q.expect("scale_fmt", "ue8m0")
    if algorithm is None:
        return
    q.expect("group_size", 16)
    q.expect("quant_algo", "MIXED_PRECISION")
    left = q.data.get("ignore") or []
    q.read.add("ignore")
    if not isinstance(left, list) or not all(isinstance(one, str) and one in LEFT for one in left):
        raise q.error("ignore", f"must be of {', '.join(sorted(LEFT))}; other modules are not understood here")
    if q.has("config_groups"):
        for part in group(only_group(q)):
            if part is not None:
                scheme(part, 4, "float", 16)
