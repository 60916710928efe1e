"""A run: the device and its ceilings, then case after case, each kept before the next one starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from perfmodel.base.errors import NoGpu, UsageError
from perfmodel.base.units import engineering
from perfmodel.validate.bench import machine, timing
from perfmodel.validate.bench.case import Case, NotRealised, WrongResult
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.measure import Room, TooLarge, measure
from perfmodel.validate.bench.store import Result, Run, Store
from perfmodel.validate.bench.suites import Wanted
from perfmodel.validate.bench.watch import CpuWatch, Crowded, CudaWatch

Say = Callable[[str], None]

#: Name of the row that keeps a run's ceilings; operator and engine of one that keeps a case after which the device
#: answered no more, and what was said of it.
CEILINGS, LOST = "ceilings", "lost"
#: Parallel batches that are tried to see whether the cores are free, and the share of disturbed ones that shows that
#: they are not.
PROBES, BUSY = 20, 0.2
#: Time for a case: at least, and at most. [s]
LEAST, MOST = 0.1, 1.0
#: A case of whose readings a larger share was spoiled is measured again.
SPOILED = 0.3
#: Keys of a machine's description that may differ between the parts of one run: on a processor none of our own kernels
#: is measured, so that the revision does not matter.
LOOSE = {"cpu": ("device", "threads", "revision"), "cuda": ()}
ENGINES = {"cpu": "torch-cpu", "cuda": "triton"}


@dataclass
class Session:
    """What a run needs, and what came of it.

    Attributes
    ----------
    device, engine : str
    room : Room
    store : Store
    run : Run
    threads : int
        Of a processor.
    noise : float
        Of a fixed piece of work in this process.
    ceilings : Ceilings, optional
    wrong, left : list of str
        Kernels whose results were wrong; operators that were not measured, each with the reason.
    """

    device: str
    engine: str
    room: Room
    store: Store
    run: Run
    threads: int
    noise: float
    say: Say
    ceilings: Ceilings | None = None
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def results(self) -> list[Result]:
        """What the run has measured so far, but for its ceilings."""
        return [r for r in self.store.results(self.run) if r.operator not in (CEILINGS, LOST)]

    @property
    def lost(self) -> dict[str, str]:
        """Cases of this run after which the device answered no more, and what was said of them."""
        return {r.name: str(r.more["said"]) for r in self.store.results(self.run) if r.operator == LOST}

    @property
    def disturbed(self) -> float:
        """Share of the batches that other processes disturbed; 0 on a GPU."""
        return getattr(self.room.watch, "disturbed_share", 0.0)


def unfinished(store: Store, kind: str, suite: str, described: Mapping[str, Any]) -> Run:
    """The newest run of a suite that did not end, on this machine with these versions.

    The number of threads may be another one: the run goes on with those that it began with.

    Raises
    ------
    UsageError
        When there is none.
    """

    def fixed(text: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in text.items() if key not in LOOSE[kind]}

    for run in store.runs():
        if run.finished is None and (run.kind, run.suite) == (kind, suite) and fixed(run.machine) == fixed(described):
            return run
    raise UsageError(
        f"no run of {suite} on this {kind} was interrupted, with these versions: leave --resume out "
        "(`perfmodel validate --history` lists the runs)"
    )


def free_threads(say: Say) -> list[int]:
    """Processors to run on: one a core, fewer where others keep cores busy.

    A parallel batch waits for its slowest thread: on a busy core that is a time slice. So as many cores are taken as
    parallel batches get without that.
    """
    torch, every = machine.import_torch(), machine.idle_first(machine.processors())
    counts = sorted({max(1, len(every) * part // 4) for part in (1, 2, 3, 4)} | {1}, reverse=True)
    for count in counts:
        if count == 1:
            break
        with machine.pinned(every[:count]):
            a, watch = torch.randn(256, 256), CpuWatch(count)
            for _ in range(PROBES):
                watch.seconds([lambda a=a: a @ a], 4)  # type: ignore[misc]
        if watch.disturbed_share <= BUSY:
            break
        say(f"others keep cores busy: {watch.disturbed_share:.0%} of parallel batches on {count} cores were disturbed")
    return every[:count]


@contextmanager
def session(device: str, suite: str, resume: bool, threads: int | None, say: Say) -> Iterator[Session]:
    """A run on a device, resumed or new; torch's threads and the process's processors are given back after it.

    Parameters
    ----------
    threads : int, optional
        Of a processor; by default as many as cores are free.

    Raises
    ------
    UsageError
        For more threads than cores, or nothing to resume.
    OutputError
        When the store cannot be used.
    """
    with Store() as store:
        before = unfinished(store, device, suite, machine.describe(device)) if resume else None
        if before is not None:
            threads = before.machine.get("threads", threads)
        if device == "cuda":
            yield _cuda(store, before, suite, say)
            return
        cpus = _chosen(threads, say)
        described = machine.describe(device, len(cpus))
        with machine.pinned(cpus):
            noise = timing.process_noise()
            run = before or store.start(described["device"], device, suite, described)
            watch = CpuWatch(len(cpus))
            try:
                yield Session(device, ENGINES[device], _cpu_room(watch), store, run, len(cpus), noise, say)
            except Crowded:
                if before is None:
                    store.discard(run)
                raise


def _chosen(threads: int | None, say: Say) -> list[int]:
    if threads is None:
        return free_threads(say)
    every = machine.idle_first(machine.processors())
    if not 1 <= threads <= len(every):
        raise UsageError(f"--threads is 1 to {len(every)}, the cores that this process may use, not {threads}")
    return every[:threads]


def caches() -> dict[str, float]:
    """Capacity of the processor's caches from the second level on, the smallest first; what one core sees. [bytes]"""
    from pathlib import Path

    from perfmodel.hwspecs.processor import cache_bytes, core_count

    found = cache_bytes(Path("/sys/devices/system/cpu"))
    shown = {f"l{level}": float(size) for level, size in sorted(found.items()) if level >= 2}
    if "l2" in shown:  # each core has its own
        shown["l2"] /= max(core_count(), 1)
    return shown


