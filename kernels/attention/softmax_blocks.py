"""The online softmax over key blocks, and which keys a query block sees: what both prefill kernels share.

Scores are kept in units of log2: the softmax scale comes multiplied with log2(e) and exponentials are `exp2`, so that
scaling and subtracting the peak are one fused multiply-add. A row's state is its peak (the largest score seen, never
below `FLOOR`), its total (the sum of exp2(score - peak)) and its accumulator (the weighted sum of values), in FP32.
Hidden scores are -inf and the peak is finite, so a hidden key weighs exactly nothing and a row without keys ends with
total 0, which `finish` turns into output 0 and log-sum-exp -inf. A score of NaN or inf makes the total NaN for good.

Query i of a sequence stands at position i + keys - queries: the mask is aligned to the bottom right, as in
FlashAttention 2 and later. Method: Dao, "FlashAttention-2", https://arxiv.org/abs/2307.08691 (Algorithm 1).
"""

import triton
import triton.language as tl

FLOOR = tl.constexpr(-1.0e38)
"""The least peak: finite, so that -inf less a peak is -inf and never NaN."""

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def place(program, tiles, pairs, section, LONGEST_FIRST: tl.constexpr):
    """The query tile and the (sequence, head) pair of a program.

    Pairs are dealt in sections of `section` whose keys and values fit in L2 together. Within a section all pairs' last
    tiles come first: under a causal mask they are the longest, and short ones are left to even out the end.
    """
    first = program // (section * tiles) * section
    within = program % (section * tiles)
    width = tl.minimum(section, pairs - first)
    tile = within // width
    if LONGEST_FIRST:
        tile = tiles - 1 - tile
    return tile, first + within % width


@triton.jit
def extent(starts, sequence, length):
    """First token and length of a sequence: from `starts` (cumulative lengths), or 0 and `length` without them."""
    if starts is None:
        return sequence * 0, length
    else:
        first = tl.load(starts + sequence)
        return first, tl.load(starts + sequence + 1) - first


@triton.jit
def kv_head(head, group):
    """The key and value head that a query head reads: `group` neighbouring query heads share one."""
    return head // group


@triton.jit
def key_range(row, queries, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Key blocks of the query tile at `row`: low <= full_low <= full_high <= high.

    [low, high) holds every key that some row sees; in [full_low, full_high) each row sees every key and no mask is
    needed. All but `high` are multiples of BLOCK_N.
    """
    shift = keys - queries
    high = keys
    full_high = tl.maximum(keys, 0) // BLOCK_N * BLOCK_N
    if CAUSAL:
        high = tl.maximum(tl.minimum(keys, shift + tl.minimum(row + BLOCK_M, queries)), 0)
        full_high = tl.maximum(tl.minimum(keys, shift + row + 1), 0) // BLOCK_N * BLOCK_N
    low = keys * 0
    full_low = low
    if window is not None:
        low = tl.maximum(shift + row - window + 1, 0) // BLOCK_N * BLOCK_N
        full_low = tl.maximum(shift + row + BLOCK_M - window + BLOCK_N - 1, 0) // BLOCK_N * BLOCK_N
        full_low = tl.minimum(full_low, tl.maximum(high + BLOCK_N - 1, low) // BLOCK_N * BLOCK_N)
        full_low = tl.maximum(full_low, low)
        full_high = tl.maximum(full_high, full_low)
    return low, full_low, full_high, high


@triton.jit
def visible(positions, columns, keys, window, CAUSAL: tl.constexpr):
    """Which keys (columns [N]) the queries at `positions` [M] see: [M, N] of booleans."""
    seen = (columns < keys)[None, :]
    if CAUSAL:
        seen = seen & (columns[None, :] <= positions[:, None])
    if window is not None:
        seen = seen & (columns[None, :] > positions[:, None] - window)
    return seen


@triton.jit
def capped(scores, scale, cap):
    """Raw scores and the scale that brings them to log2; with a cap, already capped and the scale 1.

    cap * tanh(x / cap) is written 1 - 2 / (exp(2 x / cap) + 1): `scale` then comes as 2 log2(e) scale / cap and `cap`
    multiplied with log2(e).
    """
    if cap is None:
        return scores, scale
    else:
        return cap * (1.0 - 2.0 / (tl.exp2(scores * scale) + 1.0)), 1.0


@triton.jit
def start(sinks, head, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Peak, total and accumulator before the first key. A sink counts as a key seen already, whose value is zero."""
    peak = tl.full((BLOCK_M,), FLOOR, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        peak = tl.maximum(peak, sink)
        total = tl.exp2(sink - peak)
    return peak, total, tl.zeros((BLOCK_M, WIDTH), tl.float32)


@triton.jit
def weigh(peak, total, scores, scale):
    """Fold scores [M, N] (raw, -inf where hidden) into peak and total: (peak, total, weights, rescale)."""
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    rescale = tl.exp2(peak - higher)
    return higher, total * rescale + tl.sum(weights, 1), weights, rescale


@triton.jit
def gather(acc, rescale, weights, values):
    """Bring the accumulator [M, D] to the new peak and add weights [M, N] times values [N, D]."""
    return tl.dot(weights.to(values.dtype), values, acc * rescale[:, None])


@triton.jit
def finish(peak, total, acc):
    """Output rows and their natural log-sum-exp; a row without keys is 0 and -inf, one whose total is NaN both NaN."""
    some = total != 0.0
    lse = tl.where(some, (peak + tl.log2(tl.where(some, total, 1.0))) * LN2, -float("inf"))
    return acc / tl.where(some, total, 1.0)[:, None], lse
