"""How many pieces the keys of a sequence are cut into, so that a few sequences fill the GPU."""

from __future__ import annotations

import math

FEW_BLOCKS = 4
"""Key blocks that are not worth cutting: the merge would cost more than the parallel work saves."""

NEARLY_FULL = 0.8
"""Share of the slots that the uncut work must fill to be left uncut."""

WITHIN = 0.85
"""Share of the best wave efficiency that the chosen count must reach."""


def wave_efficiency(programs: int, slots: int) -> float:
    """Share of the slots busy while `programs` equal thread blocks run, `slots` at a time: p/s / ceil(p/s), 0 to 1."""
    waves = programs / slots
    return waves / math.ceil(waves)


def split_count(programs: int, slots: int, key_blocks: int, limit: int = 128) -> int:
    """Pieces to cut each sequence's keys into: FlashAttention-3's rule.

    programs: thread blocks without cutting (sequences x key heads x row blocks). slots: thread blocks that the GPU runs
    at a time (multiprocessors x blocks on each). key_blocks: blocks of keys in the longest sequence. limit: the most
    pieces. All in 1 and up.

    One piece where the uncut work fills 80 % of the slots, or with 4 key blocks or fewer. Otherwise the smallest count
    whose wave efficiency is within 85 % of the best one: few pieces keep the merge's traffic small. The result is at
    most min(limit, slots, key_blocks).

    Source: num_splits_heuristic in hopper/heuristics.h of Dao-AILab/flash-attention; there, one block a multiprocessor.
    """
    if programs >= NEARLY_FULL * slots or key_blocks <= FEW_BLOCKS:
        return 1
    counts = range(1, min(limit, slots, key_blocks) + 1)
    efficiency = [wave_efficiency(programs * n, slots) for n in counts]
    best = max(efficiency)
    return next(n for n, e in zip(counts, efficiency, strict=True) if e >= WITHIN * best)
