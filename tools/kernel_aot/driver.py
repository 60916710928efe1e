"""A CUDA driver that is not there: kernel launches become compilations, by the same path as on the GPU."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from perfmodel.kernels import device, table

Row = tuple[str, str, int]
KERNELS = device.__name__.rpartition(".")[0]


class AbsentGpu:
    """What Triton asks of a driver while it compiles.

    Each is a device with a number of its own: Triton remembers target and kernels by it, and is to begin afresh.
    """

    numbers = itertools.count()

    def __init__(self, arch: str) -> None:
        self.capability = int(arch.removeprefix("sm_"))
        self.number = next(self.numbers)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.capability, 10)

    def set_current_device(self, device: int) -> None:
        """There is only one."""

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


@dataclass
class Launch:
    """One kernel launch: the function, its grid, the public function it came from, what specialises it, and the
    compiled kernel if it was compiled."""

    function: JITFunction[Any]
    grid: tuple[int, ...]
    caller: str = ""
    signature: dict[str, str] = field(default_factory=dict)
    constants: dict[Any, Any] = field(default_factory=dict)
    attributes: dict[Any, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    compiled: Any = None

    def take_specialisation(self, other: Launch) -> None:
        """That of an equal launch before this one: Triton does not compile a second time."""
        self.signature, self.constants = other.signature, other.constants
        self.attributes, self.options = other.attributes, other.options


@dataclass
class Recording:
    """What a call launched, and the rows of launch tables that it took."""

    launches: list[Launch] = field(default_factory=list)
    rows: set[Row] = field(default_factory=set)


def _caller() -> str:
    """The outermost public function of the kernels that is being called, as module:name."""
    found, frame = "", inspect.currentframe()
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith(f"{KERNELS}.") and not name.startswith(("_", "<")):
            found = f"{module}:{name}"
        frame = frame.f_back
    return found


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _noting_rows(recording: Recording) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Stand-ins for `table.rows` and `Row.applies` that note which row was taken."""
    rows, applies = table.rows, table.Row.applies
    asked: list[tuple[str, str]] = []

    def noting_rows(kernel: str, arch: str) -> tuple[table.Row, ...]:
        asked.append((kernel, arch))
        return rows(kernel, arch)

    def noting_applies(row: table.Row, quantities: dict[str, int]) -> bool:
        taken = applies(row, quantities)
        if taken and asked:
            recording.rows.add((*asked[-1], row.config.row))
        return taken

    return noting_rows, noting_applies


@contextlib.contextmanager
def recording(arch: str, *, compiled: bool) -> Iterator[Recording]:
    """Within it every launch is recorded, and compiled for `arch` if so asked; nothing runs."""
    found = Recording()
    run, compile_now = JITFunction.run, JITFunction._do_compile

    def recorded_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        launch = Launch(self, tuple(grid(kwargs) if callable(grid) else grid), _caller())
        found.launches.append(launch)
        launch.compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        if compiled and not launch.signature:
            launch.take_specialisation(next(other for other in found.launches if other.compiled is launch.compiled))
        return launch.compiled

    def noted_compile(self: Any, key: Any, signature: Any, at: Any, constants: Any, options: Any, *rest: Any) -> Any:
        launch = found.launches[-1]
        launch.signature, launch.constants, launch.options = signature, constants, vars(options)
        launch.attributes = rest[0]
        return compile_now(self, key, signature, at, constants, options, *rest) if compiled else None

    noting_rows, noting_applies = _noting_rows(found)
    driver.set_active(AbsentGpu(arch))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(JITFunction, "run", recorded_run))
        stack.enter_context(_replaced(JITFunction, "_do_compile", noted_compile))
        stack.enter_context(_replaced(table, "rows", noting_rows))
        stack.enter_context(_replaced(table.Row, "applies", noting_applies))
        stack.enter_context(device.assume(arch, ahead_of_time=True))
        yield found
