"""The list of cases in the order of their worth, so that a run cut short has the core, and the run over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from on_gpu.attention import attention_cases
from on_gpu.bench import TOO_LARGE, Bench, Result, record, run_case, tell
from on_gpu.cases import Case, Sizes, normal
from on_gpu.environment import Smi
from on_gpu.gemms import gemm, gemm_cases
from on_gpu.memory import launch_cases, stream_cases
from on_gpu.tables import Recorder


def all_cases(sizes: Sizes) -> list[Case]:
    """Return every case: the core (copy, launch, bf16 GEMM, flash attention) first, the long sustained run last."""
    side = sizes.squares[-1]
    sustained = replace(
        gemm("bfloat16", "sustained", side, side, side),
        group="sustained",
        source="cublas_sustained",
        core=False,
        sustained_s=sizes.sustained_s,
    )
    return [
        *stream_cases(sizes, "copy"),
        *launch_cases(),
        *gemm_cases(sizes, "bfloat16"),
        *attention_cases(sizes, "flash"),
        *gemm_cases(sizes, "fp8"),
        *gemm_cases(sizes, "int8"),
        *stream_cases(sizes, "read"),
        *stream_cases(sizes, "triad"),
        *attention_cases(sizes, "cudnn"),
        sustained,
    ]


def warm_device(bench: Bench, sizes: Sizes) -> None:
    """Multiply matrices for a while, so that the first case does not run at the clocks of an idle device."""
    a = normal((sizes.warm, sizes.warm), torch.bfloat16, bench.device)
    end = time.monotonic() + sizes.warm_s
    while time.monotonic() < end:
        torch.mm(a, a)
        bench.timer.synchronize()


class Run:
    """One run over cases: the results so far, the snapshots between groups, and how it ended."""

    def __init__(self, bench: Bench, recorder: Recorder, smi: Smi) -> None:
        self.bench, self.recorder, self.smi = bench, recorder, smi
        self.results: list[Result] = []
        self.snapshots: list[dict[str, str]] = []
        self.status = "running"
        self.current = ""

    def snap(self, when: str) -> None:
        """Note clocks, power and temperature now."""
        self.snapshots.append(self.smi.snapshot(when))

    def over(self, cases: Iterable[Case], sizes: Sizes, save: Callable[[], object]) -> None:
        """Run the cases in order, and ``save`` after each group; an interrupt or a lost device ends it (``status``)."""
        self.snap("before")
        group = ""
        try:
            warm_device(self.bench, sizes)
            for case in cases:
                if group and case.group != group:
                    self.snap(f"after {group}")
                    save()
                group, self.current = case.group, case.name
                self.add(run_case(case, self.bench))
                if self.results[-1].lost:
                    raise RuntimeError(f"{case.name}: {self.results[-1].reason}")
            self.status = "finished"
        except KeyboardInterrupt:
            self.status = f"interrupted in {self.current or 'the warm-up'}"
        except RuntimeError as error:
            self.status = f"stopped: {error}"
        self.snap("after")

    def add(self, result: Result) -> None:
        """Record a result and say it."""
        self.results.append(result)
        record(result, self.bench, self.recorder)
        tell(result)

    def named(self, status: str) -> list[dict[str, str]]:
        """Return the names and reasons of the results with a status."""
        return [{"name": r.case.name, "reason": r.reason} for r in self.results if r.status == status]

    def facts(self) -> dict[str, object]:
        """Return what environment.json says of the run."""
        checked = [r for r in self.results if r.error is not None]
        wrong = [r.case.name for r in checked if r.error is not None and not r.error <= r.case.tolerance]
        return {
            "status": self.status,
            "rows": dict(self.recorder.rows),
            "correctness": {"checked": len(checked), "passed": len(checked) - len(wrong), "wrong": wrong},
            "failures": self.named("failed"),
            "skipped": self.named("skipped"),
            "nvidia_smi": self.snapshots,
        }

    def core_ran(self, cases: Iterable[Case]) -> bool:
        """Return whether every core case was right and timed, apart from those that the memory is too small for."""
        small = {r.case.name for r in self.results if r.status == "skipped" and r.reason.startswith(TOO_LARGE)}
        ran = {r.case.name for r in self.results if r.status == "ok"}
        core = [case for case in cases if case.core]
        groups = {case.group for case in core}
        return all(case.name in ran | small for case in core) and groups <= {
            r.case.group for r in self.results if r.status == "ok" and r.case.core
        }


def best(results: Iterable[Result]) -> list[str]:
    """Return the highest rate of each group of cases as lines of text."""
    lines: dict[str, tuple[float, str]] = {}
    for r in results:
        if r.status != "ok" or r.measurement is None or r.case.mode != "device" or r.case.table == "launch":
            continue
        compute = r.case.table in ("gemm", "context_attention")
        rate = (r.case.flops / 1e12 if compute else r.case.moved_bytes / 1e9) / r.measurement.summary.median_s
        line = f"{r.case.group}: {rate:.4g} {'TFLOP/s' if compute else 'GB/s'} ({r.case.name})"
        lines[r.case.group] = max(lines.get(r.case.group, (0.0, "")), (rate, line))
    return [line for _, line in lines.values()]
