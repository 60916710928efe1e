"""GGUF metadata -> ``ModelSpec``, strictly: every key of an architecture is read, known to be harmless, or refused.

Which keys an architecture has, what they default to and which layers are windowed: the loaders of llama.cpp
(``src/llama-model.cpp`` and ``src/models/*.cpp``, https://github.com/ggml-org/llama.cpp). Whether there are biases,
norms of Q and K, or an output matrix of its own, the stored tensors say. A window that the format has no key for
(Mistral 7B v0.1 as ``llama``) is lost: such a file describes full attention, as llama.cpp runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.base.text import printable
from perfmodel.base.validation import build
from perfmodel.modelspecs.hf.common import Spec, effective_window, schedule
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored.gguf import Gguf
from perfmodel.modelspecs.stored.gguf_ffn import dense_layers, glm_layers, llama4_layers, mixture_layers
from perfmodel.modelspecs.stored.gguf_keys import Header, extras

#: llama.cpp takes this chunk for Llama 4, whatever the file says.
LLAMA4_CHUNK = 8192
GELU = "gelu_pytorch_tanh"
LAYERNORM = {"kind": "layernorm"}


@dataclass(frozen=True)
class Architecture:
    """How an architecture differs from Llama.

    Attributes
    ----------
    layers : Callable
        Feed-forward part of every layer.
    activation : str
    norm : dict
        Fields of ``Norm``.
    period : int or None
        Every ``period``-th layer has full attention, the others a window; 0: all are windowed; ``None``: no windows.
    window : int or None
        Where the file has none; 0: the file must have one.
    mla, chunked : bool
        Latent attention; Llama 4's chunks in place of windows.
    rope : bool
        Whether there is a rotary embedding.
    no_rope : int
        Every such layer is without it; -1: the full layers beside windowed ones are. 0: none.
    """

    layers: Callable[[Header, str], tuple[list[str], dict[str, Spec]]] = dense_layers
    activation: str = "silu"
    norm: dict[str, Any] = field(default_factory=dict)
    period: int | None = None
    window: int | None = None
    mla: bool = False
    chunked: bool = False
    rope: bool = True
    no_rope: int = 0


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(mixture_layers),
    "mistral3": Architecture(mixture_layers),
    "qwen2": Architecture(),
    "qwen2vl": Architecture(),
    "qwen2moe": Architecture(mixture_layers),
    "qwen3": Architecture(),
    "qwen3vl": Architecture(),
    "qwen3moe": Architecture(mixture_layers),
    "gemma": Architecture(activation=GELU),
    "gemma2": Architecture(activation=GELU, norm={"per_layer": 4}, period=2, window=4096),
    "gemma3": Architecture(activation=GELU, norm={"per_layer": 4}, period=6),
    "phi3": Architecture(period=0),
    "olmo2": Architecture(norm={"placement": "post"}, period=4),
    "command-r": Architecture(norm={"kind": "layernorm", "per_layer": 1}),
    "deepseek2": Architecture(glm_layers, mla=True),
    "deepseek32": Architecture(glm_layers, mla=True),
    "glm4": Architecture(norm={"per_layer": 4}),
    "glm4moe": Architecture(glm_layers),
    "ernie4_5": Architecture(),
    "ernie4_5-moe": Architecture(glm_layers),
    "exaone4": Architecture(norm={"placement": "post"}, period=4, no_rope=-1),
    "exaone-moe": Architecture(glm_layers, period=4, no_rope=-1),
    "granite": Architecture(),
    "granitemoe": Architecture(mixture_layers),
    "olmo": Architecture(norm={"kind": "layernorm"}),
    "olmoe": Architecture(mixture_layers),
    "seed_oss": Architecture(),
    "smollm3": Architecture(no_rope=4),
    "arcee": Architecture(activation="relu2"),
    "cohere2": Architecture(norm={"kind": "layernorm", "per_layer": 1}, period=4, no_rope=-1),
    "gpt2": Architecture(activation="gelu_new", norm=LAYERNORM, rope=False),
    "bloom": Architecture(activation="gelu", norm=LAYERNORM, rope=False),
    "phi2": Architecture(activation="gelu_new", norm={**LAYERNORM, "per_layer": 1}),
    "starcoder2": Architecture(activation=GELU, norm=LAYERNORM),
    "stablelm": Architecture(norm=LAYERNORM),
    "gpt-oss": Architecture(mixture_layers, period=2, window=0),
    "llama4": Architecture(llama4_layers, period=4, chunked=True),
}


def spec(header: Gguf, file: object, name: str) -> ModelSpec:
    """The model that a header describes.

    Parameters
    ----------
    file : object
        For messages.
    name : str
        What to call the model when its metadata do not say.

    Raises
    ------
    SpecError
        When the architecture is not understood, or one of its keys: each by its name.
    """
    kind = header.metadata.get("general.architecture")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise SpecError(
            file, "general.architecture", f"{str(kind)[:80]!r} is not understood; {', '.join(ARCHITECTURES)} are"
        )
    h = Header(header, str(kind), file)
    names, ffn = known.layers(h, known.activation)
    attention, kinds = _mla(h) if known.mla else _gqa(h, known)
    layers = [f"{a}/{f}" for a, f in zip(kinds, names, strict=True)]
    data: Spec = {
        **_titles(header, name),
        "source": f"the GGUF header of {file}",
        "family": kind,
        "hidden_size": h.width,
        "vocab_size": h.vocabulary,
        "tied_embeddings": not h.has("output.weight"),
        "max_context": h.keys.dim("context_length"),
        "norm": h.norms(known.norm),
        "attention": {key: attention[key] for key in dict.fromkeys(kinds)},
        "ffn": {key: ffn[key] for key in dict.fromkeys(names)},
        "layers": schedule(layers),
        "extra_tensors": extras(header.tensors),
        **h.native(),
    }
    if h.mtp:
        data["mtp"] = {"layers": h.mtp, "layer": layers[-1], **_mtp(h)}
    h.finish()
    data["notes"] = "; ".join(dict.fromkeys(h.keys.notes))
    return build(ModelSpec, data, file)


def _mtp(h: Header) -> Spec:
    """What the first prediction layer stores of its own."""
    names = {"own_embedding": "embed_tokens", "own_head": "shared_head_head", "final_norm": "shared_head_norm"}
    found = {key: h.has(f"blk.{h.layers}.nextn.{name}.weight") for key, name in names.items()}
    return found | {"own_head": found["own_head"] and not found["own_embedding"]}


def _titles(header: Gguf, name: str) -> Spec:
    title, name = header.metadata.get("general.name"), printable(name, 120)
    return {"name": name, "title": printable(title, 120) if isinstance(title, str) and title.strip() else name}


def _gqa(h: Header, known: Architecture) -> tuple[dict[str, Spec], list[str]]:
    """Attention variants, and the name of every layer's."""
    heads = h.per_layer("attention.head_count")
    groups = h.per_layer("attention.head_count_kv", heads)
    k_dim, v_dim = h.head_sizes(heads[0])
    common: Spec = {
        "kind": "gqa", "head_dim": k_dim, "v_head_dim": v_dim if v_dim != k_dim else None,
        "qkv_bias": h.has("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"), "o_bias": h.has("blk.0.attn_output.bias"),
        "sink_logits": h.has("blk.0.attn_sinks.weight"), "qk_norm": h.qk_norm(heads[0], k_dim),
    }  # fmt: skip
    local = _windowed(h, known)
    size = (LLAMA4_CHUNK if known.chunked else _window(h, known)) if any(local) else None
    found: dict[str, Spec] = {}
    shapes: dict[tuple[int, int], str] = {}
    names = []
    for layer, shape in enumerate(zip(heads, groups, strict=True)):
        if shape[0] % shape[1]:
            raise h.keys.error(
                "attention.head_count_kv", f"{shape[1]} does not divide {shape[0]} heads (layer {layer})"
            )
        suffix = shapes.setdefault(shape, f"_{len(shapes) + 1}" if shapes else "")
        kind = ("chunked" if known.chunked else "sliding") if local[layer] and size else "full"
        more = _llama4(h, local[layer], size) if known.chunked else {"window": size if kind == "sliding" else None}
        rope = known.rope and not _without_rope(known, layer, any(local) and not local[layer])
        name = kind + suffix + ("" if rope or not known.rope else "_no_rope")
        names.append(name)
        found[name] = {**common, "heads": shape[0], "kv_heads": shape[1], "rope": rope, **more}
    return found, names


