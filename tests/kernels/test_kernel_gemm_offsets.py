"""Matrices of more than 2^31 elements: products at their far end, and the limits of what is counted in 32 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from gemm_operands import small
from numeric import random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume, interpreted
from perfmodel.kernels.gemm import pointer, tiles
from perfmodel.kernels.gemm.geometry import CONFIG_LIMITS
from perfmodel.kernels.gemm.int8 import gemm_w8a8, gemm_w8a8_reference
from perfmodel.kernels.gemm.launch import check_operands, choose
from perfmodel.kernels.gemm.pointer import Division, divide
from perfmodel.kernels.table import Config, check_given

BF16 = torch.bfloat16


@triton.jit
def offsets_kernel(out, zero, row, split, M, width, ROWS: tl.constexpr):
    """Offsets, from the address 0, of the rows after `row`, of the row as one of a column, and of the row of a part."""
    start = tl.load(zero)
    rows = tl.arange(0, ROWS)
    tl.store(out + rows, tiles.rows_at(start, row, rows, M, width))
    tl.store(out + ROWS + rows, tiles.row_at(start, row + rows, width))
    tl.store(out + 2 * ROWS, tiles.part_at(start, split, row, M, width))


def offsets_are_right(device: str, row: int, split: int, m: int, width: int) -> None:
    out = torch.zeros(17, dtype=torch.int64, device=device)
    offsets_kernel[(1,)](out, torch.zeros(1, dtype=torch.int64, device=device), row, split, m, width, 8)
    rows = [min(row + i, m - 1) for i in range(8)]
    expected = [*(i * width for i in rows), *((row + i) * width for i in range(8)), (split * m + row) * width]
    assert out.tolist() == expected


FAR = {
    "row": (3_000_000, 0, 3_000_004, 8192),
    "wide row": (300, 0, 1000, 2**23),
    "part": (5, 31, 100_000_000, 16),
    "part and width": (99_999_999, 31, 100_000_000, 4096),
}


@pytest.mark.parametrize("far", FAR)
def test_offsets_past_32_bits(device: str, far: str) -> None:
    """A row far away is found, past 2^31 elements by its own number, its length or the part that it is of."""
    offsets_are_right(device, *FAR[far])


@triton.jit
def narrow_row_at(matrix, row, width):
    return matrix + row * width


@triton.jit
def narrow_part_at(parts, split, row, M, width):
    return tiles.row_at(parts, split * M + row, width)


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("name", "fault", "far"),
    [("row_at", narrow_row_at, "row"), ("row_at", narrow_row_at, "wide row"), ("part_at", narrow_part_at, "part")],
)
def test_offsets_of_32_bits_are_caught(name: str, fault: object, far: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cast to 64 bits the offsets are wrong, and the comparison says so (planted fault)."""
    monkeypatch.setattr(tiles, name, fault)
    with pytest.raises(AssertionError):
        offsets_are_right("cpu", *FAR[far])


@triton.jit
def last_tile(tile, num_m, num_n, GROUP_M: tl.constexpr):
    return num_m - 1, num_n - 1


def one_program(*given: object) -> Division:
    """The division of a product of which a single program runs."""
    return dataclasses.replace(divide(*given), grid=(1, 1))


def far_end_is_right(m: int, n: int, k: int) -> None:
    """The last tile of a product, whose matrices are given memory only where it reads and writes them."""
    a, b = (torch.empty(rows, k, dtype=torch.int8) for rows in (m, n))
    a[-64:], b[-64:] = (random(min(rows, 64), k, dtype=torch.int8, seed=rows) for rows in (m, n))
    out, one = torch.empty(m, n, dtype=BF16), torch.ones(1)
    gemm_w8a8(a, b, one, one, out=out, config=small(64, 64, 64))
    rows, columns = ((size - 1) % 64 + 1 for size in (m, n))
    reference = gemm_w8a8_reference(a[-rows:], b[-columns:], one, one).to(BF16)
    assert torch.equal(out[-rows:, -columns:], reference), "the far end is wrong"


