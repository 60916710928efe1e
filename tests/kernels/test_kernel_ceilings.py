"""The loops that measure ceilings do the work that they are credited with."""

import pytest
import torch
from allocations import guarded_allocations
from numeric import assert_close, guarded, poisoned, random
from verify_data import skip_where_missing

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.support import ceilings, mma
from perfmodel.kernels.table import Config

F32 = torch.float32


@pytest.mark.parametrize("n", [1, 1000, 4096])
def test_copy_and_triad(device: str, n: int) -> None:
    """Every number arrives, nothing beyond the end is written, odd lengths included."""
    x, y = random(n, dtype=F32, device=device), random(n, dtype=F32, device=device, seed=1)
    for call, right in (
        (lambda out: ceilings.copy(x, out, Config({"BLOCK": 512}, 4, 1)), ceilings.copy_reference(x)),
        (lambda out: ceilings.triad(x, y, 3.0, out, Config({"BLOCK": 512}, 4, 1)), ceilings.triad_reference(x, y, 3.0)),
    ):
        out = guarded(poisoned((n,), F32, device))
        call(out.tensor)
        out.check()
        assert_close(out.tensor, right)


@pytest.mark.parametrize("n", [5, 3000, 5000])
def test_read_reads_everything_once(device: str, n: int) -> None:
    """The programs' sums add up to that of the vector, with more blocks than programs and with fewer."""
    x = random(n, dtype=F32, device=device) + 1
    with assume("sm_90", sm_count=2), guarded_allocations():
        found = ceilings.read_sum(x, Config({"BLOCK": 512, "per_sm": 1}, 4, 3))
    assert_close(found.double().sum(), ceilings.sum_reference(x))


def test_cached_read_reads_everything_in_every_program(device: str) -> None:
    """Each program's sum is `passes` times the vector's, wherever it begins."""
    x = random(6 * 256, dtype=F32, device=device) + 1
    with assume("sm_90", sm_count=3), guarded_allocations():
        found = ceilings.cached_read_sum(x, 2, Config({"BLOCK": 256, "per_sm": 1}, 4, 1))
    assert_close(found, ceilings.sum_reference(x, 2).expand(len(found)))


@pytest.mark.parametrize("width", [64, 512])
def test_gather_reads_the_rows_of_the_index(device: str, width: int) -> None:
    """Rows in random order, some twice and some never, a last block that is not full."""
    pool = random(40, width, dtype=F32, device=device)
    index = torch.randint(0, 40, (37,), generator=torch.Generator().manual_seed(0)).int().to(device)
    with assume("sm_90", sm_count=2), guarded_allocations():
        found = ceilings.gather_sum(pool, index, Config({"NUMBERS": 1024, "per_sm": 2}, 4, 1))
    assert_close(found.double().sum(0), ceilings.gather_sum_reference(pool, index))


@pytest.mark.parametrize("name", ["exp2_loop", "fma_loop"])
def test_register_loops(device: str, name: str) -> None:
    """All programs make all steps: few enough here that a step too many or too few shows."""
    x = torch.linspace(-1, 0.9, 64, device=device)
    with assume("sm_90", sm_count=2), guarded_allocations():
        found = getattr(ceilings, name)(x, 1, Config({"BLOCK": 64, "per_sm": 1}, 4, 1))
    right = getattr(ceilings, f"{name}_reference")(x, 1)
    if len(found) > 2:  # a GPU runs one program on each multiprocessor
        found = found[:2]
    assert_close(found, right.expand(2, 64), tolerance=1e-4)


