"""SGLang's memory budget.

``rest = free after the weights - (1 - f) x free before them``; ``f`` is ``mem_fraction_static``. The pool holds one
token in every layer a slot; with sliding windows there are two pools, the second one ``ratio`` times as long. SGLang
prints GiB and calls them GB. Source: sglang/srt/model_executor, srt/mem_cache and srt/arg_groups, by version in
data/sglang.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.units import gib
from perfmodel.modelspecs.schema import Mla
from perfmodel.roofline.engines.ask import Ask, as_bytes
from perfmodel.roofline.engines.layers import CacheLayers, cache_layers
from perfmodel.roofline.engines.result import EngineMemory, Term
from perfmodel.roofline.engines.rules import Rules
from perfmodel.roofline.sharding import rank_weight_bytes, stage_weight_bytes
from perfmodel.roofline.step import Plan

MIB, GIB = 2.0**20, 2.0**30

#: Above this nothing is left for activations and graphs.
HIGHEST_FRACTION = 0.95


def prefill_buckets(chunk: int) -> int:
    """Number of token counts for which prefill graphs are captured: steps of 4, 16, 32, 64, 256, then 512.

    >>> prefill_buckets(8192)
    58
    """
    return sum(
        len(range(first, min(last, chunk) + 1, step))
        for first, last, step in (
            (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, chunk, 512),
        )
    )  # fmt: skip


def reserve_mib(
    chunk: int, graph_batch: int, tp: int, pp: int, device_gib: float, *, buckets: int = 0, latent: bool = False,
    dp_attention: int = 0, draft_mib: float = 0.0,
) -> float:  # fmt: skip
    """What SGLang keeps free of static memory: activations, graphs and a margin. [MiB]

    ``512 + 1.5 max(chunk, 2048) + 1024 TP PP / 8 + 2 graph_batch + prefill graphs``, at least 10 GiB on a GPU of more
    than 60 GiB.

    Parameters
    ----------
    chunk : int
        ``chunked_prefill_size``. [tokens]
    graph_batch : int
        Largest batch of a decode graph.
    buckets : int
        Prefill graphs: 8 MiB each, or 1536 MiB in all for latent attention.
    dp_attention : int
        Data-parallel ranks of the attention, 0 for none: 3 MiB each and sequence, half as much again above 300.
    """
    total = 512 + 1.5 * max(chunk, 2048) + 1024 * tp * pp / 8 + 2 * graph_batch
    total += (1536 if latent else 8 * buckets) if buckets else 0
    total += dp_attention * graph_batch * (3 + (1.5 if graph_batch > 300 else 0)) + draft_mib
    return max(total, 10 * 1024) if device_gib > 60 else total


def tier(table: Mapping[str, float], device_gib: float) -> int:
    """The value of the last tier that a GPU's memory reaches."""
    return int([value for least, value in table.items() if device_gib >= float(least)][-1])


@dataclass(frozen=True)
class Static:
    """``mem_fraction_static`` and what it follows from."""

    fraction: float
    chunk: int
    graph_batch: int
    formula: str


def static_fraction(ask: Ask) -> Static:
    """The share of the free memory that weights and pools may take: as given, or by the version's rule."""
    rules, plan, size = ask.rules, ask.plan, ask.usable / GIB
    chunk = int(ask.option("chunked_prefill_size", ask.max_num_batched_tokens or tier(rules["chunk_by_gib"], size)))
    wide = "graph_batch_by_gib_wide" if plan.tp >= 4 else "graph_batch_by_gib"
    batch = int(ask.option("cuda_graph_max_bs", tier(rules[wide], size)))
    if ask.max_num_seqs:
        batch = min(batch, ask.max_num_seqs)
    if ask.memory_fraction is not None:
        return Static(ask.memory_fraction, chunk, batch, "as given")
    if rules["fraction_rule"] == "by_tp":
        return Static(_fraction_by_tp(rules, plan, ask.usable), chunk, batch, "by tensor parallelism")
    latent = any(isinstance(a, Mla) for a in ask.model.attention.values())
    kept = reserve_mib(
        chunk, batch, plan.tp, plan.pp, size, buckets=prefill_buckets(chunk) if rules["prefill_graphs"] else 0,
        latent=latent, dp_attention=plan.dp if ask.option("dp_attention", False) else 0,
        draft_mib=rules.number("draft_reserve_mib") if ask.draft else 0.0,
    )  # fmt: skip
    memory = ask.usable / MIB
    return Static(round((memory - kept) / memory, 3), chunk, batch, f"round((memory - {kept:,.0f} MiB) / memory, 3)")


