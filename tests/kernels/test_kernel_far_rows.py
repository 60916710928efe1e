"""Kernels of support, 4-bit weights and sampling where rows lie more than 2^31 elements from the first.

The memory is one of which only what is written takes room, and the program that runs is a far one of its grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton.language as tl
from far_memory import far_programs, rows, sparse
from faulty import faulty
from numeric import assert_close, random
from w4_data import quantized

from perfmodel.kernels.gemm import w4_dequantize
from perfmodel.kernels.speculative import sampling
from perfmodel.kernels.support import ceilings, quantize
from perfmodel.kernels.support import swiglu as gated
from perfmodel.kernels.table import Config

pytestmark = pytest.mark.interpreter

BF16, F32 = torch.bfloat16, torch.float32
Patch = pytest.MonkeyPatch


def swiglu_is_right(module: ModuleType, patch: Patch) -> None:
    width, row = 1024, 2**21 + 1
    x, out = rows(row + 1, 2 * width, BF16), rows(row + 1, width, BF16)
    x[row] = random(2 * width, dtype=BF16)
    far_programs(patch, x=row)
    module._swiglu_kernel[(1, 1)](x, out, width, BLOCK_F=1024)
    assert_close(out[row:], gated.swiglu_reference(x[row:]))


def rows_are_right(module: ModuleType, patch: Patch, whole: bool) -> None:
    width, row = 1024, 2**21 + 1
    x, codes, scales = rows(row + 1, width, BF16), rows(row + 1, width, torch.int8), torch.zeros(row + 1)
    x[row] = random(width, dtype=BF16)
    far_programs(patch, x=row)
    block = 1024 if whole else 512
    module._rows_kernel[(1,)](x, codes, scales, width, LIMIT=127.0, WHOLE=whole, BLOCK_K=block)
    right, scale = quantize.quantize_rows_reference(x[row:], torch.int8)
    assert torch.equal(codes[row:], right), "the far row's codes are wrong"
    assert torch.equal(scales[row:], scale), "the far row's scale is wrong"


def blocks_are_right(module: ModuleType, patch: Patch) -> None:
    width, row = 1024, 2**21 + 1
    x, codes, scales = rows(row + 1, width, BF16), rows(row + 1, width, torch.int8), rows(row + 1, 8, F32)
    x[row] = random(width, dtype=BF16)
    far_programs(patch, x=row)
    module._blocks_kernel[(1, 1)](x, codes, scales, width, 8, LIMIT=127.0, BLOCK_G=8, GROUP=128)
    right, scale = quantize.quantize_blocks_reference(x[row:], torch.int8)
    assert torch.equal(codes[row:], right), "the far row's codes are wrong"
    assert torch.equal(scales[row:], scale), "the far row's scales are wrong"


def vectors(count: int) -> list[torch.Tensor]:
    """Vectors of 2^31 elements and 100 more, the last of which are random."""
    made = [sparse((2**31 + 100,), (1,), F32) for _ in range(count)]
    for seed, vector in enumerate(made):
        vector[-100:] = random(100, dtype=F32, seed=seed)
    return made


def triad_is_right(module: ModuleType, patch: Patch) -> None:
    x, y, out = vectors(3)
    far_programs(patch, x=2**21)
    module._triad_kernel[(1,)](x, y, out, 2.0, len(x), BLOCK=1024)
    assert_close(out[-100:], x[-100:].double() + 2 * y[-100:].double())


def copy_is_right(module: ModuleType, patch: Patch) -> None:
    x, out = vectors(2)
    far_programs(patch, x=2**21)
    module._copy_kernel[(1,)](x, out, len(x), BLOCK=1024)
    assert torch.equal(out[-100:], x[-100:]), "the far end is not copied"


def dequantized_is_right(module: ModuleType, patch: Patch) -> None:
    """64 outputs of the first tile of K, so far along N that their rows of the result lie past 2^31."""
    k, first = 2**14, 2**17 + 64
    near = quantized(128, 64, 128).weight()
    n_filled = first + 64
    words, meta = sparse((1, n_filled, 32), (n_filled * 32, 32, 1), torch.int16), rows(1, n_filled, torch.int32)
    words[:, first:], meta[:, first:] = near.words[:, :64], near.meta[:, :64]
    out = rows(n_filled, k, BF16)
    far_programs(patch, y=first // 64)
    module._dequantize_w4_kernel[(1, 1)](
        words, meta, out, n_filled, k // 8, n_filled, GROUPS=1, SCALE=tl.float16, EVEN_K=True, USE_ASM=False, BLOCK_N=64
    )
    found = out[first:, :128].clone()
    patch.undo()
    assert torch.equal(found, w4_dequantize.dequantize_w4(near, BF16)), "the far rows are wrong"


def sample_is_right(module: ModuleType, patch: Patch) -> None:
    """Two tokens share the target's row; the draft's holds the first, so that what is left is the second."""
    vocabulary, row = 2048, 2**20 + 1
    target, draft = rows(row + 1, vocabulary, BF16), rows(row + 1, vocabulary, BF16)
    target[row], draft[row] = -math.inf, -math.inf
    target[row, [100, 1234]], draft[row, 100] = 0.0, 0.0
    column = torch.zeros(1, dtype=torch.int32)
    plan = sampling.new_plan(1, 1, column)
    plan.rows.fill_(row)
    plan.moments.copy_(torch.tensor([[0.0, 0.5, 0.0, 1.0, 1.0]]))
    tokens = torch.full((1, 1), -7, dtype=torch.int32)
    config = Config({"BLOCK_V": 1024}, 4, 1)
    module.sample_planned(target, draft, plan, torch.ones(1), torch.tensor([0.3]), tokens, False, config)
    assert tokens.item() == 1234, "the far row gives another token"


WIDE, NARROW = "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"


def below(line: str, name: str) -> tuple[str, str]:
    """The fault that the number below this line is not cast."""
    return f"{line}\n    {name} = {WIDE}", f"{line}\n    {name} = {NARROW}"


ROWS_HEAD = '"""One row: held in registers where it fits one block, else read once more."""'
Check = Callable[[ModuleType, Patch], Any]
CASES: dict[str, tuple[ModuleType, Check, list[tuple[str, str]]]] = {
    "swiglu": (gated, swiglu_is_right, [(WIDE, NARROW)]),
    "quantize_rows": (
        quantize, lambda m, p: rows_are_right(m, p, True), [below(ROWS_HEAD, "row")]
    ),
    "quantize_rows in pieces": (
        quantize, lambda m, p: rows_are_right(m, p, False), [below(ROWS_HEAD, "row")]
    ),
    "quantize_blocks": (
        quantize, blocks_are_right, [below('"""Some blocks of one row."""', "row")]
    ),
    "triad": (
        ceilings, triad_is_right,
        [below("def _triad_kernel(x, y, out, factor, n, BLOCK: tl.constexpr):", "at")],
    ),
    "copy": (
        ceilings, copy_is_right,
        [below("def _copy_kernel(x, out, n, BLOCK: tl.constexpr):", "at")],
    ),
    "dequantize_w4": (
        w4_dequantize, dequantized_is_right,
        [("tl.store(row_at(out, columns, K)[:, None] + k", "tl.store((out + columns * K)[:, None] + k")],
    ),
    "sample_planned": (
        sampling, sample_is_right,
        [("row = tl.load(rows + 2 * request).to(tl.int64)", "row = tl.load(rows + 2 * request)"),
         ("other = tl.load(rows + 2 * request + 1).to(tl.int64)", "other = tl.load(rows + 2 * request + 1)")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_far_row_is_read_and_written_where_it_lies(case: str, monkeypatch: Patch) -> None:
    """What a kernel makes of a row past 2^31 elements is what the reference makes of it."""
    module, check, _ = CASES[case]
    check(module, monkeypatch)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(("case", "which"), [(case, i) for case, held in CASES.items() for i in range(len(held[2]))])
def test_a_missing_cast_is_caught(case: str, which: int, tmp_path: Path, monkeypatch: Patch) -> None:
    """A copy without one of its casts to 64 bits fails the same comparison (planted fault)."""
    module, check, faults = CASES[case]
    loaded = faulty(module, faults[which], tmp_path)
    with pytest.raises(AssertionError, match=r"wrong|copied|another token|relative error|differ"):
        check(loaded, monkeypatch)
