"""Which tiles of the score matrix a tiled attention kernel visits, counted exactly and without a loop over them.

A kernel cuts the query rows into blocks of ``block_q`` and the keys into blocks of ``block_kv``. Under a causal mask,
aligned to the bottom right corner (the last query sees every key), a query block stops at the last key block that any
of its rows can see. How many tiles that leaves is a sum of rounded-up quotients over the query blocks. The rounding
repeats with the least common multiple of the two block sizes, so the sum is a closed form for each residue: the cost
depends on the tile, never on the length, and lengths may be arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num

#: Whole numbers are exact in a float up to here.
EXACT = 2.0**53


def whole(**values: Num) -> None:
    """Refuse what is not a whole number from 1 to 2^53: the counts here are exact, or they are nothing.

    Raises
    ------
    UsageError
        Naming the argument and its value.

    >>> whole(batch=8, kv=0)
    Traceback (most recent call last):
    perfmodel.base.errors.UsageError: kv is 0; it must be a whole number from 1 to 2^53
    """
    for name, value in values.items():
        array = np.asarray(value, dtype=np.float64)
        bad = array[~((array >= 1) & (array <= EXACT) & (array == np.floor(array)))]
        if bad.size:
            raise UsageError(f"{name} is {float(bad.flat[0]):g}; it must be a whole number from 1 to 2^53")


def element_bytes(**values: float) -> None:
    """Refuse bytes of an element that no format has: they lie above 0 and at most at 8 (FP64).

    Raises
    ------
    UsageError
        Naming the argument and its value.

    >>> element_bytes(bytes_per_element=0.5)    # FP4
    """
    for name, value in values.items():
        if not 0 < value <= 8:
            raise UsageError(f"{name} is {value:g}; an element has more than 0 and at most 8 bytes")


def group_size(heads: int, kv_heads: int) -> int:
    """Query heads that share one KV head (1 for multi-head attention).

    Raises
    ------
    UsageError
        When the KV heads do not divide the heads.

    >>> group_size(64, 8)
    8
    """
    whole(heads=heads, kv_heads=kv_heads)
    if heads % kv_heads:
        raise UsageError(f"{kv_heads} KV heads do not divide {heads} heads")
    return heads // kv_heads


def ceil_div(amount: Num, size: Num) -> Num:
    """Quotient rounded up; exact while ``amount`` is a whole number below 2^53.

    >>> ceil_div(129, 128)
    2.0
    """
    return as_num(np.ceil(as_num(amount) / size))


def visible_scores(q: Num, kv: Num, causal: bool) -> Num:
    """Scores that attention needs, one head: ``q kv``, less ``q (q - 1) / 2`` under a causal mask.

    >>> visible_scores(4, 4, causal=True)
    10.0
    """
    full = as_num(q) * as_num(kv)
    return as_num(full - as_num(q) * (as_num(q) - 1) / 2) if causal else as_num(full)


@dataclass(frozen=True)
class Blocks:
    """Tiles that one head (or one packed group of heads) visits.

    Attributes
    ----------
    q_blocks, kv_blocks : Num
        Blocks along each side.
    pairs : Num
        (query block, key block) tiles visited.
    rows : Num
        Sum over the visited tiles of the query rows in them; a row counts once a tile, padding does not count.
    keys : Num
        Sum over the query blocks of the keys they load; keys that do not exist are not loaded.
    computed : Num
        Scores computed: whole tiles, padding and masked corners included.
    needed : Num
        Scores that the mask lets through.
    """

    q_blocks: Num
    kv_blocks: Num
    pairs: Num
    rows: Num
    keys: Num
    computed: Num
    needed: Num

    @property
    def padding(self) -> Num:
        """Computed over needed scores, at least 1: what whole tiles cost at the diagonal and at the ends."""
        return as_num(self.computed / self.needed)


def visited_blocks(q: Num, kv: Num, block_q: int, block_kv: int, causal: bool, *, packed: int = 1) -> Blocks:
    """Count the tiles visited.

    Parameters
    ----------
    q, kv : Num
        Query tokens and keys of a sequence (keys include the queries' own). Causal: ``q <= kv``.
    block_q, block_kv : int
        Rows and keys of a tile.
    causal : bool
        Skip the tiles above the diagonal. Row ``i`` sees ``i + 1 + kv - q`` keys.
    packed : int
        Query heads of a group that share the rows of a tile, heads running fastest (PackGQA of FlashAttention-3): the
        ``q packed`` rows are cut into blocks and row ``r`` belongs to token ``floor(r / packed)``.

    Notes
    -----
    With ``R = q packed`` rows, ``T = ceil(R / block_q)`` and ``o = kv - q``, query block ``i < T`` visits
    ``ceil((i block_q + packed o) / (packed block_kv))`` key blocks (``i`` from 1), the last one all of them.

    Raises
    ------
    UsageError
        On what is no whole number, and on a causal mask with more queries than keys.

    >>> visited_blocks(1024, 1024, 128, 128, causal=True).pairs   # 8 blocks: 8 x 9 / 2
    36.0
    """
    whole(q=q, kv=kv, block_q=block_q, block_kv=block_kv, packed=packed)
    if causal and np.any(np.asarray(q) > np.asarray(kv)):
        raise UsageError("a causal mask needs at least as many keys as queries: the keys include the queries' own")
    rows = as_num(as_num(q) * packed)
    q_blocks, kv_blocks = ceil_div(rows, block_q), ceil_div(kv, block_kv)
    others, last_rows = as_num(q_blocks - 1), as_num(rows - (q_blocks - 1) * block_q)
    if causal:
        offset = as_num((as_num(kv) - q) * packed)
        before = _sum_ceil(others, offset, block_q, packed * block_kv)
        full = as_num(np.clip(others - np.floor(((kv_blocks - 1) * packed * block_kv - offset) / block_q), 0, others))
    else:
        before, full = as_num(others * kv_blocks), others
    pairs = as_num(before + kv_blocks)
    return Blocks(
        q_blocks=q_blocks,
        kv_blocks=kv_blocks,
        pairs=pairs,
        rows=as_num(before * block_q + kv_blocks * last_rows),
        keys=as_num(pairs * block_kv - (full + 1) * (kv_blocks * block_kv - kv)),
        computed=as_num(pairs * block_q * block_kv),
        needed=as_num(visible_scores(q, kv, causal) * packed),
    )


def _sum_ceil(count: Num, offset: Num, step: int, size: int) -> Num:
    """Sum of ``ceil((i step + offset) / size)``, ``i`` from 1 to ``count``; terms a period apart differ by ``rise``."""
    common = math.gcd(step, size)
    period, rise = size // common, step // common
    total: Num = 0.0
    for first in range(1, period + 1):
        times = np.maximum(np.floor((count - first) / period) + 1, 0)
        total = total + times * np.ceil((first * step + offset) / size) + rise * times * (times - 1) / 2
    return as_num(total)
