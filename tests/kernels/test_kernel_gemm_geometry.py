"""How products are divided: the count of parts along K, the rows of the tables, what TMA takes."""

from __future__ import annotations

import math

import pytest
import torch
from gemm_operands import E4M3, small
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm.geometry import (
    FILL_TILES,
    MERGE_TILES,
    ceil_div,
    fill_percent,
    per_split,
    split_count,
    tma_takes,
)
from perfmodel.kernels.gemm.launch import choose
from perfmodel.kernels.table import rows

pytestmark = pytest.mark.interpreter

GEMMS = ["gemm_dense", "gemm_fp8", "gemm_fp8_block", "gemm_w8a8"]


@given(tiles=st.integers(1, 2000), k_tiles=st.integers(1, 512), slots=st.integers(1, 600), partial=st.floats(0.01, 8.0))
def test_no_part_is_empty(tiles: int, k_tiles: int, slots: int, partial: float) -> None:
    """However K is split, every part has a K tile, and the parts cover K once."""
    splits = split_count(tiles, k_tiles, slots, partial)
    each = ceil_div(k_tiles, splits)
    assert 1 <= splits <= min(32, k_tiles)
    assert (splits - 1) * each < k_tiles <= splits * each


@given(waves=st.integers(1, 8), slots=st.integers(1, 600), k_tiles=st.integers(1, 512), partial=st.floats(0.01, 8.0))
def test_full_waves_are_not_split(waves: int, slots: int, k_tiles: int, partial: float) -> None:
    """Tiles that fill every slot leave nothing to gain."""
    assert split_count(waves * slots, k_tiles, slots, partial) == 1


def test_split_count_by_hand() -> None:
    """32 tiles of 64 K tiles on 264 slots: 8 parts, 5 if a partial result costs much, 1 if it costs too much.

    One part costs 64 + 1 = 65. Eight make 256 programs, one wave of 8 + 1 + 0.25, and merging 0.25 * 256/264 + 2: 11.5.
    That is less than 7: 10 + 1 + 0.25 + 0.21 + 2 = 13.5, and than 16 in two waves of 4 + 1 + 0.25 with 0.48 + 2: 13.
    With 20 for a partial result, five cost 13 + 1 + 20 + 20 * 160/264 + 2 = 48.1, four 16 + 21 + 9.7 + 2 = 48.7.
    With 40, two already cost 32 + 41 + 9.7 + 2 = 84.7 and five 13 + 41 + 24.2 + 2 = 80.2: more than 65.
    """
    assert (FILL_TILES, MERGE_TILES) == (1.0, 2.0)
    assert split_count(tiles=32, k_tiles=64, slots=264, partial_tiles=0.25) == 8
    assert split_count(tiles=32, k_tiles=64, slots=264, partial_tiles=20.0) == 5
    assert split_count(tiles=32, k_tiles=64, slots=264, partial_tiles=40.0) == 1
    assert split_count(tiles=32, k_tiles=2, slots=264, partial_tiles=0.25) == 1


def test_split_by_configuration() -> None:
    """`splits` is taken as given, `per_sm` asks for a count, and neither leaves K whole."""
    shape = {"m": 16, "n": 256, "k": 1024, "element_size": 2, "sm_count": 64}
    assert per_split(**shape, config=small(16, 64, 64, splits=5)) == 4
    assert per_split(**shape, config=small(16, 64, 64, splits=99)) == 1
    assert per_split(**shape, config=small(16, 64, 64)) == 16
    assert per_split(**shape, config=small(16, 64, 64, per_sm=2)) < 16


def test_partial_results_are_bounded() -> None:
    """Parts whose partial results would pass 64 MiB are not made: 2048 x 4096 x 4 bytes is 32 MiB, so two at most."""
    config = small(128, 128, 64, per_sm=8)
    shape = {"n": 4096, "k": 2**20, "element_size": 2, "sm_count": 1000}
    assert per_split(m=1024, **shape, config=config) <= 4096
    assert per_split(m=2048, **shape, config=config) == 8192
    assert per_split(m=4096, **shape, config=config) == 16384


def test_fill_percent() -> None:
    """256 x 4096 in tiles of 128 x 256 is 2 * 16 = 32 tiles, for 132 multiprocessors 24 of a hundred."""
    assert fill_percent(256, 4096, 128, 256, 132) == 24
    assert fill_percent(129, 257, 128, 256, 4) == 100


