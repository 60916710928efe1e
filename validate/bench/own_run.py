"""Measure a user's kernel on shapes, beside a library, our kernel, the roofline and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.base.errors import PerfmodelError
from perfmodel.validate.bench import machine
from perfmodel.validate.bench.case import Case, WrongResult
from perfmodel.validate.bench.interrupt import keeping
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.measure import Measured, TooLarge, measure
from perfmodel.validate.bench.own_check import OwnProof, line_of
from perfmodel.validate.bench.own_expect import Expectation, expectation
from perfmodel.validate.bench.own_kernel import kernel_case
from perfmodel.validate.bench.own_ops import OwnOp
from perfmodel.validate.bench.own_report import Outcome, Report, Time
from perfmodel.validate.bench.session import Session, session

#: Name of a run in the store.
SUITE = "kernel"


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
        For the first shape on which the kernel is wrong, before timing or after it: no time of it is kept.
    KeyboardInterrupt
        By Ctrl-C, with what is kept.
    UsageError, NoGpu
        For arguments that do not fit.
    """
    where = machine.choose(device)
    chosen = own.formats[0] if fmt is None else fmt
    cases = [kernel_case(call, name, own, one, chosen, where) for one in sizes]
    outcomes: list[Outcome] = []
    notes: dict[str, None] = {}
    with session(where, SUITE, False, threads, say) as s, keeping(s, "shape"):
        known = expectation(where, s.engine, s.threads)
        for case, one in zip(cases, sizes, strict=True):
            say(case.name)
            if (found := _one(s, case, own, one, budget)) is not None:
                outcomes.append(_outcome(one, found, known))
                notes |= dict.fromkeys(f"{who}: {said}" for who, said in found.notes.items())
        s.store.finish(s.run)
    words = known.lack(cases[0].op, chosen) or known.words
    return Report(name, own.name, chosen, s.run.device, tuple(outcomes), tuple(s.left), (*notes, words))


def _outcome(sizes: Mapping[str, int], found: Measured, known: Expectation) -> Outcome:
    cost = found.case.op.unit_cost
    times = tuple(Time(who or found.case.source, t.median, t.p20, t.p80, t.noise) for who, t in found.timings.items())
    predicted, least = known.of(found.case.op)
    return Outcome(dict(sizes), times, float(cost.flops), float(cost.bytes), found.error, predicted, least)


def _one(s: Session, case: Case, own: OwnOp, sizes: Mapping[str, int], budget: float) -> Measured | None:
    """Measure one shape and keep it; what does not fit the memory is left, with the reason."""
    try:
        found = measure(case, s.room, budget, OwnProof(case, own, sizes))
    except TooLarge as error:
        s.left.append(f"{case.name}: {error}")
        return None
    except PerfmodelError:
        raise
    except Exception as error:
        if _memory(error):
            s.left.append(f"{case.name}: the memory is not enough for its tensors beside what checks them")
            return None
        raise WrongResult(f"{case.name}: {case.source}, or what stands beside it, fails: {line_of(error)}") from error
    for result in found.results():
        s.store.add(s.run, result)
    return found


def _memory(error: Exception) -> bool:
    """Whether there was no memory: of the device, or as torch says it of a processor."""
    full = getattr(import_torch(), "OutOfMemoryError", MemoryError)
    return isinstance(error, MemoryError | full) or "can't allocate memory" in str(error)
