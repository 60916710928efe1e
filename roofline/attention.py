"""Cost of attention: one formula for prefill, decode, chunked prefill and verification, in every variant.

What differs between them is (q, kv): ``q`` new tokens a sequence, ``kv`` tokens in the sequence after the step. A
query at position p (1-based) sees min(p, limit) keys; sliding windows, attention sinks, chunks and sparse top-k
selection are such limits. FLOPs follow from the number of visible (query, key) pairs, bytes from the distinct keys.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.cost import EXP, VECTOR, Cost, matrix

#: FP32 operations a score beside the two products: scale-and-subtract (an FMA), running maximum, running sum.
#: Source: FlashAttention-2 (arXiv:2307.08691), algorithm 1; output rescaling is delayed and left out.
VECTOR_PER_SCORE = 4.0

#: Query rows of a tile, for the L2 estimate. Source: FlashAttention-2 and -3 use 128 at head dimension 128.
TILE_Q = 128.0


def visible_pairs(q: Num, kv: Num, limit: Num | None = None, chunk: Num | None = None) -> Num:
    """Visible (query, key) pairs of one sequence and head under a causal mask.

    Sum over positions p = kv-q+1 .. kv of min(p, limit), or of ((p-1) mod chunk) + 1. Exact for whole numbers.

    Parameters
    ----------
    q, kv : Num
        New tokens and tokens after the step, q <= kv.
    limit : Num, optional
        Most keys a query sees (window + sinks, or top-k).
    chunk : Num, optional
        Chunk length of chunked attention.

    >>> float(visible_pairs(4.0, 4.0)), float(visible_pairs(1.0, 100.0)), float(visible_pairs(4.0, 4.0, limit=2.0))
    (10.0, 100.0, 7.0)
    """
    if chunk is not None:
        return _chunked(kv, chunk) - _chunked(kv - q, chunk)
    if limit is None:
        return q * (kv - q) + q * (q + 1) / 2
    return _windowed(kv, limit) - _windowed(kv - q, limit)


def _windowed(n: Num, limit: Num) -> Num:
    ramp = np.minimum(n, limit)
    pairs: Num = ramp * (ramp + 1) / 2 + (n - ramp) * limit
    return pairs


def _chunked(n: Num, chunk: Num) -> Num:
    whole = np.floor(n / chunk)
    rest = n - whole * chunk
    pairs: Num = whole * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2
    return pairs


def distinct_keys(q: Num, kv: Num, window: Num | None = None, sinks: Num = 0.0, chunk: Num | None = None) -> Num:
    """Distinct keys of one sequence that its ``q`` queries see: what must be read from the cache once.

    >>> float(distinct_keys(1.0, 100.0, window=8.0, sinks=4.0)), float(distinct_keys(10.0, 10.0))
    (12.0, 10.0)
    """
    if chunk is not None:
        return kv - np.floor((kv - q) / chunk) * chunk
    if window is None:
        return kv
    seen: Num = np.minimum(kv, window + q - 1 + sinks)
    return seen


def scaled_dot_product(
    batch: Num, heads: Num, kv_heads: Num, qk_dim: Num, v_dim: Num, q: Num, pairs: Num, keys: Num,
    kv_bytes: float, act_bytes: float, math: str,
) -> Cost:  # fmt: skip
    """Fused attention of one rank and layer: scores, softmax and weighted sum, with nothing but Q, K, V and O moved.

    ``FLOPs = 2 batch heads pairs (qk_dim + v_dim)``; ``exps = batch heads pairs``; ``K and V = batch keys kv_heads
    (qk_dim + v_dim) kv_bytes``.

    Parameters
    ----------
    batch, heads, kv_heads : Num
        Sequences, query heads and key/value heads on this rank.
    qk_dim, v_dim : Num
        Sizes of a query/key head and of a value head.
    q, pairs, keys : Num
        New tokens a sequence, visible pairs and distinct keys a sequence and head.
    """
    scores = batch * heads * pairs
    kv = batch * keys * kv_heads * (qk_dim + v_dim) * kv_bytes
    q_read, o_write = batch * q * heads * qk_dim * act_bytes, batch * q * heads * v_dim * act_bytes
    return Cost(
        {matrix(math): 2 * scores * (qk_dim + v_dim), VECTOR: VECTOR_PER_SCORE * scores, EXP: scores},
        {"kv_read": kv, "act_read": q_read, "act_write": o_write},
        np.ceil(q * (heads / kv_heads) / TILE_Q) * kv + q_read + o_write,
    )


def latent_attention(
    batch: Num, heads: Num, latent: Num, rope: Num, q: Num, pairs: Num, keys: Num,
    kv_bytes: float, act_bytes: float, math: str,
) -> Cost:  # fmt: skip
    """MLA in absorbed form: all heads share one latent key of ``latent + rope`` elements, its first part the value.

    ``FLOPs = 2 batch heads pairs (2 latent + rope)``; cache read ``batch keys (latent + rope) kv_bytes``, on every
    rank whole: a latent cannot be cut by heads. Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """
    scores = batch * heads * pairs
    kv = batch * keys * (latent + rope) * kv_bytes
    q_read, o_write = batch * q * heads * (latent + rope) * act_bytes, batch * q * heads * latent * act_bytes
    return Cost(
        {matrix(math): 2 * scores * (2 * latent + rope), VECTOR: VECTOR_PER_SCORE * scores, EXP: scores},
        {"kv_read": kv, "act_read": q_read, "act_write": o_write},
        np.ceil(q * heads / TILE_Q) * kv + q_read + o_write,
    )


def batched_per_head(m: Num, heads: Num, n: Num, k: Num, weight_bytes: Num, act_bytes: float, math: str) -> Cost:
    """One small GEMM a head, ``[m, k] x [k, n]``: how MLA's up-projections are absorbed into queries and outputs."""
    read, write = m * heads * k * act_bytes, m * heads * n * act_bytes
    return Cost(
        {matrix(math): 2 * m * heads * n * k},
        {"weights": weight_bytes, "act_read": read, "act_write": write},
        np.ceil(m / TILE_Q) * weight_bytes + read + write,
    )


