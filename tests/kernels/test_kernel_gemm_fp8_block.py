"""The FP8 product with block scales against float64, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from gemm_operands import E4M3, PRODUCTION, needs, operands, sampled, scales, small
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block, gemm_fp8_block_reference

SHAPES = [(1, 136, 384), (5, 67, 201), (16, 260, 256), (33, 72, 144), (200, 264, 272)]

PATHS = {
    "pointers": small(64, 64, 128),
    "swapped": small(16, 128, 128, SWAP=True),
    "split": small(32, 64, 128, splits=3),
    "split, swapped": small(16, 64, 128, splits=2, SWAP=True),
    "tma": small(64, 32, 128, tma=True),
    "tma, halves": small(64, 128, 128, tma=True, HALVES=True, FLATTEN=True),
}


def block_scales(m: int, n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-k // 128)
    return scales(m, blocks, device=device), scales(-(-n // 128), blocks, device=device, seed=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("arch", "sm_count"), [("sm_90", 1), ("sm_100", 6)])
def test_shipped_configurations(device: str, arch: str, sm_count: int, shape: tuple[int, int, int]) -> None:
    """Every row of the table that these shapes take gives the scaled product to bf16, and touches nothing else."""
    needs(device, fp8=True)
    given = operands(*shape, E4M3, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a, scale_b = (guarded(s) for s in block_scales(*shape, device))
    with assume(arch, sm_count):
        out = gemm_fp8_block(a, b, scale_a.tensor, scale_b.tensor, out=given.out.tensor)
    assert_close(out, gemm_fp8_block_reference(a, b, scale_a.tensor, scale_b.tensor))
    given.check_guards()


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_paths_and_layouts_of_scales(device: str, path: str, by_column: bool) -> None:
    """Each way through the kernels takes activation scales row by row and column by column; K ends within a block."""
    config = PATHS[path]
    needs(device, fp8=True, tma=bool(config.meta.get("tma")))
    m, n, k = 37, 200, 336
    given = operands(m, n, k, E4M3, device)
    a, b = given.a.tensor, given.b.tensor
    scale_a, scale_b = block_scales(m, n, k, device)
    if by_column:
        scale_a = scale_a.T.contiguous().T
    with assume("sm_90", 3):
        out = gemm_fp8_block(a, b, scale_a, scale_b, out=given.out.tensor, config=config)
    assert_close(out, gemm_fp8_block_reference(a, b, scale_a, scale_b))
    given.check_guards()


def test_scales_of_very_different_size(device: str) -> None:
    """A block scaled by 2^-20 beside one scaled by 1 is neither lost nor allowed to disturb: the sums are in fp32."""
    needs(device, fp8=True)
    a = torch.ones(4, 256, dtype=torch.float32, device=device).to(E4M3)
    b = torch.ones(16, 256, dtype=torch.float32, device=device).to(E4M3)
    scale_a = torch.tensor([[1.0, 2.0**-20]], device=device).repeat(4, 1)
    scale_a[1] = torch.tensor([2.0**-20, 1.0])
    scale_a[2], scale_a[3] = 2.0**-20, 0.0
    out = gemm_fp8_block(a, b, scale_a, torch.ones(1, 2, device=device), config=small(16, 16, 128))
    expected = torch.tensor([128.0, 128.0, 2.0**-12, 0.0], dtype=torch.bfloat16)
    assert torch.equal(out.cpu(), expected[:, None].expand(4, 16))


def test_empty(device: str) -> None:
    """No rows: an empty result, and no launch."""
    needs(device, fp8=True)
    a, b = (torch.empty(length, 16, dtype=E4M3, device=device) for length in (0, 8))
    scale_a, scale_b = block_scales(0, 8, 16, device)
    assert gemm_fp8_block(a, b, scale_a, scale_b).shape == (0, 8)


A, B = random(4, 144, dtype=E4M3), random(136, 144, dtype=E4M3)
SA, SB = torch.ones(4, 2), torch.ones(2, 2)

REFUSED = {
    "a is float16, float8_e4m3fn is needed": (A.half(), B, SA, SB, None),
    r"scale_a has shape \(4, 1\), \(4, 2\) is needed": (A, B, SA[:, :1], SB, None),
    r"scale_b has shape \(1, 2\), \(2, 2\) is needed": (A, B, SA, SB[:1], None),
    "scale_b is not contiguous": (A, B, SA, torch.ones(2, 3)[:, :2], None),
    "scale_a is bfloat16, float32 is needed": (A, B, SA.bfloat16(), SB, None),
    "BLOCK_K must be 128, its BLOCK_N divide 128": (A, B, SA, SB, small(16, 64, 64)),
    "BLOCK_K must be 128, its BLOCK_N divide": (A, B, SA, SB, small(16, 256, 128)),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    *given, config = REFUSED[message]
    with pytest.raises(KernelInputError, match=message):
        gemm_fp8_block(*given, config=config)


@pytest.mark.interpreter
def test_has_no_fp8_on_sm_80() -> None:
    """The A100 is told that it has no FP8, and what to use."""
    wanted = "need sm_90 or sm_100, this takes sm_80's; use gemm_w8a8"
    with assume("sm_80"), pytest.raises(KernelInputError, match=wanted):
        gemm_fp8_block(A, B, SA, SB)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("shape", [*PRODUCTION, (4096, 7168, 16384)], ids=str)
def test_production_shapes(device: str, shape: tuple[int, int, int]) -> None:
    """Shapes of common models with the shipped configurations."""
    needs(device, fp8=True)
    m, n, k = shape
    a, b = random(m, k, dtype=E4M3, device=device), random(n, k, dtype=E4M3, device=device, seed=1)
    scale_a, scale_b = block_scales(m, n, k, device)
    out = guarded(poisoned((m, n), torch.bfloat16, device))
    gemm_fp8_block(a, b, scale_a, scale_b, out=out.tensor)
    assert not bool(out.tensor.isnan().any()), "parts of the result were not written"
    rows = sampled(m).to(device)
    assert_close(out.tensor[rows], gemm_fp8_block_reference(a[rows], b, scale_a[rows], scale_b))
    out.check()
