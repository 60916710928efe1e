"""Attention over paged keys and values by plain torch: what the decode kernels are checked against."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .paged_launch import Paged
from .scores import Scores

Seen = Callable[[int, torch.Tensor], torch.Tensor]
"""(sequence, key positions [keys]) -> which keys its queries see, [q_len, keys] of booleans."""


def gathered(cache: torch.Tensor, table: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """The first `length` rows of a sequence, [length, ...] in `dtype`, from the pages of its row of the table."""
    page = cache.shape[1]
    pages = table[: -(-length // page)].long()
    rows = cache.view(torch.uint8)[pages] if cache.element_size() == 1 else cache[pages]
    return rows.view(cache.dtype).flatten(0, 1)[:length].to(dtype)


def softmax_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scores: Scores
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [q_len, heads, D] and lse [q_len, heads] of q [q_len, heads, D] over k, v [keys, kv_heads, D]."""
    group = q.shape[1] // k.shape[1]
    x = torch.einsum("qhd,khd->qhk", q, k.repeat_interleave(group, 1)) * scores.factor(q.shape[-1])
    if scores.softcap is not None:
        x = scores.softcap * torch.tanh(x / scores.softcap)
    x = x.masked_fill(~seen[:, None, :], -math.inf)
    counted = x
    if scores.sinks is not None:
        counted = torch.cat([x, scores.sinks.to(x.dtype)[None, :, None].expand(x.shape[0], -1, 1)], 2)
    lse = torch.logsumexp(counted, 2)
    lse = torch.where(torch.isposinf(lse), math.nan, lse)
    weights = torch.exp(x - torch.where(torch.isneginf(lse), 0.0, lse)[:, :, None])
    return torch.einsum("qhk,khd->qhd", weights, v.repeat_interleave(group, 1)), lse


def paged_reference(
    q: torch.Tensor, cache: Paged, scores: Scores, seen: Seen, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [sequences, q_len, heads, D] over each sequence's keys, as far as `seen` allows."""
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[:-1], dtype=dtype, device=q.device)
    for i, length in enumerate(cache.lengths.tolist()):
        k, v = (gathered(part, cache.table[i], length, dtype) for part in (cache.k, cache.v))
        if cache.k_scale is not None and cache.v_scale is not None:
            k, v = k * cache.k_scale.to(dtype)[:, None], v * cache.v_scale.to(dtype)[:, None]
        mask = seen(i, torch.arange(length, device=q.device))
        out[i], lse[i] = softmax_attention(q[i].to(dtype), k, v, mask, scores)
    return out, lse


def causal(q_len: int, lengths: torch.Tensor, window: int | None = None) -> Seen:
    """The queries are the last q_len tokens of each sequence and see what lies up to them, `window` keys at most."""

    def seen(sequence: int, keys: torch.Tensor) -> torch.Tensor:
        at = lengths[sequence] - q_len + torch.arange(q_len, device=keys.device)[:, None]
        inside = keys[None, :] <= at
        return inside if window is None else inside & (keys[None, :] > at - window)

    return seen


def descendants(ancestors: torch.Tensor, lengths: torch.Tensor) -> Seen:
    """The queries are tree nodes, the last tokens of each sequence: each sees all before the tree and its ancestors."""

    def seen(sequence: int, keys: torch.Tensor) -> torch.Tensor:
        nodes = ancestors.shape[1]
        node = keys - (lengths[sequence] - nodes)
        bit = (ancestors[sequence][:, None] >> node.clamp(0, 63)[None, :]) & 1
        return (node < 0)[None, :] | (bit == 1)

    return seen
