"""What a case is, how its inputs are drawn, and the correctness gate that stands before its timing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """The shapes to run: those of Llama 3 8B, or tiny ones of the same form for the dry run. Sizes in bytes."""

    hidden: int = 4096
    ffn: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    rows: tuple[int, ...] = (1, 8, 16, 64, 128, 512, 1024, 4096, 8192)
    head_rows: tuple[int, ...] = (1, 8, 64, 512)
    squares: tuple[int, ...] = (4096, 8192)
    prefill: tuple[tuple[int, int], ...] = (
        *((1, 128), (1, 512), (1, 2048), (1, 8192), (1, 32768)),
        *((4, 512), (4, 2048), (4, 8192), (16, 512), (16, 2048)),
    )
    contexts: tuple[int, ...] = (512, 4096, 32768)
    batches: tuple[int, ...] = (1, 16, 64)
    buffers: tuple[int, ...] = tuple(2**16 * 4**i for i in range(8))  # 64 KiB to 1 GiB
    warm: int = 8192
    warm_s: float = 1.0
    sustained_s: float = 2.0


TINY = Sizes(
    hidden=256,
    ffn=512,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocab=1024,
    rows=(1, 32),
    head_rows=(1,),
    squares=(256,),
    prefill=((1, 64), (2, 128)),
    contexts=(64, 512),
    batches=(1, 2),
    buffers=(2**16, 2**18),
    warm=128,
    warm_s=0.02,
    sustained_s=0.05,
)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    ``make(device)`` draws one set of inputs, ``run(inputs)`` does the work and returns its output, and
    ``reference(inputs, output)`` returns a sample of the output and the same sample computed in fp64. ``columns`` are
    those of the table. ``set_bytes`` is what one set of buffers occupies, ``moved_bytes`` what a call reads and writes.
    ``mode`` is device (time of the work), issue, round_trip or graph_round_trip (time on the host). ``unsupported``
    says why the case can run nowhere here, ``cuda_unsupported`` why it cannot run on a CUDA device.
    """

    name: str
    table: str
    group: str
    source: str
    columns: Mapping[str, object]
    make: Callable[[torch.device], Tensors]
    run: Callable[[Tensors], torch.Tensor]
    reference: Callable[[Tensors, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    tolerance: float
    set_bytes: int
    moved_bytes: int
    flops: float = 0.0
    core: bool = False
    mode: str = "device"
    rotate: bool = True
    cuda_only: bool = False
    min_capability: tuple[int, int] = (0, 0)
    unsupported: str = ""
    cuda_unsupported: str = ""
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    sustained_s: float = 0.0


class WrongResultError(RuntimeError):
    """The output differs from the reference by more than the tolerance: the case is not timed."""

    def __init__(self, message: str, error: float) -> None:
        super().__init__(message)
        self.error = error


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Draw standard normal numbers; int8 gets 32 times as much, rounded and held within -127 to 127."""
    if dtype == torch.int8:
        wide = torch.randn(shape, dtype=torch.bfloat16, device=device)
        return wide.mul_(32).round_().clamp_(-127, 127).to(torch.int8)
    if dtype.itemsize == 1:
        return torch.randn(shape, dtype=torch.bfloat16, device=device).to(dtype)
    return torch.randn(shape, dtype=dtype, device=device)


def pick(size: int, count: int, device: torch.device) -> torch.Tensor:
    """Choose at most ``count`` indices below ``size`` in order: the first, the last and random ones between."""
    if size <= count:
        return torch.arange(size, device=device)
    ends = torch.tensor([0, size - 1], device=device)
    return torch.unique(torch.cat([ends, torch.randint(0, size, (count - 2,), device=device)]))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| in the Frobenius norm (|actual| if all expected are zero; NaN is inf)."""
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    scale = float(torch.linalg.vector_norm(expected.double()))
    error = float(torch.linalg.vector_norm(actual.double() - expected.double())) / (scale or 1.0)
    return error if math.isfinite(error) else math.inf


def _poison(output: torch.Tensor) -> None:
    output.fill_(math.nan if output.is_floating_point() else torch.iinfo(output.dtype).min)


def _unwritten(output: torch.Tensor) -> bool:
    if output.is_floating_point():
        return not bool(torch.isfinite(output).all())
    return bool((output == torch.iinfo(output.dtype).min).any())


def gate(case: Case, inputs: Tensors) -> float:
    """Run the case on ``inputs`` and return its relative error; raise WrongResultError past the tolerance.

    The output of a first run is overwritten with NaN (the least integer) before the run that is checked, so that an
    element that nothing writes is seen; an output that the run allocates gets the same memory again.
    """
    first = case.run(inputs)
    _poison(first)
    del first
    output = case.run(inputs)
    actual, expected = case.reference(inputs, output)
    error = relative_error(actual, expected)
    if error > case.tolerance:
        raise WrongResultError(f"wrong result: relative error {error:.3g}, tolerance {case.tolerance:g}", error)
    if _unwritten(output):
        raise WrongResultError("wrong result: some outputs were never written, or are not finite", math.inf)
    return error
