"""The number of pieces: FlashAttention-3's rule, at its borders and as a law."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.attention.splits import split_count, wave_efficiency

SIZES = st.integers(1, 600)


@pytest.mark.parametrize(
    ("programs", "slots", "key_blocks", "expected"),
    [
        (106, 132, 512, 1),  # 106 / 132 = 0.803: the multiprocessors are nearly full
        (105, 132, 512, 5),  # 0.795, also in 2, 3 and 4 waves with 2, 3 and 4 pieces; 5 x 105 / (4 x 132) = 0.994
        (8, 132, 4, 1),  # no more than 4 key blocks are never cut
        (8, 132, 5, 5),  # 5 x 8 / 132 = 0.30 is the best that 5 blocks allow; 4 x 8 is 80 % of it
        (8, 132, 512, 15),  # 33 x 8 = 2 x 132 is perfect; 14 x 8 / 132 = 0.848 is not enough, 15 x 8 is 0.909
        (48, 108, 64, 2),  # the example in the rule's source: 0.89 with 2, 0.67 with 3
        (1, 132, 10000, 109),  # 128 of 132 are 0.970, and 109 of 132 are 85 % of that; 128 is the limit
    ],
)
def test_counts_known_by_hand(programs: int, slots: int, key_blocks: int, expected: int) -> None:
    """Counts worked out by hand, on either side of each border of the rule."""
    assert split_count(programs, slots, key_blocks) == expected


@given(SIZES, SIZES, st.integers(1, 2000), st.integers(1, 128))
def test_the_count_is_the_smallest_that_is_good_enough(programs: int, slots: int, key_blocks: int, limit: int) -> None:
    """Its efficiency is within 85 % of the best allowed count's, and that of every smaller count is not."""
    count = split_count(programs, slots, key_blocks, limit)
    assert 1 <= count <= max(1, min(limit, slots, key_blocks))
    if programs < 0.8 * slots and key_blocks > 4:
        allowed = [wave_efficiency(programs * n, slots) for n in range(1, min(limit, slots, key_blocks) + 1)]
        assert allowed[count - 1] >= 0.85 * max(allowed)
        assert all(e < 0.85 * max(allowed) for e in allowed[: count - 1])
    else:
        assert count == 1


@given(SIZES, SIZES)
def test_wave_efficiency_is_a_share(programs: int, slots: int) -> None:
    """Between one program in a wave and full waves; whole waves are perfect."""
    assert 0 < wave_efficiency(programs, slots) <= 1
    assert math.isclose(wave_efficiency(programs * slots, slots), 1.0)
