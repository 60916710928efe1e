"""The int8 product against exact sums, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from gemm_operands import PRODUCTION, SHAPES, needs, operands, sampled, scales, small
from numeric import guarded, poisoned, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm.int8 import gemm_w8a8, gemm_w8a8_reference

PATHS = {
    "pointers": small(),
    "split": small(16, 64, splits=3),
    "split, swapped": small(16, 64, splits=3, SWAP=True),
    "tma, halves": small(tma=True, HALVES=True, FLATTEN=True),
}


def exact(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """The exact sum, scaled in fp32 and rounded to bf16 as the kernel is to do it: equal to the last bit."""
    return gemm_w8a8_reference(a, b, scale_a, scale_b, torch.float32).to(torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("arch", "sm_count"), [("sm_80", 2), ("sm_90", 1), ("sm_90", 4), ("sm_100", 1)])
def test_shipped_configurations(device: str, arch: str, sm_count: int, shape: tuple[int, int, int]) -> None:
    """Every row of the table that these shapes take gives the product bit for bit, and touches nothing else."""
    m, n, k = shape
    given = operands(m, n, k, torch.int8, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a, scale_b = scales(m, device=device), scales(n, device=device, seed=1)
    with assume(arch, sm_count):
        out = gemm_w8a8(a, b, scale_a, scale_b, out=given.out.tensor)
    assert torch.equal(out, exact(a, b, scale_a, scale_b))
    given.check_guards()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("each", ["ab", ""])
def test_paths_and_kinds_of_scale(device: str, path: str, each: str) -> None:
    """Each way through the kernels gives the same bits, with a scale a row and column or one for all."""
    config = PATHS[path]
    needs(device, tma=bool(config.meta.get("tma")))
    m, n, k = 37, 88, 80
    given = operands(m, n, k, torch.int8, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a = scales(m if each else 1, device=device)
    scale_b = scales(n if each else 1, device=device, seed=1)
    with assume("sm_90", 3):
        out = gemm_w8a8(a, b, scale_a, scale_b, out=given.out.tensor, config=config)
    assert torch.equal(out, exact(a, b, scale_a, scale_b))
    given.check_guards()


def test_extremes(device: str) -> None:
    """Sums of (-128)^2 past 2^24, which fp32 would round on the way, are exact in int32."""
    a = torch.full((3, 2080), -128, dtype=torch.int8, device=device)
    b = a[:2].clone()
    a[1, 0], a[2, 0] = 127, -127
    one = torch.full((1,), 2.0**-24, device=device)
    out = gemm_w8a8(a, b, one, one, config=small(16, 16, 256, splits=3))
    assert torch.equal(out, exact(a, b, one, one))
    sums = torch.tensor([2080, 2079, 2079]) * 128**2 - torch.tensor([0, 127 * 128, -127 * 128])
    assert torch.equal(gemm_w8a8_reference(a, b, one / one, one / one)[:, 0].long().cpu(), sums)


@pytest.mark.parametrize("splits", [1, 3])
def test_counts_one_at_a_time(device: str, splits: int) -> None:
    """Small sums, which bf16 holds exactly, are right to one: 0 to 100 ones in K among zeros."""
    a = torch.zeros(101, 128, dtype=torch.int8, device=device)
    for i in range(101):
        a[i, 128 - i :] = 1
    b = torch.ones(16, 128, dtype=torch.int8, device=device)
    one = torch.ones(1, device=device)
    out = gemm_w8a8(a, b, one, one, config=small(64, 16, splits=splits))
    assert torch.equal(out.cpu(), torch.arange(101).to(torch.bfloat16)[:, None].expand(101, 16))


A, B, ONE = random(4, 16, dtype=torch.int8), random(8, 16, dtype=torch.int8), torch.ones(1)

REFUSED = {
    "a is uint8, int8 is needed": (A.view(torch.uint8), B, ONE, ONE),
    r"b has shape \(8, 8\), \(any, 16\) is needed": (A, B[:, :8].clone(), ONE, ONE),
    r"scale_a has shape \(4, 1\); one number or \(4,\) is needed": (A, B, torch.ones(4, 1), ONE),
    "scale_b is bfloat16, float32 is needed": (A, B, ONE, ONE.bfloat16()),
    "K is 131072, 1 to 131071 is supported": (
        A[:, :1].expand(4, 131072).clone(),
        B[:, :1].expand(8, 131072).clone(),
        ONE,
        ONE,
    ),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed; so is a K whose sums could overflow."""
    with pytest.raises(KernelInputError, match=message):
        gemm_w8a8(*REFUSED[message])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("shape", PRODUCTION, ids=str)
def test_production_shapes(device: str, shape: tuple[int, int, int]) -> None:
    """Shapes of common models with the shipped configurations, bit for bit."""
    m, n, k = shape
    a, b = random(m, k, dtype=torch.int8, device=device), random(n, k, dtype=torch.int8, device=device, seed=1)
    scale_a, scale_b = scales(m, device=device), scales(n, device=device, seed=1)
    out = guarded(poisoned((m, n), torch.bfloat16, device))
    gemm_w8a8(a, b, scale_a, scale_b, out=out.tensor)
    assert not bool(out.tensor.isnan().any()), "parts of the result were not written"
    rows = sampled(m).to(device)
    assert torch.equal(out.tensor[rows], exact(a[rows], b, scale_a[rows], scale_b))
    out.check()
