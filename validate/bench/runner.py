"""`perfmodel validate` from end to end: ceilings, cases, comparison, fit; what came of it as one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs import kept
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model as load_model
from perfmodel.validate.bench import keep, machine, predict
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.compare import FIT_SET, Compared, compare
from perfmodel.validate.bench.fit import DeviceFit, fit_device
from perfmodel.validate.bench.model_suite import compare_steps, ready, wanted
from perfmodel.validate.bench.predict import Column
from perfmodel.validate.bench.report import Report, StepResult
from perfmodel.validate.bench.session import Say, Session, measure_all, session, take_ceilings
from perfmodel.validate.bench.speculation_report import Speculated
from perfmodel.validate.bench.suites import BUDGETS, Wanted, suite
from perfmodel.validate.bench.watch import Crowded


@dataclass(frozen=True)
class Options:
    """What is asked.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    suite : str
        ``quick`` or ``full``.
    model : str, optional
        Measure the shapes of this model's steps instead of a suite.
    batch, length : int
        Of the model's steps.
    ceilings, calibrate, resume : bool
        Ceilings alone; fit the device; go on with an interrupted run.
    budget : float, optional
        For the cases. [s]
    threads : int, optional
    tolerance : Mapping
        Family -> largest median error.
    """

    device: str
    suite: str = "quick"
    model: str | None = None
    batch: int = 1
    length: int = 512
    ceilings: bool = False
    calibrate: bool = False
    resume: bool = False
    budget: float | None = None
    threads: int | None = None
    tolerance: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """By which an interrupted run is found again."""
        what = f"model {self.model}, batch {self.batch}, {self.length} tokens" if self.model else self.suite
        what = "ceilings" if self.ceilings else what
        return what + (", calibrate" if self.calibrate else "")

    @property
    def seconds(self) -> float:
        """For the cases. [s]"""
        return self.budget if self.budget is not None else BUDGETS["model" if self.model else self.suite]


def run(options: Options, say: Say) -> Report:
    """Do what is asked; every finished case is in the store before the next one starts.

    On a processor whose cores other processes keep busy it starts again with half as many threads, unless their number
    was asked for.

    Raises
    ------
    UsageError, NoGpu, Crowded
        For what cannot be asked here, or measured now.
    OutputError
        When the store or the data folder cannot be written.
    """
    if options.model:
        load_model(options.model)  # an unknown one is told before anything is measured
    threads = options.threads
    while True:
        try:
            return _run(replace(options, threads=threads), say)
        except Crowded as crowded:
            used = len(machine.processors()) if threads is None else threads
            if options.threads is not None or options.resume or used == 1:
                raise
            threads = max(1, used // 2)
            say(f"{crowded}; starting again with {threads}")


def _run(options: Options, say: Say) -> Report:
    with session(options.device, options.title, options.resume, options.threads, say) as s:
        found = take_ceilings(s, full=options.suite == "full" and not options.model)
        data = keep.measured(options.device, found, s.threads)
        spec = keep.as_gpu(data)
        files = [] if options.calibrate else _keep_spec(s, data)
        if options.ceilings:
            s.store.finish(s.run)
            return _report(s, options, spec, data, _columns(s, spec, found), kept=files)
        listed = _wanted(options, spec)
        measure_all(s, listed, options.seconds)
        _something(s, options)
        fit = None
        if options.calibrate:
            fit = _calibrate(s, spec, found)
            keep.check_rows(fit, keep.reference(s.device, spec, found), s.left)
            files = [*_keep_spec(s, data, renew=True), _keep_fit(s, fit)]
            measure_all(s, suite(options.device, options.suite, fresh=True), options.seconds)
        columns = _columns(s, spec, found, judge_fit=fit is not None)
        steps = compare_steps(s, listed, columns) if options.model else []
        spoken = _speculate(s, options.seconds) if options.suite == "full" and not options.model else None
        s.store.finish(s.run)
        return _report(s, options, spec, data, columns, fit, steps, files, spoken)


def _something(s: Session, options: Options) -> None:
    """Refuse to report a run without a case, which is then forgotten."""
    if not s.results and not s.wrong:
        s.store.discard(s.run)
        reasons = "; ".join(s.left[:3])
        raise UsageError(f"no case was measured ({reasons}): give more than --budget {options.seconds:g}")


def _speculate(s: Session, budget: float) -> Speculated:
    """Speculative decoding, for a tenth of the time of the cases beside them. [s]"""
    from perfmodel.validate.bench import speculative_run  # imports torch

    return speculative_run.measure(s, seconds=min(20.0, 0.1 * budget))


def _keep_fit(s: Session, fit: DeviceFit) -> str:
    name = "cpu" if s.device == "cpu" else "local"
    return f"{keep.keep_fit(fit)}: the fit; from now on estimate --fidelity calibrated --gpu {name} uses it"


def _wanted(options: Options, spec: Gpu) -> list[Wanted]:
    if options.model is None:
        return suite(options.device, options.suite)
    return wanted(ready(options.model, spec), options.batch, options.length)


def _keep_spec(s: Session, data: dict[str, Any], renew: bool = False) -> list[str]:
    path, written = keep.keep_spec(data, s.engine, renew)
    use = _used(str(data["name"]), str(data["machine"])) if s.device == "cpu" else "--gpu takes the file"
    if written:
        return [f"{path}: the device as measured; {use}"]
    return [f"{path}: the older ceilings stay, since the kept fit refers to them; --calibrate renews both"]


def _used(name: str, machine: str) -> str:
    """Which processor `--gpu cpu` is now: one that was fitted goes before others."""
    chosen = kept.of_machine(machine)
    if chosen is None or chosen.name == name:
        return "--gpu cpu uses it"
    return f"--gpu {name} uses it, --gpu cpu stays {chosen.name}, which was fitted (--calibrate fits this one)"


def _calibrate(s: Session, spec: Gpu, found: Ceilings) -> DeviceFit:
    """Fit what was measured: a processor's shares are of the ceilings of this run, a GPU's of its datasheet."""
    s.say("fitting")
    rows = [r for r in s.results if r.engine == s.engine and r.operator != "step"]
    rows = [r for r in rows if r.more.get("set", FIT_SET) == FIT_SET]
    version = machine.versions().get("torch" if s.device == "cpu" else "triton", "")
    launch = found.get("launch:graph") or found.get("launch")
    source = f"run {s.run.id} of {s.store.path.name}, {len(rows)} cases"
    refers = spec if s.device == "cpu" else keep.datasheet(found)
    return fit_device(rows, refers, s.engine, launch, version, source)


def _columns(s: Session, spec: Gpu, found: Ceilings, judge_fit: bool = False) -> list[Column]:
    """The default column, this machine's fit where there is one, shipped ones on a GPU; the one that counts first."""
    refers = keep.reference(s.device, spec, found)
    own = predict.by_fit(refers, s.engine)
    plain = predict.by_ceilings(found, spec, s.engine, s.device)
    both = [plain, own] if own is not None else [plain]
    if judge_fit:
        both.reverse()
    return [*both, *predict.shipped(refers)]


