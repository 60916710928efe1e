"""The interpreter with its corrections computes what torch computes; without them it does not."""

import os
import subprocess
import sys

import interp_shim
import pytest
import torch
import triton
import triton.language as tl
from numeric import assert_close, random, relative_error

pytestmark = pytest.mark.interpreter

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2


@triton.jit
def _convert_kernel(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < n).to(target.dtype.element_ty), mask=at < n)


@triton.jit
def _arithmetic_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n, other=1.0), tl.load(y + at, mask=at < n, other=1.0)
    tl.store(out + at, a + b, mask=at < n)
    tl.store(out + n + at, a * b, mask=at < n)
    tl.store(out + 2 * n + at, -a, mask=at < n)
    tl.store(out + 3 * n + at, tl.where(a > b, a, b), mask=at < n)
    tl.store(out + 4 * n + at, tl.fma(a, b, a), mask=at < n)
    tl.store(out + 5 * n + at, tl.abs(a), mask=at < n)
    tl.store(out + 6 * n + at, tl.minimum(a, b), mask=at < n)


@triton.jit
def _dot_kernel(a, b, c, K, N: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    i, j, k = tl.arange(0, N), tl.arange(0, N), tl.arange(0, B)
    total = tl.zeros((N, N), OUT)
    for start in range(0, K, B):
        left = tl.load(a + i[:, None] * K + start + k[None, :])
        right = tl.load(b + (start + k)[:, None] * N + j[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c + i[:, None] * N + j[None, :], total)


@triton.jit
def _reduce_kernel(x, sums, largest, running, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = i[:, None] * COLUMNS + j[None, :]
    tile = tl.load(x + at)
    tl.store(sums + i, tl.sum(tile, 1))
    tl.store(largest + i, tl.max(tile, 1))
    tl.store(running + at, tl.cumsum(tile, 1))


@triton.jit
def _extremes_kernel(x, y, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.maximum(a, b))
    tl.store(out + BLOCK + at, tl.minimum(a, b))
    tl.store(out + 2 * BLOCK + at, tl.clamp(a, -1.0, 1.0))


@triton.jit
def _scalar_mask_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = row * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=row < n, other=-1.0))


def converted(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = torch.zeros(values.shape, dtype=dtype)
    _convert_kernel[(triton.cdiv(values.numel(), 4096),)](values, result, values.numel(), BLOCK=4096)
    return result


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern of a format that is a finite number."""
    if dtype == BF16:
        values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    else:
        values = torch.arange(2**8, dtype=torch.int32).to(torch.uint8).view(dtype)
    return values[torch.isfinite(values.float())].contiguous()


@pytest.mark.parametrize("dtype", [BF16, E4M3, E5M2])
def test_every_value_widens_exactly(dtype: torch.dtype) -> None:
    """Each finite number of the format becomes the same number in float32."""
    values = every_value(dtype)
    assert torch.equal(converted(values, torch.float32), values.float())


@pytest.mark.parametrize("dtype", [BF16, E4M3, E5M2])
def test_rounding_is_to_nearest_even(dtype: torch.dtype) -> None:
    """Numbers of the format, the midpoints between neighbours and points beside them round as torch rounds them."""
    exact = every_value(dtype).float().unique()
    middle = ((exact[1:].double() + exact[:-1].double()) / 2).float()
    points = torch.cat([exact, middle, torch.nextafter(middle, exact[1:]), torch.nextafter(middle, exact[:-1])])
    points = points[points.abs() <= exact.max()]
    assert torch.equal(converted(points, dtype).float(), points.to(dtype).float())


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448.0), (E5M2, 57344.0)])
def test_float8_saturates_and_keeps_nan(dtype: torch.dtype, largest: float) -> None:
    """What is too large becomes the largest finite number, as cvt.rn.satfinite does; NaN stays NaN."""
    values = torch.tensor([1e9, -1e9, float("inf"), largest, float("nan")])
    result = converted(values, dtype).float()
    assert result[:4].tolist() == [largest, -largest, largest, largest]
    assert result[4].isnan()


@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_arithmetic_rounds_once(dtype: torch.dtype) -> None:
    """Sum, product, negation, choice, fused multiply-add, absolute value and minimum are those of the numbers."""
    n = 100
    x, y = random(n, dtype=dtype), random(n, dtype=dtype, seed=1)
    result = torch.zeros(7, n, dtype=dtype)
    _arithmetic_kernel[(1,)](x, y, result, n, BLOCK=128)
    a, b = x.double(), y.double()
    right = [a + b, a * b, -a, a.maximum(b), a * b + a, a.abs(), a.minimum(b)]
    assert torch.equal(result.float(), torch.stack(right).to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float16, BF16, E4M3, E5M2, torch.int8])
def test_dot(dtype: torch.dtype) -> None:
    """A product over a run-time range is the float64 product, and that of int8 exactly."""
    exact = dtype == torch.int8
    a, b = random(32, 96, dtype=dtype), random(96, 32, dtype=dtype, seed=1)
    result = torch.zeros(32, 32, dtype=torch.int32 if exact else torch.float32)
    _dot_kernel[(1,)](a, b, result, 96, N=32, B=32, PRECISION="tf32", OUT=tl.int32 if exact else tl.float32)
    assert_close(result, a.double() @ b.double())


def test_float32_dot_is_tf32_unless_told_otherwise() -> None:
    """float32 operands keep ten bits of mantissa, with an error that tests must see, or all of them with `ieee`."""
    a, b = random(32, 96, dtype=torch.float32), random(96, 32, dtype=torch.float32, seed=1)
    reference = a.double() @ b.double()
    errors = {}
    for precision in ("tf32", "ieee"):
        result = torch.zeros(32, 32)
        _dot_kernel[(1,)](a, b, result, 96, N=32, B=32, PRECISION=precision, OUT=tl.float32)
        errors[precision] = relative_error(result, reference)
    assert errors["ieee"] < 1e-6
    assert 1e-4 < errors["tf32"] < 2e-3


def test_bfloat16_reductions() -> None:
    """Row sums, row maxima and running sums are those of the numbers, to bfloat16 at least, as versions differ."""
    x = random(8, 32, dtype=BF16)
    sums, largest, running = torch.zeros(8), torch.zeros(8), torch.zeros(8, 32)
    _reduce_kernel[(1,)](x, sums, largest, running, ROWS=8, COLUMNS=32)
    assert_close(sums, x.double().sum(1), tolerance=4e-3)
    assert torch.equal(largest, x.float().amax(1))
    assert_close(running, x.double().cumsum(1), tolerance=4e-3)


def test_extremes_pass_over_nan() -> None:
    """maximum, minimum and clamp give the number beside a NaN, as the GPU's instructions do."""
    nan = float("nan")
    x, y = torch.tensor([nan, 2.0, nan, -3.0]), torch.tensor([1.0, nan, nan, 4.0])
    result = torch.zeros(3, 4)
    _extremes_kernel[(1,)](x, y, result, BLOCK=4)
    assert result[0].nan_to_num(99.0).tolist() == [1.0, 2.0, 99.0, 4.0]
    assert result[1].nan_to_num(99.0).tolist() == [1.0, 2.0, 99.0, -3.0]
    assert result[2].tolist() == [-1.0, 1.0, -1.0, -1.0]


def test_a_condition_on_a_scalar_masks_a_block() -> None:
    """A comparison of program ids holds for every element of a load that it masks."""
    x = torch.arange(1.0, 13.0)
    result = torch.zeros(12)
    _scalar_mask_kernel[(3,)](x, result, 2, BLOCK=4)
    assert result.tolist() == [*x[:8].tolist(), *[-1.0] * 4]


def test_install_twice_is_once() -> None:
    """A second installation leaves the first in place."""
    before = interp_shim.interpreter.InterpreterBuilder.binary_op
    interp_shim.install()
    assert interp_shim.interpreter.InterpreterBuilder.binary_op is before


PLAIN = """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))
x, out = torch.ones(4).bfloat16(), torch.zeros(4).bfloat16()
add[(1,)](x, x, out, B=4)
print(out[0].item())
"""


def test_the_corrections_are_still_needed(tmp_path) -> None:
    """Without them the installed Triton still gets 1 + 1 in bfloat16 wrong; once it does not, the module can go."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) != 2.0
