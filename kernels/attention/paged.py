"""The kernel under `paged_decode` and `tree_attention`: a few query tokens against the paged keys of a sequence.

One program takes BLOCK_M rows (query tokens x the query heads that share a key head) and one piece of the keys. Blocks
that every row sees whole are read without masks; only the last ones (and all under a sliding window) are masked. The
page numbers of a block are looked up one block ahead, so that the copies of keys and values are not chained to a load
of their own iteration and fill every pipeline stage.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode_blocks import (
    halves,
    load_tile,
    lookup,
    over,
    piece,
    place_rows,
    power_below,
    row_top,
    seen_by_all,
    start_piece,
    store_piece,
    unbias,
)
from .softmax_blocks import capped, gather, visible, weigh


@triton.jit
def ancestors(columns, first, nodes_of_tree, bits):
    """Which keys each tree node sees: all before the tree's first slot, and in it those whose bit is set."""
    node = columns - first
    shift = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)
    own = ((bits[:, None] >> shift[None, :]) & 1) == 1
    return (node < 0)[None, :] | (own & (node < nodes_of_tree)[None, :])


@triton.jit
def _attend(
    peak, total, even, odd, q, q_odd, power, scale, cap, k_ptr, v_ptr, table, low, high, keys, q_len, token, bits,
    window, page_stride, slot_stride,
    WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, TREE: tl.constexpr,
    FP8: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Attend to keys [low, high), low at a block's start; without MASKED every row sees all of them."""
    width = tl.arange(0, WIDTH)
    ahead = lookup(table, low, high, PAGE, BLOCK_N)
    for block in tl.range(low, high, BLOCK_N):
        columns = block + tl.arange(0, BLOCK_N)
        base, at = place_rows(ahead, block, page_stride, slot_stride, PAGE, BLOCK_N)
        ahead = lookup(table, block + BLOCK_N, high, PAGE, BLOCK_N)
        tile = at[:, None] + width[None, :]
        held = (columns < high)[:, None]
        k = load_tile(k_ptr + base, tile, held, MASKED)
        v = load_tile(v_ptr + base, tile, held, MASKED)
        if FP8:
            k, k_odd = halves(k, BITS, ASM)
            scores = tl.dot(q_odd, tl.trans(k_odd), tl.dot(q, tl.trans(k))) * power[:, None]
        else:
            scores = tl.dot(q, tl.trans(k))
        scores, factor = capped(scores, scale, cap)
        if MASKED:
            if TREE:
                seen = ancestors(columns, keys - q_len, q_len, bits)
            else:
                seen = visible(keys - q_len + token, columns, keys, window, True)
            scores = tl.where(seen, scores, -float("inf"))
        peak, total, weights, rescale = weigh(peak, total, scores, factor)
        if FP8:
            v, v_odd = halves(v, BITS, ASM)
            odd = gather(odd, rescale, weights, v_odd)
        even = gather(even, rescale, weights, v)
    return peak, total, even, odd


@triton.jit(do_not_specialize=["n_splits", "table_stride"])
def paged_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, tree_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr,
    scale, cap, window, q_len, row_blocks, n_splits, table_stride, page_stride, slot_stride, head_stride,
    scale_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, PARTIAL: tl.constexpr,
    FP8: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: (row blocks x key heads, pieces, sequences); the row blocks of a key head lie together, for L2."""
    head = tl.program_id(0) // row_blocks
    split = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    packed = (tl.program_id(0) % row_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = packed < q_len * GROUP
    token = tl.minimum(packed // GROUP, q_len - 1) if q_len > 1 else packed * 0
    heads = head * GROUP + packed % GROUP
    rows = token * (KV_HEADS * GROUP) + heads
    keys = tl.load(lengths_ptr + b)
    TREE: tl.constexpr = tree_ptr is not None
    bits = tl.load(tree_ptr + b * q_len + token) if TREE else token
    WIDTH: tl.constexpr = D // 2 if FP8 else D
    q_ptr += b * (q_len * KV_HEADS * GROUP * D)
    at = rows[:, None] * D + tl.arange(0, WIDTH)[None, :] * (2 if FP8 else 1)
    q = tl.load(q_ptr + at, mask=valid[:, None], other=0.0)
    power = scale
    v_factor = 1.0
    q_odd = q
    if FP8:
        q_odd = tl.load(q_ptr + at + 1, mask=valid[:, None], other=0.0)
        power = power_below(tl.maximum(row_top(q), row_top(q_odd)))
        q, q_odd = over(q, power), over(q_odd, power)
        scale *= tl.load(k_scale_ptr + head * scale_stride) * unbias(BITS)
        v_factor = tl.load(v_scale_ptr + head * scale_stride) * unbias(BITS)
    first = 0
    if window is not None:
        first = tl.maximum(keys - q_len + 1 - window, 0) // BLOCK_N * BLOCK_N
    low, high = piece(first, keys, split, n_splits, BLOCK_N)
    peak, total, even = start_piece(sinks_ptr, heads, split, BLOCK_M, WIDTH)
    odd = even
    k_ptr += head.to(tl.int64) * head_stride
    v_ptr += head.to(tl.int64) * head_stride
    table = table_ptr + b * table_stride
    plain = low
    if window is None:
        plain = seen_by_all(low, high, keys - q_len, BLOCK_N)
        peak, total, even, odd = _attend(
            peak, total, even, odd, q, q_odd, power, scale, cap, k_ptr, v_ptr, table, low, plain, keys, q_len, token,
            bits, window, page_stride, slot_stride, WIDTH, PAGE, BLOCK_N, TREE, FP8, BITS, ASM, False,
        )  # fmt: skip
    peak, total, even, odd = _attend(
        peak, total, even, odd, q, q_odd, power, scale, cap, k_ptr, v_ptr, table, plain, high, keys, q_len, token, bits,
        window, page_stride, slot_stride, WIDTH, PAGE, BLOCK_N, TREE, FP8, BITS, ASM, True,
    )  # fmt: skip
    acc = tl.reshape(tl.join(even, odd), (BLOCK_M, D)) if FP8 else even
    store_piece(
        peak, total, acc, v_factor, out_ptr, lse_ptr, b, q_len * KV_HEADS * GROUP, rows, valid, split, n_splits,
        D, PARTIAL,
    )  # fmt: skip
