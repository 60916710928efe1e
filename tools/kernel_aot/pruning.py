"""Rank candidate configurations: what the compiler makes of them, then what our model says of the work they do."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_cases.case import Candidates, Case, Work

from kernel_aot import checking, work
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.table import Config
from perfmodel.roofline.attention_decode import wave_efficiency
from perfmodel.roofline.cost import EXP, Cost, matrix
from perfmodel.roofline.times import Rates

GPUS = {"sm_80": "a100-sxm", "sm_90": "h200", "sm_100": "b200"}
"""The spec that stands for each architecture."""


@dataclass(frozen=True)
class Ranked:
    """A candidate: its predicted time and what sets it, or why it was dropped."""

    problem: str
    config: Config
    seconds: float
    limiter: str
    dropped: str
    registers: int = 0
    shared: int = 0
    blocks_per_sm: int = 0
    warps: int = 0


def configs(candidates: Candidates) -> Iterator[Config]:
    """Every combination that `keep` lets through."""
    names = list(candidates.meta)
    for *values, warps, stages in itertools.product(
        *candidates.meta.values(), candidates.num_warps, candidates.num_stages
    ):
        config = Config(dict(zip(names, values, strict=True)), warps, stages)
        if candidates.keep(config):
            yield config


def predicted(todo: Work, arch: str, blocks_per_sm: int) -> tuple[float, str]:
    """Seconds of a launch, and the resource that sets them.

    Work on the multiprocessors is divided by the wave efficiency of the launch's blocks over the slots that occupancy
    leaves; a launch with fewer blocks than multiprocessors has their share of the L2 and device bandwidth at most.
    """
    gpu = load_gpu(GPUS[arch])
    slots = SM_COUNT[arch] * max(blocks_per_sm, 1)
    busy = float(wave_efficiency(todo.blocks, slots))
    ops = {matrix(todo.math): todo.flops / busy} if todo.flops else {}
    if todo.exp:
        ops[EXP] = todo.exp / busy
    reach = min(1.0, todo.blocks / SM_COUNT[arch])
    terms = {name: float(t) for name, t in Rates(gpu).terms(Cost(ops, {"tiles": todo.hbm_bytes / reach})).items()}
    if gpu.memory.l2 is not None and gpu.memory.l2.bandwidth is not None:
        terms["l2"] = todo.l2_bytes / gpu.memory.l2.bandwidth.value / busy
    limiter = max(terms, key=lambda name: terms[name])
    return terms[limiter], limiter


def rank(folder: Path, kernel: str, arch: str, jobs: int) -> list[Ranked]:
    """All candidates of a kernel; for each problem the fastest first, and the dropped last.

    Configurations that fail the gates are dropped. Of equal times (to 2 %) the one that keeps more bytes of shared
    memory in flight on a multiprocessor comes first, then the one with more warps to spare.
    """
    tasks: list[work.Task] = []
    known: dict[str, Candidates] = {}
    for path in work.case_files(folder):
        for candidates in getattr(work.load(path), "CANDIDATES", []):
            if candidates.kernel == kernel and arch in ("", candidates.arch):
                name = f"{candidates.kernel}/{candidates.arch}/{candidates.label}"
                known[name] = candidates
                tasks += [(str(path), name, config) for config in configs(candidates)]
    found: list[Ranked] = []

    def done(task: work.Task, result: work.Result) -> None:
        _, name, config = task
        assert config is not None
        found.append(_judged(name, known[name], config, result))

    work.perform(tasks, jobs, done)
    return sorted(found, key=_order)


def _judged(name: str, candidates: Candidates, config: Config, result: work.Result) -> Ranked:
    case = Case(candidates.kernel, candidates.arch, candidates.label, lambda: None)
    faults = checking.judge(case, result)
    if faults:
        return Ranked(name, config, float("inf"), "", faults[0].removeprefix(f"{case.name}: "))
    main = max(result["launches"], key=lambda launch: (sum(launch["counts"].values()), launch["registers"]))
    seconds, limiter = predicted(candidates.work(config), candidates.arch, main["blocks_per_sm"])
    held = main["registers"], main["shared"], main["blocks_per_sm"], main["warps"]
    return Ranked(name, config, seconds, limiter, "", *held)


def _order(one: Ranked) -> tuple[str, bool, int, int, int]:
    step = 0 if one.dropped else round(math.log(one.seconds) / 0.02)
    return one.problem, bool(one.dropped), step, -one.shared * one.blocks_per_sm, -one.warps * one.blocks_per_sm


def text(ranked: list[Ranked], top: int) -> str:
    """The ranking for people, each kept candidate as the row it would be."""
    lines: list[str] = []
    for problem, group in itertools.groupby(ranked, key=lambda one: one.problem):
        listed = list(group)
        kept = [one for one in listed if not one.dropped]
        lines.append(f"{problem}: {len(listed)} candidates, {len(kept)} kept")
        for one in kept[:top]:
            row = {
                "meta": dict(one.config.meta),
                "num_warps": one.config.num_warps,
                "num_stages": one.config.num_stages,
            }
            lines.append(
                f"  {one.seconds * 1e6:9.1f} us {one.limiter:10s} {one.registers:3d} registers"
                f" {one.shared / 1024:6.1f} KiB {one.blocks_per_sm} blocks  {json.dumps(row)}"
            )
        reasons: dict[str, int] = {}
        for one in listed:
            if one.dropped:
                reasons[one.dropped[:100]] = reasons.get(one.dropped[:100], 0) + 1
        lines += [f"  dropped {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda r: -r[1])[:8]]
    return "\n".join(lines)
