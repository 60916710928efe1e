"""Claims about FLOPs and parameters (chapter section 1.1): F1 to F11."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.modelspecs.counts import active_params, kv_bytes_per_token, total_params
from perfmodel.modelspecs.load import MODELS, model
from perfmodel.modelspecs.schema import Dense, Gqa, Mla, ModelSpec, Moe
from perfmodel.modelspecs.tensors import tensors
from perfmodel.reports.claims import Line, claim
from perfmodel.roofline.flops import crossovers, flops_per_token, layer_work, op_share, role_share, textbook_model
from perfmodel.roofline.step import decode, prefill

#: The chapter's models by the names it prints.
CHAPTER_MODELS = {
    "LLaMA-3 8B": "llama3-8b",
    "Gemma 3 27B": "gemma3-27b",
    "Qwen2.5 72B": "qwen2.5-72b",
    "LLaMA-3.1 405B": "llama3.1-405b",
    "LLaMA-4 Scout": "llama4-scout",
    "LLaMA-4 Maverick": "llama4-maverick",
    "Qwen3 235B-A22B": "qwen3-235b-a22b",
    "DeepSeek-V3": "deepseek-v3",
}
#: Its GFLOP a token, total and active parameters in billions.
CHAPTER_GFLOP = dict(zip(CHAPTER_MODELS, (16, 54, 144, 810, 34, 34, 44, 74), strict=True))
CHAPTER_TOTAL = dict(zip(CHAPTER_MODELS, (8, 27, 72, 405, 109, 400, 235, 671), strict=True))
CHAPTER_ACTIVE = {"LLaMA-4 Scout": 17, "LLaMA-4 Maverick": 17, "Qwen3 235B-A22B": 22, "DeepSeek-V3": 37}

#: Prompt at which a layer's parts are compared, "not too long".
SHORT = 512


@claim("F1", where="1.1", says="one layer: 24 s d^2 + 4 s^2 d (multi-head attention, SwiGLU of 8/3 d)")
def f1() -> Iterator[Line]:
    """The formula beside the count on the graph, without and with a causal mask."""
    d, s = 6144, 8192
    spec = textbook_model(d)
    full, causal = layer_work(spec, s, causal=False), layer_work(spec, s)
    words = f"d = {d:,}, s = {s:,}"
    scores = "the half of 4 s^2 d above the diagonal is not needed under a causal mask"
    tera = 1e12
    yield Line(f"{words}: linear work, 24 s d^2", 24 * s * d**2 / tera, float(full.linear / tera), "TFLOP", layer_work)
    yield Line(
        f"{words}: attention, all pairs, 4 s^2 d", 4 * s**2 * d / tera, float(full.scores / tera), "TFLOP", layer_work
    )
    yield Line(
        f"{words}: attention, causal, 4 s^2 d",
        4 * s**2 * d / tera,
        float(causal.scores / tera),
        "TFLOP",
        layer_work,
        scores,
    )
    whole = (24 * s * d**2 + 4 * s**2 * d) / tera
    yield Line(f"{words}: layer, all pairs", whole, float(full.total / tera), "TFLOP", layer_work)
    yield Line(f"{words}: layer, causal", whole, float(causal.total / tera), "TFLOP", layer_work, scores)


@claim("F2", where="1.1", says="the FFN is about 66 % of a layer at short s")
def f2() -> Iterator[Line]:
    """Share of the feed-forward layers for the textbook layer and each model of the chapter."""
    share = layer_work(textbook_model(), SHORT, causal=False).ffn_share
    yield Line(f"textbook layer (d = 6,144), {SHORT} tokens, all pairs", 66, float(share) * 100, "%", layer_work)
    for title, name in CHAPTER_MODELS.items():
        work = layer_work(model(name), SHORT)
        yield Line(
            f"{title}, {SHORT} tokens, causal", 66, float(work.ffn_share) * 100, "%", layer_work,
            reason="grouped KV heads and the model's own FFN width move it from 16/24",
        )  # fmt: skip


@claim("F3", where="1.1", says="attention passes the FFN at s > 6 d")
def f3() -> Iterator[Line]:
    """All three crossovers, for the textbook layer and real models, without and with a causal mask."""
    textbook = textbook_model()
    yield from _crossover_lines("textbook layer", textbook, "4 s^2 d passes 16 s d^2 at 4 d (half of it at 8 d)")
    own = "6 d is where it passes all linear work of the textbook layer; here heads and FFN width decide, and the mask"
    for title in ("LLaMA-3 8B", "Qwen2.5 72B", "DeepSeek-V3"):
        yield from _crossover_lines(title, model(CHAPTER_MODELS[title]), own)


def _crossover_lines(title: str, spec: ModelSpec, reason: str) -> Iterator[Line]:
    d = spec.hidden_size
    for causal in (False, True):
        found = crossovers(spec, causal)
        mask = "causal" if causal else "all pairs"
        yield Line(f"{title}, {mask}: attention passes the FFN", 6, found.ffn / d, "x d", crossovers, reason)
        yield Line(f"{title}, {mask}: attention passes all linear work", None, found.linear / d, "x d", crossovers)
        yield Line(
            f"{title}, {mask}: attention with its projections passes the FFN", None, found.ffn_with_projections / d,
            "x d", crossovers,
        )  # fmt: skip


@claim("F4", where="1.1", says="embedding and LM head are below 0.1 % of a large model")
def f4() -> Iterator[Line]:
    """Share of the LM head in weights and in the FLOPs of decode and prefill; the embedding's FLOPs."""
    limit = (0.0, 0.1)
    for title in ("LLaMA-3 8B", "LLaMA-3.1 405B"):
        spec = model(CHAPTER_MODELS[title])
        reason = f"a vocabulary of {spec.vocab_size:,} rows of {spec.hidden_size:,}"
        share = role_share(spec, "lm_head")
        yield Line(f"{title}: LM head in the weights", limit, share * 100, "%", role_share, reason)
        share = op_share(spec, decode(1.0, 1.0), "lm_head")
        yield Line(f"{title}: LM head in the FLOPs of a decode step", limit, share * 100, "%", op_share, reason)
        share = op_share(spec, prefill(1.0, 2048.0), "lm_head")
        yield Line(
            f"{title}: LM head in a prefill of 2,048 tokens (last token only)", limit, share * 100, "%", op_share
        )
        share = op_share(spec, decode(1.0, 1.0), "embedding")
        yield Line(f"{title}: input embedding in the FLOPs of a decode step", limit, share * 100, "%", op_share)


