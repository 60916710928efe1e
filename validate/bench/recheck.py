"""A kernel that was right once may be wrong later: it is checked again after timing, on several sets of buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.validate.bench.case import Case, Inputs, Tensor, WrongResult, relative_error
from perfmodel.validate.bench.machine import import_torch

#: Numbers of a result that are kept, to see whether it stays the same.
KEPT = 1 << 16
#: Calls that are looked at after timing.
CALLS = 3

#: What looks at the result of a call; it raises WrongResult.
Judge = Callable[[Inputs, Tensor], None]


def steady(case: Case, inputs: Inputs) -> Judge:
    """A judge of later calls on these inputs or copies of them: right by float64, and as the first result was.

    The second finds what spoils its inputs: the float64 result of spoiled inputs agrees with what is made of them. It
    is left out where copies hold other rows, where the kernel works in place, and for whole numbers.
    """
    before = None if case.trial or hasattr(inputs, "again") else _some(case.run(inputs))

    def judge(x: Inputs, result: Tensor) -> None:
        error = relative_error(*case.reference(x, result))
        if before is not None and result.is_floating_point():
            error = max(error, relative_error(_some(result), before) / 2)  # both may be off by rounding
        if not error <= case.allowed:
            raise WrongResult(
                f"{case.name}: {case.source} gives a wrong result: relative error {error:.3g}, {case.allowed:g} is "
                "the most that rounding makes"
            )

    return judge


def _some(result: Tensor) -> Tensor:
    """Numbers of a result at fixed places, in float64."""
    flat = result.detach().reshape(-1)
    kept = flat[:: max(1, len(flat) // KEPT)]
    if kept.dtype.itemsize == 1 and kept.is_floating_point():  # not every version of torch copies 8-bit floats
        kept = kept.float()
    return kept.to(import_torch().float64, copy=True)


def again(case: Case, sets: Sequence[Inputs], judge: Judge, *, least: int, most: int, seconds: float) -> None:
    """Call a kernel on one set of buffers after another, the last one first, and look at each result.

    Parameters
    ----------
    least, most : int
        Calls; between them as many as the time allows.
    seconds : float

    Raises
    ------
    WrongResult
        For the first result that is wrong.
    """
    run: Callable[[Any], Tensor] = case.trial or case.run
    end = time.perf_counter() + seconds
    for number in range(1, most + 1):
        x = sets[-number % len(sets)]
        judge(x, run(x))
        if number >= least and time.perf_counter() > end:
            return
