"""The dense product against float64, on each path: split, pointers, TMA; and what it refuses."""

from __future__ import annotations

import pytest
import torch
from gemm_operands import PRODUCTION, SHAPES, needs, operands, sampled, small
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.gemm.dense import gemm_dense, gemm_dense_reference

PATHS = {
    "pointers": small(),
    "swapped": small(16, 64, SWAP=True),
    "split": small(16, 64, splits=3),
    "split, swapped": small(16, 64, splits=4, SWAP=True),
    "tma": small(tma=True),
    "tma, halves": small(64, 64, tma=True, HALVES=True, FLATTEN=True),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("arch", "sm_count"), [("sm_80", 2), ("sm_90", 1), ("sm_90", 4), ("sm_100", 1)])
def test_shipped_configurations(device: str, arch: str, sm_count: int, shape: tuple[int, int, int]) -> None:
    """Every row of the table that these shapes take gives the product to bf16, and touches nothing else."""
    given = operands(*shape, torch.bfloat16, device)
    a, b = given.a.tensor, given.b.tensor
    with assume(arch, sm_count):
        out = gemm_dense(a, b, out=given.out.tensor)
    assert_close(out, gemm_dense_reference(a, b), torch_result=a @ b.T)
    given.check_guards()


@pytest.mark.parametrize("path", PATHS)
def test_paths(device: str, path: str) -> None:
    """Each way through the kernels gives the same product, in fp16 too, with tails in M, N and K."""
    config = PATHS[path]
    needs(device, tma=bool(config.meta.get("tma")))
    for dtype, (m, n, k) in ((torch.bfloat16, (37, 136, 72)), (torch.float16, (130, 72, 200))):
        given = operands(m, n, k, dtype, device, dtype)
        a, b = given.a.tensor, given.b.tensor
        with assume("sm_90", 3):
            out = gemm_dense(a, b, out=given.out.tensor, config=config)
        assert_close(out, gemm_dense_reference(a, b), torch_result=a @ b.T)
        given.check_guards()


@pytest.mark.parametrize("splits", [1, 2, 5, 7, 16])
def test_split_counts(device: str, splits: int) -> None:
    """K in any number of parts gives the product: one, unequal ones, one a K tile, more than there are K tiles."""
    given = operands(5, 67, 224, torch.bfloat16, device)
    a, b = given.a.tensor, given.b.tensor
    out = gemm_dense(a, b, out=given.out.tensor, config=small(16, 32, splits=splits))
    assert_close(out, gemm_dense_reference(a, b), torch_result=a @ b.T)
    given.check_guards()


def test_equal_calls_give_equal_bits(device: str) -> None:
    """Parts are summed in a fixed order."""
    given = operands(7, 96, 256, torch.bfloat16, device)
    config = small(16, 32, splits=8, SWAP=True)
    results = [gemm_dense(given.a.tensor, given.b.tensor, config=config) for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rounds_once(device: str) -> None:
    """Parts are kept in fp32: 1 + 2^-8 in one and 2^-8 in another make 1 + 2^-7; rounded to bf16 they would make 1."""
    a = torch.zeros(1, 96, dtype=torch.bfloat16, device=device)
    a[0, 0], a[0, 1], a[0, 80] = 1.0, 2.0**-8, 2.0**-8
    b = torch.ones(16, 96, dtype=torch.bfloat16, device=device)
    out = gemm_dense(a, b, config=small(16, 16, splits=3))
    assert torch.equal(out, torch.full_like(out, 1.0 + 2.0**-7))


def test_infinities_and_nan_stay_in_their_row(device: str) -> None:
    """An infinity or NaN in one row of a shows in that row of the result alone."""
    given = operands(20, 48, 64, torch.bfloat16, device)
    a, b = given.a.tensor, given.b.tensor
    a[3, 5], a[17, 60] = float("inf"), float("nan")
    out = gemm_dense(a, b, out=given.out.tensor, config=small(16, 32))
    assert_close(out, gemm_dense_reference(a, b))


@pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0)])
def test_empty(device: str, m: int, n: int) -> None:
    """No rows or no columns: an empty result, and no launch."""
    a = torch.empty(m, 16, dtype=torch.bfloat16, device=device)
    assert gemm_dense(a, torch.empty(n, 16, dtype=torch.bfloat16, device=device)).shape == (m, n)


A = random(4, 16, dtype=torch.bfloat16)
B = random(8, 16, dtype=torch.bfloat16)

REFUSED = {
    "a is float32, bfloat16 or float16 is needed": (A.float(), B, {}),
    r"a has shape \(16,\), \(any, any\) is needed": (A[0], B, {}),
    "K is 0, 1 to 8388480 is supported": (A[:, :0], B[:, :0], {}),
    r"b has shape \(8, 8\), \(any, 16\) is needed": (A, B[:, :8].clone(), {}),
    "b is float16, bfloat16 is needed": (A, B.half(), {}),
    "b is not contiguous": (A, random(16, 8, dtype=torch.bfloat16).T, {}),
    "b starts 2 bytes off a multiple of 16": (A, random(129, dtype=torch.bfloat16)[1:].view(8, 16), {}),
    r"out has shape \(4, 4\), \(4, 8\) is needed": (A, B, {"out": A[:, :4].clone()}),
    "out is float32, bfloat16 is needed": (A, B, {"out": torch.empty(4, 8)}),
    "a is list, a torch tensor is needed": ([[1.0]], B, {}),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    a, b, more = REFUSED[message]
    with pytest.raises(KernelInputError, match=message):
        gemm_dense(a, b, **more)


@pytest.mark.interpreter
@pytest.mark.parametrize(("arch", "n", "k"), [("sm_80", 16, 16), ("sm_90", 16, 12), ("sm_90", 12, 16)])
def test_refuses_tma_where_there_is_none(arch: str, n: int, k: int) -> None:
    """A configuration given by hand that loads by TMA needs sm_90 and rows of a multiple of 16 bytes."""
    a, b = random(4, k, dtype=torch.bfloat16), random(n, k, dtype=torch.bfloat16)
    with assume(arch), pytest.raises(KernelInputError, match=f"needs sm_90 or later.*K is {k}, N {n}"):
        gemm_dense(a, b, config=small(tma=True))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize("shape", PRODUCTION, ids=str)
def test_production_shapes(device: str, shape: tuple[int, int, int], specialized: bool) -> None:
    """Shapes of common models, decoding and prefill, with the shipped configurations; two that TMA cannot take."""
    m, n, k = shape
    a, b = random(m, k, dtype=torch.bfloat16, device=device), random(n, k, dtype=torch.bfloat16, device=device, seed=1)
    out = guarded(poisoned((m, n), torch.bfloat16, device))
    gemm_dense(a, b, out=out.tensor, warp_specialized=specialized)
    assert not bool(out.tensor.isnan().any()), "parts of the result were not written"
    rows = sampled(m).to(device)
    assert_close(out.tensor[rows], gemm_dense_reference(a[rows], b), torch_result=a[rows] @ b.T)
    out.check()
