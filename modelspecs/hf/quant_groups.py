"""``config_groups`` and the scheme of the KV cache: as compressed-tensors and Model Optimizer write them."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import words
from perfmodel.modelspecs.hf.keys import Keys

#: How scales were found: neither sizes nor costs.
OBSERVED = words("observer observer_kwargs")
STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group")
#: Only what quantizes every linear layer alike is one format.
TARGETS = ["Linear"]


def only_group(q: Keys) -> Keys:
    """The one group that a section has."""
    groups = q.section("config_groups")
    if groups is None or len(groups.data) != 1:
        raise q.error("config_groups", "must hold one group; mixtures are not understood")
    found = groups.section(next(iter(groups.data)))
    if found is None:
        raise q.error("config_groups", "has no weights")
    return found


def group(inner: Keys) -> tuple[Keys | None, Keys | None]:
    """Weights and input activations of a group, which must speak of all linear layers and of nothing else."""
    inner.expect("targets", TARGETS)
    inner.expect("output_activations")
    parts = inner.section("weights"), inner.section("input_activations")
    inner.finish({"format"})
    return parts


def scheme(part: Keys, bits: int, kind: str, size: int | None) -> None:
    """Check one scheme: numbers of ``bits`` of a ``kind`` (``"int"``, ``"float"``), in groups of ``size`` if in any."""
    part.expect("num_bits", bits)
    part.expect("type", kind)
    part.expect("group_size", *([size] if size else []))
    part.expect("dynamic", *((False,) if part.prefix.endswith("weights.") else ("local", True, False)))
    part.text("strategy", STRATEGIES, "")
    part.flag_given("symmetric")
    part.expect("actorder", "weight", "group", "static", "dynamic", True, False)
    part.expect("scale_dtype", "torch.float8_e4m3fn", "torch.bfloat16", "torch.float16", "torch.float32")
    part.expect("zp_dtype", "torch.int8", "torch.float8_e4m3fn")
    part.finish(OBSERVED | (words("block_structure") if part.prefix.endswith("weights.") else frozenset()))


def kv_cache(q: Keys) -> str | None:
    """Format of the KV cache that a checkpoint asks for, or ``None``: its scales are stored, the cache is the engine's.

    Raises
    ------
    SpecError
        For a format that no cache here has.
    """
    algorithms = {"FP8": "fp8", "INT8": "int8"}
    found = q.text("kv_cache_quant_algo", ("FP8", "INT8"), "")
    if isinstance(q.data.get("kv_cache_scheme"), str):
        found = q.text("kv_cache_scheme", ("FP8", "INT8"), "")
    elif (section := q.section("kv_cache_scheme")) is not None:
        kind = section.text("type", ("float", "int"), "float")
        section.require("num_bits")
        scheme(section, 8, kind, None)
        found = "FP8" if kind == "float" else "INT8"
    return algorithms.get(found)