@claim("F5", where="1.1", says="FLOPs/token about 2 x active parameters; 16, 54, 144, 810, 34, 34, 44, 74 GFLOP")
def f5() -> Iterator[Line]:
    """GFLOP of a decoded token on the graph, at short context and at 4,096 tokens."""
    for title, name in CHAPTER_MODELS.items():
        spec, chapter = model(name), CHAPTER_GFLOP[title]
        yield Line(f"{title}: context of 1", chapter, flops_per_token(spec) / 1e9, "GFLOP", flops_per_token)
        yield Line(
            f"{title}: context of 4,096", chapter, flops_per_token(spec, 4096) / 1e9, "GFLOP", flops_per_token,
            reason="attention over the context comes on top of 2 x active parameters",
        )  # fmt: skip


def chapter_layer_params(d: int, d_ff: int) -> float:
    """The chapter's parameters of a layer, ``8 d^2 + 3 d d_ff``: its first term is FLOPs of MHA, not parameters."""
    return 8.0 * d**2 + 3.0 * d * d_ff


def layer_params(spec: ModelSpec, roles: tuple[str, ...] = ()) -> float:
    """Parameters of the matrices of one layer (of the first class), or of some roles of it."""
    layer = spec.layer_classes[0]
    found = [t for t in tensors(spec) if t.layer == layer.name and len(t.shape) == 2 and t.role != "mtp"]
    return sum(t.total for t in found if not roles or t.role in roles) / layer.count


