"""Kernel arguments are refused by name, with the value, what is needed and what to do."""

import pytest
import torch

from perfmodel.kernels.checks import KernelInputError, check_multiple, check_range, check_tensor, require

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
        (torch.empty(4, 8, dtype=F16, device="meta"), (4, 8), {}),
    ],
)
def test_good_tensors(tensor, shape, more) -> None:
    """What is allowed passes: any length, any stride or alignment where so asked, empty, on the meta device."""
    check_tensor("x", tensor, shape, (F16, BF16), **more)


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