FAR_ENDS = {
    "rows of a": (2**25 + 5, 3, 64),
    "rows of b": (3, 2**22 + 5, 512),
    "rows of the result": (2**25 + 5, 64, 8),
}


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
@pytest.mark.parametrize("case", FAR_ENDS)
def test_the_far_end_of_large_matrices(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile past 2^31 elements of either operand, or of the result, is read and written where it lies."""
    monkeypatch.setattr(pointer, "grouped_tile", last_tile)
    monkeypatch.setattr(pointer, "divide", one_program)
    far_end_is_right(*FAR_ENDS[case])


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def too_many_tiles() -> None:
    choose("gemm_dense", meta(2**30, 16), meta(272, 16), meta(2**30, 272), (128, 256), small(16, 16))


LIMITS: dict[str, Callable[[], object]] = {
    "M is 1073741825, 0 to 1073741824": lambda: check_operands(meta(2**30 + 1, 1), meta(1, 1), None, [BF16]),
    "N is 8388481, 0 to 8388480": lambda: check_operands(meta(1, 1), meta(8388481, 1), None, [BF16]),
    "K is 8388481, 1 to 8388480": lambda: check_operands(meta(1, 8388481), meta(1, 8388481), None, [BF16]),
    "has 1140850688 tiles, at most 1073741824 are supported; multiply in parts": too_many_tiles,
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", LIMITS)
def test_limits_of_sizes(message: str) -> None:
    """Sizes past what is counted in 32 bits are refused, with the limit."""
    with assume("sm_90", ahead_of_time=True), pytest.raises(KernelInputError, match=message):
        LIMITS[message]()


@pytest.mark.interpreter
def test_largest_sizes_are_taken() -> None:
    """The limits themselves are allowed: M = 2^30, and N = K = 8388480."""
    with assume("sm_90", ahead_of_time=True):
        assert check_operands(meta(2**30, 1), meta(1, 1), None, [BF16]).shape == (2**30, 1)
        assert check_operands(meta(1, 8388480), meta(8388480, 8388480), None, [BF16]).shape == (1, 8388480)


BAD_CONFIGS = {
    r"BLOCK_M'\] is 48, a power of two from 16 to 256": {"BLOCK_M": 48},
    r"BLOCK_N'\] is 8, a power of two": {"BLOCK_N": 8},
    r"BLOCK_K'\] is None, a power of two": {"BLOCK_K": None},
    r"GROUP_M'\] is 0, 1 to 1024 is supported": {"GROUP_M": 0},
    r"splits'\] is 33, 0 to 32 is supported": {"splits": 33},
    r"per_sm'\] is 'two', 1 to 32 is supported": {"per_sm": "two"},
    r"config.meta has 'ACC', which gemm_dense does not take; its constants are BLOCK_K, BLOCK_M": {"ACC": 1},
    r"SWAP'\] is 1, True or False is needed": {"SWAP": 1},
    r"config.meta has 'SWAP', which gemm_dense does not take": {"tma": True, "SWAP": True},
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", BAD_CONFIGS)
def test_configurations_that_make_no_sense(message: str) -> None:
    """A configuration given by hand is refused by the name of what is wrong, before anything is launched."""
    config = Config({**small().meta, **BAD_CONFIGS[message]}, 4, 2)
    with pytest.raises(KernelInputError, match=message):
        check_given("gemm_dense", config, limits=CONFIG_LIMITS)


@pytest.mark.interpreter
@pytest.mark.parametrize(("warps", "stages", "message"), [(3, 2, "num_warps is 3"), (4, 0, "num_stages is 0")])
def test_warps_and_stages_that_make_no_sense(warps: int, stages: int, message: str) -> None:
    """Warps are a power of two, stages at least one."""
    with pytest.raises(KernelInputError, match=message):
        check_given("gemm_dense", small(warps=warps, stages=stages), limits=CONFIG_LIMITS)
