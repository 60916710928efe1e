"""What came of a run: cases beside predictions, errors by family, whole steps, the fit. Plain data, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.hwspecs.schema import Gpu
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.compare import FIT_SET, FRESH, Compared, Family, families
from perfmodel.validate.bench.fit import DeviceFit
from perfmodel.validate.bench.predict import Column
from perfmodel.validate.bench.speculation_report import Speculated


@dataclass(frozen=True)
class StepResult:
    """A whole step of a model.

    Attributes
    ----------
    name : str
    predicted : Mapping[str, float]
        Column -> sum over all its operators. [s]
    parts : Mapping[str, float]
        Column -> sum over those operators that were measured. [s]
    added : float
        Measured times of these operators, as often as the step runs them. [s]
    whole : float, optional
        The operators run one after another, as a step does. [s]
    missing : Mapping[str, str]
        Operators that were not measured, and why.
    share : float
        Of the predicted time that was measured.
    """

    name: str
    predicted: Mapping[str, float]
    parts: Mapping[str, float]
    added: float
    whole: float | None
    missing: Mapping[str, str]
    share: float

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "step": self.name, "predicted_s": dict(self.predicted), "measured_part_predicted_s": dict(self.parts),
            "added_s": self.added, "whole_s": self.whole, "missing": dict(self.missing), "share": self.share,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What came of a run.

    Attributes
    ----------
    device, kind : str
        What was measured, and whether it is ``cpu`` or ``cuda``.
    run : int
        Number in the store.
    suite : str
    spec : Gpu
        With the measured ceilings.
    data : dict
        The spec as plain data, as it is written.
    ceilings : Ceilings
    threads : int
    process_noise, disturbed : float
        Spread of a fixed piece of work; share of batches that other processes disturbed.
    columns : tuple[Column, ...]
        The first is judged.
    compared : tuple[Compared, ...]
    tolerance : Mapping
    fit : DeviceFit, optional
    steps : tuple[StepResult, ...]
    wrong, left, notes, kept : tuple[str, ...]
        Wrong kernels; what was not measured; what to know; files that were written.
    speculated : Speculated, optional
        Speculative decoding as it was run, in a full suite.
    machine : Mapping
        Hardware, versions and revision as the store keeps them with the run.
    """

    device: str
    kind: str
    run: int
    suite: str
    spec: Gpu
    data: dict[str, Any]
    ceilings: Ceilings
    threads: int
    process_noise: float
    disturbed: float
    columns: tuple[Column, ...]
    compared: tuple[Compared, ...]
    tolerance: Mapping[str, float]
    fit: DeviceFit | None = None
    steps: tuple[StepResult, ...] = ()
    wrong: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    speculated: Speculated | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> list[Compared]:
        """The cases that count: on shapes that the fit has not seen, where this run made one."""
        return [c for c in self.compared if c.set == (FRESH if self.fit else FIT_SET)]

    @property
    def families(self) -> list[Family]:
        """Errors by family of the cases that count; the last is ``all``."""
        return families(self.judged, self.tolerance)

    @property
    def outside(self) -> list[str]:
        """What is not as it should be, in words: wrong kernels, families above their tolerance."""
        found = [f"wrong result: {text}" for text in self.wrong]
        for f in self.families[:-1]:
            if f.outside:
                found.append(f"{f.name}: median error {f.error:.1%} is above {f.allowed:.1%} (noise {f.noise:.1%})")
        for o in self.speculated.outcomes if self.speculated else ():
            found += [f"speculative, {text}" for text in self.speculated.contradictions(o)]  # type: ignore[union-attr]
        return found

    @property
    def sentence(self) -> str:
        """What was measured, in words; a processor is named as one."""
        what = "this processor (a CPU, no GPU)" if self.kind == "cpu" else "this GPU"
        count = len(self.compared)
        return f"{what}: {self.device}; {self.suite}, {count} cases; prediction: {self.columns[0].words}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "device": self.device, "kind": self.kind, "run": self.run, "suite": self.suite, "threads": self.threads,
            "machine": dict(self.machine),
            "process_noise": self.process_noise, "disturbed": self.disturbed, "ceilings": self.ceilings.to_dict(),
            "columns": {c.name: c.words for c in self.columns}, "cases": [c.to_dict() for c in self.compared],
            "families": [{**vars(f), "outside": f.outside} for f in self.families],
            "fit": self.fit.lines if self.fit else None, "steps": [step.to_dict() for step in self.steps],
            "speculative": self.speculated.to_dict() if self.speculated else None, "wrong": list(self.wrong),
            "not_measured": list(self.left), "notes": list(self.notes), "kept": list(self.kept),
            "outside": self.outside,
        }  # fmt: skip
