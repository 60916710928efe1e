"""Fitted times of whole steps: what an engine's host adds to its kernels, and how far the sum of kernels is off.

A step that was measured in a running engine takes ``host + sequence n + factor D``: D is the sum of the operators'
times, n the sequences in the step, ``host`` what the engine does once a step (scheduling, launching, returning tokens)
and ``sequence`` what it does for each sequence. The three are fitted by ``perfmodel calibrate`` to an engine's log and
lie in the section ``step`` of a file of efficiencies. The interval of a step is then that of whole steps, not the sum
of its operators' errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfmodel.base.errors import SpecError
from perfmodel.base.num import Num
from perfmodel.base.units import parse
from perfmodel.roofline.calibrated.kernel import Regime
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step import Plan, Step

#: Factor on the logarithms of an interval's ends for a model or a plan that the steps were not measured with. Assumed.
ELSEWHERE = 2.0
#: The same ends for host times that the rows did not fix: they were held near what is usual. Assumed.
HELD = Regime(math.inf, 0.4, 2.5)
#: Half the width of an 80 % interval in standard deviations.
Z80 = 1.2816


class StepIntervalSpec(BaseModel):
    """An 80 % interval of measured over predicted steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float = Field(gt=0, le=1e3)
    high: float = Field(gt=0, le=1e3)
    rows: int = 0


class StepSpec(BaseModel):
    """The section ``step`` of a file of efficiencies."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str
    settings: str = Field(description="GPUs, parallelism and formats in words, as estimates print them")
    version: str = ""
    measured: str = Field(description="what a row's time is: of a log's lines, of a client's tokens")
    source: str = ""
    device: list[str] = Field([], description="where the operators' parameters came from when the step was fitted")
    host: str = Field(description="time once a step")
    sequence: str = Field(description="time for each sequence of a step")
    factor: float = Field(gt=0.05, lt=20, description="on the operators' times")
    request: str | None = Field(None, description="time of a request outside the steps, as a client sees it")
    sigma: dict[str, float] = Field({}, description="standard error of the logarithm of each")
    held: list[str] = Field([], description="those that the rows do not fix: held near what is usual")
    rows: int = 0
    intervals: dict[str, StepIntervalSpec] = Field({}, description="prefill, decode -> of steps left out of the fit")
    scores: dict[str, float | str] = {}

    @field_validator("host", "sequence", "request")
    @classmethod
    def _time(cls, text: str | None) -> str | None:
        if text is not None:
            parse(text, "s")
        return text

    @field_validator("intervals")
    @classmethod
    def _phases(cls, given: dict[str, StepIntervalSpec]) -> dict[str, StepIntervalSpec]:
        if strange := sorted(set(given) - {"prefill", "decode"}):
            raise ValueError(f"{strange[0]!r} is no phase; there are prefill and decode")
        return given


@dataclass(frozen=True)
class StepFit:
    """Fitted times of the steps of one engine on one GPU.

    Attributes
    ----------
    gpu, engine, model, settings, version : str
    host, sequence : float
        Once a step, and for each sequence. [s]
    factor : float
        On the operators' times.
    intervals : dict[str, Regime]
        Phase -> 80 % interval of whole steps.
    hosts : Regime
        80 % interval of the host's time alone.
    origin : str
        Where all this comes from, in words.
    file : str
        Name of the user's file that it was read from.
    """

    gpu: str
    engine: str
    model: str
    settings: str
    host: float
    sequence: float
    factor: float = 1.0
    version: str = ""
    intervals: dict[str, Regime] = field(default_factory=dict)
    hosts: Regime = HELD
    origin: str = ""
    file: str = ""

    def for_setup(self, ready: Setup) -> StepFit:
        """As it applies to a setup: intervals are widened for a model or a plan that was not measured."""
        where = f"of {self.model} on {self.settings} under {self.engine} {self.version}".rstrip()
        where += f" in {self.file}" if self.file else ""
        if self.same(ready):
            return replace(self, origin=f"step times fitted: {where}")
        wide = {name: _widened(r) for name, r in self.intervals.items()}
        origin = f"step times taken from those {where}, another model or plan; interval widened"
        return replace(self, intervals=wide, hosts=_widened(self.hosts), origin=origin)

    def same(self, ready: Setup) -> bool:
        """Whether the steps were measured with this model, plan and formats."""
        return (self.model, self.settings) == (ready.model.name, ready.words())


def _widened(regime: Regime) -> Regime:
    return replace(regime, low=regime.low**ELSEWHERE, high=regime.high**ELSEWHERE)


def step_fit(spec: StepSpec, gpu: str, engine: str, path: Path) -> StepFit:
    """A section ``step`` as it is used.

    Raises
    ------
    SpecError
        For an interval whose ends are the wrong way round.
    """
    for phase, given in spec.intervals.items():
        if given.low > given.high:
            raise SpecError(path, f"step.intervals.{phase}", f"low ({given.low:g}) is above high ({given.high:g})")
    intervals = {phase: Regime(math.inf, i.low, i.high, i.rows) for phase, i in spec.intervals.items()}
    sigma = spec.sigma.get("host")
    spread = math.exp(Z80 * sigma) if sigma is not None and "host" not in spec.held else None
    hosts = Regime(math.inf, 1 / spread, spread) if spread else HELD
    return StepFit(
        gpu, engine, spec.model, spec.settings, parse(spec.host, "s"), parse(spec.sequence, "s"), spec.factor,
        spec.version, intervals, hosts,
    )  # fmt: skip


def nearest(fits: Iterable[StepFit], ready: Setup, engine: str) -> StepFit | None:
    """The fit that answers for a setup: of its GPU and engine, of the same model and plan before others.

    Another GPU's steps say nothing: its host is another one too. Without an engine named, that of the fit is taken.
    """
    usable = [fit for fit in fits if fit.gpu == ready.gpu.name and engine in ("", fit.engine)]
    found = next((fit for fit in usable if fit.same(ready)), None)
    found = found or next((fit for fit in usable if fit.model == ready.model.name), next(iter(usable), None))
    return found.for_setup(ready) if found else None


def host_work(sequences: Num, phase: str) -> Cost:
    """What an engine does on the host for a step: no FLOPs and no bytes of the device.

    Parameters
    ----------
    sequences : Num
        In the step, of one engine.
    phase : str
        ``prefill`` or ``decode``.
    """
    return Cost()


def host_op(step: Step, plan: Plan) -> Op:
    """The host's work as an operator of a step, for clocks that know its time."""
    import numpy as np

    ranks = plan.dp * plan.pp
    sequences = np.ceil(step.batch / ranks) if ranks > 1 else step.batch
    phase = "decode" if step.name in ("decode", "verify") else "prefill"
    return Op("host", "host", "", 1.0, host_work, {"sequences": sequences, "phase": phase})
