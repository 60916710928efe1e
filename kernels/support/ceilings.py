"""Loops that reach for one limit of the machine each: memory, cache, exponentials, additions, launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import (
    LARGEST,
    MOST,
    SMALLEST,
    check_apart,
    check_multiple,
    check_place,
    check_range,
    check_tensor,
    require,
)
from perfmodel.kernels.device import target
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

FLOATS = (torch.float32,)
FACTOR = "factor is beyond float32; 0, or a number of magnitude 2^-120 to 2^120 is needed"


@triton.jit
def _copy_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _triad_kernel(x, y, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at, mask=at < n)
    tl.store(out + at, left + factor * tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def _read_kernel(x, out, n, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(program * BLOCK, n, stride, num_stages=DEPTH):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0, eviction_policy="evict_first")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _cached_kernel(x, out, n, passes, BLOCK: tl.constexpr):
    """Every program walks the whole buffer from a start of its own, past the L1 cache (.cg)."""
    total = tl.zeros((BLOCK,), tl.float32)
    blocks = n // BLOCK
    first = (tl.program_id(0) * 7919) % blocks
    for _ in range(0, passes):
        for i in range(0, blocks):
            block = tl.where(first + i >= blocks, first + i - blocks, first + i)
            total += tl.load(x + block * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _gather_kernel(pool, index, out, n, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr):
    """Rows in the order of the index, a block of them at a time."""
    column = tl.arange(0, WIDTH)
    total = tl.zeros((BLOCK_R, WIDTH), tl.float32)
    for start in range(tl.program_id(0) * BLOCK_R, n, tl.num_programs(0) * BLOCK_R):
        at = start + tl.arange(0, BLOCK_R)
        row = tl.load(index + at, mask=at < n, other=0).to(tl.int64)
        total += tl.load(pool + row[:, None] * WIDTH + column[None, :], mask=(at < n)[:, None], other=0.0)
    tl.store(out + tl.program_id(0) * WIDTH + column, tl.sum(total, 0))


@triton.jit
def _exp2_kernel(x, out, passes, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    for _ in range(0, passes):
        for _ in tl.static_range(0, UNROLL):
            value = tl.exp2(value) - 1.0
    tl.store(out + tl.program_id(0) * BLOCK + at, value)


@triton.jit
def _fma_kernel(x, out, passes, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    addend = value
    for _ in range(0, passes):
        for _ in tl.static_range(0, UNROLL):
            value = tl.fma(value, 0.5, addend)
    tl.store(out + tl.program_id(0) * BLOCK + at, value)


@triton.jit
def _empty_kernel():
    pass


def _grid(n: int, block: int, like: torch.Tensor, per_sm: int) -> int:
    """Programs of a loop that stays on the multiprocessors: `per_sm` on each, no more than there are blocks."""
    return min(int(triton.cdiv(n, block)), per_sm * target(like).sm_count)


def _check_vector(name: str, x: torch.Tensor, like: torch.Tensor | None = None) -> int:
    check_tensor(name, x, (None,) if like is None else like.shape, FLOATS, like=like)
    check_range(f"the length of {name}", x.shape[0], 1, 2**38)
    return int(x.shape[0])


@entry
def copy(x: torch.Tensor, out: torch.Tensor, config: Config | None = None) -> None:
    """out = x; float32 [n], n up to 2^38, contiguous, apart. Bytes moved: 8 n. Raises KernelInputError."""
    n = _check_vector("x", x)
    _check_vector("out", out, x)
    check_apart("out", out, {"x": x})
    config = configured("support_copy", x, config)
    _copy_kernel[(triton.cdiv(n, int(config.meta["BLOCK"])),)](x, out, n, **config.options())


@entry
def triad(x: torch.Tensor, y: torch.Tensor, factor: float, out: torch.Tensor, config: Config | None = None) -> None:
    """out = x + factor * y (STREAM's triad); float32 [n], n up to 2^38, contiguous, apart. Bytes moved: 12 n.
    Raises KernelInputError."""
    n = _check_vector("x", x)
    _check_vector("y", y, x)
    _check_vector("out", out, x)
    check_apart("out", out, {"x": x, "y": y})
    require(factor == 0 or SMALLEST <= abs(factor) <= LARGEST, FACTOR)
    config = configured("support_triad", x, config)
    _triad_kernel[(triton.cdiv(n, int(config.meta["BLOCK"])),)](x, y, out, factor, n, **config.options())


@entry
def read_sum(x: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """Partial sums of x, one a program: reading alone. x: float32 [n], n up to 2^38, contiguous. Bytes moved: 4 n.
    Raises KernelInputError."""
    n = _check_vector("x", x)
    config = configured("support_read", x, config)
    block, per_sm = int(config.meta["BLOCK"]), int(config.meta["per_sm"])
    programs = _grid(n, block, x, per_sm)
    out = torch.empty(programs, dtype=torch.float32, device=x.device)
    _read_kernel[(programs,)](x, out, n, BLOCK=block, DEPTH=config.num_stages, num_warps=config.num_warps)
    return out


@entry
def cached_read_sum(x: torch.Tensor, passes: int, config: Config | None = None) -> torch.Tensor:
    """passes x the sum of x, once a program: reading from the L2 cache, if x is small enough to stay in it.

    x: float32 [n], n a multiple of 4096 up to 2^28, contiguous; half the cache or less (16 MiB: n = 2^22), several
    times an L1 cache. passes: how often every program reads all of x. Bytes read: programs (length of the result) x
    passes x 4 n. Raises KernelInputError.
    """
    n = _check_vector("x", x)
    config = configured("support_cached_read", x, config)
    check_multiple("the length of x", n, int(config.meta["BLOCK"]))
    check_range("the length of x", n, 1, 2**28)
    check_range("passes", passes, 1, 2**20)
    programs = int(config.meta["per_sm"]) * target(x).sm_count
    out = torch.empty(programs, dtype=torch.float32, device=x.device)
    _cached_kernel[(programs,)](x, out, n, passes, BLOCK=int(config.meta["BLOCK"]), **_launch(config))
    return out


@entry
def gather_sum(pool: torch.Tensor, index: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """Partial sums of the rows pool[index], one a program: reading scattered rows, as of a paged cache.

    pool: float32 [R, W], W a power of two from 64 to 1024 (rows of 256 bytes to 4 KiB), contiguous. index: int32 [n],
    row numbers, not checked; n up to 2^30. Returns [programs, W]. Bytes moved: n (4 W + 4). Raises KernelInputError.
    """
    check_tensor("pool", pool, (None, None), FLOATS)
    check_range("the number of rows of pool", pool.shape[0], 1, MOST)
    width = pool.shape[1]
    require(width in (64, 128, 256, 512, 1024), f"pool has rows of {width}, a power of two from 64 to 1024 is needed")
    check_tensor("index", index, (None,), (torch.int32,), like=pool)
    check_range("the length of index", index.shape[0], 1, 2**30)
    config = configured("support_gather", pool, config, width=width)
    block = max(1, int(config.meta["NUMBERS"]) // width)
    programs = _grid(index.shape[0], block, pool, int(config.meta["per_sm"]))
    out = torch.empty((programs, width), dtype=torch.float32, device=pool.device)
    _gather_kernel[(programs,)](pool, index, out, index.shape[0], WIDTH=width, BLOCK_R=block, **_launch(config))
    return out


@entry
def exp2_loop(x: torch.Tensor, passes: int, config: Config | None = None) -> torch.Tensor:
    """Apply v -> 2^v - 1, which holds 0 fixed and draws all below 1 to it, 16 passes times in every program.

    x: float32 [n], n the table's BLOCK (1024). Returns [programs, n]. Exponentials: programs x n x 16 passes.
    Raises KernelInputError.
    """
    return _register_loop("support_exp2", _exp2_kernel, x, passes, config)


@entry
def fma_loop(x: torch.Tensor, passes: int, config: Config | None = None) -> torch.Tensor:
    """Apply v -> v / 2 + x, which tends to 2 x, 16 passes times in every program.

    x: float32 [n], n the table's BLOCK (4096). Returns [programs, n]. FLOPs: programs x n x 32 passes.
    Raises KernelInputError.
    """
    return _register_loop("support_fma", _fma_kernel, x, passes, config)


UNROLL = 16
"""Steps that one pass of a register loop makes."""


def _register_loop(
    name: str, kernel: triton.JITFunction, x: torch.Tensor, passes: int, config: Config | None
) -> torch.Tensor:
    config = configured(name, x, config)
    block = int(config.meta["BLOCK"])
    check_tensor("x", x, (block,), FLOATS)
    check_range("passes", passes, 1, 2**24)
    programs = int(config.meta["per_sm"]) * target(x).sm_count
    out = torch.empty((programs, block), dtype=torch.float32, device=x.device)
    kernel[(programs,)](x, out, passes, BLOCK=block, UNROLL=UNROLL, **_launch(config))
    return out


@entry
def empty(like: torch.Tensor, config: Config | None = None) -> None:
    """A kernel of one program that does nothing, on the device of `like`, any tensor: what a launch costs.

    Raises KernelInputError.
    """
    check_place("like", like)
    config = configured("support_empty", like, config)
    _empty_kernel[(1,)](**_launch(config))


def _launch(config: Config) -> dict[str, int]:
    return {"num_warps": config.num_warps, "num_stages": config.num_stages}


def copy_reference(x: torch.Tensor) -> torch.Tensor:
    """What `copy` leaves in out."""
    return x.clone()


def triad_reference(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    """What `triad` leaves in out, in float64."""
    return x.double() + factor * y.double()


def sum_reference(x: torch.Tensor, passes: int = 1) -> torch.Tensor:
    """The total of `read_sum`'s results, or each result of `cached_read_sum`, in float64."""
    return x.double().sum() * passes


def gather_sum_reference(pool: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The total of `gather_sum`'s results, in float64."""
    return pool.double()[index.long()].sum(dim=0)


def exp2_loop_reference(x: torch.Tensor, passes: int) -> torch.Tensor:
    """One program's result of `exp2_loop`, in float64."""
    value = x.double()
    for _ in range(passes * UNROLL):
        value = torch.exp2(value) - 1.0
    return value


def fma_loop_reference(x: torch.Tensor, passes: int) -> torch.Tensor:
    """One program's result of `fma_loop`, in float64."""
    value = x.double()
    for _ in range(passes * UNROLL):
        value = value * 0.5 + x.double()
    return value
