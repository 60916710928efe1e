"""TensorRT-LLM's memory budget: the KV pool takes a fraction of what is left, not of the device.

``pool = fraction x (device - weights - activation peak - outside)``, ``tokens = pool // bytes of a token``, blocks
rounded up. Source: tensorrt_llm/_torch/pyexecutor/_util.py and llmapi/llm_args.py; logs of 0.8 and 0.13 agree.
"""

from __future__ import annotations

from math import ceil

from perfmodel.base.units import gib
from perfmodel.roofline.engines.ask import Ask, as_bytes
from perfmodel.roofline.engines.layers import cache_layers, held_bytes
from perfmodel.roofline.engines.result import EngineMemory, Term
from perfmodel.roofline.engines.vllm_activation import forward_bytes
from perfmodel.roofline.sharding import stage_weight_bytes


def pool_tokens(free: float, fraction: float, token_bytes: float) -> int:
    """Tokens of a pool that takes a fraction of the free memory.

    An A100 with 69,524,783,104 bytes for the pool of a 7B model at 524,288 bytes a token:

    >>> pool_tokens(69524783104, 1.0, 524288)
    132608
    """
    return max(0, int(fraction * free // token_bytes)) if token_bytes else 0


def pool_blocks(tokens: int, block: int) -> int:
    """Blocks for so many tokens, the last one whole.

    21.89 GiB free, 0.9 of it, 524,288 bytes a token, blocks of 64:

    >>> pool_blocks(pool_tokens(21.89 * 2**30, 0.9, 524288), 64)
    631
    """
    return ceil(tokens / block)


def activation_bytes(ask: Ask, tokens: int, rows: int) -> float:
    """Peak of the profiling run: the forward pass and the logits of a batch in 32 bits. [bytes]

    From first principles; no log that states it was at hand, so no interval is given.
    """
    forward = forward_bytes(ask.model, ask.gpu, ask.plan, tokens, ask.fitted.hidden_copies)
    return max(forward, min(rows, tokens) * ask.model.vocab_size * (4.0 + ask.plan.act_bytes))


def memory(ask: Ask) -> EngineMemory:
    """The budget of the rank with the least room, and what its pool holds."""
    rules, plan, length = ask.rules, ask.plan, ask.max_model_len
    tokens = ask.max_num_batched_tokens or int(rules["max_num_tokens"])
    rows = ask.max_num_seqs or int(rules["max_batch_size"])
    block = ask.block_size or int(rules["tokens_per_block"])
    activations, context = activation_bytes(ask, tokens, rows), ask.fitted.context.at(plan.tp)
    given, file = ask.option("free_bytes", None), ask.option("weights_bytes", None)
    found = []
    for stage in range(plan.pp):
        weights = as_bytes(file, "weights_bytes") if file else stage_weight_bytes(ask.model, plan, stage, ask.mtp)
        free = as_bytes(given, "free_bytes") if given else ask.usable - weights - activations - context
        layers = cache_layers(ask.model, plan, stage)
        token = sum(one.count * one.token_bytes for one in layers if one.full) if all(x.full for x in layers) else 0.0
        request = held_bytes(layers, ceil(length / block) * block)
        found.append((ask.fraction * free // (token or request or 1.0), stage, weights, free, token, request))
    _, stage, weights, free, token, request = min(found)
    pool = ask.fraction * free
    concurrency = max(0.0, pool) / request if request else 0.0
    held = pool_tokens(free, ask.fraction, token) if token else int(concurrency * length)  # windows do not grow
    notice = "" if concurrency >= 1 else (
        f"one request of {length:,} tokens needs {gib(request)} of KV cache and {gib(pool)} are left"
    )  # fmt: skip
    state = sum(one.count * one.state_bytes for one in cache_layers(ask.model, plan, stage))
    return EngineMemory(
        ask.model.title, ask.gpu.name, rules.title, rules.version,
        ask.settings(memory_fraction=ask.fraction, max_num_tokens=tokens, max_batch_size=rows,
                     tokens_per_block=block, stage=stage),
        _terms(ask, weights, activations, context, free, pool), held, concurrency, pool_blocks(held, block), block,
        token * block, request, state, not notice, notice or rules.note, kv_tokens_low=held, kv_tokens_high=held,
    )  # fmt: skip


def _terms(ask: Ask, weights: float, activations: float, context: float, free: float, pool: float) -> tuple[Term, ...]:
    source = ask.rules.source("memory_fraction")
    return (
        Term("usable", ask.usable, "device memory as the driver gives it", f"specification of {ask.gpu.name}"),
        Term("weights", weights, "tensors of the rank", "tensor inventory"),
        Term("activations", activations, "forward pass of max_num_tokens, or logits of max_batch_size rows in 32 bits",
             "first principles; not fitted"),
        Term("non_torch", context, "context and communicators", f"fitted: {ask.fitted.provenance}"),
        Term("free", free, "usable - weights - activations - non_torch, or as given",
             "tensorrt_llm/_torch/pyexecutor/_util.py@0004396"),
        Term("requested", pool, f"{ask.fraction:g} x free", source),
        Term("reserved", free - pool, f"{1 - ask.fraction:.2g} x free", source),
        Term("kv_pool", pool, f"{ask.fraction:g} x free", source),
    )  # fmt: skip
