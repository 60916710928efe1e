"""llama.cpp's memory on GPUs: the cache is fixed by the context, layers are offloaded from the last one on.

``weights of the offloaded layers + their caches + compute buffer``, the fullest device against its memory. Source:
src/llama-model.cpp (``load_tensors``: layer ``i`` goes to a device when ``i >= layers + 1 - ngl``; the input stays on
the host; devices share the layers), src/llama-kv-cache.cpp, common/common.h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from perfmodel.base.errors import UsageError
from perfmodel.base.units import gib
from perfmodel.modelspecs.counts import layer_state_bytes
from perfmodel.modelspecs.schema import Dense, Gqa, Mla, ModelSpec, Moe
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.roofline.engines.ask import Ask, as_bytes, whole
from perfmodel.roofline.engines.llamacpp_cache import CACHE_TYPES as CACHE_TYPES
from perfmodel.roofline.engines.llamacpp_cache import LlamaCache, MlaCache, kv_cache_bytes, kv_row, padded
from perfmodel.roofline.engines.result import EngineMemory, Term
from perfmodel.roofline.sharding import layer_tensors, outer_tensors, stored_bytes
from perfmodel.roofline.step import Plan


@dataclass(frozen=True)
class Cache:
    """The settings of the cache, defaults filled in."""

    n_ctx: int
    type_k: str
    type_v: str
    n_parallel: int
    unified: bool
    n_ubatch: int
    swa_full: bool
    swa_f16: bool
    mla: MlaCache

    @staticmethod
    def of(ask: Ask) -> Cache:
        """Settings by option, else by the build's rules; explicit slots share the context unless it is unified."""
        rules, given = ask.rules, ask.option("n_parallel", None)
        slots = whole(given or int(rules["n_parallel"]), "n_parallel")
        unified = bool(ask.option("unified", given is None or slots == 1))
        kind = {"bf16": "f16", "fp16": "f16", "fp32": "f32"}.get(ask.kv, ask.kv)
        type_k = str(ask.option("type_k", kind))
        type_v = str(ask.option("type_v", type_k))
        return Cache(
            ask.max_model_len * (1 if unified else slots), type_k, type_v,
            slots, unified, whole(ask.option("n_ubatch", int(rules["n_ubatch"])), "n_ubatch"),
            bool(ask.option("swa_full", not rules["swa_cache"])), bool(ask.option("swa_f16", rules["swa_f16"])),
            ask.option("mla", rules["mla"]),
        )  # fmt: skip

    def size(self, model: ModelSpec) -> LlamaCache:
        """Sizes of the whole model's caches."""
        return kv_cache_bytes(
            model, self.n_ctx, self.type_k, self.type_v, n_parallel=self.n_parallel, unified=self.unified,
            n_ubatch=self.n_ubatch, swa_full=self.swa_full, swa_f16=self.swa_f16, mla=self.mla,
        )  # fmt: skip


