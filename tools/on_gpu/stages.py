"""The stages of a run: each a process of its own with a time limit and a log, so that none takes another with it.

In the order of their worth: ceilings and full suite, the steps of an 8B model, the targets of our kernels, speculative
decoding, the stand-alone cases (libraries alone), and the kernels' tests with what time is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from on_gpu.checkout import DRY_RUN, PICTURE, ROOT, missing

HERE = Path(__file__).resolve().parent
#: All stages together take at most so long; and writing the tables of a suite that was cut short. [s]
BUDGET_S, EXPORT_S = 455.0, 15.0
#: An interrupted stage has so long to write what it has. [s]
GRACE_S = 10.0
#: A stage is not begun with less time than this. [s]
LEAST_S = 5.0
STAGES = "stages.json"
#: Exit code after a kernel that took the device with it, and the time that a run needs besides its cases. [1, s]
LOST, BESIDES = 5, 60.0


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes
    ----------
    name : str
        Also of its log.
    command : tuple[str, ...]
    limit : float
        It is interrupted after so long. [s]
    codes : tuple[int, ...]
        Exit codes with which it did its work.
    core : bool
        Whether the run counts as incomplete without it.
    resumed : bool
        Whether ``--resume`` goes on with it in a new process, without the kernel that took the device with it.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    codes: tuple[int, ...] = (0,)
    core: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Ended:
    """How a stage ended: ``ok``, ``failed``, ``cut short`` or ``not begun``, with its exit code and time. [s]"""

    name: str
    status: str
    code: int | None
    seconds: float


def stages(folder: Path, dry_run: bool, budget: float) -> list[Stage]:
    """The stages of a run, or small ones on the CPU; limits shrink with a smaller budget."""
    share = min(budget / BUDGET_S, 1.0)
    checkout = (sys.executable, str(HERE / "checkout.py"))
    measure = (*checkout, "perfmodel", "validate", "--device", "cpu" if dry_run else "cuda")
    picture = () if missing(PICTURE) else ("-o", str(folder / "validate.png"))
    form = ("--format", "json")
    small = ("--threads", "1") if dry_run else ()
    cases = "8" if dry_run else f"{110 * share:.0f}"
    suite = ("--suite", "quick" if dry_run else "full", "--budget", cases, "--export", str(folder / "validate.csv"))
    model = ("--model", "smollm2-135m" if dry_run else "llama3-8b", "--batch", "1" if dry_run else "16")
    steps = ("--input", "64" if dry_run else "1024", "--budget", "4" if dry_run else f"{20 * share:.0f}")
    spoken = ("--speculative", "--budget", "2" if dry_run else "12")
    alone = (sys.executable, str(HERE), str(folder), "--standalone", "--budget", f"{30 * share:.0f}")
    parallel = () if dry_run or missing(("xdist",)) else ("-n", "8")
    tests = ("-q", "-m", "interpreter" if dry_run else "gpu", "--continue-on-collection-errors", *parallel)
    listed = str(ROOT / ("tests/kernels/test_kernel_checks.py" if dry_run else "tests/kernels"))
    return [
        Stage("suite", (*measure, *suite, *small, *picture, *form), 190 * share, (0, 1), core=True, resumed=True),
        Stage("model", (*measure, *model, *steps, *small, *form), 85 * share, (0, 1), resumed=True),
        Stage("targets", (*checkout, "targets", str(folder), "cpu" if dry_run else "cuda"), 40 * share),
        Stage("speculative", (*measure, *spoken, *form), 40 * share, (0, 1)),
        Stage("libraries", (*alone, *(("--dry-run",) if dry_run else ())), 50 * share),
        Stage("kernel-tests", (*checkout, "pytest", *tests, "-p", "no:benchmark", listed), 400 * share, (0, 1)),
    ]  # fmt: skip


def chosen(listed: Sequence[Stage], names: str | None) -> list[Stage]:
    """The stages that a comma-separated list names; all without one. Raises ValueError for an unknown name."""
    if names is None:
        return list(listed)
    known = [stage.name for stage in listed]
    wanted = [name.strip() for name in names.split(",")]
    if strange := [name for name in wanted if name not in known]:
        raise ValueError(f"no stage {strange[0]!r}; there are {', '.join(known)}")
    return [stage for stage in listed if stage.name in wanted]


def run_stage(stage: Stage, folder: Path, limit: float, environment: dict[str, str]) -> Ended:
    """Run a stage; its output is in ``<name>.json`` or ``.txt`` (stdout) and ``<name>.log`` (stderr)."""
    start = time.monotonic()
    out = folder / f"{stage.name}.{'json' if '--format' in stage.command else 'txt'}"
    with out.open("wb") as stdout, (folder / f"{stage.name}.log").open("ab") as stderr:
        process = subprocess.Popen(stage.command, stdout=stdout, stderr=stderr, env=environment, cwd=folder)
        try:
            code, cut = _wait(process, limit), False
        except subprocess.TimeoutExpired:
            code, cut = _stop(process), True
        except KeyboardInterrupt:
            _stop(process)
            raise
    told = out.suffix != ".json" or out.stat().st_size > 0  # else it ended by an error that nobody foresaw
    status = "cut short" if cut else "ok" if code in stage.codes and told else "failed"
    return Ended(stage.name, status, code, round(time.monotonic() - start, 1))


def run_through(stage: Stage, folder: Path, limit: float, environment: dict[str, str]) -> Ended:
    """Run a stage; while time is left go on with it in a new process after a kernel that took the device with it."""
    start = time.monotonic()
    words: tuple[str, ...] = ()
    while True:
        left = limit - (time.monotonic() - start)
        ended = run_stage(replace(stage, command=(*stage.command, *words)), folder, left, environment)
        spent = time.monotonic() - start
        if not stage.resumed or ended.code != LOST or limit - spent < BESIDES:
            return replace(ended, seconds=round(spent, 1))
        words = ("--resume", "--budget", f"{max(limit - spent - BESIDES, LEAST_S):.0f}")


def _wait(process: subprocess.Popen[bytes], limit: float) -> int:
    return process.wait(timeout=limit)


def _stop(process: subprocess.Popen[bytes]) -> int | None:
    """Ask a process to end, and end it when it does not."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run(
    folder: Path, listed: Sequence[Stage], budget: float, tell: Callable[[str], object], facts: dict[str, object]
) -> list[Ended]:
    """Run stages one after another within a budget; ``stages.json`` says after each how it ended.

    Parameters
    ----------
    facts : dict
        What else ``stages.json`` says.
    """
    end = time.monotonic() + budget
    data = folder / "data"
    environment = {**os.environ, "PERFMODEL_DATA": str(data), "PYTHONUNBUFFERED": "1"}
    environment |= {DRY_RUN: "1"} if facts.get("dry_run") else {}
    ended: list[Ended] = []
    for stage in listed:
        left = end - time.monotonic()
        if left < LEAST_S:
            ended.append(Ended(stage.name, "not begun", None, 0.0))
        else:
            tell(f"{stage.name}: at most {min(stage.limit, left):.0f} s")
            ended.append(run_through(stage, folder, min(stage.limit, left), environment))
            tell(f"{stage.name}: {ended[-1].status}, {ended[-1].seconds:.0f} s")
        text = json.dumps({**facts, "stages": [asdict(one) for one in ended]}, indent=1)
        (folder / STAGES).write_text(text + "\n", encoding="utf-8")
    if (data / "validate.sqlite").exists() and not list(folder.glob("validate*.csv")):
        run_stage(export(folder), folder, EXPORT_S, environment)
    keep(data, folder)
    return ended


def export(folder: Path) -> Stage:
    """Write the tables of the newest run: of a suite that was cut short."""
    checkout = (sys.executable, str(HERE / "checkout.py"))
    words = ("perfmodel", "validate", "--history", "--export", str(folder / "validate.csv"))
    return Stage("export", (*checkout, *words, "--format", "json"), EXPORT_S)


def keep(data: Path, folder: Path) -> None:
    """Of the data folder keep the measured spec beside the tables, and the results where no table could be written."""
    for spec in data.glob("devices/*.yaml"):
        shutil.copyfile(spec, folder / "device.yaml")
    if list(folder.glob("validate*.csv")):
        shutil.rmtree(data, ignore_errors=True)


def complete(ended: Sequence[Ended], listed: Sequence[Stage]) -> bool:
    """Whether every core stage did its work."""
    fine = {one.name for one in ended if one.status == "ok"}
    return all(stage.name in fine for stage in listed if stage.core)
