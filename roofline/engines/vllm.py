"""vLLM's memory budget.

``KV pool = utilization x device memory - weights - activation peak - memory outside PyTorch [- CUDA-graph estimate]``,
the smallest over the ranks; blocks = pool // block bytes. Source: ``determine_available_memory`` in
vllm/v1/worker/gpu_worker.py, vLLM 0.19.0; by version in data/vllm.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf

from perfmodel.base.units import gib
from perfmodel.modelspecs.schema import LayerClass, Mla
from perfmodel.roofline.engines.ask import LATENT_FORMATS, Ask
from perfmodel.roofline.engines.layers import CacheLayers, cache_layers, describe, merge
from perfmodel.roofline.engines.result import EngineMemory, Term
from perfmodel.roofline.engines.vllm_activation import activation_bytes, graph_bytes, graph_sizes, non_torch_bytes
from perfmodel.roofline.engines.vllm_blocks import Layout, layout
from perfmodel.roofline.engines.vllm_weights import loaded_weights
from perfmodel.roofline.memory import rank_token_bytes
from perfmodel.roofline.sharding import rank_weight_bytes
from perfmodel.roofline.step import Plan

GIB = 2.0**30

#: The GPU whose logs the overheads were fitted on, and what is gone at the start on any. [bytes]
FITTED_GPU, LEAST_AT_START = "h100-sxm", 0.3 * GIB


@dataclass(frozen=True)
class Limits:
    """The engine's limits of a step, defaults filled in."""

    tokens: int
    seqs: int
    block_size: int
    in_flight: int

    @staticmethod
    def of(ask: Ask) -> Limits:
        """Limits by version and size of the GPU.

        70 GiB or more is a large GPU, unless it is an A100; both stand for a server, not for the ``LLM`` class.
        """
        rules, name = ask.rules, ask.gpu.name.casefold()
        large = ask.usable >= 70 * GIB and not (rules["a100_is_small"] and "a100" in name)
        size = "small" if not large else "huge" if ask.usable >= 160 * GIB else "large"
        tokens = ask.max_num_batched_tokens or int(rules[f"max_num_batched_tokens_{size}"])
        seqs = ask.max_num_seqs or int(rules["max_num_seqs_large" if large else "max_num_seqs_small"])
        at_once = int(rules["batches_in_flight"])
        in_flight = tokens * (at_once + ask.plan.pp - 1 if at_once > 1 else 1)
        return Limits(tokens, seqs, ask.block_size or int(rules["block_size"]), in_flight)


def latent_token_bytes(a: Mla, name: str) -> float:
    """Bytes a token and layer of a latent cache in a packed format.

    ``fp8_ds_mla``: the latent in FP8 with a 32-bit scale for each 128, and the rotary key in 16 bits: 656 for DeepSeek.
    ``nvfp4_ds_mla``: 352 for DeepSeek's latent of 512 and rotary key of 64. Source: FlashMLA's sparse kernels, by way
    of ``MLAAttentionSpec`` in vllm/v1/kv_cache_interface.py.

    >>> latent_token_bytes(Mla(heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    ...                    "fp8_ds_mla")
    656.0
    """
    if name == "nvfp4_ds_mla":
        return 352.0 * a.cache_elements / 576
    return a.kv_lora_rank + 4.0 * ceil(a.kv_lora_rank / 128) + 2.0 * a.qk_rope_head_dim


def token_bytes(ask: Ask, layer: LayerClass, plan: Plan) -> float:
    """Bytes a kept token takes in a layer on a rank; sparse attention stores FP8 as ``fp8_ds_mla``."""
    a = layer.attention
    if not isinstance(a, Mla) or not (ask.kv in LATENT_FORMATS or (ask.kv == "fp8" and a.topk)):
        return rank_token_bytes(layer, plan)
    indexer = a.indexer.head_dim + 4 if a.indexer else 0
    return latent_token_bytes(a, ask.kv if ask.kv in LATENT_FORMATS else "fp8_ds_mla") + indexer


def stage_layers_of(ask: Ask, stage: int) -> tuple[CacheLayers, ...]:
    """Cache layers of a stage, the draft's among them on the last one."""
    found = list(cache_layers(ask.model, ask.plan, stage, lambda layer, plan: token_bytes(ask, layer, plan)))
    if ask.draft and stage == ask.plan.pp - 1:
        if ask.draft.model and ask.draft.plan:
            found += cache_layers(ask.draft.model, ask.draft.plan)
        elif ask.model.mtp:
            layer = ask.model.layer_class(ask.model.mtp.layer)
            mine = token_bytes(ask, layer, ask.plan)
            found += [replace(one, token_bytes=mine) for one in describe(layer, ask.model.mtp.layers, ask.plan)]
    return merge(found)


@dataclass(frozen=True)
class Rank:
    """The budget of a rank of one stage. [bytes]"""

    stage: int
    weights: dict[str, tuple[float, str]]
    draft: float
    activations: float
    non_torch: float
    graphs: float
    estimate: float
    requested: float
    layout: Layout

    @property
    def taken(self) -> float:
        """What is subtracted from what was requested, the graphs' estimate apart."""
        return sum(value for value, _ in self.weights.values()) + self.draft + self.activations + self.non_torch


