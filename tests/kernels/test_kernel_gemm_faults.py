"""Faults put into the products on purpose: the comparisons of the other tests must catch each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from gemm_operands import E4M3, operands, scales, small
from numeric import assert_close

from perfmodel.kernels.device import assume, interpreted
from perfmodel.kernels.gemm import fp8_block, persistent, pointer, tiles
from perfmodel.kernels.gemm.dense import gemm_dense, gemm_dense_reference
from perfmodel.kernels.gemm.fp8 import gemm_fp8, gemm_fp8_reference
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block, gemm_fp8_block_reference
from perfmodel.kernels.gemm.int8 import gemm_w8a8, gemm_w8a8_reference
from perfmodel.kernels.table import Config

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced"),
]

POINTERS, SWAPPED, SPLIT = small(32, 32), small(16, 32, SWAP=True), small(32, 32, splits=3)
TMA = small(32, 32, tma=True, HALVES=True)


@triton.jit
def unmasked_load(at, k, K, EVEN_K: tl.constexpr):
    return tl.load(at)


@triton.jit
def no_band_end(tile, num_m, num_n, GROUP_M: tl.constexpr):
    per_band = GROUP_M * num_n
    within = tile % per_band
    return (tile // per_band) * GROUP_M + within % GROUP_M, within // GROUP_M


@triton.jit
def halves_interleaved(acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // 2, 2)))


@triton.jit
def forgotten_sum(acc, x, w, PROMOTE: tl.constexpr):
    return tl.dot(x, w, out_dtype=acc.dtype)


@triton.jit
def last_tile_missed(split, per_split, k_tiles):
    begin = split * per_split
    return begin, tl.maximum(tl.minimum(per_split, k_tiles - begin) - 1, 1)


@triton.jit
def parts_overlap(split, per_split, k_tiles):
    begin = tl.maximum(split * per_split - 1, 0)
    return begin, tl.maximum(tl.minimum(per_split, k_tiles - begin), 1)


@triton.jit
def scales_crossed(acc, row_scale, column_scale, rows, columns, M, N, ROW: tl.constexpr, COLUMN: tl.constexpr):
    return acc.to(tl.float32) * tl.load(column_scale + rows)[:, None] * tl.load(row_scale + columns)[None, :]


@triton.jit
def row_scale_only(acc, row_scale, column_scale, rows, columns, M, N, ROW: tl.constexpr, COLUMN: tl.constexpr):
    return acc.to(tl.float32) * tl.load(row_scale + rows)[:, None]


@triton.jit
def never_rescaled(acc, x, w, row_scale, column_scale, SWAP: tl.constexpr):
    return (acc + tl.dot(x, w)) * (row_scale * column_scale)[:, None]


@triton.jit
def weight_scale_missing(acc, x, w, row_scale, column_scale, SWAP: tl.constexpr):
    return acc + tl.dot(x, w) * row_scale[:, None]


@triton.jit
def first_scale_kept(k, k_tiles):
    return k * 0


@triton.jit
def one_scale_late(k, k_tiles):
    return k


def merged_without_last(partial: torch.Tensor, out: torch.Tensor, given: object) -> None:
    MERGE(partial[:-1], out, given)


MERGE = pointer.merge


def dense_is_right(config: Config) -> None:
    given = operands(40, 72, 168, torch.bfloat16, "cpu")
    a, b = given.a.tensor, given.b.tensor
    out = gemm_dense(a, b, out=given.out.tensor, config=config)
    assert_close(out, gemm_dense_reference(a, b), torch_result=a @ b.T)
    given.check_guards()


def scaled_is_right(config: Config, function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """The result is square, so that a scale of the wrong axis fits."""
    given = operands(64, 64, 96, dtype, "cpu")
    a, b, sa, sb = given.a.tensor, given.b.tensor, scales(64, device="cpu"), scales(64, device="cpu", seed=1)
    out = function(a, b, sa, sb, out=given.out.tensor, config=config)
    reference = gemm_fp8_reference if dtype == E4M3 else gemm_w8a8_reference
    assert_close(out, reference(a, b, sa, sb))
    given.check_guards()


def fp8_is_right(config: Config) -> None:
    scaled_is_right(config, gemm_fp8, E4M3)


def int8_is_right(config: Config) -> None:
    scaled_is_right(config, gemm_w8a8, torch.int8)


def block_is_right(config: Config) -> None:
    given = operands(40, 200, 336, E4M3, "cpu")
    a, b, sa, sb = given.a.tensor, given.b.tensor, scales(40, 3, device="cpu"), scales(2, 3, device="cpu", seed=1)
    config = Config({**config.meta, "BLOCK_K": 128, "BLOCK_M": 64}, config.num_warps, config.num_stages)
    out = gemm_fp8_block(a, b, sa, sb, out=given.out.tensor, config=config)
    assert_close(out, gemm_fp8_block_reference(a, b, sa, sb))
    given.check_guards()


FAULTS = [
    (pointer, "load_k", unmasked_load, dense_is_right, POINTERS),
    (pointer, "load_k", unmasked_load, dense_is_right, SWAPPED),
    (pointer, "load_k", unmasked_load, dense_is_right, SPLIT),
    (fp8_block, "load_k", unmasked_load, block_is_right, POINTERS),
    (pointer, "grouped_tile", no_band_end, dense_is_right, POINTERS),
    (persistent, "grouped_tile", no_band_end, dense_is_right, TMA),
    (tiles, "column_halves", halves_interleaved, dense_is_right, TMA),
    (tiles, "column_halves", halves_interleaved, block_is_right, TMA),
    (pointer, "accumulated", forgotten_sum, dense_is_right, POINTERS),
    (persistent, "accumulated", forgotten_sum, dense_is_right, TMA),
    (pointer, "split_range", last_tile_missed, dense_is_right, SPLIT),
    (pointer, "split_range", parts_overlap, dense_is_right, SPLIT),
    (fp8_block, "split_range", parts_overlap, block_is_right, SPLIT),
    (pointer, "merge", merged_without_last, dense_is_right, SPLIT),
    (pointer, "merge", merged_without_last, int8_is_right, SPLIT),
    (fp8_block, "merge", merged_without_last, block_is_right, SPLIT),
    (pointer, "scaled", scales_crossed, fp8_is_right, POINTERS),
    (pointer, "scaled", scales_crossed, int8_is_right, POINTERS),
    (tiles, "scaled", scales_crossed, fp8_is_right, TMA),
    (tiles, "scaled", row_scale_only, int8_is_right, TMA),
    (fp8_block, "_promoted", never_rescaled, block_is_right, POINTERS),
    (fp8_block, "_promoted", weight_scale_missing, block_is_right, TMA),
    (fp8_block, "_next_k", first_scale_kept, block_is_right, TMA),
    (fp8_block, "_next_k", one_scale_late, block_is_right, POINTERS),
]


@pytest.mark.parametrize(
    ("module", "name", "fault", "is_right", "config"), FAULTS, ids=[f"{f[2].__name__}, {f[3].__name__}" for f in FAULTS]
)
def test_faults_are_caught(
    module: object,
    name: str,
    fault: object,
    is_right: Callable[[Config], None],
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a helper replaced by a wrong one the comparison fails, and it passes with the right one."""
    with assume("sm_90", 3):
        is_right(config)
        monkeypatch.setattr(module, name, fault)
        with pytest.raises(AssertionError, match=r"relative error|not finite|largest error|NaN differ"):
            is_right(config)