def _fraction_by_tp(rules: Rules, plan: Plan, usable: float) -> float:
    found = [value for least, value in rules["fraction_by_tp"].items() if plan.tp >= int(least)][-1]
    if usable > 96 * GIB:
        return float(min(found + 48 * GIB * (1 - found) / usable, (usable - 18 * GIB) / usable))
    return float(found)


@dataclass(frozen=True)
class Pools:
    """Tokens of the pools and what they take.

    Attributes
    ----------
    tokens, window_tokens : int
        Slots of the pool of full layers, and of the pool of layers with a window (0 without any).
    full_bytes, window_bytes, state_bytes : float
    states : int
        Sequences whose recurrent state the state pool holds.
    """

    tokens: int
    window_tokens: int
    full_bytes: float
    window_bytes: float
    state_bytes: float = 0.0
    states: int = 0


def cells(layers: Iterable[CacheLayers]) -> tuple[float, float, float]:
    """Bytes of a token in all full layers, in all layers with a window, and of a sequence's states, on a rank."""
    listed = list(layers)
    full = sum(one.count * one.token_bytes for one in listed if one.full)
    window = sum(one.count * one.token_bytes for one in listed if not one.full)
    return full, window, sum(one.count * one.state_bytes for one in listed)


def pools(
    available: float, layers: Iterable[CacheLayers], ratio: float = 0.8, page: int = 1, state_ratio: float = 0.9
) -> Pools:
    """Slots that ``available`` bytes hold.

    ``full = available / (full cell + ratio x window cell)``, ``window = ratio x full``; the states of a hybrid take
    ``state_ratio / (1 + state_ratio)`` of it first.

    Examples
    --------
    48 layers of Qwen3-30B-A3B keep 2 x 4 x 128 16-bit elements a token each:

    >>> pools(164149629787, [CacheLayers(48, 2048.0)]).tokens
    1669816
    """
    full, window, state = cells(layers)
    states = int(available * state_ratio / (1 + state_ratio) // state) if state and available > 0 else 0
    rest = available / (1 + state_ratio) if state else available
    if not full and not window:
        return Pools(0, 0, 0.0, 0.0, states * state, states)
    cell = full + ratio * window if full else window
    tokens = max(0, int(rest // cell)) // page * page
    windows = (int(ratio * tokens) if full else tokens) // page * page if window else 0
    return Pools(tokens, windows, tokens * full, windows * window, states * state, states)


def memory(ask: Ask) -> EngineMemory:
    """The budget of the fullest rank, and what its pools hold."""
    rules, plan, chosen = ask.rules, ask.plan, static_fraction(ask)
    before = as_bytes(ask.option("free_before_bytes", ask.usable - ask.fitted.context.at(plan.tp)), "free_before_bytes")
    stages = [_stage(ask, chosen, before, stage) for stage in range(plan.pp)]
    stage, weights, rest, found = min(stages, key=lambda one: (one[3].tokens or one[3].states, one[2]))
    layers = cache_layers(ask.model, plan, stage)
    length, state = ask.max_model_len, cells(layers)[2]
    concurrency = found.tokens / length if cells(layers)[0] or cells(layers)[1] else float(found.states)
    slots = int(min(max(2048, min(4096, 512 * found.tokens / length)), found.tokens / 2)) if found.tokens else 0
    notice = "" if rest > 0 and (found.tokens or found.states) else _short(ask, chosen, before, weights)
    if not notice and concurrency < 1:
        notice = f"a request can have {found.tokens:,} tokens at most, not {length:,}"
        fits = False
    else:
        fits = not notice
    return EngineMemory(
        ask.model.title, ask.gpu.name, rules.title, rules.version,
        ask.settings(memory_fraction=chosen.fraction, chunked_prefill_size=chosen.chunk,
                     cuda_graph_max_bs=chosen.graph_batch, stage=stage,
                     **({"max_running_requests": ask.max_num_seqs} if ask.max_num_seqs else {})),
        _terms(ask, chosen, before, weights, rest, found), found.tokens, concurrency, found.tokens,
        int(ask.option("page_size", ask.block_size or rules["page_size"])), cells(layers)[0],
        length * cells(layers)[0] + state, state, fits, notice or rules.note, kv_tokens_low=found.tokens,
        kv_tokens_high=found.tokens,
        facts={"max_running_requests": slots, "swa_tokens": found.window_tokens, "state_slots": found.states},
    )  # fmt: skip


def _stage(ask: Ask, chosen: Static, before: float, stage: int) -> tuple[int, float, float, Pools]:
    given = ask.option("weights_bytes", None)
    weights = (
        stage_weight_bytes(ask.model, ask.plan, stage, ask.mtp) if given is None else as_bytes(given, "weights_bytes")
    )
    if ask.draft and ask.draft.model and ask.draft.plan:
        weights += rank_weight_bytes(ask.draft.model, ask.draft.plan)
    workspace = as_bytes(ask.option("workspace_bytes", 0.0), "workspace_bytes")
    rest = before - weights - (1 - chosen.fraction) * before - workspace
    layers = list(cache_layers(ask.model, ask.plan, stage))
    if ask.draft and ask.draft.model and ask.draft.plan:
        layers += cache_layers(ask.draft.model, ask.draft.plan)
    ratio = float(ask.option("swa_full_tokens_ratio", ask.rules["swa_full_tokens_ratio"]))
    page = int(ask.option("page_size", ask.block_size or ask.rules["page_size"]))
    return stage, weights, rest, pools(rest, layers, ratio, page, ask.rules.number("state_ratio"))


def least_fraction(free_before: float, weights: float) -> float:
    """The smallest ``mem_fraction_static`` under which weights leave anything for the pools.

    >>> round(least_fraction(137.90 * 2**30, 125.65 * 2**30), 4)
    0.9112
    """
    return weights / free_before


def _short(ask: Ask, chosen: Static, before: float, weights: float) -> str:
    least = least_fraction(before, weights)
    hint = f"; memory_fraction must be above {least:.4f}" if least < HIGHEST_FRACTION else ""
    share = f"{chosen.fraction:g} of {gib(before)}"
    return f"weights {gib(weights)} are more than {share}: nothing is left for the KV cache{hint}"


def _terms(ask: Ask, chosen: Static, before: float, weights: float, rest: float, found: Pools) -> tuple[Term, ...]:
    source, context = ask.rules.source("fraction_rule"), ask.usable - before
    terms: list[Any] = [
        Term("usable", ask.usable, "device memory as the driver gives it", f"specification of {ask.gpu.name}"),
        Term("non_torch", context, "context and communicators before the weights are loaded",
             f"fitted: {ask.fitted.provenance}"),
        Term("requested", chosen.fraction * before, f"{chosen.fraction:g} x free before the weights "
             f"({chosen.formula})", source),
        Term("weights", weights, "tensors of the rank", "tensor inventory"),
        Term("reserved", (1 - chosen.fraction) * before, "(1 - f) x free before: activations, graphs, margin", source),
        Term("kv_pool", rest, "free after the weights - (1 - f) x free before", "sglang/srt/model_executor@0.5.23"),
        Term("kv_pool: full", found.full_bytes, "tokens x bytes of a token in full layers", "as above", part=True),
    ]  # fmt: skip
    if found.window_tokens:
        terms.append(Term(
            "kv_pool: windows", found.window_bytes, "ratio x tokens x bytes of a token in layers with a window",
            ask.rules.source("swa_full_tokens_ratio"), part=True,
        ))  # fmt: skip
    if found.states:
        terms.append(Term(
            "kv_pool: states", found.state_bytes, "sequences x recurrent state", ask.rules.source("state_ratio"),
            part=True,
        ))  # fmt: skip
    return tuple(terms)
