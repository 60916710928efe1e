"""Families with latent attention beside DeepSeek V2 and V3: GLM-5 with its shared indexers, GLM-4.7-Flash."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import CORE, Spec, base, dense, num_layers, schedule, words
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.mixtures import sparse_layers
from perfmodel.modelspecs.hf.moe import MIXTURE_KEYS, MLA_KEYS, moe

#: Rotary layout, and the reuse of chosen tokens from one prediction step to the next, which changes no size.
GLM5 = words("indexer_rope_interleave index_share_for_mtp_iteration")
INDEXERS = ("full", "shared")


def latent(k: Keys) -> Spec:
    """Multi-head latent attention without indexer."""
    heads, nope, rope = k.dim("num_attention_heads"), k.dim("qk_nope_head_dim"), k.dim("qk_rope_head_dim")
    k.expect("num_key_value_heads", heads)
    k.expect("head_dim", rope, nope, nope + rope)
    k.expect("qk_head_dim", nope + rope)
    for key in ("attention_bias", "mlp_bias"):
        k.expect(key, False)
    if "q_lora_rank" not in k.data:
        raise k.error("q_lora_rank", "is missing; write null for none")
    return {
        "kind": "mla", "heads": heads, "q_lora_rank": k.optional("q_lora_rank"), "kv_lora_rank": k.dim("kv_lora_rank"),
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": k.dim("v_head_dim"),
    }  # fmt: skip


def _mixture(k: Keys, n: int, names: list[str], correction: bool = True) -> Spec:
    """Dense and routed layers under attention of the names given."""
    k.expect("moe_layer_freq", 1)
    width = k.dim("moe_intermediate_size")
    shared = k.dim("n_shared_experts", least=0) * width
    sparse = sparse_layers(k, n, k.dim("first_k_dense_replace", 1, least=0))
    ffn = {"dense": dense(k), "moe": moe(k, width, shared_intermediate_size=shared, correction_bias=correction)}
    parts = ["moe" if on else "dense" for on in sparse]
    return {
        "ffn": {name: ffn[name] for name in dict.fromkeys(parts)},
        "layers": schedule([f"{a}/{f}" for a, f in zip(names, parts, strict=True)]),
    }  # fmt: skip


def glm_moe_dsa(k: Keys) -> Spec:
    """GLM-5: latent attention over tokens that an indexer chooses; some layers take those of the layer before."""
    k.require(*CORE, *MLA_KEYS, *MIXTURE_KEYS, "max_position_embeddings")
    k.require("index_topk", "index_n_heads", "index_head_dim")
    spec, n = base(k, tied=False), num_layers(k)
    k.expect("topk_method", "noaux_tc")
    k.expect("layer_types", *([kind] * n for kind in ("indexed_attention", "deepseek_sparse_attention")))
    mla, topk = latent(k), k.dim("index_topk")
    indexer = {"heads": k.dim("index_n_heads"), "head_dim": k.dim("index_head_dim"), "topk": topk}
    attention = {"full": {**mla, "indexer": indexer}, "shared": {**mla, "shared_topk": topk}}
    names = _indexers(k, n)
    spec |= {"attention": {name: attention[name] for name in dict.fromkeys(names)}} | _mixture(k, n, names)
    layers = k.dim("num_nextn_predict_layers", 0, least=0)
    if layers:
        spec["mtp"] = {"layers": layers, "layer": "full/moe"}
    return spec


def _indexers(k: Keys, n: int) -> list[str]:
    """Which layers have an indexer: a list, a pattern of F and S, or every so many after the first ones."""
    found = k.words("indexer_types", n, INDEXERS)
    pattern = k.data.get("index_topk_pattern")
    every, offset = k.dim("index_topk_freq", 1), k.dim("index_skip_topk_offset", 2, least=0)
    k.read.add("index_topk_pattern")
    derived = [INDEXERS[int(max(i - offset + 1, 0) % every != 0)] for i in range(n)]
    if pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != n or not set(pattern) <= {"F", "S"}:
            raise k.error("index_topk_pattern", f"must be {n} letters F and S")
        derived = [INDEXERS[int(letter == "S")] for letter in pattern]
    if found is not None and (pattern is not None or k.has("index_topk_freq")) and found != derived:
        raise k.error("indexer_types", "contradicts index_topk_freq, index_skip_topk_offset or index_topk_pattern")
    names = found or derived
    if names[0] == "shared":
        raise k.error("indexer_types", "begins with a layer that shares, and there is none before it")
    return names


def glm4_moe_lite(k: Keys) -> Spec:
    """GLM-4.7-Flash: latent attention, first layer dense."""
    k.require(*CORE, *MLA_KEYS, "max_position_embeddings")
    k.require("n_shared_experts", "num_experts_per_tok", "moe_intermediate_size")
    spec, n = base(k, tied=False), num_layers(k)
    k.expect("topk_method", "noaux_tc")
    spec |= {"attention": {"mla": latent(k)}} | _mixture(k, n, ["mla"] * n)
    layers = k.dim("num_nextn_predict_layers", 0, least=0)
    if layers:
        spec["mtp"] = {"layers": layers, "layer": "mla/moe", "own_embedding": True}
    return spec
