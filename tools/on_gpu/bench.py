"""Run the cases one by one: gate, time, record; no failure of one loses another."""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace

import torch

from on_gpu.cases import Case, Tensors, WrongResultError, gate
from on_gpu.tables import Recorder
from on_gpu.timing import Limits, Measurement, Timer, measure, measure_host

MOST_SETS = 4096
TOO_LARGE = "too large for the memory"


@dataclass(frozen=True)
class Bench:
    """Where the cases run. ``deadline`` is a value of time.monotonic()."""

    device: torch.device
    timer: Timer
    limits: Limits
    gpu: str
    framework: str
    l2_bytes: int
    capability: tuple[int, int]
    deadline: float

    def memory_limit(self) -> float:
        """Return the bytes that the buffers of a case may take: 0.6 of what is free now."""
        if self.device.type != "cuda":
            return 2**30
        return 0.6 * torch.cuda.mem_get_info(self.device)[0]


@dataclass
class Result:
    """What became of a case: status ok, failed or skipped, with the reason. ``lost``: the device answers no more."""

    case: Case
    status: str
    reason: str = ""
    error: float | None = None
    sets: int = 0
    measurement: Measurement | None = None
    seconds: float = 0.0
    warned: list[str] = field(default_factory=list)
    lost: bool = False


def one_line(text: object, limit: int = 300) -> str:
    """Return a message as one printable line of bounded length."""
    line = " ".join(str(text).split())
    return "".join(c for c in line if c.isprintable())[:limit]


def buffer_sets(case: Case, l2_bytes: int, memory: float) -> int:
    """Return how many buffer sets to rotate over: five times the L2 cache and one more, as far as memory goes."""
    wanted = math.ceil(5 * l2_bytes / case.set_bytes) + 1 if case.rotate else 1
    return max(1, min(wanted, MOST_SETS, int(memory // case.set_bytes)))


def why_skipped(case: Case, bench: Bench) -> str:
    """Return why a case cannot run here, or an empty string."""
    cuda = bench.device.type == "cuda"
    if case.unsupported or (cuda and case.cuda_unsupported):
        return case.unsupported or case.cuda_unsupported
    if case.cuda_only and not cuda:
        return "needs a CUDA device"
    if cuda and bench.capability < case.min_capability:
        return "needs compute capability {}.{}, this GPU has {}.{}".format(*case.min_capability, *bench.capability)
    if case.set_bytes > bench.memory_limit():
        return f"{TOO_LARGE}: {case.set_bytes / 1e9:.1f} GB, and {bench.memory_limit() / 1e9:.1f} GB may be used"
    if time.monotonic() > bench.deadline:
        return "the time budget was used up"
    return ""


def _time(case: Case, bench: Bench, sets: list[Tensors]) -> Measurement:
    def call(index: int) -> torch.Tensor:
        return case.run(sets[index])

    if case.mode == "issue":
        return measure_host(bench.timer, lambda: call(0), wait=False, limits=bench.limits)
    if case.mode == "round_trip":
        return measure_host(bench.timer, lambda: call(0), wait=True, limits=bench.limits)
    if case.mode == "graph_round_trip":
        return measure_host(bench.timer, bench.timer.capture(lambda: call(0)), wait=True, limits=bench.limits)
    limits = bench.limits
    if case.sustained_s:
        limits = replace(
            limits, seconds=case.sustained_s, batch_s=case.sustained_s, half_width=0.0, max_repeats=100_000
        )
    return measure(bench.timer, call, len(sets), limits)


def _run(case: Case, bench: Bench, result: Result) -> None:
    with warnings.catch_warnings(record=True) as caught, case.context():
        warnings.simplefilter("always")
        try:
            sets = [case.make(bench.device)]
            result.error = gate(case, sets[0])
            result.sets = buffer_sets(case, bench.l2_bytes, bench.memory_limit() + case.set_bytes)
            sets += [case.make(bench.device) for _ in range(result.sets - 1)]
            bench.timer.synchronize()
            result.measurement = _time(case, bench, sets)
            result.reason = one_line(result.measurement.note)
            result.status = "ok"
        finally:
            result.warned = [one_line(entry.message) for entry in caught]


def run_case(case: Case, bench: Bench) -> Result:
    """Run one case and return what became of it."""
    reason = why_skipped(case, bench)
    if reason:
        return Result(case, "skipped", reason)
    start = time.monotonic()
    result = Result(case, "failed")
    try:
        _run(case, bench, result)
    except WrongResultError as error:
        result.reason, result.error = str(error), error.error
    except Exception as error:
        result.reason = one_line("; ".join([f"{type(error).__name__}: {error}", *result.warned]))
        traceback.clear_frames(error.__traceback__)  # frames hold tensors
    result.seconds = time.monotonic() - start
    if bench.device.type == "cuda":
        _clean(result)
    return result


def _clean(result: Result) -> None:
    """Free the case's memory and see that the device still answers."""
    try:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        result.status, result.lost = "failed", True
        result.reason = one_line(f"{result.reason} The device stopped answering: {error}")


def _micro(seconds: float) -> float:
    return float(f"{seconds * 1e6:.5g}")


def record(result: Result, bench: Bench, recorder: Recorder) -> None:
    """Append the case to its table (only if it was right and timed) and to the details."""
    case, found = result.case, result.measurement
    details: dict[str, object] = dict.fromkeys(("median_us", "p20_us", "p80_us", "min_us", "median_half_width"), "")
    details |= dict.fromkeys(("method", "calls", "repeats", "tflop_per_s", "gb_per_s"), "")
    if result.status == "ok" and found is not None:
        summary = found.summary
        keys = {"gpu": bench.gpu, "framework": bench.framework, "version": torch.__version__}
        latency = {"latency_us": _micro(summary.median_s)}
        recorder.row(case.table, {**keys, "kernel_source": case.source, **case.columns, **latency})
        details |= {"method": found.method, "calls": found.calls, "repeats": summary.repeats}
        times = (summary.median_s, summary.p20_s, summary.p80_s, summary.minimum_s)
        details |= dict(zip(("median_us", "p20_us", "p80_us", "min_us"), map(_micro, times), strict=True))
        details |= {"median_half_width": f"{summary.half_width:.3g}"}
        details |= {"tflop_per_s": f"{case.flops / summary.median_s / 1e12:.4g}"}
        details |= {"gb_per_s": f"{case.moved_bytes / summary.median_s / 1e9:.4g}"}
    error = "" if result.error is None else f"{result.error:.3g}"
    details |= {"name": case.name, "table": case.table, "group": case.group, "kernel_source": case.source}
    details |= {"status": result.status, "reason": result.reason, "relative_error": error, "tolerance": case.tolerance}
    details |= {"buffer_sets": result.sets or "", "flops": case.flops, "moved_bytes": case.moved_bytes}
    recorder.row("details", {**details, "case_seconds": f"{result.seconds:.2f}"})


def tell(result: Result) -> None:
    """Print one line on stderr about a case."""
    line = f"{result.status:8s}{result.case.name}"
    if result.measurement is not None and result.status == "ok":
        summary = result.measurement.summary
        line += f"  {_micro(summary.median_s)} us  ({result.measurement.method}, {summary.repeats} repeats)"
    print(line + (f"  {result.reason}" if result.reason else ""), file=sys.stderr, flush=True)
