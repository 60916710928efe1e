"""A case: an operator, the code that realises it, its inputs, and the check that stands before its timing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import PerfmodelError
from perfmodel.roofline.op import Op
from perfmodel.validate.bench.machine import import_torch

#: Buffers of a case: tensors, or what holds them.
Inputs = Any
Tensor = Any

#: Relative error (Frobenius) that a right result may have, by format: its rounding, and that of partial sums in it. A
#: wrong or missing term is far above. Int8 products are exact before they are scaled.
TOLERANCE = {"fp32": 2e-5, "bf16": 8e-3, "fp16": 2e-3, "fp8": 3e-2, "int8": 4e-3}


class WrongResult(PerfmodelError):
    """A kernel's result is off by more than rounding: it is not timed."""

    exit_code = 1


class NotRealised(Exception):
    """No code here does this operator; the message says why."""


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes
    ----------
    name : str
        Unique in a run.
    op : Op
        The operator of the graph that it realises, with its cost.
    engine, source : str
        Whose code, such as ``torch-cpu`` or ``triton``; and which function.
    fmt : str
        Number format, such as ``bf16``.
    make : Callable
        ``make()`` draws one set of inputs with random numbers.
    run : Callable
        ``run(inputs)`` does the work and returns its result.
    reference : Callable
        ``reference(inputs, result)``: a sample of the result, and the same in float64.
    touched : float
        Bytes of a set of inputs and its result.
    tolerance : float
        Largest relative error.
    beside : Mapping
        Name of a library -> its call on the same inputs, timed in turns with ``run``.
    detail : Mapping
        What else is worth keeping.
    explain : Callable, optional
        ``explain(inputs)``: what explains the time, such as the padding of the kernel's tiles: see ``compare``.
    trial : Callable, optional
        What is run for the check, where ``run`` works in place: the same on copies.
    """

    name: str
    op: Op
    engine: str
    source: str
    fmt: str
    make: Callable[[], Inputs]
    run: Callable[[Inputs], Tensor]
    reference: Callable[[Inputs, Tensor], tuple[Tensor, Tensor]]
    touched: float
    tolerance: float = 0.0
    beside: Mapping[str, Callable[[Inputs], Tensor]] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    explain: Callable[[Inputs], Mapping[str, Any]] | None = None
    trial: Callable[[Inputs], Tensor] | None = None

    @property
    def allowed(self) -> float:
        """The case's tolerance, else that of its format."""
        return self.tolerance or TOLERANCE[self.fmt]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """``|actual - expected| / |expected|`` in the Frobenius norm; infinite where a number is not finite."""
    norm = import_torch().linalg.vector_norm
    if actual.shape != expected.shape:
        raise WrongResult(f"the result has shape {tuple(actual.shape)}, and {tuple(expected.shape)} is right")
    scale = float(norm(expected.double()))
    error = float(norm(actual.double() - expected.double())) / (scale or 1.0)
    return error if math.isfinite(error) else math.inf


def _poison(result: Tensor) -> None:
    torch = import_torch()
    result.fill_(math.nan if result.is_floating_point() else torch.iinfo(result.dtype).min)


def check(case: Case, inputs: Inputs, run: Callable[[Inputs], Tensor] | None = None, who: str = "") -> float:
    """Run a case once and return the relative error of its result.

    The result of a first run is overwritten with NaN (or the least integer) before the one that is checked, so that
    what nothing writes is seen where the memory is used again.

    Parameters
    ----------
    run, who : optional
        Another call on the same inputs, and its name: a library's.

    Raises
    ------
    WrongResult
        When it is off by more than the tolerance: nothing may be timed then.
    """
    call = run or case.trial or case.run
    first = call(inputs)
    _poison(first)
    del first
    result = call(inputs)
    actual, expected = case.reference(inputs, result)
    error = relative_error(actual, expected)
    if not error <= case.allowed:
        raise WrongResult(
            f"{case.name}: {who or case.source} gives a wrong result: relative error {error:.3g}, {case.allowed:g} is "
            "the most that rounding makes; a wrong kernel is not timed"
        )
    return error


def draw(shape: tuple[int, ...], fmt: str, device: str = "cpu") -> Tensor:
    """Random numbers of a format: standard normal, or whole numbers from -127 to 127."""
    torch = import_torch()
    if fmt == "int8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    if fmt == "fp8":
        return torch.randn(shape, dtype=torch.bfloat16, device=device).to(torch.float8_e4m3fn)
    return torch.randn(shape, dtype=torch_type(fmt), device=device)


def torch_type(fmt: str) -> Any:
    """torch's type of a format."""
    torch = import_torch()
    return {
        "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
        "fp8": torch.float8_e4m3fn,
    }[fmt]  # fmt: skip


def clone(inputs: Inputs) -> Inputs:
    """The same inputs in other memory: tensors in tuples, lists, and dataclasses are copied, all else is kept.

    What has a method ``again`` says by itself what other memory is: other rows of one large table.
    """
    torch = import_torch()
    if hasattr(inputs, "again"):
        return inputs.again()
    if isinstance(inputs, torch.Tensor):
        copy = torch.empty_strided(inputs.shape, inputs.stride(), dtype=inputs.dtype, device=inputs.device)
        return copy.copy_(inputs)
    if isinstance(inputs, tuple | list):
        made = [clone(one) for one in inputs]
        return type(inputs)(*made) if hasattr(inputs, "_fields") else type(inputs)(made)
    if hasattr(inputs, "__dataclass_fields__"):
        return type(inputs)(**{name: clone(getattr(inputs, name)) for name in inputs.__dataclass_fields__})
    return inputs


def pick(size: int, count: int) -> Tensor:
    """At most ``count`` places below ``size``: the first, the last, and random ones between."""
    torch = import_torch()
    if size <= count:
        return torch.arange(size)
    return torch.unique(torch.cat([torch.tensor([0, size - 1]), torch.randint(0, size, (count - 2,))]))
