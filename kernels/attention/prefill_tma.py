"""Prefill attention with keys and values loaded by the tensor memory accelerator (sm_90 and later).

Each program makes descriptors of its own sequence and head, so a tile past the end of a sequence is filled with zeros
and never reads its neighbour's, whether lengths are fixed or packed.
"""

import triton
import triton.language as tl

from .softmax_blocks import capped, extent, finish, gather, key_range, kv_head, place, start, visible, weigh


@triton.jit
def _sweep(
    peak, total, acc, q, k_tiles, v_tiles, low, high, positions, keys, window, scale, cap,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, SPECIALIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Go over the key blocks of [low, high); `low` is a multiple of BLOCK_N, and `high` too unless MASKED."""
    local = tl.arange(0, BLOCK_N)
    for n in tl.range(low, high, BLOCK_N, warp_specialize=SPECIALIZE):
        k = k_tiles.load([n, 0])
        scores, unit = capped(tl.dot(q, k.T), scale, cap)
        if MASKED:
            scores = tl.where(visible(positions, n + local, keys, window, CAUSAL), scores, -float("inf"))
        peak, total, weights, rescale = weigh(peak, total, scores, unit)
        v = v_tiles.load([n, 0])
        acc = gather(acc, rescale, weights, v)
    return peak, total, acc


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "window", "tiles", "pairs", "section", "heads", "group", "l_batch", "l_head",
    ]
)  # fmt: skip
def prefill_tma_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sinks, starts_q, starts_k, scale, cap, window,
    queries, keys, tiles, pairs, section, heads, group,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head, l_batch, l_head,
    D: tl.constexpr, CAUSAL: tl.constexpr, SPECIALIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One query tile of one head. SPECIALIZE: one masked loop, split between loading and computing warps."""
    tile, pair = place(tl.program_id(0), tiles, pairs, section, CAUSAL)
    batch, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    first_q, queries = extent(starts_q, batch, queries)
    first_k, keys = extent(starts_k, batch, keys)
    row = tile * BLOCK_M
    # Dense sequences fill every tile, and warp specialization does not take a branch: test only where it is needed.
    if starts_q is not None:  # noqa: SIM102 - the outer condition is the compiler's, the inner the kernel's
        if row >= queries:
            return
    source = kv_head(head, group)
    k_base = k_ptr + batch * k_batch + tl.cast(first_k, tl.int64) * k_row + source * k_head
    v_base = v_ptr + batch * v_batch + tl.cast(first_k, tl.int64) * v_row + source * v_head
    extent_k = tl.maximum(keys, 1)
    k_tiles = tl.make_tensor_descriptor(k_base, [extent_k, D], [k_row, 1], [BLOCK_N, D])
    v_tiles = tl.make_tensor_descriptor(v_base, [extent_k, D], [v_row, 1], [BLOCK_N, D])
    top = tl.cast(first_q + row, tl.int64)
    local = tl.arange(0, BLOCK_M)
    across = tl.arange(0, D)
    here = row + local < queries
    q_base = q_ptr + batch * q_batch + tl.cast(first_q, tl.int64) * q_row + head * q_head
    q_tiles = tl.make_tensor_descriptor(q_base, [queries, D], [q_row, 1], [BLOCK_M, D])
    q = q_tiles.load([row, 0])
    positions = keys - queries + row + local
    low, full_low, full_high, high = key_range(row, queries, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    peak, total, acc = start(sinks, head, BLOCK_M, D)
    if SPECIALIZE:
        peak, total, acc = _sweep(
            peak, total, acc, q, k_tiles, v_tiles, low, high, positions, keys, window, scale, cap,
            CAUSAL, True, True, BLOCK_N,
        )  # fmt: skip
    else:
        if window is not None:
            peak, total, acc = _sweep(
                peak, total, acc, q, k_tiles, v_tiles, low, full_low, positions, keys, window, scale, cap,
                CAUSAL, True, False, BLOCK_N,
            )  # fmt: skip
        peak, total, acc = _sweep(
            peak, total, acc, q, k_tiles, v_tiles, full_low, full_high, positions, keys, window, scale, cap,
            CAUSAL, False, False, BLOCK_N,
        )  # fmt: skip
        peak, total, acc = _sweep(
            peak, total, acc, q, k_tiles, v_tiles, full_high, high, positions, keys, window, scale, cap,
            CAUSAL, True, False, BLOCK_N,
        )  # fmt: skip
    rows, lse = finish(peak, total, acc)
    tl.store(lse_ptr + batch * l_batch + head * l_head + top + local, lse, mask=here)
    o_tile = out_ptr + batch * o_batch + top * o_row + head * o_head + (local[:, None] * o_row + across[None, :])
    tl.store(o_tile, rows.to(out_ptr.dtype.element_ty), mask=here[:, None])