def gpu_layers(layers: int, ngl: int, devices: int = 1) -> list[list[int]]:
    """Layers on each device; number ``layers`` stands for the output, which needs ``ngl`` above the layers.

    >>> gpu_layers(4, 2), gpu_layers(4, 5, devices=2)
    ([[3, 4]], [[0, 1, 2], [3, 4]])
    """
    active = min(ngl, layers + 1)
    first = layers + 1 - active
    found: list[list[int]] = [[] for _ in range(devices)]
    for index in range(first, layers + 1):
        found[(index - first) * devices // active].append(index)
    return found


def layer_sizes(model: ModelSpec, plan: Plan, file: float | None) -> tuple[list[float], float, float]:
    """Bytes of each layer, of the output and of the input; scaled to a file's size when one is given."""
    sizes = [0.0] * model.num_layers
    for layer in model.layer_classes:
        one = sum(stored_bytes(parts, plan) for parts in layer_tensors(model, layer, plan).values())
        for index in layer.indices:
            sizes[index] = one
    outer = {role: stored_bytes(parts, plan) for role, parts in outer_tensors(model, plan).items()}
    into = outer.get("embedding", 0.0)
    out = sum(size for role, size in outer.items() if role != "embedding")
    if file is None:
        return sizes, out, into
    inside = sum(sizes) + into + (out if not model.tied_embeddings else 0.0)
    scale = file / inside
    return [size * scale for size in sizes], out * scale, into * scale


def compute_buffer(model: ModelSpec, cache: Cache, cells: int, flash: bool, output: bool) -> float:
    """An estimate of the compute buffer of a device: the largest tensors of one pass of ``n_ubatch`` tokens. [bytes]

    ``n_ubatch x 4 x (widest + hidden size)``, the widest of logits (on the device with the output), attention scores
    (without flash attention: cells x heads a token) and a feed-forward layer's tensors. For logits it is what logs of
    2024 and 2025 print, to the digit (Llama-3-8B, Qwen3-30B-A3B); for scores it was 7 % under one (560 MiB). Latent
    attention in ik_llama.cpp takes several times more, and builds of 2026 reserve fewer logits.
    """
    widths, heads = [], 1
    for layer in model.layer_classes:
        f, a = layer.ffn, layer.attention
        if isinstance(f, Moe):
            widths.append(f.experts_per_token * (2 * f.intermediate_size + model.hidden_size))
        elif isinstance(f, Dense):
            widths.append(2 * f.intermediate_size)
        heads = max(heads, a.heads if isinstance(a, Gqa | Mla) else 1)
    scores = 0.0 if flash else cells * heads
    largest = max(float(model.vocab_size if output else 0), scores, *widths)
    return cache.n_ubatch * 4.0 * (largest + model.hidden_size)


def memory(ask: Ask) -> EngineMemory:
    """Memory of the fullest device, and what stays on the host."""
    model, plan, cache = ask.model, ask.plan, Cache.of(ask)
    if plan.tp > 1 or plan.dp > 1 or plan.ep > 1:
        raise UsageError("llama.cpp shares layers between GPUs: say pp, not tp, ep or dp")
    file = ask.option("weights_bytes", None)
    single = Plan(weights=plan.weights, kv=plan.kv)
    sizes, out, into = layer_sizes(model, single, as_bytes(file, "weights_bytes") if file else None)
    found, cells = cache.size(model), padded(cache.n_ctx)
    ngl = whole(ask.option("ngl", model.num_layers + 1), "ngl", 0)
    per_layer = layer_caches(model, cache)
    devices = [
        (
            sum(sizes[i] for i in here if i < model.num_layers) + (out if model.num_layers in here else 0.0),
            sum(per_layer[i] for i in here if i < model.num_layers),
            compute_buffer(model, cache, cells, bool(ask.option("flash_attn", True)), model.num_layers in here),
        )
        for here in gpu_layers(model.num_layers, ngl, plan.pp)
        if here
    ] or [(0.0, 0.0, 0.0)]
    weights, kv, compute = max(devices, key=sum)
    context = ask.fitted.context.at(1) if ask.gpu.kind == "gpu" else 0.0  # memory shared with a processor has none
    needed = weights + kv + compute + context
    room = ask.usable - needed
    host = sum(sizes) + out + into - sum(device[0] for device in devices)
    request = found.kv / max(found.cells, 1) * ask.max_model_len
    notice = "" if room >= 0 else f"{gib(needed)} are needed of {gib(ask.usable)}: {gib(-room)} are missing"
    margin = ask.rules.number("fit_margin_bytes")
    if not notice and margin and room < margin:
        notice = f"{gib(room)} stay free: llama.cpp shrinks what is not set until {gib(margin)} do"
    return EngineMemory(
        model.title, ask.gpu.name, ask.rules.title, ask.rules.version,
        ask.settings(
            n_ctx=found.cells, type_k=cache.type_k, type_v=cache.type_v, n_parallel=cache.n_parallel,
            n_ubatch=cache.n_ubatch, ngl=min(ngl, model.num_layers + 1), mla=cache.mla, swa_full=cache.swa_full,
        ),
        _terms(ask, found, weights, kv, compute, context, room), found.cells, found.cells / ask.max_model_len,
        found.cells, 1, found.kv / max(found.cells, 1), request, found.state / cache.n_parallel, room >= 0,
        notice or ask.rules.note, kv_tokens_low=found.cells, kv_tokens_high=found.cells,
        facts={
            "host_weights_bytes": max(0.0, host), "host_kv_bytes": found.total - sum(device[1] for device in devices),
            "swa_cells": found.swa_cells, "model_bytes": float(file or weight_bytes(model, plan.weights)),
        },
    )  # fmt: skip


def layer_caches(model: ModelSpec, cache: Cache) -> list[float]:
    """Cache of each layer of the model. [bytes]"""
    found = [0.0] * model.num_layers
    for layer in model.layer_classes:
        row = kv_row(layer, cache.mla)
        one = kv_cache_bytes(
            [replace(row, count=1)] if row.k else [], cache.n_ctx, cache.type_k, cache.type_v,
            n_parallel=cache.n_parallel, unified=cache.unified, n_ubatch=cache.n_ubatch, swa_full=cache.swa_full,
            swa_f16=cache.swa_f16,
        )  # fmt: skip
        state = cache.n_parallel * layer_state_bytes(layer, "fp32", "fp32")
        for index in layer.indices:
            found[index] = one.kv + state
    return found


def _terms(
    ask: Ask, found: LlamaCache, weights: float, kv: float, compute: float, context: float, room: float
) -> tuple[Term, ...]:
    source = "src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp"
    parts = (
        ("kv: K", found.k), ("kv: V", found.v), ("kv: K of windows", found.swa_k), ("kv: V of windows", found.swa_v),
        ("kv: recurrent states", found.state),
    )  # fmt: skip
    return (
        Term("usable", ask.usable, "device memory as the driver gives it", f"specification of {ask.gpu.name}"),
        Term("requested", ask.usable, "all of it", "llama.cpp sets no share aside"),
        Term("weights", weights, "tensors of the layers on the fullest device", "src/llama-model.cpp load_tensors"),
        Term("kv_pool", kv, "cells x row bytes of K and V of the layers on the fullest device", source),
        *(Term(name, value, "of all layers, offloaded or not", source, part=True) for name, value in parts if value),
        Term("activations", compute, "largest tensors of one pass of n_ubatch tokens (estimate)",
             "ggml_gallocr: worst-case graph of n_ubatch tokens"),
        Term("non_torch", context, "CUDA context", f"fitted: {ask.fitted.provenance}"),
        Term("reserved", room if room < inf else 0.0, "what stays free", "arithmetic"),
    )  # fmt: skip
