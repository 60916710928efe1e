"""The kernel under `mla_decode`: absorbed queries of all heads against one latent vector a token.

A token's latent part is key and value at once: it is loaded once a block, as rows, and transposed for the scores.
Loaded that way it stays an asynchronous copy even where the matrix unit takes its operands from registers.
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
from .softmax_blocks import gather, visible, weigh


@triton.jit
def _attend(
    peak, total, even, odd, q, q_odd, rope, rope_odd, power, scale, cache, table, low, high, keys, q_len, token,
    page_stride, slot_stride,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    FP8: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Attend to tokens [low, high), low at a block's start; without MASKED every row sees all of them."""
    ahead = lookup(table, low, high, PAGE, BLOCK_N)
    for block in tl.range(low, high, BLOCK_N):
        columns = block + tl.arange(0, BLOCK_N)
        base, at = place_rows(ahead, block, page_stride, slot_stride, PAGE, BLOCK_N)
        ahead = lookup(table, block + BLOCK_N, high, PAGE, BLOCK_N)
        held = columns < high
        c = load_tile(cache + base, at[:, None] + tl.arange(0, LATENT)[None, :], held[:, None], MASKED)
        r = load_tile(cache + base, at[None, :] + LATENT + tl.arange(0, ROPE)[:, None], held[None, :], MASKED)
        if FP8:
            c, c_odd = halves(c, BITS, ASM)
            r, r_odd = halves(r, BITS, ASM)
            scores = tl.dot(rope_odd, r_odd, tl.dot(q_odd, tl.trans(c_odd)))
            scores = tl.dot(rope, r, tl.dot(q, tl.trans(c), scores)) * power[:, None]
        else:
            scores = tl.dot(rope, r, tl.dot(q, tl.trans(c)))
        if MASKED:
            scores = tl.where(visible(keys - q_len + token, columns, keys, None, True), scores, -float("inf"))
        peak, total, weights, rescale = weigh(peak, total, scores, scale)
        even = gather(even, rescale, weights, c)
        if FP8:
            odd = gather(odd, rescale, weights, c_odd)
    return peak, total, even, odd


@triton.jit(do_not_specialize=["n_splits", "table_stride"])
def mla_kernel(
    q_ptr, cache_ptr, table_ptr, lengths_ptr, kv_scale_ptr, out_ptr, lse_ptr,
    scale, q_len, n_splits, table_stride, page_stride, slot_stride,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr, PARTIAL: tl.constexpr,
    FP8: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TWO_LOOPS: tl.constexpr,
):  # fmt: skip
    """Grid: (row blocks, pieces, sequences); a sequence's row blocks read the same latents and lie together, for L2."""
    split = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    packed = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = packed < q_len * HEADS
    token = tl.minimum(packed // HEADS, q_len - 1) if q_len > 1 else packed * 0
    keys = tl.load(lengths_ptr + b)
    STEP: tl.constexpr = 2 if FP8 else 1
    q_ptr += b * (q_len * HEADS * (LATENT + ROPE))
    at = packed[:, None] * (LATENT + ROPE)
    q_at = at + tl.arange(0, LATENT // STEP)[None, :] * STEP
    rope_at = at + LATENT + tl.arange(0, ROPE // STEP)[None, :] * STEP
    q = tl.load(q_ptr + q_at, mask=valid[:, None], other=0.0)
    rope = tl.load(q_ptr + rope_at, mask=valid[:, None], other=0.0)
    q_odd = q
    rope_odd = rope
    power = scale
    out_factor = 1.0
    if FP8:
        q_odd = tl.load(q_ptr + q_at + 1, mask=valid[:, None], other=0.0)
        rope_odd = tl.load(q_ptr + rope_at + 1, mask=valid[:, None], other=0.0)
        top = tl.maximum(row_top(q), row_top(q_odd))
        power = power_below(tl.maximum(top, tl.maximum(row_top(rope), row_top(rope_odd))))
        q, q_odd = over(q, power), over(q_odd, power)
        rope, rope_odd = over(rope, power), over(rope_odd, power)
        out_factor = tl.load(kv_scale_ptr) * unbias(BITS)
        scale *= out_factor
    low, high = piece(0, keys, split, n_splits, BLOCK_N)
    plain = low
    peak, total, even = start_piece(None, token, split, BLOCK_M, LATENT // STEP)
    odd = even
    table = table_ptr + b * table_stride
    if TWO_LOOPS:
        plain = seen_by_all(low, high, keys - q_len, BLOCK_N)
        peak, total, even, odd = _attend(
            peak, total, even, odd, q, q_odd, rope, rope_odd, power, scale, cache_ptr, table, low, plain, keys, q_len,
            token, page_stride, slot_stride, LATENT // STEP, ROPE // STEP, PAGE, BLOCK_N, FP8, BITS, ASM, False,
        )  # fmt: skip
    peak, total, even, odd = _attend(
        peak, total, even, odd, q, q_odd, rope, rope_odd, power, scale, cache_ptr, table, plain, high, keys, q_len,
        token, page_stride, slot_stride, LATENT // STEP, ROPE // STEP, PAGE, BLOCK_N, FP8, BITS, ASM, True,
    )  # fmt: skip
    acc = tl.reshape(tl.join(even, odd), (BLOCK_M, LATENT)) if FP8 else even
    store_piece(
        peak, total, acc, out_factor, out_ptr, lse_ptr, b, q_len * HEADS, packed, valid, split, n_splits,
        LATENT, PARTIAL,
    )  # fmt: skip