def _without_rope(known: Architecture, layer: int, full_beside_windowed: bool) -> bool:
    return full_beside_windowed if known.no_rope < 0 else known.no_rope > 0 and (layer + 1) % known.no_rope == 0


def _llama4(h: Header, local: bool, chunk: int | None) -> Spec:
    """Llama 4: rotary layers are chunked and (but for Maverick's 128 experts) norm Q and K without weights."""
    rope = local or not chunk
    normed = rope and h.count("expert_count") != 128
    return {
        "chunk": chunk if local else None, "rope": rope, "qk_norm": "head" if normed else "none",
        "qk_norm_weights": not normed,
    }  # fmt: skip


def _window(h: Header, known: Architecture) -> int | None:
    if known.window == 0:
        h.keys.require("attention.sliding_window")
    size = h.keys.optional("attention.sliding_window", known.window)
    return effective_window(h.keys, size, h.keys.dim("context_length"))


def _windowed(h: Header, known: Architecture) -> Sequence[bool]:
    """Which layers see a window only. llama.cpp: all but every ``period``-th, or as a list in the file says."""
    key = "attention.sliding_window"
    if known.period is None or (known.window is None and not known.chunked and not h.keys.has(key)):
        return [False] * h.layers
    if h.keys.data.get(key) == 0:
        h.keys.read.add(key)
        return [False] * h.layers
    h.keys.read |= {"attention.sliding_window_pattern"} | ({"attention.sliding_window"} if known.chunked else set())
    pattern = h.keys.data.get("attention.sliding_window_pattern", known.period)
    if isinstance(pattern, list):
        if len(pattern) != h.layers or not all(isinstance(one, bool) for one in pattern):
            raise h.keys.error("attention.sliding_window_pattern", f"must be a number, or {h.layers} booleans")
        return pattern
    if type(pattern) is not int or pattern < 0:
        raise h.keys.error("attention.sliding_window_pattern", "must be a number, or a boolean a layer")
    return [pattern == 0 or (layer + 1) % pattern != 0 for layer in range(h.layers)]


