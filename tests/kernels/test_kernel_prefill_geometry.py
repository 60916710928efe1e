"""Which tile a program takes and which key blocks it visits, against enumeration."""

from __future__ import annotations

import random

import pytest
import torch
import triton
import triton.language as tl

from perfmodel.kernels.attention.softmax_blocks import key_range, place


@triton.jit
def _place_kernel(out, tiles, pairs, section, LONGEST_FIRST: tl.constexpr):
    tile, pair = place(tl.program_id(0), tiles, pairs, section, LONGEST_FIRST)
    tl.store(out + 2 * tl.program_id(0), tile)
    tl.store(out + 2 * tl.program_id(0) + 1, pair)


@triton.jit
def _range_kernel(given, out, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    at = given + 4 * tl.program_id(0)
    row, queries, keys = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    if WINDOW:
        low, full_low, full_high, high = key_range(row, queries, keys, tl.load(at + 3), CAUSAL, M, N)
    else:
        low, full_low, full_high, high = key_range(row, queries, keys, None, CAUSAL, M, N)
    to = out + 4 * tl.program_id(0)
    tl.store(to, low)
    tl.store(to + 1, full_low)
    tl.store(to + 2, full_high)
    tl.store(to + 3, high)


@pytest.mark.parametrize("section", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("longest_first", [True, False])
def test_place(device: str, section: int, longest_first: bool) -> None:
    """Each (tile, pair) is taken once; sections follow one another, and in one no tile comes before a longer one."""
    tiles, pairs = 4, 7
    out = torch.full((tiles * pairs, 2), -1, dtype=torch.int32, device=device)
    _place_kernel[(tiles * pairs,)](out, tiles, pairs, section, longest_first)
    taken = [tuple(row) for row in out.tolist()]
    assert sorted(taken) == [(tile, pair) for tile in range(tiles) for pair in range(pairs)]
    sign = -1 if longest_first else 1
    assert taken == sorted(taken, key=lambda each: (each[1] // section, sign * each[0], each[1]))


def _sees(i: int, j: int, queries: int, keys: int, causal: bool, window: int | None) -> bool:
    position = i + keys - queries
    return (not causal or j <= position) and (window is None or j > position - window)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("windowed", [True, False])
def test_key_range(device: str, causal: bool, windowed: bool) -> None:
    """The range holds every key that is seen, its inner part no key that a row does not see, in whole blocks.

    And it is tight: the blocks at both ends hold a key that is seen.
    """
    source, m, n = random.Random(7), 8, 4
    problems = []
    for _ in range(60):
        queries, keys = source.randint(1, 40), source.randint(0, 40)
        problems.append((source.randrange(0, queries, m), queries, keys, source.randint(1, 30)))
    given = torch.tensor(problems, dtype=torch.int32, device=device)
    out = torch.full((len(problems), 4), -1, dtype=torch.int32, device=device)
    _range_kernel[(len(problems),)](given, out, causal, windowed, m, n)
    for (row, queries, keys, width), (low, full_low, full_high, high) in zip(problems, out.tolist(), strict=True):
        window = width if windowed else None
        rows = range(row, min(row + m, queries))
        seen = [j for j in range(keys) if any(_sees(i, j, queries, keys, causal, window) for i in rows)]
        assert all(low <= j < high for j in seen)
        assert low % n == full_low % n == full_high % n == 0
        assert 0 <= low <= full_low <= full_high
        assert full_high <= max(keys, full_low)
        assert all(_sees(i, j, queries, keys, causal, window) for i in rows for j in range(full_low, full_high))
        if seen:
            assert low == seen[0] // n * n
            assert high == seen[-1] + 1