def rank(ask: Ask, limits: Limits, stage: int) -> Rank:
    """The budget of a rank of a pipeline stage."""
    rules, fitted, plan, last = ask.rules, ask.fitted, ask.plan, stage == ask.plan.pp - 1
    weights = loaded_weights(ask.model, ask.gpu, plan, stage, rules, fitted, ask.mtp)
    draft, draft_tokens = 0.0, ask.draft.tokens if ask.draft else 0
    if ask.draft and ask.draft.model and ask.draft.plan and last:
        draft = rank_weight_bytes(ask.draft.model, ask.draft.plan)
    activations = activation_bytes(ask.model, ask.gpu, plan, stage, rules, fitted, limits.tokens, limits.seqs)
    eager = bool(ask.option("enforce_eager", False))
    sizes = 0 if eager else len(graph_sizes(rules, limits.seqs, limits.tokens, draft_tokens))
    graphs, estimate = (
        graph_bytes(ask.model, plan, stage, rules, fitted, sizes, estimated) for estimated in (False, True)
    )
    return Rank(
        stage, weights, draft, activations, non_torch_bytes(rules, fitted, plan.tp), graphs,
        estimate if rules["graphs_subtracted"] else 0.0, ceil(ask.fraction * ask.usable),
        layout(stage_layers_of(ask, stage), limits.block_size, hybrid(ask)),
    )  # fmt: skip


def hybrid(ask: Ask) -> bool:
    """Whether layers with windows get groups of their own."""
    return bool(ask.rules["hybrid_groups"]) and not ask.option("disable_hybrid_kv_cache_manager", False)


def pool(ask: Ask, one: Rank) -> float:
    """The KV pool of a rank: as given in bytes, or what is left. [bytes]"""
    given = ask.option("kv_cache_memory_bytes", None)
    return float(given) if given else one.requested - one.taken - one.estimate


@dataclass(frozen=True)
class Held:
    """What the pools of all ranks hold: blocks of the smallest, tokens as printed, concurrency, blocks of a request."""

    blocks: int
    tokens: int
    concurrency: float
    request: int
    rank: Rank


def held(ask: Ask, limits: Limits, ranks: list[Rank], shift: float = 0.0) -> Held:
    """Blocks, tokens and concurrency; ``shift`` bytes are added to every pool."""
    least = min(ranks, key=lambda one: one.layout.blocks(pool(ask, one) + shift) if one.layout.groups else inf)
    blocks = least.layout.blocks(pool(ask, least) + shift)
    dcp = int(ask.option("decode_context_parallel_size", 1))
    draft = (ask.draft.tokens if ask.draft else 0) + (ask.option("mamba_cache_mode", "none") == "align")
    length = ceil(ask.max_model_len / dcp)
    request = max(one.layout.request_blocks(length, limits.in_flight, draft) for one in ranks)
    concurrency = blocks / request if request else (inf if pool(ask, least) + shift >= 0 else 0.0)
    by = concurrency if ask.rules["hybrid_tokens_by_concurrency"] else None
    tokens = least.layout.printed_tokens(blocks, ask.max_model_len, by) * dcp
    return Held(blocks, tokens, concurrency, request, least)


def memory(ask: Ask) -> EngineMemory:
    """The budget of the rank that decides, and what it holds."""
    limits = Limits.of(ask)
    ranks = [rank(ask, limits, stage) for stage in range(ask.plan.pp)]
    found = held(ask, limits, ranks)
    half = ask.fitted.half_width("kv_pool")
    low, high = (held(ask, limits, ranks, shift).tokens for shift in (-half, half))
    one, have = found.rank, pool(ask, found.rank)
    notice = _notice(ask, found, have)
    note = "; ".join(filter(None, (ask.rules.note, _note(ask, found))))
    return EngineMemory(
        ask.model.title, ask.gpu.name, ask.rules.title, ask.rules.version,
        ask.settings(
            memory_fraction=ask.fraction, max_num_batched_tokens=limits.tokens, max_num_seqs=limits.seqs,
            block_size=one.layout.block_size, stage=one.stage,
        ),
        terms(ask, one, have), found.tokens, found.concurrency, found.blocks, one.layout.block_size,
        one.layout.block_bytes, found.request * one.layout.block_bytes,
        sum(x.count * x.state_bytes for x in stage_layers_of(ask, one.stage)), not notice,
        notice or note, kv_tokens_low=low, kv_tokens_high=high,
        facts={"groups": len(one.layout.groups), "blocks_per_request": found.request},
    )  # fmt: skip


def start_bytes(ask: Ask) -> float:
    """Memory that is surely gone before vLLM compares what it asks for with what is free. [bytes]

    What the logs of the GPU that the overheads were fitted on print; on others the least that was met: two RTX 4090 at
    0.98 (23.5 GiB each) and two RTX 3090 at 0.95 started, so that communicators count for little there.
    """
    fitted = ask.fitted.context.at(ask.plan.tp)
    return fitted if ask.gpu.name == FITTED_GPU else min(fitted, LEAST_AT_START)