def _mla(h: Header) -> tuple[dict[str, Spec], list[str]]:
    """Latent attention: head sizes under their MLA names, or the older ones of files with one ``attn_kv_b`` matrix."""
    k, heads = h.keys, h.keys.dim("attention.head_count")
    absorbed = k.has("attention.key_length_mla")
    key, value = ("attention.key_length", "attention.value_length")
    if absorbed:
        k.expect("attention.head_count_kv", 1)
        latent = k.dim("attention.kv_lora_rank")
        k.expect(key, latent + k.dim("rope.dimension_count"))
        k.expect(value, latent)
        key, value = f"{key}_mla", f"{value}_mla"
    else:
        k.expect("attention.head_count_kv", heads)
    rope, q_rank = k.dim("rope.dimension_count"), h.count("attention.q_lora_rank")
    if k.dim(key) <= rope:
        raise k.error(key, f"{k.dim(key)} must be above rope.dimension_count ({rope})")
    indexer = None
    if k.has("attention.indexer.head_count"):
        sizes = {"heads": "head_count", "head_dim": "key_length", "topk": "top_k"}
        indexer = {name: k.dim(f"attention.indexer.{key}") for name, key in sizes.items()}
    mla: Spec = {
        "kind": "mla", "indexer": indexer, "heads": heads, "q_lora_rank": q_rank or None,
        "kv_lora_rank": k.dim("attention.kv_lora_rank"),
        "qk_nope_head_dim": k.dim(key) - rope, "qk_rope_head_dim": rope, "v_head_dim": k.dim(value),
    }  # fmt: skip
    return {"mla": mla}, ["mla"] * h.layers
