"""Cost of compressed attention (DeepSeek V4): a window of tokens, and one entry for every ``ratio`` tokens before.

A query at position p (1-based) sees min(p, window) tokens and floor(p / ratio) entries, or the ``topk`` of them that
an indexer scores highest. Source: ``models/deepseek_v4`` of transformers 5.24 (causal threshold
``(position + 1) // ratio``), and the DeepSeek-V4 report it cites, section 2.3.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.attention import TILE_Q, VECTOR_PER_SCORE, distinct_keys, visible_pairs
from perfmodel.roofline.cost import EXP, VECTOR, Cost, matrix


def entry_pairs(q: Num, kv: Num, ratio: Num, topk: Num | None = None) -> Num:
    """Visible (query, entry) pairs of one sequence and head: sum over p = kv-q+1 .. kv of min(floor(p / ratio), topk).

    Exact for whole numbers.

    >>> float(entry_pairs(8.0, 8.0, 4.0)), float(entry_pairs(1.0, 4096.0, 4.0, topk=512.0))
    (6.0, 512.0)
    """
    return _up_to(kv, ratio, topk) - _up_to(kv - q, ratio, topk)


def _up_to(n: Num, ratio: Num, topk: Num | None) -> Num:
    ramp: Num = n if topk is None else np.minimum(n, ratio * (topk + 1) - 1)
    whole = np.floor(ramp / ratio)
    pairs: Num = ratio * whole * (whole - 1) / 2 + whole * (ramp - ratio * whole + 1)
    return pairs if topk is None else pairs + (n - ramp) * topk


def distinct_entries(q: Num, kv: Num, ratio: Num, topk: Num | None = None) -> Num:
    """Distinct entries that the queries of a sequence read: all, or at most ``q topk`` chosen ones."""
    entries: Num = np.floor(kv / ratio)
    return entries if topk is None else np.minimum(entries, q * topk)


def compressed(
    batch: Num, heads: Num, dim: Num, q: Num, kv: Num, window: Num, kv_bytes: float, act_bytes: float, math: str,
    ratio: Num | None = None, topk: Num | None = None,
) -> Cost:  # fmt: skip
    """Attention over window and entries of one layer and rank: one head of ``dim`` is key and value of all queries.

    ``FLOPs = 2 batch heads pairs (dim + dim)``; tokens and entries are read once, as keys and values both:
    ``batch (tokens + entries) dim kv_bytes``, whole on every rank.

    Parameters
    ----------
    batch, heads : Num
        Sequences, and query heads on this rank.
    dim : Num
        Size of the shared head.
    window : Num
        Tokens that a query sees, itself included.
    ratio : Num, optional
        Tokens an entry; none without entries.
    topk : Num, optional
        Entries a query sees at most; all without an indexer.
    """
    pairs, keys = visible_pairs(q, kv, window), distinct_keys(q, kv, window)
    if ratio is not None:
        pairs, keys = pairs + entry_pairs(q, kv, ratio, topk), keys + distinct_entries(q, kv, ratio, topk)
    scores, cache = batch * heads * pairs, batch * keys * dim * kv_bytes
    moved = batch * q * heads * dim * act_bytes
    return Cost(
        {matrix(math): 4 * scores * dim, VECTOR: VECTOR_PER_SCORE * scores, EXP: scores},
        {"kv_read": cache, "act_read": moved, "act_write": moved},
        np.ceil(q * heads / TILE_Q) * cache + 2 * moved,
    )


def entry_indexer(batch: Num, heads: Num, dim: Num, q: Num, kv: Num, ratio: Num, math: str) -> Cost:
    """The scorer over compressed entries: every visible one scored by a few small heads, ReLU, weighted sum.

    As ``attention.indexer_scores`` over ``floor(p / ratio)`` entries instead of p keys; index entries are taken as
    8-bit with a 4-byte scale, as DeepSeek-V3.2 keeps its index keys.
    """
    scores, entries = batch * entry_pairs(q, kv, ratio), batch * np.floor(kv / ratio) * (dim + 4)
    return Cost(
        {matrix(math): 2 * scores * heads * dim, VECTOR: 3 * scores * heads},
        {"kv_read": entries, "act_read": batch * q * heads * dim, "act_write": 4 * scores},
        np.ceil(q * heads / TILE_Q) * entries + 4 * scores,
    )