def _cpu_room(watch: CpuWatch) -> Room:
    last = max(caches().values(), default=32 * 2.0**20)
    return Room("cpu", watch, last, min(psutil.virtual_memory().available / 4, 8e9))


def _cuda(store: Store, before: Run | None, suite: str, say: Say) -> Session:
    torch = machine.import_torch()
    described = machine.describe("cuda")
    run = before or store.start(described["device"], "cuda", suite, described)
    cache = float(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 * 2**20)
    room = Room("cuda", CudaWatch(), cache, 0.5 * torch.cuda.mem_get_info()[0])
    return Session("cuda", ENGINES["cuda"], room, store, run, 0, timing.process_noise(), say)


def take_ceilings(s: Session, full: bool = False, each: float | None = None) -> Ceilings:
    """The ceilings of the run: measured now, or those that it has already.

    Parameters
    ----------
    full : bool
        Larger buffers.
    each : float, optional
        Time for each number. [s]
    """
    kept = next((r for r in s.store.results(s.run) if r.operator == CEILINGS), None)
    if kept is not None:
        s.ceilings = Ceilings.from_dict(kept.more)
        return s.ceilings
    s.say("measuring the ceilings: memory, caches, matrix products, exponentials, launches")
    found = _ceilings(s, full, each)
    row = Result(CEILINGS, CEILINGS, s.engine, "", {}, found.get("launch"), 0.0, 0.0, 0.0, 0, found.to_dict())
    s.store.add(s.run, row)
    s.ceilings = found
    return found


def _ceilings(s: Session, full: bool, each: float | None) -> Ceilings:
    version = machine.versions().get("torch", "")
    if s.device == "cuda":
        from perfmodel.validate.bench import ceilings_cuda

        most = 2.0**32 if full else 2.0**30
        return ceilings_cuda.measure(
            s.room.watch, s.room.cache, s.room.memory, f"torch {version}", most=most, tell=s.say
        )
    from perfmodel.validate.bench import ceilings_cpu

    where = f"{s.threads} pinned thread{'s' * (s.threads != 1)}, torch {version}"
    most = 2.0**30 if full else 2.0**28
    return ceilings_cpu.measure(
        s.room.watch, caches(), s.room.memory, where, each or ceilings_cpu.EACH, most
    )  # fmt: skip