def tensors(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = torch.bfloat16 if dtype.itemsize == 1 else dtype
    return tuple(
        torch.empty(shape, dtype=kind, device="meta")
        for shape, kind in (((m, k), dtype), ((n, k), dtype), ((m, n), wide))
    )


@pytest.mark.parametrize(
    ("arch", "n", "k", "dtype", "taken"),
    [
        ("sm_90", 128, 64, torch.bfloat16, True),
        ("sm_100", 136, 72, torch.bfloat16, True),
        ("sm_80", 128, 64, torch.bfloat16, False),
        ("sm_90", 132, 64, torch.bfloat16, False),
        ("sm_90", 128, 68, torch.bfloat16, False),
        ("sm_90", 128, 72, E4M3, False),
        ("sm_90", 136, 80, E4M3, True),
    ],
)
def test_what_tma_takes(arch: str, n: int, k: int, dtype: torch.dtype, taken: bool) -> None:
    """Rows of operands and result are multiples of 16 bytes: 8 of bf16, 16 of FP8."""
    with assume(arch):
        assert tma_takes(*tensors(64, n, k, dtype)) is taken


CHOICES = [
    # kernel, architecture, M, N, K, more; then tile, by TMA, swapped
    ("gemm_dense", "sm_90", 1, 4096, 4096, {"specialized": 0}, (16, 128, 64), False, True),
    ("gemm_dense", "sm_90", 17, 4096, 4096, {"specialized": 0}, (32, 128, 64), False, True),
    ("gemm_dense", "sm_90", 64, 4096, 4096, {"specialized": 1}, (64, 128, 64), False, True),
    ("gemm_dense", "sm_90", 65, 4096, 4096, {"specialized": 0}, (128, 128, 64), False, False),
    ("gemm_dense", "sm_90", 4096, 4096, 4096, {"specialized": 0}, (128, 256, 64), True, False),
    ("gemm_dense", "sm_90", 4096, 4096, 4096, {"specialized": 1}, (128, 256, 64), True, False),
    ("gemm_dense", "sm_90", 4096, 4100, 4096, {"specialized": 1}, (128, 128, 64), False, False),
    ("gemm_dense", "sm_90", 4096, 4096, 4095, {"specialized": 0}, (64, 64, 32), False, False),
    ("gemm_dense", "sm_80", 16, 4096, 4096, {"specialized": 0}, (16, 128, 64), False, False),
    ("gemm_dense", "sm_80", 4096, 4096, 4096, {"specialized": 0}, (128, 128, 64), False, False),
    ("gemm_dense", "sm_100", 8192, 8192, 8192, {"specialized": 0}, (128, 256, 64), True, False),
    ("gemm_fp8", "sm_90", 8192, 8192, 4096, {"fast": 1}, (128, 256, 128), True, False),
    ("gemm_fp8", "sm_90", 8192, 8192, 4096, {"fast": 0}, (128, 128, 128), True, False),
    ("gemm_fp8", "sm_100", 8192, 8192, 4096, {"fast": 0}, (128, 256, 128), True, False),
    ("gemm_fp8_block", "sm_90", 16, 7168, 2048, {}, (16, 64, 128), False, True),
    ("gemm_fp8_block", "sm_90", 128, 7168, 2048, {}, (64, 128, 128), False, False),
    ("gemm_fp8_block", "sm_90", 4096, 7168, 16384, {}, (128, 128, 128), True, False),
    ("gemm_w8a8", "sm_90", 8192, 8192, 8192, {}, (128, 256, 128), True, False),
    ("gemm_w8a8", "sm_100", 16, 8192, 8192, {}, (16, 128, 128), False, False),
]


@pytest.mark.parametrize(("kernel", "arch", "m", "n", "k", "more", "tile", "tma", "swap"), CHOICES)
def test_rows_taken(
    kernel: str,
    arch: str,
    m: int,
    n: int,
    k: int,
    more: dict[str, int],
    tile: tuple[int, int, int],
    tma: bool,
    swap: bool,
) -> None:
    """The shape decides: few rows are split and swapped, few tiles are small, the rest is persistent if TMA can."""
    dtype = {"gemm_dense": torch.bfloat16, "gemm_w8a8": torch.int8}.get(kernel, E4M3)
    with assume(arch):
        fill_tile = (128, 128) if kernel == "gemm_fp8_block" else (128, 256)
        meta = choose(kernel, *tensors(m, n, k, dtype), fill_tile, None, **more).meta
    assert tuple(meta[f"BLOCK_{axis}"] for axis in "MNK") == tile
    assert (bool(meta.get("tma")), bool(meta.get("SWAP"))) == (tma, swap)


def test_specialized_row() -> None:
    """Warps of different kinds are for those who ask, on both architectures that have them."""
    for arch in ("sm_90", "sm_100"):
        with assume(arch):
            square = tensors(8192, 8192, 8192, torch.bfloat16)
            asked = [choose("gemm_dense", *square, (128, 256), None, specialized=s).meta for s in (0, 1)]
        assert [bool(meta.get("SPECIALIZE")) for meta in asked] == [False, True]


@pytest.mark.parametrize("kernel", GEMMS)
def test_every_shape_has_a_row(kernel: str) -> None:
    """The last row of each architecture applies to all; FP8 has none on sm_80."""
    for arch in ("sm_80", "sm_90", "sm_100"):
        listed = rows(kernel, arch)
        if arch == "sm_80" and "fp8" in kernel:
            assert not listed
        else:
            assert not listed[-1].when
            for row in listed:
                assert math.prod(int(row.config.meta[f"BLOCK_{axis}"]) for axis in "MN") >= 16 * 64
