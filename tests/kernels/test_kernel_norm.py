"""RMS normalisation and the gated activation against float64."""

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from numeric import assert_close, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.support import norm as norm_module
from perfmodel.kernels.support import swiglu as swiglu_module
from perfmodel.kernels.support.norm import rms_norm, rms_norm_reference
from perfmodel.kernels.support.swiglu import swiglu, swiglu_reference
from perfmodel.kernels.table import Config

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, block: int) -> None:
    """Rows and sums are the reference's, all was written and nothing beyond."""
    eps = 1e-5
    if residual is None:
        with guarded_allocations():
            out, total = rms_norm(x, weight, eps, config=Config({"BLOCK_H": block}, 4, 1))
        assert total is x
    else:
        with guarded_allocations():
            out, total = rms_norm(x, weight, eps, residual, Config({"BLOCK_H": block}, 4, 1))
    right, added = rms_norm_reference(x, weight, eps, residual)
    theirs = torch.nn.functional.rms_norm(added.float(), (x.shape[1],), weight.float(), eps).to(x.dtype)
    assert torch.equal(total, added)
    assert_close(out, right, torch_result=theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize(("rows", "hidden", "block"), [(3, 200, 256), (2, 1, 16), (3, 300, 128)])
def test_rms_norm(device: str, rows: int, hidden: int, block: int, with_residual: bool, dtype: torch.dtype) -> None:
    """Rows in one block and in several, odd lengths, one column; the sum is rounded as later layers see it."""
    x = random(rows, hidden, dtype=dtype, device=device, scale=3)
    residual = random(rows, hidden, dtype=dtype, device=device, seed=1) if with_residual else None
    assert_norm(x, random(hidden, dtype=dtype, device=device, seed=2), residual, block)


def test_rms_norm_of_zeros_and_of_large_numbers(device: str) -> None:
    """A row of zeros stays zero (eps), one whose squares pass the range of 16 bits does not overflow."""
    x = torch.zeros(2, 64, dtype=torch.float16, device=device)
    x[1] = 60000.0
    out, _ = rms_norm(x, torch.ones(64, dtype=torch.float32, device=device), config=Config({"BLOCK_H": 64}, 4, 1))
    assert bool((out[0] == 0).all())
    assert_close(out[1], torch.ones(64))


def test_the_shipped_configurations(device: str) -> None:
    """Without configurations of their own the calls take the tables'."""
    x, weight = random(1, 1500, dtype=torch.bfloat16, device=device), torch.ones(1500, device=device)
    with assume("sm_90"):
        assert_close(rms_norm(x, weight)[0], rms_norm_reference(x, weight)[0])
        assert_close(swiglu(x), swiglu_reference(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(3, 130), (1, 1), (2, 64)])
def test_swiglu(device: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Odd lengths, one column, each type."""
    x = random(rows, 2 * columns, dtype=dtype, device=device, scale=4)
    with guarded_allocations():
        out = swiglu(x, Config({"BLOCK_F": 64}, 4, 1))
    gate, up = x.float().chunk(2, -1)
    assert_close(out, swiglu_reference(x), torch_result=(torch.nn.functional.silu(gate) * up).to(dtype))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_swiglu_of_large_gates(device: str) -> None:
    """A gate whose exp(-gate) overflows gives 0, one far on the other side passes `up` through."""
    x = torch.tensor([[-200.0, 200.0, 3.0, 0.5]], device=device)
    assert swiglu(x, Config({"BLOCK_F": 16}, 1, 1)).tolist() == [[0.0, 100.0]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_production_shapes(dtype: torch.dtype) -> None:
    """Each shipped configuration over 4096 rows: hidden sizes of models, and the columns of their MLPs."""
    for hidden in (896, 2048, 4096, 5120, 8192, 16384):
        x, residual = (random(4096, hidden, dtype=dtype, seed=seed).cuda() for seed in (0, 1))
        weight = random(hidden, dtype=dtype, seed=2).cuda()
        for added in (None, residual):
            out, total = rms_norm(x, weight, residual=added)
            right, summed = rms_norm_reference(x, weight, residual=added)
            assert torch.equal(total, summed)
            assert_close(out, right)
    for columns in (4864, 14336, 28672):
        x = random(1024, 2 * columns, dtype=dtype).cuda()
        assert_close(swiglu(x), swiglu_reference(x))


def _residual_forgotten(x, residual, total, at, mask, RESIDUAL: tl.constexpr):
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        added = value + tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(total + at, added.to(total.dtype.element_ty), mask=mask)
    return value


def _padding_counts(x, residual, total, at, mask, RESIDUAL: tl.constexpr):
    return tl.load(x + at, mask=mask, other=1.0).to(tl.float32)


def _halves_swapped(gate, up):
    return up / (1.0 + tl.exp(-up)) * gate


@pytest.mark.interpreter
@pytest.mark.parametrize(("faulty", "with_residual"), [(_residual_forgotten, True), (_padding_counts, False)])
def test_a_planted_fault_in_the_norm_is_caught(monkeypatch: pytest.MonkeyPatch, faulty, with_residual: bool) -> None:
    """A residual that is stored but not normalised, and columns beyond the row in its mean, fail the comparison."""
    monkeypatch.setattr(norm_module, "_summed", triton.jit(faulty))
    x = random(2, 200, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="relative error"):
        assert_norm(x, torch.ones(200), random(2, 200, dtype=torch.bfloat16, seed=1) if with_residual else None, 256)


@pytest.mark.interpreter
def test_a_planted_fault_in_the_activation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up the wrong way round fail the comparison."""
    monkeypatch.setattr(swiglu_module, "_gated", triton.jit(_halves_swapped))
    x = random(2, 128, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(swiglu(x, Config({"BLOCK_F": 64}, 4, 1)), swiglu_reference(x))


BAD_NORM = [
    ("x", lambda x: x[0], r"x has shape \(8,\), \(any, any\) is needed"),
    ("x", lambda x: x.double(), "x is float64, bfloat16 or float16 or float32 is needed"),
    ("x", lambda x: x.T, "x is not contiguous"),
    ("x", lambda x: x[:0], "the number of rows is 0, 1 to"),
    ("weight", lambda x: x[:7], r"weight has shape \(7,\), \(8\) is needed"),
    ("eps", lambda x: 0.0, "eps is 0.0, a number above 0 is needed, from 2"),
    ("residual", lambda x: x.float(), "residual is float32, bfloat16 is needed"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD_NORM)
def test_bad_input_of_the_norm_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    x = random(4, 8, dtype=torch.bfloat16, device=device)
    given = {"x": x, "weight": torch.ones(8, device=device), "eps": 1e-6, "residual": x.clone()}
    given[name] = spoil(given[name])
    with pytest.raises(KernelInputError, match=message):
        rms_norm(**given)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 7), "x has 7 columns, an even number is needed"),
        (torch.zeros(2, 8, dtype=torch.int8), "x is int8, bfloat16 or float16 or float32 is needed"),
        (torch.zeros(2, 16)[:, ::2], "x is not contiguous"),
    ],
)
def test_bad_input_of_the_activation_is_refused(device: str, x: torch.Tensor, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        swiglu(x.to(device))
