"""Measure a user's kernel on shapes, beside a library, our kernel, the roofline and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import NoGpu, UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.op import Op
from perfmodel.validate.bench import machine
from perfmodel.validate.bench.case import Case
from perfmodel.validate.bench.measure import Measured, TooLarge, measure
from perfmodel.validate.bench.own_kernel import inspect, kernel_case
from perfmodel.validate.bench.own_ops import OwnOp
from perfmodel.validate.bench.session import Session, session

#: Name of a run in the store.
SUITE = "kernel"


@dataclass(frozen=True)
class Prediction:
    """What is expected of an operator. [s]

    Attributes
    ----------
    bound : float
        By the roofline.
    predicted, low, high : float
        By the fit of this device, else by the nearest.
    origin : str
        Of the prediction.
    limiter : str
    """

    bound: float
    predicted: float
    low: float
    high: float
    origin: str
    limiter: str


@dataclass(frozen=True)
class Outcome:
    """A kernel on one shape."""

    sizes: Mapping[str, int]
    measured: Measured
    prediction: Prediction | None


@dataclass(frozen=True)
class Report:
    """A kernel on all its shapes.

    Attributes
    ----------
    kernel, op, fmt, device : str
        ``device`` is its name.
    outcomes : tuple
    left : tuple[str, ...]
        What was not measured, with the reason.
    notes : tuple[str, ...]
    """

    kernel: str
    op: str
    fmt: str
    device: str
    outcomes: tuple[Outcome, ...]
    left: tuple[str, ...]
    notes: tuple[str, ...]


def spec_of(device: str) -> Gpu | None:
    """The spec of the device that is measured; None for a GPU that no spec describes."""
    from perfmodel.hwspecs import detect

    if device == "cpu":
        return detect.cpu()
    try:
        return detect.local_gpu()
    except NoGpu:
        return None


def predict(op: Op, gpu: Gpu, engine: str) -> Prediction:
    """Bound and calibrated time of an operator on a device, with the fit of ``engine`` where this machine has one."""
    from perfmodel.roofline.calibrated.model import Calibrated
    from perfmodel.roofline.efficiency import load

    try:
        fits = load(gpu, engine)
    except UsageError:  # this machine has no fit of its own
        fits = load(gpu)
    found = Calibrated(gpu, fits).time(op)
    return Prediction(
        float(found.bound), float(found.predicted), float(found.low), float(found.high), found.origin, found.limiter
    )  # fmt: skip


def run(
    call: Callable[..., Any], name: str, own: OwnOp, sizes: Sequence[Mapping[str, int]], *, fmt: str | None = None,
    device: str | None = None, threads: int | None = None, budget: float = 2.0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:  # fmt: skip
    """Check and time a kernel on each shape; every row is kept in the store as it is finished.

    Parameters
    ----------
    name : str
        Of the kernel, as the user gave it.
    fmt : str, optional
        Number format; the operation's first by default.
    device : str, optional
        ``cpu`` or ``cuda``; the GPU where there is one by default.
    threads : int, optional
        Of a processor.
    budget : float
        Time for each shape, shared with what stands beside it. [s]
    say : Callable
        Progress.

    Raises
    ------
    WrongResult
        For the first shape on which the kernel is wrong: nothing is timed on it.
    UsageError, NoGpu
        For arguments that do not fit.
    """
    where = machine.choose(device)
    chosen = own.formats[0] if fmt is None else fmt
    cases = [kernel_case(call, name, own, one, chosen, where) for one in sizes]
    outcomes: list[Outcome] = []
    with session(where, SUITE, False, threads, say) as s:
        spec = spec_of(where)
        for case, one in zip(cases, sizes, strict=True):
            say(case.name)
            if (found := _one(s, case, own, one, budget)) is not None:
                outcomes.append(Outcome(one, found, predict(case.op, spec, s.engine) if spec else None))
        s.store.finish(s.run)
    notes = dict.fromkeys(f"{who}: {said}" for o in outcomes for who, said in o.measured.notes.items())
    return Report(name, own.name, chosen, s.run.device, tuple(outcomes), tuple(s.left), tuple(notes))


def _one(s: Session, case: Case, own: OwnOp, sizes: Mapping[str, int], budget: float) -> Measured | None:
    """Measure one shape and keep it; what does not fit the memory is left, with the reason."""
    try:
        if case.touched > s.room.memory:
            raise TooLarge(f"needs {case.touched / 1e9:.2f} GB, and {s.room.memory / 1e9:.2f} GB may be used")
        inspect(case, own, sizes, s.device)
        found = measure(case, s.room, budget)
    except TooLarge as error:
        s.left.append(f"{case.name}: {error}")
        return None
    for result in found.results():
        s.store.add(s.run, result)
    return found