def indexer_scores(batch: Num, heads: Num, dim: Num, q: Num, pairs: Num, keys: Num, math: str) -> Cost:
    """Sparse attention's scorer: every visible key scored by a few small heads, ReLU, weighted sum.

    ``FLOPs = 2 batch heads pairs dim``; index keys are 8-bit with a 4-byte scale; scores are written in 32 bits for
    the top-k. Source: DeepSeek-V3.2-Exp report (2025), section 2.1 and its reference code.
    """
    scores = batch * pairs
    index_keys = batch * keys * (dim + 4)
    return Cost(
        {matrix(math): 2 * scores * heads * dim, VECTOR: 3 * scores * heads},
        {"kv_read": index_keys, "act_read": batch * q * heads * dim, "act_write": 4 * scores},
        np.ceil(q * heads / TILE_Q) * index_keys + 4 * scores,
    )


def gqa(
    batch: Num, heads: Num, kv_heads: Num, qk_dim: Num, v_dim: Num, q: Num, kv: Num, kv_bytes: float,
    act_bytes: float, math: str, window: Num | None = None, sinks: Num = 0.0, chunk: Num | None = None,
) -> Cost:  # fmt: skip
    """Grouped-query attention of one layer and rank, full, windowed (with sinks) or chunked.

    Parameters as ``scaled_dot_product``, ``visible_pairs`` and ``distinct_keys``.
    """
    limit = None if window is None else window + sinks
    pairs = visible_pairs(q, kv, limit, chunk)
    keys = distinct_keys(q, kv, window, sinks, chunk)
    return scaled_dot_product(batch, heads, kv_heads, qk_dim, v_dim, q, pairs, keys, kv_bytes, act_bytes, math)


def mla(
    batch: Num, heads: Num, latent: Num, rope: Num, q: Num, kv: Num, kv_bytes: float, act_bytes: float, math: str,
    topk: Num | None = None,
) -> Cost:  # fmt: skip
    """Absorbed latent attention; with ``topk`` each query reads its own chosen keys.

    Keys read: all ``kv``, or at most ``q topk`` of them (the choices of different queries may differ).
    """
    pairs = visible_pairs(q, kv, topk)
    keys = kv if topk is None else np.minimum(kv, q * topk)
    return latent_attention(batch, heads, latent, rope, q, pairs, keys, kv_bytes, act_bytes, math)


def indexer(batch: Num, heads: Num, dim: Num, q: Num, kv: Num, math: str) -> Cost:
    """The sparse scorer over all visible keys."""
    return indexer_scores(batch, heads, dim, q, visible_pairs(q, kv), kv, math)
