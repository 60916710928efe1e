"""A call of each public function of attention, speculation and support that is taken, and runs in a moment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from decode_data import blocks, latent_problem, problem
from numeric import poisoned, random, starts
from prefill_problems import small
from verify_data import chain

from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.merge import merge_attention
from perfmodel.kernels.attention.mla import mla_decode
from perfmodel.kernels.attention.prefill import Packed, prefill_attention
from perfmodel.kernels.attention.standard import (
    attention_scores,
    attention_softmax,
    attention_values,
    standard_attention,
)
from perfmodel.kernels.attention.tree import ancestor_masks, tree_attention
from perfmodel.kernels.speculative.chain import verify_chain
from perfmodel.kernels.speculative.compact import compact_kv
from perfmodel.kernels.speculative.greedy import verify_greedy
from perfmodel.kernels.speculative.rows import logsumexp_rows
from perfmodel.kernels.speculative.tree import verify_tree_greedy
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled
from perfmodel.kernels.support import ceilings
from perfmodel.kernels.support.kv_quantize import quantize_kv
from perfmodel.kernels.support.mma import mma_loop, mma_tile
from perfmodel.kernels.support.norm import rms_norm
from perfmodel.kernels.support.quantize import quantize_blocks, quantize_rows
from perfmodel.kernels.support.rope import rope_and_cache, rotary_table
from perfmodel.kernels.support.swiglu import swiglu
from perfmodel.kernels.table import Config

Call = tuple[Callable[..., Any], dict[str, Any]]

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


def ints(*shape: int, dtype: torch.dtype = I32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def attention() -> list[Call]:
    given = problem("cpu", (20, 5))
    q, latents = latent_problem("cpu", (20, 5), heads=2)
    dense, keys = random(2, 5, 4, 64, dtype=BF16), random(2, 7, 2, 64, dtype=BF16)
    flat = random(5, 4, 64, dtype=BF16), random(7, 2, 64, dtype=BF16), random(7, 2, 64, dtype=BF16)
    packed = Packed(starts([2, 3]), starts([3, 4]), 3, 4)
    paged: dict[str, Any] = {
        "q": given.q, "cache": given.cache, "scale": 0.5, "softcap": 30.0, "sinks": torch.zeros(4), "max_length": 20,
        "splits": 2, "out": (torch.empty_like(given.q), torch.empty(2, 1, 4)), "config": blocks(),
    }  # fmt: skip
    scores = torch.zeros(2, 4, 5, 16, dtype=BF16)[..., :7]
    return [
        (paged_decode, {**paged, "window": 9}),
        (tree_attention, {**paged, "ancestors": torch.ones(2, 1, dtype=torch.int64)}),
        (ancestor_masks, {"parents": torch.tensor([[-1, 0, 0, 1]])}),
        (
            mla_decode,
            {"q": q, "latents": latents, "scale": 0.1, "max_length": 20, "splits": 2,
             "out": (torch.empty(2, 1, 2, 512, dtype=BF16), torch.empty(2, 1, 2)), "config": blocks(TWO_LOOPS=False)},
        ),
        (
            merge_attention,
            {"partial": random(3, 2, 64, dtype=F32), "lse": random(3, 2, dtype=F32), "dtype": F32,
             "out": (torch.empty(3, 64), torch.empty(3))},
        ),
        (
            prefill_attention,
            {"q": dense, "k": keys, "v": keys, "causal": True, "scale": 0.5, "window": 3, "softcap": 30.0,
             "sinks": torch.zeros(4), "packed": None, "warp_specialized": False,
             "out": (torch.empty_like(dense), torch.empty(2, 4, 5)), "config": small("pointer")},
        ),
        (prefill_attention, {**dict(zip("qkv", flat, strict=True)), "packed": packed, "config": small("pointer")}),
        (attention_scores, {"q": dense, "k": keys, "scale": 0.5, "dtype": F32}),
        (attention_softmax, {"scores": scores, "causal": True}),
        (attention_values, {"p": scores, "v": keys}),
        (standard_attention, {"q": dense, "k": keys, "v": keys, "causal": True, "scale": 0.5, "dtype": F32}),
    ]  # fmt: skip


def speculative() -> list[Call]:
    one = chain(3, 2, 20).arguments()
    tree = {"target_logits": random(2, 4, 20, dtype=F32), "node_tokens": ints(2, 4), "parents": ints(2, 4), "depth": 2}
    drawn = {"uniforms": torch.rand(2, 4), "sample_uniforms": torch.rand(2), "temperature": torch.ones(2)}
    cache = random(2, 3, 4, 2, 8, dtype=BF16)
    return [
        (verify_chain, one),
        (verify_greedy, {name: one[name] for name in ("target_logits", "draft_tokens", "draft_lengths")}),
        (verify_tree_greedy, tree),
        (verify_tree_sampled, {**tree, "draft_logits": random(2, 4, 20, dtype=F32), **drawn}),
        (logsumexp_rows, {"logits": random(3, 20, dtype=F32), "temperature": torch.ones(3)}),
        (
            compact_kv,
            {"key_cache": cache, "value_cache": cache.clone(), "block_table": ints(1, 3), "prefix_lengths": ints(1),
             "path": torch.tensor([[0, 2]], dtype=I32), "accepted": torch.ones(1, dtype=I32)},
        ),
    ]  # fmt: skip


def support() -> list[Call]:
    def caches(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {name: poisoned((3, 4, 2, 32), dtype) for name in ("key_cache", "value_cache")}

    x, k, v = random(5, 64, dtype=BF16), random(5, 2, 32, dtype=BF16), random(5, 2, 32, dtype=BF16)
    slots = torch.arange(5)
    vector, other = random(4096, dtype=F32), random(4096, dtype=F32)
    m, n, depth = mma_tile(BF16, vector)
    loop = Config({"BLOCK": 32, "per_sm": 1}, 4, 1)
    return [
        (ceilings.copy, {"x": vector, "out": other}),
        (ceilings.triad, {"x": vector, "y": vector, "factor": 2.0, "out": other}),
        (ceilings.read_sum, {"x": vector}),
        (ceilings.cached_read_sum, {"x": vector, "passes": 1, "config": Config({"BLOCK": 1024, "per_sm": 1}, 4, 1)}),
        (ceilings.gather_sum, {"pool": random(4, 64, dtype=F32), "index": ints(8)}),
        (ceilings.exp2_loop, {"x": torch.zeros(32), "passes": 1, "config": loop}),
        (ceilings.fma_loop, {"x": torch.zeros(32), "passes": 1, "config": loop}),
        (ceilings.empty, {"like": vector}),
        (mma_loop, {"a": random(m, depth, dtype=BF16), "b": random(n, depth, dtype=BF16), "passes": 1}),
        (mma_tile, {"dtype": BF16, "like": vector}),
        (rms_norm, {"x": x, "weight": random(64, dtype=BF16), "eps": 1e-6, "residual": x}),
        (quantize_rows, {"x": x, "dtype": torch.int8}),
        (quantize_blocks, {"x": x, "dtype": torch.int8}),
        (
            quantize_kv,
            {"k": k, "v": v, "slots": slots, **caches(torch.int8), "key_scales": torch.ones(3, 4, 2),
             "value_scales": torch.ones(3, 4, 2)},
        ),
        (
            rope_and_cache,
            {"q": random(5, 4, 32, dtype=BF16), "k": k, "v": v, "table": rotary_table(100, 32),
             "positions": torch.arange(5), "slots": slots, **caches(BF16), "interleaved": False},
        ),
        (rotary_table, {"positions": 4, "turned": 8, "base": 10.0, "device": "cpu"}),
        (swiglu, {"x": x}),
    ]  # fmt: skip


@functools.cache
def calls() -> list[Call]:
    """All of them. No kernel runs to make their tensors."""
    return [*attention(), *speculative(), *support()]
