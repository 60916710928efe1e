"""Measure a user's kernel on shapes, beside a library, our kernel, the roofline and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.base.errors import NoGpu
from perfmodel.hwspecs import detect
from perfmodel.hwspecs.schema import Gpu
from perfmodel.validate.bench import machine, predict
from perfmodel.validate.bench.case import Case
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.measure import Measured, TooLarge, measure
from perfmodel.validate.bench.own_kernel import inspect, kernel_case
from perfmodel.validate.bench.own_ops import OwnOp
from perfmodel.validate.bench.own_report import Outcome, Report, Time
from perfmodel.validate.bench.predict import Column
from perfmodel.validate.bench.session import Session, session

#: Name of a run in the store.
SUITE = "kernel"


def column(device: str, engine: str) -> tuple[Gpu, Column] | None:
    """Spec of the device and what predicts on it: this machine's fit, else shares of the rates in its spec.

    None for a GPU that no spec describes.
    """
    try:
        spec = detect.cpu() if device == "cpu" else detect.local_gpu()
    except NoGpu:
        return None
    if (own := predict.by_fit(spec, engine)) is not None:
        return spec, own
    plain = predict.by_ceilings(Ceilings({}), spec, engine, device)
    words = (
        f"the rates of {spec.title}, {predict.share_words(engine, device)}; `perfmodel validate --calibrate` fits this "
        "machine"
    )
    return spec, Column(plain.name, plain.clock, words)


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
    notes: dict[str, None] = {}
    with session(where, SUITE, False, threads, say) as s:
        known = column(where, s.engine)
        for case, one in zip(cases, sizes, strict=True):
            say(case.name)
            if (found := _one(s, case, own, one, budget)) is not None:
                outcomes.append(_outcome(one, found, known))
                notes |= dict.fromkeys(f"{who}: {said}" for who, said in found.notes.items())
        s.store.finish(s.run)
    words = f"prediction: {known[1].words}" if known else "no prediction: no spec describes this GPU"
    return Report(name, own.name, chosen, s.run.device, tuple(outcomes), tuple(s.left), (*notes, words))


def _outcome(sizes: Mapping[str, int], found: Measured, known: tuple[Gpu, Column] | None) -> Outcome:
    cost = found.case.op.unit_cost
    times = tuple(Time(who or found.case.source, t.median, t.p20, t.p80, t.noise) for who, t in found.timings.items())
    predicted, least = None, 0.0
    if known is not None:
        spec, told = known
        expected = predict.predict(told, found.case.op)
        predicted = Time("predicted", expected.predicted, expected.low, expected.high)
        least = predict.bound(spec, found.case.op)[0]
    return Outcome(dict(sizes), times, float(cost.flops), float(cost.bytes), found.error, predicted, least)


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