def test_a_missing_step_is_caught(device: str) -> None:
    """The result of fifteen steps is not that of sixteen, by the same comparison."""
    x = torch.linspace(-1, 0.9, 64, device=device)
    right = ceilings.exp2_loop_reference(x, 1)
    fewer = x.double()
    for _ in range(15):
        fewer = torch.exp2(fewer) - 1
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(fewer, right, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_matrix_loop(device: str, dtype: torch.dtype) -> None:
    """Every program accumulates `passes` products of the tile."""
    small = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "per_sm": 1}
    config = Config(small, 4, 1) if device == "cpu" else None
    skip_where_missing(dtype, device)
    with assume("sm_90", sm_count=2):
        m, n, k = (32, 32, 32) if device == "cpu" else mma.mma_tile(dtype, torch.empty(1, device=device))
        if dtype == torch.int8:
            a, b = random(m, k, dtype=dtype, device=device), random(n, k, dtype=dtype, device=device, seed=1)
        else:
            a, b = (random(rows, k, dtype=F32, device=device, seed=rows).to(dtype) for rows in (m, n + m))
            b = b[:n].contiguous()
        with guarded_allocations():
            found = mma.mma_loop(a, b, 3, config)
    right = mma.mma_loop_reference(a, b, 3).expand(found.shape)
    tolerance = 1e-2 if dtype == torch.float8_e4m3fn else 1e-5  # sm_90 accumulates FP8 in fewer bits
    assert_close(found, right.long() if dtype == torch.int8 else right, tolerance=tolerance)


def test_the_shipped_configurations(device: str) -> None:
    """Without configurations of their own the calls take the tables'; the empty kernel runs."""
    x = random(5000, dtype=F32, device=device)
    with assume("sm_90", sm_count=1):
        out = torch.empty_like(x)
        ceilings.copy(x, out)
        assert torch.equal(out, x)
        assert_close(ceilings.read_sum(x).double().sum(), x.double().sum(), tolerance=1e-4)
        ceilings.empty(x)
    assert mma.mma_tile(torch.bfloat16, x)[0] == 128


@pytest.mark.gpu
def test_a_gibibyte() -> None:
    """Sizes that measure memory: every number of 2^28 is moved, added and gathered."""
    x, y = (random(2**28, dtype=F32, seed=seed).cuda() for seed in (0, 1))
    out = poisoned(x.shape, F32, "cuda")
    ceilings.copy(x, out)
    assert torch.equal(out, x)
    ceilings.triad(x, y, 3.0, out)
    assert_close(out, ceilings.triad_reference(x, y, 3.0))
    x += 1
    assert_close(ceilings.read_sum(x).double().sum(), ceilings.sum_reference(x))
    few = x[: 2**22].clone()
    found = ceilings.cached_read_sum(few, 3)
    assert_close(found, ceilings.sum_reference(few, 3).expand(len(found)))
    index = torch.randint(0, 2**18, (2**18,), generator=torch.Generator().manual_seed(0)).int().cuda()
    rows = ceilings.gather_sum(x.view(-1, 1024), index)
    assert_close(rows.double().sum(0), ceilings.gather_sum_reference(x.view(-1, 1024), index))


BAD = [
    (lambda x: ceilings.copy(x, x[:10]), r"out has shape \(10,\), \(4096\) is needed"),
    (lambda x: ceilings.copy(x.double(), x), "x is float64, float32 is needed"),
    (lambda x: ceilings.triad(x, x[::2], 1.0, x), r"y has shape \(2048,\), \(4096\) is needed"),
    (lambda x: ceilings.read_sum(x[1:]), "x starts 4 bytes off a multiple of 16"),
    (lambda x: ceilings.cached_read_sum(x[:100], 1), "the length of x is 100, a positive multiple of 4096 is needed"),
    (lambda x: ceilings.cached_read_sum(x, 0), "passes is 0, 1 to"),
    (lambda x: ceilings.gather_sum(x.view(-1, 32), x[:1].int()), "pool has rows of 32, a power of two from 64 to 1024"),
    (lambda x: ceilings.gather_sum(x.view(-1, 64), x[:1].long()), "index is int64, int32 is needed"),
    (lambda x: ceilings.exp2_loop(x, 1), r"x has shape \(4096,\), \(1024\) is needed"),
    (lambda x: ceilings.fma_loop(x, 0), "passes is 0, 1 to"),
    (lambda x: mma.mma_loop(x.view(64, 64), x.view(64, 64), 1), "a is float32, bfloat16 or float16 or int8 or"),
    (lambda x: mma.mma_loop(x.view(64, 64).half(), x.view(64, 64).half(), 1), r"a has shape \(64, 64\), \(128, 128\)"),
    (lambda x: mma.mma_tile(torch.float64, x), "dtype is float64, which has no matrix loop"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused(device: str, call, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    with assume("sm_90"), pytest.raises(KernelInputError, match=message):
        call(torch.zeros(4096, device=device))