@claim("F6", where="1.1", says="Qwen2.5 72B: 8 d^2 + 3 d d_ff = 1.26 B a layer, 100 B in all, 72 B by sharing")
def f6() -> Iterator[Line]:
    """The chapter's sum redone, and the exact one from the inventory."""
    spec = model("qwen2.5-72b")
    d, ffn = spec.hidden_size, next(iter(spec.ffn.values()))
    assert isinstance(ffn, Dense)
    redone = chapter_layer_params(d, ffn.intermediate_size)
    attention = layer_params(spec, ("q_proj", "k_proj", "v_proj", "o_proj"))
    mlp, whole, total = layer_params(spec, ("ffn_gate", "ffn_up", "ffn_down")), layer_params(spec), total_params(spec)
    vocabulary = sum(t.total for t in tensors(spec) if t.role in ("embedding", "lm_head"))
    eight = "8 d^2 is the FLOPs of multi-head projections a token; with 8 KV heads of 64 they have 2.25 d^2 parameters"
    yield Line("the chapter's formula redone: a layer", 1.26, redone / 1e9, "B", chapter_layer_params)
    yield Line("exact: attention projections of a layer", 537, attention / 1e6, "M", layer_params, eight)
    yield Line("exact: FFN of a layer", 726, mlp / 1e6, "M", layer_params)
    yield Line("exact: matrices of a layer", 1260, whole / 1e6, "M", layer_params, eight)
    yield Line("exact: 80 layers", 100, whole * spec.num_layers / 1e9, "B", layer_params, eight)
    yield Line("exact: embedding and LM head", None, vocabulary / 1e9, "B", tensors)
    yield Line("exact: total", 72, total / 1e9, "B", total_params)
    shared = vocabulary / 2 if spec.tied_embeddings else 0.0
    yield Line(
        "exact: parameters shared (100 B less 72 B)", 28, shared / 1e9, "B", tensors,
        reason="nothing is shared, embedding and LM head are two matrices; the 100 B were wrong",
    )  # fmt: skip
    yield Line("FLOPs of a token", 144, flops_per_token(spec) / 1e9, "GFLOP", flops_per_token)


@claim("F7", where="1.1", says="'GQA-8' for 32/8, 64/8 and 128/8 heads, 'GQA-2' for 32/16")
def f7() -> Iterator[Line]:
    """The label's number read as KV heads and as group size: heads / KV heads is what can be understood."""
    for title, label in (("LLaMA-3 8B", 8), ("Gemma 3 27B", 2), ("Qwen2.5 72B", 8), ("LLaMA-3.1 405B", 8)):
        a = next(iter(model(CHAPTER_MODELS[title]).attention.values()))
        assert isinstance(a, Gqa)
        reason = f"heads / KV heads are {a.heads} / {a.kv_heads}"
        words = f"{title} ({a.heads} / {a.kv_heads}), 'GQA-{label}'"
        yield Line(f"{words} read as KV heads", label, a.kv_heads, "", model, reason, strict=True)
        yield Line(f"{words} read as heads a KV head", label, a.group, "", Gqa.group, reason, strict=True)


@claim(
    "F8",
    where="1.1",
    says="DeepSeek-V3: 671 B, 37 B active (5.5 %), MLA d_c = 512, 3 dense layers, 256 + 1 experts, 8 active",
)
def f8() -> Iterator[Line]:
    """DeepSeek-V3 from its spec, and the bytes that its latent cache takes."""
    spec = model("deepseek-v3")
    mla = next(a for a in spec.attention.values() if isinstance(a, Mla))
    moe = next(f for f in spec.ffn.values() if isinstance(f, Moe))
    dense = sum(layer.count for layer in spec.layer_classes if isinstance(layer.ffn, Dense))
    total, active = total_params(spec), active_params(spec)
    yield Line("parameters", 671, total / 1e9, "B", total_params)
    yield Line("active parameters, LM head included", 37, active / 1e9, "B", active_params)
    yield Line("active share", 5.5, active / total * 100, "%", active_params)
    yield Line("latent of K and V", 512, mla.kv_lora_rank, "elements", model, strict=True)
    yield Line("dense layers", 3, dense, "", ModelSpec.layer_classes, strict=True)
    yield Line("routed experts", 256, moe.experts, "", model, strict=True)
    yield Line("shared experts", 1, moe.shared_intermediate_size / moe.intermediate_size, "", model, strict=True)
    yield Line("experts a token", 8, moe.experts_per_token, "", model, strict=True)
    yield Line(
        "elements a token and layer in the cache: latent and rotary key",
        None,
        mla.cache_elements,
        "",
        Mla.cache_elements,
    )
    yield Line("KV cache of a token at BF16, 61 layers", None, kv_bytes_per_token(spec), "bytes", kv_bytes_per_token)


