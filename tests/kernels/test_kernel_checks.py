"""Kernel arguments are refused by name, with the value, what is needed and what to do."""

import pytest
import torch

from perfmodel.kernels.checks import (
    KernelInputError,
    check_apart,
    check_multiple,
    check_range,
    check_tensor,
    check_written,
    require,
)
from perfmodel.kernels.device import assume

pytestmark = pytest.mark.interpreter

F16, BF16 = torch.float16, torch.bfloat16
GOOD = torch.zeros(4, 8, dtype=F16)
ODD = torch.zeros(65, dtype=F16)[1:].view(8, 8)
BAD = [
    # tensor, shape, dtypes, further arguments, message
    ([1, 2], (2,), (F16,), {}, "x is list, a torch tensor is needed"),
    (GOOD, (4, 9), (F16,), {}, r"x has shape \(4, 8\), \(4, 9\) is needed"),
    (GOOD, (None, 9), (F16,), {}, r"x has shape \(4, 8\), \(any, 9\) is needed"),
    (GOOD, (4, 8, 1), (F16,), {}, r"x has shape \(4, 8\), \(4, 8, 1\) is needed"),
    (GOOD, (4, 8), (BF16,), {}, "x is float16, bfloat16 is needed"),
    (GOOD, (4, 8), (BF16, torch.float32), {}, "x is float16, bfloat16 or float32 is needed"),
    (GOOD.T, (8, 4), (F16,), {}, r"x is not contiguous \(strides \(1, 8\)\); call .contiguous\(\)"),
    (ODD, (8, 8), (F16,), {}, r"x starts 2 bytes off a multiple of 16; copy it with .clone\(\)"),
    (GOOD, (4, 8), (F16,), {"like": torch.empty(1, device="meta")}, "x is on cpu, the others are on meta"),
]


@pytest.mark.parametrize(("tensor", "shape", "dtypes", "more", "message"), BAD)
def test_bad_tensors(tensor, shape, dtypes, more, message) -> None:
    """Each kind of mistake has a message of its own."""
    with pytest.raises(KernelInputError, match=message):
        check_tensor("x", tensor, shape, dtypes, **more)


@pytest.mark.parametrize(
    ("tensor", "shape", "more"),
    [
        (GOOD, (4, 8), {}),
        (GOOD, (None, None), {"like": ODD}),
        (GOOD.T, (8, 4), {"contiguous": False}),
        (ODD, (8, 8), {"align": 2}),
        (torch.empty(0, 8, dtype=F16), (0, 8), {}),
    ],
)
def test_good_tensors(tensor, shape, more) -> None:
    """What is allowed passes: any length, any stride or alignment where so asked, empty."""
    check_tensor("x", tensor, shape, (F16, BF16), **more)


def test_tensors_without_data_are_for_compiling_alone() -> None:
    """On the meta device a tensor is refused, unless launches are compiled and nothing else."""
    nothing = torch.empty(4, 8, dtype=F16, device="meta")
    with pytest.raises(KernelInputError, match="x is on meta; the interpreter takes CPU tensors"):
        check_tensor("x", nothing, (4, 8), (F16,))
    with assume("sm_90"), pytest.raises(KernelInputError, match="x is on meta"):
        check_tensor("x", nothing, (4, 8), (F16,))
    with assume("sm_90", ahead_of_time=True):
        check_tensor("x", nothing, (4, 8), (F16,))
        with pytest.raises(KernelInputError, match="y is on cpu, the others are on meta"):
            check_tensor("y", GOOD, (4, 8), (F16,), like=nothing)


WHOLE = torch.zeros(6, 10)


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (WHOLE, True),
        (WHOLE.T, True),
        (WHOLE[:, ::3], True),
        (WHOLE[:, 2:5], True),
        (WHOLE[:1].expand(6, 10), False),
        (WHOLE[:, :1].expand(6, 10), False),
        (WHOLE[:1, :1].expand(1, 1), True),
        (WHOLE.as_strided((3, 4), (3, 1)), False),
        (WHOLE.as_strided((3, 4), (4, 1)), True),
        (WHOLE[:0], True),
    ],
)
def test_what_is_written_holds_each_element_once(tensor, fits) -> None:
    """Transposed, sliced and packed tensors do; expanded ones, and rows that overlap, do not."""
    if fits:
        check_written("x", tensor)
    else:
        with pytest.raises(KernelInputError, match=r"x has strides .*: elements that are written overlap"):
            check_written("x", tensor)


LINE = torch.zeros(100)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (LINE[:50], LINE[50:], True),
        (LINE[:50], LINE[49:], False),
        (LINE, LINE, False),
        (LINE[10:20], LINE, False),
        (LINE, LINE.clone(), True),
        (WHOLE[:, :4], WHOLE[:, 4:], True),  # the rows of slices alternate
        (WHOLE[:, 4:], WHOLE[:, :4], True),
        (WHOLE[:, :5], WHOLE[:, 4:], False),
        (WHOLE[1:, :4], WHOLE[:-1, 4:], True),
        (WHOLE[1:, :4], WHOLE[:-1, 3:], False),
        (WHOLE[:, 8:], WHOLE.flatten()[10:50].view(4, 10)[:, :3], True),
        (WHOLE[:, :4], WHOLE.flatten()[5:], False),  # of other dimensions: not looked into
        (WHOLE[:0], WHOLE, True),
        (WHOLE.to("meta"), WHOLE.to("meta"), True),
    ],
)
def test_memory_that_is_shared_is_found(one, other, apart) -> None:
    """Tensors that overlap are told from neighbours, whichever comes first."""
    for x, y in ((one, other), (other, one)):
        if apart:
            check_apart("x", x, {"y": y, "z": None})
        else:
            with pytest.raises(KernelInputError, match=r"x shares memory with y; pass another tensor, or a .clone\(\)"):
                check_apart("x", x, {"z": None, "y": y})


def test_a_cpu_tensor_needs_the_interpreter(monkeypatch) -> None:
    """Where kernels are compiled, a CPU tensor is refused with both ways out."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(KernelInputError, match=r"x is on cpu; a CUDA tensor is needed \(or TRITON_INTERPRET=1\)"):
        check_tensor("x", GOOD, (4, 8), (F16,))


@pytest.mark.parametrize(("value", "of"), [(0, 8), (-8, 8), (12, 8)])
def test_multiples(value, of) -> None:
    """Zero, negative numbers and remainders are refused."""
    with pytest.raises(KernelInputError, match=f"n is {value}, a positive multiple of {of} is needed"):
        check_multiple("n", value, of)
    check_multiple("n", 3 * of, of)


@pytest.mark.parametrize("value", [0, 9])
def test_ranges(value) -> None:
    """Both limits belong to the range."""
    with pytest.raises(KernelInputError, match=f"n is {value}, 1 to 8 is supported"):
        check_range("n", value, 1, 8)
    check_range("n", 1, 1, 8)
    check_range("n", 8, 1, 8)


def test_errors_are_value_errors() -> None:
    """A caller can catch them without knowing this package."""
    with pytest.raises(ValueError, match=r"^no$"):
        require(False, "no")
    require(True, "no")