def largest_fraction(ask: Ask) -> float:
    """The largest utilization with which vLLM starts, in thousandths."""
    return floor(1000 * (ask.usable - start_bytes(ask)) / ask.usable) / 1000


def most_pool(ask: Ask) -> float:
    """What the weights of the fullest rank leave of the device. [bytes]"""
    limits = Limits.of(ask)
    return ask.usable - max(_weights(rank(ask, limits, stage)) for stage in range(ask.plan.pp))


def _weights(one: Rank) -> float:
    return sum(value for value, _ in one.weights.values()) + one.draft


def _note(ask: Ask, found: Held) -> str:
    """What may go wrong although it fits."""
    free = ask.usable - ask.fitted.context.at(ask.plan.tp)
    if "kv_cache_memory_bytes" in ask.options:
        rest = ask.usable - found.rank.taken
        return "" if pool(ask, found.rank) <= rest else (
            f"beside weights, activations and what is outside PyTorch {gib(rest)} are left for kv_cache_memory_bytes"
        )  # fmt: skip
    if found.rank.requested > free:
        return (
            f"on H100s some {gib(ask.usable - free)} are gone when vLLM starts; if as much is here, memory_fraction "
            f"can be at most {free / ask.usable:.3f}"
        )
    return ""


def _notice(ask: Ask, found: Held, have: float) -> str:
    free = ask.usable - start_bytes(ask)
    if "kv_cache_memory_bytes" in ask.options:
        left = most_pool(ask)
        if have > left:
            return f"kv_cache_memory_bytes {gib(have)} and weights {gib(ask.usable - left)} are more than the " + (
                f"device's {gib(ask.usable)}" + (f": take at most {gib(left)}" if left > 0 else "")
            )
    elif ask.fraction > largest_fraction(ask) and found.rank.requested > free:
        return (
            f"{ask.fraction:g} of {gib(ask.usable)} is {gib(found.rank.requested)}, and some {gib(free)} are free when "
            f"vLLM starts: it refuses; memory_fraction can be at most {largest_fraction(ask):g}"
        )
    if have <= 0:
        taken = f"weights, activations and what is outside PyTorch take {gib(found.rank.taken + found.rank.estimate)}"
        return f"{taken} of the {gib(found.rank.requested)} that vLLM allows itself: nothing is left for the KV cache"
    if found.concurrency < 1:
        need = found.request * found.rank.layout.block_bytes
        return (
            f"one request of {ask.max_model_len:,} tokens needs {gib(need)} of KV cache and {gib(have)} are left: "
            "vLLM refuses to start"
        )
    return ""


def terms(ask: Ask, one: Rank, have: float) -> tuple[Term, ...]:
    """Every term of the budget, with formula and source."""
    rules, half = ask.rules, ask.fitted.half_width
    weights = _weights(one)
    fitted = f"fitted: {ask.fitted.provenance}, {ask.fitted.date}"
    profile = "vllm/v1/worker/gpu_worker.py determine_available_memory, gpu_model_runner.py profile_run"

    def interval(value: float, term: str) -> tuple[float, float]:
        return max(0.0, value - half(term)), value + half(term)

    parts = [
        Term(f"weights: {name}", value, text, "tensor inventory; vllm/model_executor@0.19.0", part=True)
        for name, (value, text) in one.weights.items()
    ]
    if one.draft:
        parts.append(Term("weights: draft", one.draft, "the draft model's tensors", "tensor inventory", part=True))
    subtracted = " - CUDA-graph estimate" if rules["graphs_subtracted"] else ""
    graphs = [Term(
        "cuda_graphs", one.graphs, "a base, a part a layer and a part a mixture layer, by the number of batch sizes",
        fitted, *interval(one.graphs, "cuda_graphs"),
    )] if one.graphs else []  # fmt: skip
    if one.estimate:
        graphs.append(Term(
            "cuda_graph_estimate", one.estimate, "what vLLM estimates its graphs to take, and subtracts",
            rules.source("graphs_subtracted") + "; " + fitted, *interval(one.estimate, "graph_estimate"),
        ))  # fmt: skip
    return (
        Term("usable", ask.usable, "device memory as the driver gives it", f"specification of {ask.gpu.name}"),
        Term("requested", one.requested, f"ceil({ask.fraction:g} x usable)", rules.source("memory_fraction")),
        Term("weights", weights, "tensors of the rank and what the loader adds", "tensor inventory"),
        *parts,
        Term("activations", one.activations, "the larger of forward pass and sampling, and what is kept beside them",
             profile, *interval(one.activations, "activations")),
        Term("non_torch", one.non_torch, "loaded kernels, communicators and their buffers",
             rules.source("non_torch_bytes"), *interval(one.non_torch, "non_torch")),
        *graphs,
        Term("reserved", ask.usable - one.requested, "usable - requested", rules.source("memory_fraction")),
        Term("kv_pool", have, f"requested - weights - activations - non_torch{subtracted}", profile,
             have - half("kv_pool"), have + half("kv_pool")),
    )  # fmt: skip
