"""How near our kernels come to their targets: ``kernel_targets.csv``, the fractions that the kernels' page shows.

Each is timed at its target's shape, after its check, against the ceilings of the run that came before. On a CPU, where
our kernels do not run, torch at small shapes stands in, to try the script itself.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BUDGET_S, HEADER = 1.0, ("target", "fraction", "reached", "ceiling", "unit", "of", "median_us", "relative_error")


def targets(device: str) -> list[tuple[str, Any, str]]:
    """Target, operator at its shape, and the ceiling that its fraction is of."""
    from perfmodel.validate.bench import operators as o

    if device == "cpu":
        return [
            ("gemm_bf16", o.gemm(64, 64, 64, "bf16"), "peak:bf16"),
            ("prefill", o.attention(1, 4, 2, 64, 64, 64, "bf16"), "peak:bf16"),
            ("decode", o.attention(1, 4, 2, 64, 1, 64, "bf16"), "memory"),
            ("mla_decode", o.latent(1, 16, 64), "peak:bf16"),
        ]
    return [
        ("gemm_bf16", o.gemm(8192, 8192, 8192, "bf16"), "peak:bf16"),
        ("gemm_fp8", o.gemm(8192, 8192, 4096, "fp8"), "peak:fp8"),
        ("gemm_w4a16", o.narrow_gemm(16, 28672, 8192), "memory"),
        ("prefill", o.attention(4, 32, 8, 128, 8192, 8192, "bf16"), "peak:bf16"),
        ("decode", o.attention(64, 32, 8, 128, 1, 8192, "bf16"), "memory"),
        ("mla_decode", o.latent(64, 128, 8192), "peak:bf16"),
        ("verification", o.verified("logsumexp", 256, 128256), "memory"),
    ]


def newest_ceilings(store: Any, device: str) -> Any:
    """The ceilings that were measured last on this kind of device; None where there are none."""
    from perfmodel.validate.bench.ceilings import Ceilings
    from perfmodel.validate.bench.session import CEILINGS

    for run in store.runs():
        kept = [r for r in store.results(run) if r.operator == CEILINGS] if run.kind == device else []
        if kept:
            return Ceilings.from_dict(kept[0].more)
    return None


def measured(s: Any, found: Any, tell: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """A row a target whose ceiling was measured; one that fails is said and left out."""
    from perfmodel.validate.bench.measure import measure
    from perfmodel.validate.bench.session import realiser
    from perfmodel.validate.bench.suites import Wanted

    make = realiser(s.device)
    for target, op, ceiling in targets(s.device):
        if ceiling not in found.items:
            tell(f"{target}: no ceiling {ceiling}")
            continue
        try:
            row = measure(make(Wanted(op)), s.room, BUDGET_S)
        except Exception as error:  # a kernel that fails is a result; the others go on
            tell(f"{target}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            s.room.forget()
            continue
        work = float(op.unit_cost.bytes if ceiling == "memory" else op.unit_cost.matrix_flops)
        top, seconds = found.items[ceiling], row.timings[""].median
        tell(f"{target}: {work / seconds / top.value:.3f} of {ceiling}")
        yield {
            "target": target, "fraction": f"{work / seconds / top.value:.4f}", "reached": f"{work / seconds:.5g}",
            "ceiling": f"{top.value:.5g}", "unit": top.unit, "of": ceiling, "median_us": f"{seconds * 1e6:.5g}",
            "relative_error": f"{row.error:.3g}",
        }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """``targets FOLDER cpu|cuda``: write ``kernel_targets.csv`` into the folder."""
    from perfmodel.validate.bench.session import session
    from perfmodel.validate.bench.store import Store

    folder, device = Path(argv[0]), argv[1]

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with Store() as store:
        found = newest_ceilings(store, device)
    if found is None:
        tell("no run has measured the ceilings yet")
        return 1
    with (
        session(device, "targets", False, 1 if device == "cpu" else None, tell) as s,
        (folder / "kernel_targets.csv").open("w", encoding="utf-8", newline="", buffering=1) as file,
    ):
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        count = 0
        for row in measured(s, found, tell):  # each is written at once: an interrupt leaves what was measured
            writer.writerow(row)
            count += 1
        s.store.finish(s.run)
    return 0 if count else 1
