"""Decode attention and merging where rows and sequences lie more than 2^31 elements from the first.

Only the programs that do are run: those far into a grid whose others would take hours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from far_memory import far_programs, rows
from faulty import faulty
from numeric import assert_close, random

from perfmodel.kernels.attention import merge, mla_kernel, paged
from perfmodel.kernels.attention.decode import decode_reference
from perfmodel.kernels.attention.merge import merge_reference
from perfmodel.kernels.attention.mla import Latents, mla_reference
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.device import interpreted

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(not interpreted(), reason="programs are moved in the interpreter alone"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]

BF16, FP32 = torch.bfloat16, torch.float32
TOKENS = 20


def results(count: int, width: int, at: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and masses of `count` rows, NaN in the `n` rows at `at`."""
    out, lse = rows(count, width, dtype), rows(count, 1, FP32)[:, 0]
    out[at : at + n], lse[at : at + n] = torch.nan, torch.nan
    return out, lse


def merge_far(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2^25 + 1 of two pieces of 64 numbers: 2^32 numbers into the pieces, 2^31 into the output."""
    row = 2**25 + 1
    partial, lse = rows(2 * (row + 1), 64, FP32), rows(row + 1, 2, FP32)
    partial[2 * row :], lse[row] = random(2, 64, dtype=FP32), random(2, dtype=FP32, seed=1)
    out, mass = results(row + 1, 64, row, 1, FP32)
    far_programs(monkeypatch, x=row)
    module.merge_kernel[(1, 1)](partial, lse, out, mass, 2, D=64, BLOCK_S=2, BLOCK_D=64)
    right, total = merge_reference(partial[2 * row :], lse[row])
    assert_close(out[row], right)
    assert_close(mass[row], total)


def mla_far(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first heads of the third of sequences with 2^21 heads: 2^31 numbers into queries and output."""
    heads, at = 2**21, 2**22
    q, cache = rows(at + 16, 576, BF16), random(3, 16, 576, dtype=BF16, seed=1)
    q[at:] = random(16, 576, dtype=BF16)
    table = torch.tensor([[0, 0], [0, 0], [2, 1]], dtype=torch.int32)
    lengths = torch.tensor([0, 0, TOKENS], dtype=torch.int32)
    out, lse = results(at + 16, 512, at, 16, BF16)
    far_programs(monkeypatch, z=2)
    module.mla_kernel[(1, 1, 1)](
        q, cache, table, lengths, None, out, lse, 0.05 * 1.4426950408889634, 1, 1, 2, 16 * 576, 576,
        HEADS=heads, LATENT=512, ROPE=64, PAGE=16, PARTIAL=False, FP8=False, BITS=False, ASM=False,
        BLOCK_M=16, BLOCK_N=16, TWO_LOOPS=True,
    )  # fmt: skip
    right, mass = mla_reference(q[at:][None, None], Latents(cache, table[2:], lengths[2:]), 0.05)
    assert_close(out[at:], right[0, 0])
    assert_close(lse[at:], mass[0, 0])


def paged_far(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first heads of the third of sequences with 2^24 heads: 2^31 numbers into queries and output."""
    heads, at = 2**24, 2**25
    q = rows(at + 16, 64, BF16)
    q[at:] = random(16, 64, dtype=BF16)
    k, v = (random(3, 16, 1, 64, dtype=BF16, seed=seed) for seed in (1, 2))
    table = torch.tensor([[0, 0], [0, 0], [2, 1]], dtype=torch.int32)
    lengths = torch.tensor([0, 0, TOKENS], dtype=torch.int32)
    out, lse = results(at + 16, 64, at, 16, BF16)
    far_programs(monkeypatch, z=2)
    module.paged_kernel[(1, 1, 1)](
        q, k, v, table, lengths, None, None, None, None, out, lse, 0.125 * 1.4426950408889634, None, None, 1, 1, 1, 2,
        1024, 64, 64, 0, KV_HEADS=1, GROUP=heads, D=64, PAGE=16, PARTIAL=False, FP8=False, BITS=False, ASM=False,
        BLOCK_M=16, BLOCK_N=16,
    )  # fmt: skip
    right, mass = decode_reference(q[at:][None, None], Paged(k, v, table[2:], lengths[2:]))
    assert_close(out[at:], right[0, 0])
    assert_close(lse[at:], mass[0, 0])


Check = Callable[[ModuleType, pytest.MonkeyPatch], None]
FAR: dict[str, tuple[Check, ModuleType, tuple[str, str]]] = {
    # what is far away, in which module, and its cast
    "rows of pieces": (merge_far, merge, ("row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)")),
    "latent queries": (mla_far, mla_kernel, ("b = tl.program_id(2).to(tl.int64)", "b = tl.program_id(2)")),
    "queries": (paged_far, paged, ("b = tl.program_id(2).to(tl.int64)", "b = tl.program_id(2)")),
}


@pytest.mark.parametrize("what", FAR)
def test_what_lies_far_away_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets past 2^31 elements are computed in 64 bits."""
    check, module, _ = FAR[what]
    check(module, monkeypatch)


@pytest.mark.parametrize("what", FAR)
def test_a_missing_cast_is_caught(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its cast the kernel reads or writes elsewhere, and fails the same comparison."""
    check, module, fault = FAR[what]
    with pytest.raises(AssertionError, match=r"relative error|infinities|finite"):
        check(faulty(module, fault, tmp_path), monkeypatch)
