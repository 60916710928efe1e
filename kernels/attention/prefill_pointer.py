"""Prefill attention with pointer loads (asynchronous copies): sm_80, and short or packed sequences anywhere."""

import triton
import triton.language as tl

from .softmax_blocks import capped, extent, finish, gather, key_range, kv_head, place, start, visible, weigh


@triton.jit
def _sweep(
    peak, total, acc, q, k_base, v_base, k_step, v_step, low, high, positions, keys, window, scale, cap,
    D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Go over the key blocks of [low, high); `low` is a multiple of BLOCK_N, and `high` too unless MASKED."""
    across = tl.arange(0, D)
    local = tl.arange(0, BLOCK_N)
    for n in tl.range(low, high, BLOCK_N):
        k_tile = k_base + tl.cast(n, tl.int64) * k_step + (local[None, :] * k_step + across[:, None])
        v_tile = v_base + tl.cast(n, tl.int64) * v_step + (local[:, None] * v_step + across[None, :])
        if MASKED:  # noqa: SIM108 - only one of the two is compiled
            k = tl.load(k_tile, mask=(n + local < keys)[None, :], other=0.0)
        else:
            k = tl.load(k_tile)
        scores, unit = capped(tl.dot(q, k), scale, cap)
        if MASKED:
            scores = tl.where(visible(positions, n + local, keys, window, CAUSAL), scores, -float("inf"))
        peak, total, weights, rescale = weigh(peak, total, scores, unit)
        if MASKED:  # noqa: SIM108
            v = tl.load(v_tile, mask=(n + local < keys)[:, None], other=0.0)
        else:
            v = tl.load(v_tile)
        acc = gather(acc, rescale, weights, v)
    return peak, total, acc


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "window", "tiles", "pairs", "section", "heads", "group", "l_batch", "l_head",
    ]
)  # fmt: skip
def prefill_pointer_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sinks, starts_q, starts_k, scale, cap, window,
    queries, keys, tiles, pairs, section, heads, group,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head, l_batch, l_head,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One query tile of one head."""
    tile, pair = place(tl.program_id(0), tiles, pairs, section, CAUSAL)
    batch, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    first_q, queries = extent(starts_q, batch, queries)
    first_k, keys = extent(starts_k, batch, keys)
    row = tile * BLOCK_M
    if row >= queries:
        return
    source = kv_head(head, group)
    k_base = k_ptr + batch * k_batch + tl.cast(first_k, tl.int64) * k_row + source * k_head
    v_base = v_ptr + batch * v_batch + tl.cast(first_k, tl.int64) * v_row + source * v_head
    top = tl.cast(first_q + row, tl.int64)
    local = tl.arange(0, BLOCK_M)
    across = tl.arange(0, D)
    here = row + local < queries
    q_tile = q_ptr + batch * q_batch + top * q_row + head * q_head + (local[:, None] * q_row + across[None, :])
    q = tl.load(q_tile, mask=here[:, None], other=0.0)
    positions = keys - queries + row + local
    low, full_low, full_high, high = key_range(row, queries, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    peak, total, acc = start(sinks, head, BLOCK_M, D)
    if window is not None:
        peak, total, acc = _sweep(
            peak, total, acc, q, k_base, v_base, k_row, v_row, low, full_low, positions, keys, window, scale, cap,
            D, CAUSAL, True, BLOCK_N,
        )  # fmt: skip
    peak, total, acc = _sweep(
        peak, total, acc, q, k_base, v_base, k_row, v_row, full_low, full_high, positions, keys, window, scale, cap,
        D, CAUSAL, False, BLOCK_N,
    )  # fmt: skip
    peak, total, acc = _sweep(
        peak, total, acc, q, k_base, v_base, k_row, v_row, full_high, high, positions, keys, window, scale, cap,
        D, CAUSAL, True, BLOCK_N,
    )  # fmt: skip
    rows, lse = finish(peak, total, acc)
    tl.store(lse_ptr + batch * l_batch + head * l_head + top + local, lse, mask=here)
    o_tile = out_ptr + batch * o_batch + top * o_row + head * o_head + (local[:, None] * o_row + across[None, :])
    tl.store(o_tile, rows.to(out_ptr.dtype.element_ty), mask=here[:, None])
