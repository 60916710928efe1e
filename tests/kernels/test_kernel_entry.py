"""What public kernel functions do first: kinds of arguments, and the GPU of their tensors as the current one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.entry import entry
from perfmodel.kernels.support.ceilings import copy

X = torch.zeros(2)


@dataclass(frozen=True)
class Held:
    """A tensor and a number in a dataclass."""

    tensor: torch.Tensor
    count: int = 1


@entry
def taking(
    x: torch.Tensor,
    n: int = 1,
    factor: float | None = None,
    *,
    held: Held | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
    flag: bool = False,
) -> int:
    """Return n."""
    return n


TAKEN = [((X,), {}), ((X, 3, 2), {}), ((X,), {"factor": 0.5, "held": Held(X), "out": (X, X), "flag": True})]


@pytest.mark.parametrize(("args", "kwargs"), TAKEN)
def test_what_fits_is_passed_on(args: tuple, kwargs: dict) -> None:
    """By position or by name, with an integer for a number, None where it may be; the result comes back."""
    assert taking(*args, **kwargs) == (args[1] if len(args) > 1 else 1)


REFUSED = [
    (([1.0],), {}, "x is list, a torch tensor is needed"),
    ((None,), {}, "x is None, a torch tensor is needed"),
    ((2.0,), {}, "x is float, a torch tensor is needed"),
    ((X, 2.5), {}, "n is 2.5, an integer is needed"),
    ((X, True), {}, "n is True, an integer is needed"),
    ((X,), {"factor": "2"}, "factor is '2', a number or None is needed"),
    ((X,), {"factor": False}, "factor is False, a number or None is needed"),
    ((X,), {"held": X}, "held is Tensor, a Held or None is needed"),
    ((X,), {"held": Held([0])}, "held.tensor is list, a torch tensor is needed"),
    ((X,), {"held": Held(X, 0.5)}, "held.count is 0.5, an integer is needed"),
    ((X,), {"out": X}, r"out is Tensor, a tuple of 2 \(a torch tensor, a torch tensor\) or None is needed"),
    ((X,), {"out": (X, None)}, r"out is tuple, a tuple of 2 \(a torch tensor, a torch tensor\) or None is needed"),
    ((X,), {"dtype": "float16"}, "dtype is 'float16', a torch.dtype is needed"),
    ((X,), {"flag": 1}, "flag is 1, True or False is needed"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(args: tuple, kwargs: dict, message: str) -> None:
    """Argument or field, its value or type, and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        taking(*args, **kwargs)


def test_unknown_names_are_left_to_python() -> None:
    """A name that the function does not have, and one that is missing, are Python's TypeError."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        taking(X, y=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        taking()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The current GPU of a machine without one, as the last element of all that there were; the first is 0."""
    current = [0]

    @contextlib.contextmanager
    def switched(device: torch.device) -> Iterator[None]:
        before = current[-1]
        current.append(device.index)
        yield
        current.append(before)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", switched)
    return current


@pytest.mark.parametrize(("index", "seen"), [(1, [0, 1, 0]), (0, [0])])
def test_the_gpu_of_the_tensors_is_current(gpu: list[int], index: int, seen: list[int]) -> None:
    """A function called with tensors of another GPU runs with that as the current one, and leaves it as it was."""

    @entry
    def where(x: torch.Tensor) -> int:
        return torch.cuda.current_device()

    @entry
    def where_held(held: Held) -> int:
        return torch.cuda.current_device()

    with FakeTensorMode():
        there = torch.empty(4, device=f"cuda:{index}")
    assert where(there) == where(x=there) == where_held(Held(there)) == index
    assert gpu == [*seen, *seen[1:], *seen[1:]]


@pytest.mark.gpu
def test_a_launch_on_a_gpu_that_is_not_the_current_one() -> None:
    """Tensors of the second GPU are copied there while the first is the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    x = torch.arange(10_000, dtype=torch.float32, device="cuda:1")
    out = torch.zeros_like(x)
    with torch.cuda.device(0):
        copy(x, out)
        assert torch.cuda.current_device() == 0
    assert torch.equal(out, x)
