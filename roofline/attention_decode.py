"""Attention of a decode step: splitting the keys over the SMs (FlashDecoding), its traffic, and merging the parts.

A decode step has one query token a sequence. Without a split one thread block reads the whole cache of a KV head, and
``batch x kv_heads`` of them leave most SMs idle. FlashDecoding cuts the keys into splits, gives each to a thread block
and merges the partial results with the online-softmax formula.

Sources: "Flash-Decoding for long-context inference" (2023), https://pytorch.org/blog/flash-decoding/; split heuristic:
Dao-AILab/flash-attention, hopper/heuristics.h (FlashAttention-3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.roofline.attention_blocks import ceil_div, element_bytes, group_size, whole
from perfmodel.roofline.attention_io import STATISTIC, Step, Traffic, compulsory_bytes

#: Most splits that FlashAttention's kernels take.
MAX_SPLITS = 128

#: Partial outputs are kept in FP32 between the two kernels. [bytes]
PARTIAL = 4.0


def decode_traffic(
    batch: Num,
    heads: int,
    kv_heads: int,
    kv: Num,
    head_dim: int,
    bytes_per_element: float,
    *,
    splits: Num = 1,
    q: Num = 1,
    kv_bytes_per_element: float | None = None,
) -> Traffic:
    """Traffic of one decode step with the keys of every sequence in ``splits`` parts.

    K and V are read once (the query heads of a group are packed into one tile). Every split reads Q and, with more than
    one, writes a partial O and a log-sum-exp in FP32 for every query head and token; the merge reads them and writes O.

    Parameters
    ----------
    batch, heads, kv_heads, head_dim, bytes_per_element, kv_bytes_per_element
        As in ``attention_io.flash_traffic``.
    kv : Num
        Keys of a sequence, the new one included.
    splits : Num
        Parts of the keys; 1 is decoding without a split, which has no merge.
    q : Num
        Query tokens of a sequence (more than 1: verification of drafted tokens).

    Returns
    -------
    Traffic
        Steps ``Q``, ``K, V``, ``partials`` (written and read back) and ``O``. ``dram`` counts Q once: its other reads
        are served by L2. Partials count in full, although L2 keeps them where they are small.

    >>> got = decode_traffic(1, 64, 8, 8192, 128, 2, splits=8)
    >>> got.step("K, V").read, got.step("partials").written    # 2 x 8192 x 8 x 128 x 2; 8 x 64 x (128 + 1) x 4
    (33554432.0, 264192.0)
    """
    group_size(heads, kv_heads)
    whole(batch=batch, kv=kv, head_dim=head_dim, splits=splits, q=q)
    if np.any(np.asarray(splits) > np.asarray(kv)):
        raise UsageError("there are more splits than keys; a split holds at least one key")
    kv_size = bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
    element_bytes(bytes_per_element=bytes_per_element, kv_bytes_per_element=kv_size)
    rows = as_num(as_num(batch) * heads * q)
    query = as_num(rows * head_dim * bytes_per_element)
    partial = as_num(np.where(np.asarray(splits) > 1, rows * splits * (head_dim * PARTIAL + STATISTIC), 0.0))
    cache = as_num(as_num(batch) * kv_heads * 2 * kv * head_dim * kv_size)
    steps = (
        Step("Q", as_num(query * splits), 0.0),
        Step("K, V", cache, 0.0),
        Step("partials", partial, partial),
        Step("O", 0.0, as_num(query + rows * STATISTIC)),
    )
    dram = as_num(query + cache + 2 * partial + query + rows * STATISTIC)
    least = compulsory_bytes(batch, heads, kv_heads, q, kv, head_dim, bytes_per_element, kv_size)
    return Traffic("flash-decoding", steps, least, dram)


def wave_efficiency(blocks: Num, sms: float) -> Num:
    """Share of the SMs at work on average: waves over waves rounded up. [1]

    Parameters
    ----------
    blocks : Num
        Thread blocks of equal length.
    sms : float
        Blocks that run at once (one on each SM).

    >>> float(round(wave_efficiency(96, 108), 2)), float(round(wave_efficiency(144, 108), 2))
    (0.89, 0.67)
    """
    waves = as_num(blocks) / sms
    return as_num(waves / np.ceil(waves))


def flash_decoding_splits(
    batch: Num, kv_heads: int, kv: Num, sms: float, block_kv: int, *, q_blocks: Num = 1, max_splits: int = MAX_SPLITS
) -> Num:
    """Splits that FlashAttention-3's heuristic takes: the fewest within 85 % of the best wave efficiency.

    Parameters
    ----------
    batch, kv_heads, kv : Num
        Sequences, KV heads (a group's query heads are packed into one tile) and keys of a sequence.
    sms : float
        SMs of the GPU.
    block_kv : int
        Keys of a tile; a split has at least one.
    q_blocks : Num
        Query blocks of a packed group: ``ceil(q group / block_q)``.
    max_splits : int
        Upper limit.

    Notes
    -----
    One split if ``batch kv_heads q_blocks >= 0.8 sms`` or there are at most 4 key blocks. Splits are not forced to
    hold equally many key blocks; ``split_speedup`` shows what that costs. The branch for caches larger than L2 concerns
    prefill without a mask and is left out. Source: hopper/heuristics.h of Dao-AILab/flash-attention.

    >>> flash_decoding_splits(1, 8, 65536, 132, 128)    # 8 x 14 blocks on 132 SMs: 0.848; the best is 1.0 at 33
    15.0
    """
    whole(batch=batch, kv_heads=kv_heads, kv=kv, sms=sms, block_kv=block_kv, q_blocks=q_blocks, max_splits=max_splits)
    tiles = np.asarray(as_num(batch) * kv_heads * q_blocks)[..., None]
    key_blocks = np.asarray(ceil_div(kv, block_kv))[..., None]
    choices = np.arange(1, max_splits + 1, dtype=np.float64)
    allowed = choices <= np.minimum(sms, key_blocks)
    efficiency = np.where(allowed, wave_efficiency(tiles * choices, sms), 0.0)
    enough = efficiency >= 0.85 * np.max(efficiency, axis=-1, keepdims=True)
    best = choices[np.argmax(enough, axis=-1)]
    single = (tiles >= 0.8 * sms) | (key_blocks <= 4)
    return as_num(np.where(single[..., 0], 1.0, best))


def split_speedup(batch: Num, kv_heads: int, kv: Num, sms: float, block_kv: int, splits: Num) -> Num:
    """Upper bound on the speedup of decode attention by splitting: key blocks on the busiest SM, before over after. [1]

    Without a split the busiest SM reads ``ceil(n / sms) ceil(kv / block_kv)`` key blocks, ``n = batch kv_heads``; with
    it ``ceil(n s / sms) ceil(ceil(kv / block_kv) / s)``.

    Parameters
    ----------
    batch, kv_heads, kv, sms, block_kv
        As in ``flash_decoding_splits``.
    splits : Num
        Splits s, at most the key blocks.

    Notes
    -----
    A bound, for three reasons: the merge (its traffic and its launch) is left out; an SM that runs alone draws more
    than its share of the bandwidth; and attention is only a part of the step. Valid for one thread block on an SM.

    >>> split_speedup(1, 2, 131072, 108, 128, 54)    # 2 KV heads on A100: 1024 key blocks before, 19 after
    53.89473684210526
    """
    whole(batch=batch, kv_heads=kv_heads, kv=kv, sms=sms, block_kv=block_kv, splits=splits)
    tiles, key_blocks = as_num(as_num(batch) * kv_heads), ceil_div(kv, block_kv)
    if np.any(np.asarray(splits) > np.asarray(key_blocks)):
        raise UsageError("there are more splits than key blocks; a split holds at least one")
    before = ceil_div(tiles, sms) * key_blocks
    return as_num(before / (ceil_div(tiles * splits, sms) * ceil_div(key_blocks, splits)))


def split_speedup_limit(batch: Num, kv_heads: int, sms: float, *, unsplit_heads: int | None = None) -> Num:
    """Speedup that no number of splits passes: ``ceil(n0 / sms) sms / (batch kv_heads)``. [1]

    It is ``sms / (batch kv_heads)`` as long as the unsplit kernel runs in one wave: 8x and more exactly when
    ``batch kv_heads <= sms / 8``.

    Parameters
    ----------
    batch, kv_heads, sms
        As in ``flash_decoding_splits``.
    unsplit_heads : int, optional
        Heads that each get a thread block in the kernel compared with, ``n0 = batch unsplit_heads``; FlashAttention-2
        gives one to every query head. By default the KV heads.

    >>> split_speedup_limit(1, 16, 132), split_speedup_limit(1, 17, 132) < 8
    (8.25, True)
    """
    own = kv_heads if unsplit_heads is None else unsplit_heads
    whole(batch=batch, kv_heads=kv_heads, sms=sms, unsplit_heads=own)
    return as_num(ceil_div(as_num(batch) * own, sms) * sms / (as_num(batch) * kv_heads))


Array = NDArray[np.float64]


def partial_softmax(scores: Array, values: Array) -> tuple[Array, Array, Array]:
    """Attention over one part of the keys: row maximum m, sum l of ``exp(s - m)``, and output o normalised by l.

    Parameters
    ----------
    scores : array (..., keys)
        Scores; ``-inf`` is masked.
    values : array (keys, d)
        Values.

    Returns
    -------
    m, l : array (...)
        ``-inf`` and 0 where no key is visible.
    o : array (..., d)
        Zero where no key is visible.
    """
    top = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0)[..., None])
    total = np.sum(weights, axis=-1)
    return top, total, (weights @ values) / np.where(total > 0, total, 1.0)[..., None]


def online_softmax_merge(
    m1: Array, l1: Array, o1: Array, m2: Array, l2: Array, o2: Array
) -> tuple[Array, Array, Array]:
    """Merge attention over two disjoint parts of the keys, exactly.

    ``m = max(m1, m2)``, ``w_i = exp(m_i - m) l_i``, ``l = w_1 + w_2``, ``o = (w_1 o_1 + w_2 o_2) / l``. The operation
    is commutative and associative; an empty part (``m = -inf``, ``l = 0``, whatever its o, NaN included) is neutral.

    Parameters
    ----------
    m1, l1, m2, l2 : array (...)
        Row maxima and sums of ``exp(s - m)``.
    o1, o2 : array (..., d)
        Outputs, each normalised by its l.

    Returns
    -------
    m, l, o
        Of the union; of two empty parts ``-inf``, 0 and zeros.

    >>> m, l, o = online_softmax_merge(np.array(0.0), np.array(1.0), np.array([1.0]),
    ...                                np.array(np.log(3.0)), np.array(1.0), np.array([5.0]))
    >>> float(np.round(o[0], 12))    # weights 1/4 and 3/4
    4.0
    """
    m = np.maximum(m1, m2)
    top = np.where(np.isfinite(m), m, 0.0)
    w1, w2 = np.exp(m1 - top) * l1, np.exp(m2 - top) * l2
    total = w1 + w2
    o = np.where((w1 > 0)[..., None], o1, 0.0) * w1[..., None] + np.where((w2 > 0)[..., None], o2, 0.0) * w2[..., None]
    return m, total, o / np.where(total > 0, total, 1.0)[..., None]