def realiser(device: str) -> Callable[[Wanted], Case]:
    """What makes the case of an operator on a device."""
    if device == "cuda":
        from perfmodel.validate.bench.cuda import realise as by_kernels

        return lambda wanted: by_kernels(wanted.op, wanted.columns)
    from perfmodel.validate.bench.cpu import realise as by_torch

    return lambda wanted: by_torch(wanted.op, wanted.columns)


def measure_all(s: Session, wanted: Sequence[Wanted], budget: float) -> None:
    """Measure what is wanted and not kept yet, within a budget; what cannot be is said with the reason.

    A kernel whose result is wrong is not timed; the others go on.

    Parameters
    ----------
    budget : float
        For all of them together; each case that is begun gets its fewest samples. [s]

    Raises
    ------
    DeviceLost
        When the device answers no more after a case; a resumed run passes over it.
    """
    s.wrong += [said for said in s.lost.values() if said not in s.wrong]
    done, make = {r.name for r in s.results} | set(s.lost), realiser(s.device)
    cases: dict[str, tuple[Wanted, Case]] = {}
    for one in wanted:
        try:
            case = make(one)
        except NotRealised as reason:
            s.left.append(f"{one.op.name}: {reason}")
            continue
        if case.name not in done:
            cases.setdefault(case.name, (one, case))
    if done and cases:
        s.say(f"{len(done)} cases are kept already, {len(cases)} are left")
    end, again = time.perf_counter() + budget, []
    for number, (one, case) in enumerate(cases.values(), 1):
        rest = end - time.perf_counter()
        if rest <= 0:
            s.left.append(f"{len(cases) - number + 1} cases: the time of {budget:g} s was spent (--budget)")
            break
        each = min(max(rest / (len(cases) - number + 1), LEAST), MOST)
        if not _one(s, one, case, each, f"{number}/{len(cases)}"):
            again.append((one, case))
    for one, case in again:
        if not _one(s, one, case, LEAST, "again"):
            s.left.append(f"{case.name}: other processes disturbed most of its batches, twice")


def _one(s: Session, wanted: Wanted, case: Case, budget: float, place: str) -> bool:
    """Measure a case and keep it; false when it was disturbed so much that it should be measured again."""
    try:
        found = measure(case, s.room, budget)
    except WrongResult as error:
        s.wrong.append(str(error))
        s.say(f"wrong: {error}")
        return True
    except TooLarge as error:
        s.left.append(f"{case.name}: {error}")
        return True
    except Crowded:
        raise
    except Exception as error:  # a kernel that fails is a result: the others go on
        said = str(error).splitlines()[0][:300] if str(error) else ""
        s.wrong.append(f"{case.name}: {case.source} fails: {type(error).__name__}: {said}")
        s.say(f"failed: {s.wrong[-1]}")
        _let_go(s, case)
        return True
    if found.spoiled > SPOILED:
        s.say(f"{place} {case.name}: disturbed by other processes")
        return False
    more = {"set": wanted.set, "columns": wanted.columns}
    for result in found.results():
        s.store.add(s.run, replace(result, more={**result.more, **more}))
    t = found.timings[""]
    s.say(f"{place} {case.name}: {engineering(t.median, 's')} (noise {t.noise:.0%})")
    return True


class DeviceLost(NoGpu):
    """After a kernel that went astray the device answers nothing more in this process."""


def _let_go(s: Session, case: Case) -> None:
    """Let go of what a failed case left behind; raises DeviceLost where that cannot be done, and marks the case."""
    try:
        s.room.forget()
        if s.device == "cuda":
            machine.import_torch().cuda.synchronize()
    except RuntimeError as error:
        row = Result(case.name, LOST, LOST, case.fmt, {}, 0.0, 0.0, 0.0, 0.0, 0, {"said": s.wrong[-1]})
        s.store.add(s.run, row)
        said = (str(error).splitlines() or [""])[0][:200]
        text = f"{case.name}: the GPU answers no more ({said}); --resume goes on without this case"
        raise DeviceLost(text) from error
