"""Pieces of keys, page look-up, FP8 keys and values, and partial results: what the decode kernels share."""

from __future__ import annotations

import triton
import triton.language as tl

from .softmax_blocks import finish, start


@triton.jit
def piece(first, n, split, n_splits, BLOCK_N: tl.constexpr):
    """Keys [lo, hi) of one of `n_splits` pieces of [first, n): whole blocks; the last may be empty (lo >= hi)."""
    per = tl.cdiv(tl.cdiv(n - first, n_splits), BLOCK_N) * BLOCK_N
    lo = first + split * per
    return lo, tl.minimum(lo + per, n)


@triton.jit
def seen_by_all(lo, hi, shared, BLOCK_N: tl.constexpr):
    """Where the whole blocks from `lo` end that lie before `hi` and before `shared`, up to which each row sees all."""
    return lo + tl.maximum(tl.minimum(hi, shared) - lo, 0) // BLOCK_N * BLOCK_N


@triton.jit
def lookup(table, token, hi, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Pages of tokens token .. token + BLOCK_N: one number where they share a page, else one each; 0 from hi on."""
    if PAGE % BLOCK_N == 0:
        return tl.load(table + token // PAGE, mask=token < hi, other=0)
    else:
        t = token + tl.arange(0, BLOCK_N)
        return tl.load(table + t // PAGE, mask=t < hi, other=0)


@triton.jit
def place_rows(page, token, page_stride, slot_stride, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where the rows of tokens token .. token + BLOCK_N lie, whose pages `lookup` gave: an offset, and offsets from it.

    Within one page the latter are the same for every block of tokens, and only the former changes.
    """
    if PAGE % BLOCK_N == 0:
        return page.to(tl.int64) * page_stride + (token % PAGE) * slot_stride, tl.arange(0, BLOCK_N) * slot_stride
    else:
        slot = (token + tl.arange(0, BLOCK_N)) % PAGE
        return 0, page.to(tl.int64) * page_stride + slot * slot_stride


@triton.jit
def load_tile(ptr, at, seen, MASKED: tl.constexpr):
    """A tile of the cache; zeros where not `seen`, so that what unused slots hold cannot matter."""
    if MASKED:
        return tl.load(ptr + at, mask=seen, other=0)
    else:
        return tl.load(ptr + at)


CONVERT = tl.constexpr("""{
    .reg .b32 sorted;
    .reg .b16 low, high;
    prmt.b32 sorted, $2, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")
"""Two words, bytes 0 1 2 3: bytes 0 and 2 to the first result, 1 and 3 to the second, each byte to fp16."""

MOVE = tl.constexpr("""{
    .reg .b32 up, sign, rest;
    shl.b32 up, $2, 8;
    and.b32 sign, up, 0x80008000;
    shr.b32 rest, up, 1;
    and.b32 rest, rest, 0x3f803f80;
    or.b32 $0, sign, rest;
    and.b32 sign, $2, 0x80008000;
    shr.b32 rest, $2, 1;
    and.b32 rest, rest, 0x3f803f80;
    or.b32 $1, sign, rest;
}""")
"""The same by moving bits: each byte's sign to bit 15 of its result, its other bits to bits 13 to 7."""


@triton.jit
def halves(words, BITS: tl.constexpr, ASM: tl.constexpr):
    """The two E4M3 values in each 16-bit word as fp16: the even columns (low bytes) and the odd ones.

    Read by words, FP8 tiles keep copies 16 bytes wide and matrix loads (ldmatrix) possible. BITS: move the bits instead
    of converting, for GPUs without FP8; values are then 2**-8 of the true ones (`unbias`) and NaN reads as 480. ASM:
    two words at a time in PTX, a third to a half of the instructions; without it the same in Triton.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            MOVE if BITS else CONVERT, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    w = words.to(tl.uint16, bitcast=True)
    if BITS:
        low = ((w << 8) & 0x8000) | ((w << 7) & 0x3F80)
        high = (w & 0x8000) | ((w >> 1) & 0x3F80)
        return low.to(tl.float16, bitcast=True), high.to(tl.float16, bitcast=True)
    else:
        low = w.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
        high = (w >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
        return low.to(tl.float16), high.to(tl.float16)


@triton.jit
def unbias(BITS: tl.constexpr):
    """What values of `halves` are to be multiplied by: 2**8 for moved bits (exponent bias 7, that of fp16 is 15)."""
    return 256.0 if BITS else 1.0


@triton.jit
def row_top(q):
    """Each row's largest magnitude."""
    return tl.max(tl.abs(q.to(tl.float32)), 1)


@triton.jit
def power_below(top):
    """The power of two just under each magnitude, 1 for 0: a row over that of its largest fits fp16."""
    power = (top.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(power == 0.0, 1.0, power)


@triton.jit
def over(q, power):
    """The rows of q over their power of two, as fp16."""
    return (q.to(tl.float32) / power[:, None]).to(tl.float16)


@triton.jit
def start_piece(sinks, heads, split, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Peak, total and accumulator before the first key; only the first piece counts the sink."""
    peak, total, acc = start(sinks, heads, BLOCK_M, WIDTH)
    if sinks is not None:
        none, nothing, acc = start(None, heads, BLOCK_M, WIDTH)
        peak = tl.where(split == 0, peak, none)
        total = tl.where(split == 0, total, nothing)
    return peak, total, acc


@triton.jit
def store_piece(
    peak, total, acc, factor, out_ptr, lse_ptr, sequence, rows_each, rows, valid, split, n_splits,
    D: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Write output rows times `factor` and their natural log-sum-exp; of a piece without a key only the latter, -inf.

    rows: those of this program among the `rows_each` of its sequence. In memory a row's pieces lie together.
    """
    out, lse = finish(peak, total, acc)
    keep = valid
    first = sequence * rows_each
    if PARTIAL:
        first *= n_splits
        rows = rows * n_splits + split
        keep = valid & (total != 0.0)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out_ptr + first * D + at, (out * factor).to(out_ptr.dtype.element_ty), mask=keep[:, None])
    tl.store(lse_ptr + first + rows, lse, mask=valid)
