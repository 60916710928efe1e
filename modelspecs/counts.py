"""Counts that follow from the inventory and the schedule: parameters, active parameters, KV-cache and state bytes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfmodel.base.num import Num
from perfmodel.modelspecs.formats import Format, kv_format
from perfmodel.modelspecs.schema import Compressed, Gqa, LayerClass, Mla, ModelSpec, Moe
from perfmodel.modelspecs.schema_recurrent import NoMixer, Recurrent
from perfmodel.modelspecs.sizes import NOT_LOADED, tensor_format, weight_bytes
from perfmodel.modelspecs.tensors import Tensor, tensors

#: Roles that a checkpoint stores but that generate no token by themselves; they are counted apart.
APART = NOT_LOADED


def by_role(model: ModelSpec) -> dict[str, int]:
    """Parameters by role, the parts counted apart (``mtp``, ``buffer``) included."""
    counts: Counter[str] = Counter()
    for t in tensors(model):
        counts[t.role] += t.total
    return dict(counts)


def total_params(model: ModelSpec) -> int:
    """Parameters of the model, vision parts included, MTP layers and stored buffers apart."""
    return sum(t.total for t in tensors(model) if t.role not in APART)


def checkpoint_params(model: ModelSpec) -> int:
    """Elements that the native checkpoint stores: parameters, MTP layers, buffers and the scales of its format.

    Packed elements count one by one. Hugging Face's ``safetensors.total`` is this number for some repositories
    (DeepSeek-R1-0528, gpt-oss-safeguard-20b), ``unscaled_params`` for others (DeepSeek-R1, gpt-oss-120b, Kimi-K2.5,
    DeepSeek-V4-Pro): which, no configuration tells. MTP layers count where the spec describes them (MiMo-V2-Flash:
    it does not).
    """
    return sum(t.count * (t.numel + tensor_format(t, model.native_format).scales(t.shape)) for t in tensors(model))


def active_params(model: ModelSpec) -> int:
    """Parameters that one text token passes: all but vision parts, unselected experts and the input embedding's rows.

    A tied embedding is counted once: it is the LM head's matrix.
    """
    ffns = {layer.name: layer.ffn for layer in model.layer_classes}
    return round(sum(_active(t, ffns.get(t.layer), model) for t in tensors(model)))


def _active(t: Tensor, ffn: object, model: ModelSpec) -> float:
    looked_up = t.role == "position" or (t.role == "embedding" and not model.tied_embeddings)
    if t.role in (*APART, "vision", "projector") or looked_up:
        return 0.0
    if t.role.startswith("expert_") and isinstance(ffn, Moe):
        return t.total * ffn.experts_per_token / ffn.experts
    return float(t.total)


def held_tokens(layer: LayerClass, context: Num) -> Num:
    """Tokens whose K and V a layer must keep at a context: all, or the window and its sinks. [tokens]"""
    a = layer.attention
    if isinstance(a, Recurrent | NoMixer):
        return np.minimum(context, 0.0)
    if isinstance(a, Compressed):
        return np.minimum(context, float(a.window))
    if isinstance(a, Gqa) and (a.window or a.chunk):
        return np.minimum(context, float((a.window or a.chunk or 0) + a.sink_tokens))
    return np.minimum(context, np.inf)


def head_size(layer: LayerClass) -> int:
    """Elements of a vector in a layer's KV cache that a scale may cover: a key head's, or all of a latent."""
    a = layer.attention
    return a.head_dim if isinstance(a, Gqa | Compressed) else max(a.cache_elements, 1)


def cache_bytes_per_token(layer: LayerClass, fmt: Format, kept: Num | None = None) -> Num:
    """Bytes that a kept token occupies in one layer's KV cache (its indexer key at 8 bits and a scale included).

    Scales and zero points of the format are in it; with ``kept`` tokens in the cache, so are those that the format
    leaves at 16 bits, as a mean over them all.

    Source of the indexer's cache: DeepSeek-V3.2-Exp, 128 FP8 values and one FP32 scale a token and layer.
    """
    size = layer.attention.cache_elements * fmt.cache_bits(head_size(layer), kept) / 8
    indexer = getattr(layer.attention, "indexer", None)
    return size + (indexer.head_dim + 4 if indexer and isinstance(layer.attention, Mla) else 0)


def compressed_bytes_per_token(layer: LayerClass, fmt: Format) -> float:
    """Bytes by which a token makes the compressed part of one layer's cache grow, for each token ever seen. [bytes]

    ``(entry + index key at 8 bits with its scale) / ratio`` of DeepSeek V4, amortised: an entry comes into being once
    its ``ratio`` tokens are there, which wait in a buffer until then. 0 for other attention.
    """
    a = layer.attention
    if not isinstance(a, Compressed) or not a.ratio:
        return 0.0
    return (a.head_dim * float(fmt.cache_bits(a.head_dim)) / 8 + (a.indexer.head_dim + 4 if a.indexer else 0)) / a.ratio


def layer_cache_bytes(layer: LayerClass, context: Num, fmt: Format) -> Num:
    """KV cache of one sequence in ONE layer of a class: kept tokens, and compressed entries. [bytes]"""
    held = held_tokens(layer, context)
    kept = cache_bytes_per_token(layer, fmt, held) * held
    return kept + compressed_bytes_per_token(layer, fmt) * context


def kv_bytes(model: ModelSpec, context: Num, kv: str | Format = "bf16") -> Num:
    """KV cache of one sequence. [bytes]

    ``sum over layers of kept tokens(context) x cache elements x bits / 8``, scales and tokens left at 16 bits
    included; exact for the format without engine paging.

    Parameters
    ----------
    context : Num
        Tokens in the cache.
    kv : str or Format
        Storage format of the cache.
    """
    fmt = kv_format(kv)
    total: Num = 0.0
    for layer in model.layer_classes:
        total = total + layer.count * layer_cache_bytes(layer, context, fmt)
    return total


def kv_bytes_per_token(model: ModelSpec, kv: str | Format = "bf16") -> float:
    """Growth of the KV cache by one more token at a long context, where windows are full. [bytes/token]"""
    fmt = kv_format(kv)
    total = 0.0
    for layer in model.layer_classes:
        a = layer.attention
        bounded = isinstance(a, Compressed) or (isinstance(a, Gqa) and bool(a.window or a.chunk))
        total += layer.count * compressed_bytes_per_token(layer, fmt)
        total += 0.0 if bounded else layer.count * float(cache_bytes_per_token(layer, fmt))
    return total


def active_params_with_embedding(model: ModelSpec) -> int:
    """``active_params`` and the whole input embedding: what Qwen, Mistral AI and Meta print for their mixtures."""
    embedding = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return active_params(model) + embedding


def unscaled_params(model: ModelSpec) -> int:
    """Elements of all stored tensors, MTP layers and buffers included, the scales of the native format not."""
    return sum(t.total for t in tensors(model))


def recurrent_part(layer: LayerClass) -> Recurrent | None:
    """The recurrent mixer of a layer: in the place of attention, or beside it (Falcon-H1)."""
    a = layer.attention
    return a if isinstance(a, Recurrent) else a.beside if isinstance(a, Gqa) else None


def layer_state_bytes(
    layer: LayerClass, state: str | Format | None = None, conv: str | Format = "bf16", ranks: int = 1
) -> float:
    """Recurrent state of one sequence in ONE layer of a class: the scan's and the convolution's. [bytes]

    Parameters
    ----------
    state : str or Format, optional
        Format of the scan's state; by default the one that the model names, else 32 bits.
    conv : str or Format
        Format of the convolution's state, ``kernel - 1`` past inputs a channel.
    ranks : int
        Tensor-parallel ranks that cut it; groups of B and C, and key heads, are copied where there are fewer.
    """
    a = recurrent_part(layer)
    if a is None:
        return 0.0
    scan = kv_format(state or a.state_format or "fp32")
    return (a.state_elements(ranks) * scan.bits + a.conv_elements(ranks) * kv_format(conv).bits) / 8


def state_bytes(model: ModelSpec, state: str | Format | None = None, conv: str | Format = "bf16") -> float:
    """Recurrent state of one sequence over all layers, which does not grow with the context. [bytes]

    Engines differ in the formats: vLLM keeps the convolution in the model's, the scan's in the one that the
    configuration names or else the model's too; llama.cpp keeps both in 32 bits (``state="fp32", conv="fp32"``).

    >>> from perfmodel.modelspecs.load import model
    >>> state_bytes(model("llama3-8b"))
    0.0
    """
    return sum((layer.count * layer_state_bytes(layer, state, conv) for layer in model.layer_classes), 0.0)


def contexts(model: ModelSpec, shortest: int = 1024) -> list[int]:
    """Powers of two from ``shortest`` to the longest context, and that context itself. [tokens]"""
    longest = model.max_context
    powers = [2**k for k in range(shortest.bit_length() - 1, longest.bit_length()) if 2**k < longest]
    return [*powers, longest]


def heads_text(layer: LayerClass) -> str:
    """``heads/KV heads`` of a layer, or the latent of MLA: the two never under one ambiguous number.

    >>> from perfmodel.modelspecs.load import model
    >>> heads_text(model("llama3-70b").layer_classes[0])
    '64/8 heads'
    """
    a = layer.attention
    if isinstance(a, NoMixer):
        return "no mixer"
    if isinstance(a, Recurrent):
        state = f", state {a.unit_elements} each" if a.unit_elements else ""
        return f"{a.kind}: {a.units} {a.unit_name}{state}"
    if isinstance(a, Gqa):
        return f"{a.heads}/{a.kv_heads} heads"
    if isinstance(a, Compressed):
        return f"{a.heads}/1 heads of {a.head_dim}" + (f", 1 entry a {a.ratio} tokens" if a.ratio else "")
    return f"{a.heads} heads, latent {a.kv_lora_rank}+{a.qk_rope_head_dim}"


def notes(model: ModelSpec) -> list[str]:
    """What a reader of a model's numbers should know: class defaults used, what was assumed, what is left out.

    >>> from perfmodel.modelspecs.load import model
    >>> notes(model("bloom-7b1"))
    ['The dimensions are borne out by the published total.']
    """
    return [line.strip() for line in model.notes.split("\n") if line.strip()]


def counted(model: ModelSpec) -> str:
    """What ``total_params`` and the checkpoint of this model take in, in one sentence.

    >>> from perfmodel.modelspecs.load import model
    >>> counted(model("llama3-8b"))
    'total: every tensor described; the same number as in the checkpoint'
    """
    roles = by_role(model)
    vision = "vision" in roles or "projector" in roles
    apart = [name for role, name in (("mtp", "MTP layers"), ("buffer", "stored buffers")) if role in roles]
    text = "total: " + ("vision parts included" if vision else "every tensor described")
    text += f", {' and '.join(apart)} not" if apart else ""
    weights, scales = unscaled_params(model), checkpoint_params(model) - unscaled_params(model)
    if not apart and not scales:
        return f"{text}; the same number as in the checkpoint"
    text += f"; a checkpoint holds {weights:,} elements of weights" + (
        f", {' and '.join(apart)} included" * bool(apart)
    )
    return text + (f", and {scales:,} scales (Hugging Face's total may or may not count them)" if scales else "")


def summary(model: ModelSpec, kv: str | Format = "bf16") -> dict[str, object]:
    """The facts about a model that ``perfmodel params`` prints; keys are a contract.

    Parameters
    ----------
    kv : str or Format
        Storage format of the KV cache.

    Returns
    -------
    dict
        Counts are elements; ``kv_bytes_per_token`` is bytes of growth a token at a long context; ``kv_bytes`` maps a
        context in tokens to the bytes of one sequence; ``weights_bytes`` maps a format to bytes. ``counted`` is a
        sentence and ``notes`` a list of them.
    """
    formats = dict.fromkeys(("bf16", model.native_format))
    return {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_context": model.max_context,
        "heads": "; ".join(dict.fromkeys(heads_text(layer) for layer in model.layer_classes)),
        "layer_classes": {layer.name: layer.count for layer in model.layer_classes},
        "total_params": total_params(model),
        "active_params": active_params(model),
        "active_params_with_embedding": active_params_with_embedding(model),
        "checkpoint_params": checkpoint_params(model),
        "checkpoint_weights": unscaled_params(model),
        "published": model.published.model_dump() if model.published else None,
        "by_role": by_role(model),
        "native_format": model.native_format,
        "native_kv": model.native_kv,
        "weights_bytes": {name: weight_bytes(model, name) for name in formats},
        "kv_bytes_per_token": kv_bytes_per_token(model, kv),
        "kv_bytes": {context: float(kv_bytes(model, float(context), kv)) for context in contexts(model)},
        "state_bytes": state_bytes(model),
        "counted": counted(model),
        "notes": notes(model),
    }