def _report(
    s: Session, options: Options, spec: Gpu, data: dict[str, Any], columns: Sequence[Column],
    fit: DeviceFit | None = None, steps: Sequence[StepResult] = (), kept: Sequence[str] = (),
    speculated: Speculated | None = None,
) -> Report:  # fmt: skip
    assert s.ceilings is not None
    compared = compare(s.results, columns, spec, s.ceilings, s.engine)
    return Report(
        s.run.device, s.device, s.run.id, options.title, spec, data, s.ceilings, s.threads, s.noise, s.disturbed,
        tuple(columns), tuple(compared), options.tolerance, fit, tuple(steps), tuple(s.wrong), tuple(s.left),
        tuple(_notes(s, compared, fit)), tuple(kept), speculated, s.run.machine,
    )  # fmt: skip


def _notes(s: Session, compared: Sequence[Compared], fit: DeviceFit | None) -> list[str]:
    """What to know about the figures."""
    notes = []
    if s.device == "cpu":
        notes.append(
            f"{s.threads} thread{'s' * (s.threads != 1)} on a core each, pinned; a fixed piece of work in this process "
            f"spreads by {s.noise:.0%}; {s.disturbed:.0%} of the batches were disturbed by other processes and repeated"
        )
    beaten = [c for c in compared if c.measured < c.bound]
    if beaten:
        most = max(c.attained for c in beaten)
        many = "1 case is" if len(beaten) == 1 else f"{len(beaten)} cases are"
        notes.append(f"{many} faster than the ceilings allow, by {most - 1:.0%} at most")
    if fit is not None:
        notes += [f"not fitted: {text}" for text in fit.skipped]
    for r in s.results:
        notes += [f"{r.name}: {who} {text}" for who, text in r.more.get("notes", {}).items()]
    return list(dict.fromkeys(notes))
