"""A kernel of a suite is looked at again after timing: what went wrong meanwhile gives no time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.case import Case, WrongResult
from perfmodel.validate.bench.cpu import realise
from perfmodel.validate.bench.measure import Room, measure
from perfmodel.validate.bench.watch import CpuWatch

#: Calls of the check, with the one that later results are compared with.
CHECKS = 3


def after(case: Case, how: Callable[[Any, Any], Any]) -> Case:
    """A case that is right in its check, and then does something to its inputs and result."""
    calls = 0

    def run(inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = case.run(inputs)
        return how(inputs, result) if calls > CHECKS else result

    return replace(case, run=run)


def off(inputs: Any, result: Any) -> Any:
    """A result that is wrong."""
    return result * 1.1


def spoils(inputs: Any, result: Any) -> Any:
    """The first argument is zeroed after a right result: the next one agrees with what it then is."""
    inputs[0].zero_()
    return result


@pytest.mark.parametrize("how", [off, spoils])
@pytest.mark.parametrize(
    "op",
    [o.gemm(4, 64, 64, "bf16"), o.attention(1, 4, 2, 32, 1, 64, "bf16"), o.passing("softmax", 8, 64, "fp32")],
    ids=lambda op: op.kind,
)
def test_what_goes_wrong_later_gives_no_time(op: o.Op, how: Callable[[Any, Any], Any]) -> None:
    """Right at first, wrong or with spoiled inputs afterwards: refused after timing, as a wrong kernel is before."""
    watch = CpuWatch(1)
    with pytest.raises(WrongResult, match="seen after timing: its times are not kept") as caught:
        measure(after(realise(op), how), Room("cpu", watch, 1e5, 1e9), 0.02)
    assert caught.value.exit_code == 1
    assert watch.batches > 0


@pytest.mark.parametrize(
    "op",
    [o.passing("rope", 8, 128, "bf16"), o.passing("norm", 8, 128, "bf16"), o.rejection(9, 4, 64)],
    ids=lambda op: op.name,
)
def test_right_kernels_stay_right(op: o.Op) -> None:
    """Passes that write into buffers of theirs, and kernels whose result is whole numbers, are right after timing."""
    assert measure(realise(op), Room("cpu", CpuWatch(1), 1e5, 1e9), 0.02).timings[""].median > 0
