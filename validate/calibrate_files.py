"""Calibrate to what a user has: operator tables, an engine's log, results of a benchmark, in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.efficiency_file import as_fit
from perfmodel.roofline.setup import Setup, setup
from perfmodel.validate import logs_vllm_bench, logs_vllm_iterations, steps_of_bench, steps_of_iterations
from perfmodel.validate.calibrate import Calibration, calibrate
from perfmodel.validate.calibrate_steps import StepCalibration, calibrate_steps, reasons
from perfmodel.validate.fit_predict import table_kind
from perfmodel.validate.step_rows import StepRows, check_model, joined
from perfmodel.validate.table_aiconfigurator import PREFIX

#: The engine whose logs are read; results of its benchmark client may be of another one.
ENGINE = "vllm"
#: A factor on the operators' times farther from 1 than this, either way, is no matter of kernels. Assumed.
FAR = 2.0


@dataclass(frozen=True)
class Ran:
    """What the engine of a log ran.

    Attributes
    ----------
    model : str, optional
    lengths : tuple[int, int], optional
        Prompt and output tokens of every request, where they are alike.
    efficiency : tuple[str, ...]
        Files of operator times that go before the shipped ones.
    plan : dict
        ``tp, ep, weights, kv, system``, as ``setup`` takes them.
    """

    model: str | None = None
    lengths: tuple[int, int] | None = None
    efficiency: tuple[str, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibrated:
    """What was fitted.

    Attributes
    ----------
    kernels : Calibration, optional
    steps : StepCalibration, optional
    sources : list[str]
        File names.
    """

    kernels: Calibration | None
    steps: StepCalibration | None
    sources: list[str]

    def content(self) -> dict[str, Any]:
        """The file that ``--efficiency`` takes."""
        source = ", ".join(self.sources)
        if self.kernels is not None:
            found = self.kernels.content(source)
        else:
            assert self.steps is not None
            gpu = self.steps.ready.gpu
            found = {
                "title": f"{gpu.title} under {self.steps.engine}: step times fitted to measurements", "gpu": gpu.name,
                "engine": self.steps.engine, "date": date.today().isoformat(), "source": source,
                "licence": "the user's own",
            }  # fmt: skip
        return found if self.steps is None else {**found, "step": self.steps.content(source)}


def kind_of_file(file: str) -> str:
    """``table``, ``iterations`` (a log) or ``bench`` (results), told by what is in the file.

    What is none of them is taken for a table, which then says what is wrong with it.
    """
    if file.startswith(PREFIX):
        return "table"
    path = Path(file)
    if path.is_dir() or not path.exists():
        return "table"
    for number, text in logs_vllm_iterations.lines(path):
        if number == 1 and table_kind(name.strip() for name in text.lstrip("\ufeff").split(",")):
            return "table"
        if number == 1 and logs_vllm_bench.is_bench(path):
            return "bench"
        if logs_vllm_iterations.is_iteration(text):
            return "iterations"
    return "table"


def calibrate_files(files: Sequence[str], gpu: str | None, engine: str | None, ran: Ran) -> Calibrated:
    """Fit operator times to tables, and step times to logs on top of them.

    Parameters
    ----------
    files : sequence of str
        Operator tables, vLLM logs with iteration details, results of ``vllm bench serve``.
    gpu, engine : str, optional
        Which to fit. Logs need a GPU; their engine is vLLM, that of results where none is named.
    ran : Ran
        Model and plan behind the logs.

    Raises
    ------
    SpecError
        For a file that is none of these, or is damaged: with the line.
    UsageError
        When something is missing or contradicts, or nothing can be fitted.
    """
    kinds = {file: kind_of_file(file) for file in files}
    tables = [file for file, kind in kinds.items() if kind == "table"]
    logs = [file for file in kinds if file not in tables]
    if not logs and ran.model:
        raise UsageError(f"--model is of a log, and no file is one: {', '.join(Path(f).name for f in tables)}")
    if logs and (gpu is None or ran.model is None):
        raise UsageError(
            f"{Path(logs[0]).name} does not say what ran: give --gpu and --model (and --tp, --weights, --kv)"
        )
    kernels = calibrate(tables, gpu, engine or (ENGINE if logs else None)) if tables else None
    steps = _steps(logs, kinds, str(gpu), engine, ran, kernels) if logs else None
    return Calibrated(kernels, steps, [Path(file).name for file in kinds])


def _steps(
    logs: list[str], kinds: dict[str, str], gpu: str, engine: str | None, ran: Ran, kernels: Calibration | None
) -> StepCalibration:
    whose = (engine or ENGINE).lower()
    printed = next((file for file in logs if kinds[file] == "iterations"), None)
    if printed and whose != ENGINE:
        raise UsageError(f"{Path(printed).name} is a log of vLLM, and --engine is {whose}")
    ready = setup(str(ran.model), gpu, **ran.plan)
    rows = joined([_rows(file, kinds[file], ready, ran) for file in logs])
    own = [as_fit(kernels.content("fitted with it"), Path("kernels"))] if kernels is not None else []
    return calibrate_steps(rows, ready, whose, load(ready.gpu, whose, (*own, *ran.efficiency)))


def _rows(file: str, kind: str, ready: Setup, ran: Ran) -> StepRows:
    if kind == "bench":
        results = logs_vllm_bench.read(file)
        for result in results:
            check_model(result.path.name, result.model, ready.model)
        return steps_of_bench.rows_of(results)
    return steps_of_iterations.rows_of(logs_vllm_iterations.read(file), ready, ran.lengths)


def notes(steps: StepCalibration) -> list[str]:
    """What to know about a fit of steps, in lines."""
    found = [*steps.rows.notes, f"errors: {steps.scores['judged']}"]
    factor = steps.params["factor"]
    if not 1 / FAR <= factor <= FAR:
        found.append(
            f"warning: operators take {factor:.3g} times what is predicted for {steps.ready.words()}: the log is "
            "likely of another GPU, model or plan"
        )
    if steps.held:
        found.append("not fixed by these rows: give more of other numbers of sequences and tokens")
    if not steps.intervals:
        found.append("no interval of steps: too few rows; that of the operators is used")
    if left := reasons(steps.rows):
        found.append(f"left out: {left}")
    return found
