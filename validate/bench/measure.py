"""Measure a case: check it, spread its inputs over more memory than a cache holds, time it in turns with a library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfmodel.validate.bench import machine
from perfmodel.validate.bench.case import Case, WrongResult, check, clone
from perfmodel.validate.bench.operators import pack
from perfmodel.validate.bench.recheck import CALLS, Judge, again, steady
from perfmodel.validate.bench.store import Result
from perfmodel.validate.bench.timing import PRECISE, Stopwatch, Timing, interleaved, rotation


@dataclass(frozen=True)
class Room:
    """Where cases run.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    watch : Stopwatch
    cache : float
        Last-level cache. [bytes]
    memory : float
        What the buffers of a case may take. [bytes]
    precise : float
        Half-width of the median's interval, over the median, at which a case is done.
    """

    device: str
    watch: Stopwatch
    cache: float
    memory: float
    precise: float = PRECISE

    def forget(self) -> None:
        """Let go of what the last case left behind."""
        getattr(self.watch, "forget", lambda: None)()
        if self.device == "cuda":
            machine.import_torch().cuda.empty_cache()


class TooLarge(Exception):
    """A case does not fit the memory that there is; the message says how much it needs."""


class Proof(Protocol):
    """How a kernel that nobody vouches for is looked at. Each of these raises WrongResult.

    Attributes
    ----------
    least, most : int
        Calls that are looked at before timing, and again after it; between them as many as the time allows.
    share : float
        Of the case's time, for each of the two.
    """

    least: int
    most: int
    share: float

    def begin(self, inputs: Any) -> None:
        """Call it once on inputs, of which the later ones are copies."""

    def judge(self, inputs: Any, result: Any) -> None:
        """Look at the result of a later call."""

    def close(self, sets: Sequence[Any]) -> None:
        """A look at all sets of buffers, after timing."""


@dataclass(frozen=True)
class Measured:
    """A case and its times.

    Attributes
    ----------
    case : Case
    timings : Mapping[str, Timing]
        ``""`` is the case's own; a library's by its name.
    error : float
        Relative error of the result.
    copies : int
        Sets of buffers that were gone through.
    notes : Mapping
        What a library's call said instead of running.
    states : tuple
        Clocks before and after.
    spoiled : float
        Share of the readings that other processes spoiled.
    detail : Mapping
        What explains the time.
    """

    case: Case
    timings: Mapping[str, Timing]
    error: float
    copies: int
    notes: Mapping[str, str] = field(default_factory=dict)
    states: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    spoiled: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)

    def results(self) -> list[Result]:
        """As the store keeps them: the case's own, then the libraries' under their names as engine."""
        return [self._result(who, timing) for who, timing in self.timings.items()]

    def _result(self, who: str, t: Timing) -> Result:
        case = self.case
        more = {
            "source": who or case.source, "error": self.error, "repeats": t.repeats, "copies": self.copies,
            "clock": t.clock, "before": dict(self.states[0]), "after": dict(self.states[1]), "notes": dict(self.notes),
            "detail": {**case.detail, **self.detail},
        }  # fmt: skip
        return Result(
            case.name, case.op.kind, who or case.engine, case.fmt, pack(case.op), t.median, t.p20, t.p80, t.precision,
            t.samples, more,
        )  # fmt: skip


def measure(case: Case, room: Room, budget: float, proof: Proof | None = None) -> Measured:
    """Check a case, time it, and check it again.

    Parameters
    ----------
    budget : float
        Time for it and the libraries beside it. [s]
    proof : Proof, optional
        A closer look at many of its results, before timing and after it.

    Raises
    ------
    WrongResult
        When its result is wrong: before timing, then nothing is timed, or after it, then no time is given.
    TooLarge
        When a single set of buffers does not fit.
    """
    if case.touched > room.memory:
        raise TooLarge(f"needs {case.touched / 1e9:.2f} GB, and {room.memory / 1e9:.2f} GB may be used")
    torch = machine.import_torch()
    with torch.inference_mode():
        first = case.make()
        if proof:
            proof.begin(first)
        error = check(case, first)
        judge = proof.judge if proof else steady(case, first)
        beside, notes = _libraries(case, first)
        detail = dict(case.explain(first)) if case.explain else {}
        copies = rotation(case.touched, room.cache, room.memory)
        sets = [first, *(clone(first) for _ in range(copies - 1))]
        candidates: dict[str, Sequence[Callable[[], object]]] = {"": _calls(case.run, sets)}
        candidates |= {name: _calls(run, sets) for name, run in beside.items()}
        if proof:
            again(case, sets, judge, least=proof.least, most=proof.most, seconds=proof.share * budget)
        before, counts = machine.state(room.device), _counts(room.watch)
        timings = interleaved(room.watch, candidates, budget=budget, precise=room.precise)
        after, later = machine.state(room.device), _counts(room.watch)
        try:
            _afterwards(case, sets, judge, budget, proof)
        finally:
            room.forget()
    spoiled = (later[1] - counts[1]) / max(later[0] - counts[0], 1)
    return Measured(case, timings, error, copies, notes, (before, after), spoiled, detail)


def _afterwards(case: Case, sets: Sequence[Any], judge: Judge, budget: float, proof: Proof | None) -> None:
    """Look at a kernel that was timed once more."""
    try:
        if proof is None:
            again(case, sets, judge, least=CALLS, most=CALLS, seconds=0.0)
            return
        again(case, sets, judge, least=proof.least, most=proof.most, seconds=proof.share * budget)
        proof.close(sets)
    except WrongResult as error:
        said = str(error).removesuffix("; a wrong kernel is not timed")
        raise WrongResult(f"{said}; seen after timing: its times are not kept") from error


def _counts(watch: Stopwatch) -> tuple[int, int]:
    """Readings so far, and spoiled ones."""
    return getattr(watch, "readings", 0), getattr(watch, "spoiled", 0)


def _calls(run: Callable[[Any], object], sets: Sequence[Any]) -> list[Callable[[], object]]:
    return [functools.partial(run, one) for one in sets]


def _libraries(case: Case, inputs: Any) -> tuple[dict[str, Callable[[Any], Any]], dict[str, str]]:
    """The libraries that take these inputs and are right; of the others, what they said."""
    good, notes = {}, {}
    for name, run in case.beside.items():
        try:
            check(case, inputs, run, name)
        except WrongResult as error:
            notes[name] = f"not timed: {error}"
        except Exception as error:  # a library that does not take a shape is no failure of the case
            notes[name] = f"does not run it: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        else:
            good[name] = run
    return good, notes
