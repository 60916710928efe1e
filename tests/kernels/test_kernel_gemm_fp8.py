"""The FP8 product with scales a tensor, a row or a channel against float64, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from gemm_operands import E4M3, PRODUCTION, SHAPES, needs, operands, sampled, scales, small
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm.fp8 import gemm_fp8, gemm_fp8_reference

PATHS = {
    "pointers": small(),
    "pointers, promoted": small(PROMOTE=True),
    "split, swapped": small(16, 64, splits=3, SWAP=True),
    "split, swapped, promoted": small(16, 64, splits=3, SWAP=True, PROMOTE=True),
    "tma, halves": small(tma=True, HALVES=True, FLATTEN=True),
    "tma, promoted": small(tma=True, PROMOTE=True),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("arch", "sm_count", "fast"), [("sm_90", 1, True), ("sm_90", 4, False), ("sm_100", 4, True)])
def test_shipped_configurations(device: str, arch: str, sm_count: int, fast: bool, shape: tuple[int, int, int]) -> None:
    """Every row of the table that these shapes take gives the scaled product to bf16, and touches nothing else."""
    needs(device, fp8=True)
    m, n, k = shape
    given = operands(m, n, k, E4M3, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a, scale_b = guarded(scales(m, device=device)), guarded(scales(n, device=device, seed=1))
    with assume(arch, sm_count):
        out = gemm_fp8(a, b, scale_a.tensor, scale_b.tensor, out=given.out.tensor, fast_accumulation=fast)
    assert_close(out, gemm_fp8_reference(a, b, scale_a.tensor, scale_b.tensor))
    given.check_guards()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("each", ["ab", "a", "b", ""])
def test_paths_and_kinds_of_scale(device: str, path: str, each: str) -> None:
    """Each way through the kernels takes scales of one number, and one a row or column, in every combination."""
    config = PATHS[path]
    needs(device, fp8=True, tma=bool(config.meta.get("tma")))
    m, n, k = 37, 88, 80
    given = operands(m, n, k, E4M3, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a = scales(m if "a" in each else 1, device=device)
    scale_b = scales(n, device=device, seed=1) if "b" in each else scales(1, device=device, seed=1)[0]
    with assume("sm_90", 3):
        out = gemm_fp8(a, b, scale_a, scale_b, out=given.out.tensor, config=config)
    assert_close(out, gemm_fp8_reference(a, b, scale_a, scale_b))
    given.check_guards()


def test_largest_values(device: str) -> None:
    """What saturates at 448 in quantization multiplies exactly: sums of 448^2 are not lost; NaN stays in its row."""
    needs(device, fp8=True)
    given = operands(20, 40, 160, E4M3, device)
    a, b = given.a.tensor, given.b.tensor
    a.copy_((random(20, 160, dtype=torch.float32, device=device) * 1e4).clamp(-448, 448).to(E4M3))
    b.copy_((random(40, 160, dtype=torch.float32, device=device, seed=1) * 1e4).clamp(-448, 448).to(E4M3))
    b[7] = a[3]
    a[11, 100] = float("nan")
    one = torch.ones(1, device=device)
    out = gemm_fp8(a, b, one, one, out=given.out.tensor, config=small(16, 32))
    reference = gemm_fp8_reference(a, b, one, one)
    assert reference[3, 7] > 150 * 448**2
    assert_close(out, reference)


def test_empty(device: str) -> None:
    """No rows: an empty result, and no launch."""
    needs(device, fp8=True)
    one = torch.ones(1, device=device)
    a, b = (torch.empty(length, 16, dtype=E4M3, device=device) for length in (0, 8))
    assert gemm_fp8(a, b, one, one).shape == (0, 8)


@pytest.mark.interpreter
def test_has_no_fp8_on_sm_80() -> None:
    """The A100 is told that it has no FP8, and what to use."""
    a, b, one = random(4, 16, dtype=E4M3), random(8, 16, dtype=E4M3), torch.ones(1)
    wanted = "need sm_90 or sm_100, this takes sm_80's; use gemm_w8a8"
    with assume("sm_80"), pytest.raises(KernelInputError, match=wanted):
        gemm_fp8(a, b, one, one)


A, B = random(4, 16, dtype=E4M3), random(8, 16, dtype=E4M3)
ONE = torch.ones(1)

REFUSED = {
    "a is bfloat16, float8_e4m3fn is needed": (A.bfloat16(), B, ONE, ONE),
    "b is float8_e5m2, float8_e4m3fn is needed": (A, B.to(torch.float8_e5m2), ONE, ONE),
    r"scale_a has shape \(8,\); one number or \(4,\) is needed": (A, B, torch.ones(8), ONE),
    r"scale_b has shape \(4,\); one number or \(8,\) is needed": (A, B, ONE, torch.ones(4)),
    "scale_a is float64, float32 is needed": (A, B, torch.ones(4).double(), ONE),
    "scale_b is not contiguous": (A, B, ONE, torch.ones(16)[::2]),
    r"scale_a is \S+, a torch tensor is needed": (A, B, 1.0, ONE),
    r"^a is \S+, a torch tensor is needed": (None, B, ONE, ONE),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        gemm_fp8(*REFUSED[message])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", PRODUCTION, ids=str)
def test_production_shapes(device: str, shape: tuple[int, int, int], fast: bool) -> None:
    """Shapes of common models with the shipped configurations; fast accumulation is held to 2 %."""
    needs(device, fp8=True)
    m, n, k = shape
    a, b = random(m, k, dtype=E4M3, device=device), random(n, k, dtype=E4M3, device=device, seed=1)
    scale_a, scale_b = scales(m, device=device), scales(n, device=device, seed=1)
    out = guarded(poisoned((m, n), torch.bfloat16, device))
    gemm_fp8(a, b, scale_a, scale_b, out=out.tensor, fast_accumulation=fast)
    assert not bool(out.tensor.isnan().any()), "parts of the result were not written"
    rows = sampled(m).to(device)
    reference = gemm_fp8_reference(a[rows], b, scale_a[rows], scale_b)
    # Hopper's tensor cores keep about 14 bits of a sum: see gemm_fp8.
    assert_close(out.tensor[rows], reference, tolerance=2e-2 if fast else None)
    out.check()