@claim(
    "F9",
    where="1.1",
    says="Maverick alternates MoE and dense layers; same FLOPs/token as Scout; 109 B, 400 B, 17 B active",
)
def f9() -> Iterator[Line]:
    """Scout and Maverick from their specs."""
    scout, maverick = model("llama4-scout"), model("llama4-maverick")
    ratio = flops_per_token(maverick) / flops_per_token(scout)
    yield Line("FLOPs a token, Maverick over Scout", 1, ratio, "x", flops_per_token)
    for title, spec in (("LLaMA-4 Scout", scout), ("LLaMA-4 Maverick", maverick)):
        moe = sum(layer.count for layer in spec.layer_classes if isinstance(layer.ffn, Moe))
        yield Line(
            f"{title}: parameters, vision included", CHAPTER_TOTAL[title], total_params(spec) / 1e9, "B", total_params
        )
        yield Line(f"{title}: active parameters", CHAPTER_ACTIVE[title], active_params(spec) / 1e9, "B", active_params)
        expected = spec.num_layers if title.endswith("Scout") else spec.num_layers // 2
        yield Line(f"{title}: MoE layers of {spec.num_layers}", expected, moe, "", ModelSpec.layer_classes, strict=True)


@claim("F10", where="1.1", says="DeepSeek-V3's FLOPs a token are comparable to Qwen2.5 72B's")
def f10() -> Iterator[Line]:
    """FLOPs a token, one over the other."""
    deepseek, qwen = model("deepseek-v3"), model("qwen2.5-72b")
    for context in (1, 4096):
        ratio = flops_per_token(deepseek, context) / flops_per_token(qwen, context)
        reason = "74 against 144 GFLOP in the chapter's own table: about half"
        note = "at 4,096 tokens the latent attention of 128 heads, absorbed, adds as much again" if context > 1 else ""
        yield Line(
            f"DeepSeek-V3 over Qwen2.5 72B, context of {context:,}", 1, ratio, "x", flops_per_token, reason, note
        )
    own = chapter_flops_ratio("DeepSeek-V3", "Qwen2.5 72B")
    yield Line("the same from the chapter's own table", 1, own, "x", chapter_flops_ratio, reason="74 / 144 GFLOP")


def chapter_flops_ratio(one: str, other: str) -> float:
    """GFLOP a token of one model over another's in the chapter's table."""
    return CHAPTER_GFLOP[one] / CHAPTER_GFLOP[other]


def kv_head_counts(since: str) -> dict[str, int]:
    """Most KV heads of a layer, by built-in model released in or after a month (``"2024-01"``); MLA left out."""
    found: dict[str, int] = {}
    for name in MODELS.names:
        spec = model(name)
        heads = [a.kv_heads for a in spec.attention.values() if isinstance(a, Gqa)]
        if heads and (spec.released or "") >= since:
            found[name] = max(heads)
    return found


@claim("F11", where="1.1", says="all mainstream models after 2024 have at most 8 KV heads")
def f11() -> Iterator[Line]:
    """Most KV heads of the built-in models, released since 2024 and since 2025."""
    gemma = next(a for a in model("gemma3-27b").attention.values() if isinstance(a, Gqa))
    reason = "the chapter's own table has Gemma 3 27B with 16"
    yield Line("Gemma 3 27B: KV heads", (0, 8), gemma.kv_heads, "", kv_head_counts, reason, strict=True)
    for since in ("2024-01", "2025-01"):
        counts = kv_head_counts(since)
        above = {name: n for name, n in counts.items() if n > 8}
        names = ", ".join(f"{name} {n}" for name, n in sorted(above.items(), key=lambda item: -item[1]))
        words = f"{len(counts)} built-in models released since {since}"
        yield Line(f"{words}: most KV heads", (0, 8), max(counts.values()), "", kv_head_counts, names, strict=True)
        yield Line(f"{words}: those with more than 8", 0, len(above), "", kv_head_counts, names, strict=True)
