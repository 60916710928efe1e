"""The application: arguments, device, result folder, stages or stand-alone cases, environment file, exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from on_gpu import checkout, stages

if TYPE_CHECKING:
    from on_gpu.bench import Bench
    from on_gpu.suite import Run

OK, INCOMPLETE, USAGE, NO_GPU, INTERRUPTED = 0, 1, 2, 5, 130
#: Of the stand-alone cases; that of all stages is theirs. [s]
BUDGET_S = 200.0
GRACE_S = 30.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; argparse itself exits with 2."""
    parser = argparse.ArgumentParser(prog="on_gpu.sh", description="Measure this machine's GPU at Llama 3 8B's shapes.")
    parser.add_argument("folder", type=Path, help="where the CSV files and environment.json go: a new or empty folder")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, to try the script itself")
    parser.add_argument("--standalone", action="store_true", help="libraries alone: needs nothing but torch")
    parser.add_argument(
        "--budget", type=float, help=f"seconds for all of it ({stages.BUDGET_S:g}; stand-alone {BUDGET_S:g})"
    )
    parser.add_argument("--stages", metavar="NAME,...", help="these stages alone; see tools/on_gpu/stages.py")
    options = parser.parse_args(argv)
    if options.budget is None:
        options.budget = BUDGET_S if options.standalone else stages.BUDGET_S
    if not 0 <= options.budget <= 86400:
        parser.error(f"--budget must be 0 to 86400 seconds, not {options.budget:g}")
    return options


def complain(message: str, code: int) -> int:
    """Print one line and return the exit code."""
    print(f"on_gpu: {message}", file=sys.stderr, flush=True)
    return code


def make_bench(dry_run: bool, deadline: float) -> Bench:
    """Return the bench of the first CUDA device, or of the CPU for a dry run."""
    import torch

    from on_gpu.bench import Bench
    from on_gpu.environment import cpu_name, gpu_slug
    from on_gpu.timing import CpuTimer, CudaTimer, Limits

    if dry_run:
        torch.set_num_threads(1)  # a dry run measures nothing: leave the other cores alone
        limits = Limits(seconds=0.01, warm_s=0.001, batch_s=0.005, graph_s=1e-4, issue_calls=5)
        gpu = gpu_slug(cpu_name())
        return Bench(torch.device("cpu"), CpuTimer(), limits, gpu, "torch-cpu-dry-run", 2**17, (0, 0), deadline)
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    properties = torch.cuda.get_device_properties(device)
    l2_bytes = getattr(properties, "L2_cache_size", 0) or 2**26
    capability = (properties.major, properties.minor)
    return Bench(device, CudaTimer(), Limits(), gpu_slug(properties.name), "torch", l2_bytes, capability, deadline)


