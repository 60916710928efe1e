"""DeepSeek V4: windowed attention beside compressed entries, hyper-connections, experts by hash in the first layers.

The classes are those of transformers 5.24 (``models/deepseek_v4``); the prediction layer, which they leave out, is the
checkpoint's: two d x d projections, three norms, a layer with a window alone, and a mixer of the streams.
"""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import CORE, Spec, base, num_layers, schedule, words
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.moe import moe

#: Numerics of the streams, of the rotary embeddings and of the activation.
DEEPSEEK4 = words("hc_eps hc_sinkhorn_iters compress_rope_theta")
REQUIRED = (
    *CORE[:3], "vocab_size", "max_position_embeddings", "head_dim", "q_lora_rank", "o_lora_rank", "o_groups",
    "sliding_window", "hc_mult", "moe_intermediate_size", "num_experts_per_tok",
)  # fmt: skip
KINDS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
NAMES = dict(zip(KINDS, ("window", "sparse", "heavy"), strict=True))
RATES = dict(zip(KINDS, (0, 4, 128), strict=True))


def deepseek_v4(k: Keys) -> Spec:
    """DeepSeek V4 Flash and Pro."""
    k.require(*REQUIRED)
    spec, n = base(k, tied=False), num_layers(k)
    for key, allowed in (("num_key_value_heads", 1), ("attention_bias", False), ("mlp_bias", False)):
        k.expect(key, allowed)
    k.expect("topk_method", "noaux_tc")
    k.expect("n_shared_experts", 1)
    streams, d, width = k.dim("hc_mult"), spec["hidden_size"], k.dim("moe_intermediate_size")
    k.expect("intermediate_size", width)
    kinds, after = _kinds(k, n)
    attention = {NAMES[kind]: _attention(k, kind) for kind in dict.fromkeys((*kinds, *after))}
    ffn = moe(k, width, shared_intermediate_size=width)
    hashed = _hashed(k, n)
    ffns = {"hash": {**ffn, "hash_table": True}, "moe": {**ffn, "correction_bias": True}}
    names = ["hash" if on else "moe" for on in hashed]
    used = dict.fromkeys((*names, *(["moe"] if after else [])))
    spec |= {
        "attention": attention, "ffn": {name: ffns[name] for name in used}, "streams": streams,
        "layers": schedule([f"{NAMES[kind]}/{name}" for kind, name in zip(kinds, names, strict=True)]),
        "layer_tensors": _mixers(streams, d), "extra_tensors": _head(streams, d, "model."),
    }  # fmt: skip
    if after:
        if len(set(after)) > 1:
            raise k.error("compress_ratios", "differs among the prediction layers: not understood")
        head = [{**tensor, "role": "hyper"} for tensor in _head(streams, d, "")]
        spec["mtp"] = {"layers": len(after), "layer": f"{NAMES[after[0]]}/moe", "tensors": head}
    return spec


def _attention(k: Keys, kind: str) -> Spec:
    heads, size = k.dim("num_attention_heads"), k.dim("head_dim")
    rope = k.dim("qk_rope_head_dim", size // 8)
    if rope > size:
        raise k.error("qk_rope_head_dim", f"{rope} is above head_dim ({size})")
    if heads % k.dim("o_groups"):
        raise k.error("o_groups", f"{k.dim('o_groups')} does not divide num_attention_heads ({heads})")
    found: Spec = {
        "kind": "compressed", "heads": heads, "head_dim": size, "rope_head_dim": rope,
        "q_lora_rank": k.dim("q_lora_rank"), "o_groups": k.dim("o_groups"), "o_lora_rank": k.dim("o_lora_rank"),
        "window": k.dim("sliding_window"), "ratio": RATES[kind],
    }  # fmt: skip
    indexer = {"heads": k.dim("index_n_heads"), "head_dim": k.dim("index_head_dim"), "topk": k.dim("index_topk")}
    return found | ({"overlap": True, "indexer": indexer} if kind == KINDS[1] else {})


def _kinds(k: Keys, n: int) -> tuple[list[str], list[str]]:
    """Kind of attention of each layer, and of the prediction layers, which ``compress_ratios`` lists at its end."""
    after = k.dim("num_nextn_predict_layers", 0, least=0)
    listed, ratios = k.words("layer_types", n, KINDS), k.numbers("compress_ratios")
    k.expect("compress_rates", {KINDS[1]: RATES[KINDS[1]], KINDS[2]: RATES[KINDS[2]]})
    if ratios is None and listed is None:
        raise k.error("compress_ratios", "is missing, as is layer_types; one of them is needed")
    kinds, more = listed, [KINDS[0]] * after
    if ratios is not None:
        if len(ratios) not in (n, n + after):
            raise k.error("compress_ratios", f"has {len(ratios)} entries for {n} layers and {after} prediction layers")
        by_ratio = {ratio: kind for kind, ratio in RATES.items()}
        unknown = sorted(set(ratios) - set(by_ratio))
        if unknown:
            raise k.error("compress_ratios", f"{unknown[0]} is not understood; 0, 4 and 128 are")
        kinds, more = [by_ratio[r] for r in ratios[:n]], [by_ratio[r] for r in ratios[n:]] or more
        if listed is not None and listed != kinds:
            raise k.error("layer_types", "contradicts compress_ratios")
    return kinds or [], more


def _hashed(k: Keys, n: int) -> list[bool]:
    """Which layers choose their experts by a table: the first ``num_hash_layers``."""
    listed = k.words("mlp_layer_types", n, ("hash_moe", "moe"))
    first = k.dim("num_hash_layers", 3 if listed is None else sum(word == "hash_moe" for word in listed), least=0)
    found = [i < first for i in range(n)]
    if listed is not None and [word == "hash_moe" for word in listed] != found:
        raise k.error("mlp_layer_types", "contradicts num_hash_layers, or does not begin with the hash layers")
    return found


def _mixers(streams: int, d: int) -> list[Spec]:
    """What mixes the residual streams before and after attention and feed-forward part: 2 n + n^2 weights a token."""
    rows = (2 + streams) * streams
    return [
        {"name": f"{part}_hc.{name}", "role": "hyper", "shape": shape}
        for part in ("attn", "ffn")
        for name, shape in (("fn", (rows, streams * d)), ("base", (rows,)), ("scale", (3,)))
    ]


def _head(streams: int, d: int, prefix: str) -> list[Spec]:
    """What makes one stream of them for the LM head."""
    shapes = (("hc_fn", (streams, streams * d)), ("hc_base", (streams,)), ("hc_scale", (1,)))
    return [{"name": f"{prefix}hc_head.{name}", "role": "hyper", "shape": shape} for name, shape in shapes]