def environment(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return what environment.json says of the machine and the versions."""
    from on_gpu import environment as probe

    return {
        "format": 1,
        "gpu": bench.gpu,
        "framework": bench.framework,
        "dry_run": options.dry_run,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "budget_s": options.budget,
        **probe.device_facts(bench.device),
        **probe.versions(),
        **probe.revision(),
        "script_sha256": probe.script_hash(),
        "shapes": "tiny" if options.dry_run else "Llama 3 8B",
    }


class Watchdog:
    """End the process, with a last word, when a case hangs so long that no deadline is looked at any more."""

    def __init__(self, seconds: float, last_word: Callable[[], object]) -> None:
        self.last_word = last_word
        self.timer = threading.Timer(seconds, self.bite)
        self.timer.daemon = True
        self.timer.start()

    def bite(self) -> None:
        """Say the last word and exit without waiting for anything."""
        try:
            self.last_word()
        finally:
            os._exit(INCOMPLETE)

    def stop(self) -> None:
        """Call it off."""
        self.timer.cancel()


def execute(options: argparse.Namespace, start: float) -> int:
    """Open the folder, run the cases, write the environment and return the exit code."""
    import gc

    import torch

    from on_gpu.cases import TINY, Sizes
    from on_gpu.environment import Smi
    from on_gpu.suite import Run, all_cases, best
    from on_gpu.tables import FolderError, Recorder

    if not options.dry_run and not torch.cuda.is_available():
        return complain("torch finds no CUDA device here; --dry-run tries the script on the CPU", NO_GPU)
    try:
        bench = make_bench(options.dry_run, start + options.budget)
    except RuntimeError as error:
        return complain(f"the CUDA device cannot be used: {str(error).splitlines()[0]}", NO_GPU)
    try:
        recorder = Recorder(options.folder)
    except FolderError as error:
        return complain(str(error), USAGE)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    sizes = TINY if options.dry_run else Sizes()
    cases = all_cases(sizes)
    run = Run(bench, recorder, Smi(bench.device))
    constant = environment(bench, options)

    def save() -> None:
        recorder.environment({**constant, "seconds": round(time.monotonic() - start, 1), **run.facts()})

    def hang() -> None:
        run.status = f"stopped: {run.current} did not return"
        complain(run.status, INCOMPLETE)
        save()

    gc.collect()
    gc.freeze()  # a graph capture collects garbage: keep that short
    save()
    watchdog = Watchdog(options.budget + GRACE_S - (time.monotonic() - start), hang)
    run.over(cases, sizes, save)
    watchdog.stop()
    save()
    recorder.close()
    return report(run, best(run.results), run.core_ran(cases), options.folder)


def report(run: Run, lines: Sequence[str], core_ran: bool, folder: Path) -> int:
    """Print the best rates, what failed and what was skipped; return the exit code."""
    print("\n".join(lines))
    counts = {status: len(run.named(status)) for status in ("ok", "failed", "skipped")}
    print(f"{run.status}: {counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped; see {folder}")
    if run.status.startswith("interrupted"):
        return complain(run.status, INTERRUPTED)
    for failure in run.named("failed"):
        complain(f"failed: {failure['name']}: {failure['reason']}", INCOMPLETE)
    return OK if core_ran else complain("not all core cases ran: see environment.json", INCOMPLETE)


def run_stages(options: argparse.Namespace, start: float) -> int:
    """Run the stages into the folder; returns the exit code."""
    import torch

    from on_gpu import environment as probe
    from on_gpu.tables import FolderError, new_folder

    if not options.dry_run and not torch.cuda.is_available():
        return complain("torch finds no CUDA device here; --dry-run tries the script on the CPU", NO_GPU)
    folder = options.folder.resolve()
    try:
        listed = stages.chosen(stages.stages(folder, options.dry_run, options.budget), options.stages)
        new_folder(folder)
    except (FolderError, ValueError) as error:
        return complain(str(error), USAGE)
    facts = {
        "format": 1,
        "dry_run": options.dry_run,
        "budget_s": options.budget,
        **probe.versions(),
        **probe.revision(),
    }
    if lacking := checkout.missing(checkout.PICTURE):
        print(f"on_gpu: no picture without {', '.join(lacking)}", file=sys.stderr, flush=True)
    ended = stages.run(
        folder, listed, options.budget - (time.monotonic() - start),
        lambda line: print(f"on_gpu: {line}", file=sys.stderr, flush=True), facts,
    )  # fmt: skip
    print("\n".join(f"{one.name}: {one.status}, {one.seconds:.0f} s" for one in ended))
    print(f"finished in {time.monotonic() - start:.0f} s; see {folder}")
    return OK if stages.complete(ended, listed) else complain("the suite did not run: see suite.log", INCOMPLETE)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    """Run the application and return its exit code."""
    start = time.monotonic()
    options = parse(argv)
    if options.dry_run:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    else:
        os.environ.pop("TRITON_INTERPRET", None)  # kernels run on the GPU, whatever the caller tried before
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return complain(f"torch cannot be imported by {sys.executable}: {error}", INCOMPLETE)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # stages inherit a background job's deafness to it
    lacking = checkout.missing(checkout.NEEDED)
    if lacking and not options.standalone:
        text = "stand-alone cases alone: our kernels and the comparison need"
        print(f"on_gpu: {text} {', '.join(lacking)}", file=sys.stderr, flush=True)
        options.budget = min(options.budget, BUDGET_S)
    try:
        if lacking or options.standalone:
            return execute(options, start)
        return run_stages(options, start)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except OSError as error:
        return complain(f"cannot write the results: {error}", INCOMPLETE)
