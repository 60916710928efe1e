"""How near our kernels come to their targets: ``kernel_targets.csv``, the fractions that the kernels' page shows.

Each is timed at its target's shape, after its check, against the ceilings of the run that came before. On a CPU, where
our kernels do not run, small shapes of the library's stand in, to try the script itself.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Target -> operation of `validate --kernel`, sizes, format, and the ceiling that its fraction is of.
PLAIN: Mapping[str, tuple[str, Mapping[str, int], str, str]] = {
    "gemm_bf16": ("gemm", {"m": 8192, "n": 8192, "k": 8192}, "bf16", "peak:bf16"),
    "gemm_fp8": ("gemm", {"m": 8192, "n": 8192, "k": 4096}, "fp8", "peak:fp8"),
    "prefill": ("prefill", {"batch": 4, "tokens": 8192, "heads": 32, "kv_heads": 8, "dim": 128}, "bf16", "peak:bf16"),
    "decode": (
        "decode", {"batch": 64, "context": 8192, "heads": 32, "kv_heads": 8, "dim": 128, "page": 16}, "bf16", "memory",
    ),
    "mla_decode": ("mla", {"batch": 64, "context": 8192, "heads": 128, "page": 64}, "bf16", "peak:bf16"),
}  # fmt: skip
#: On a CPU: of every size at most this.
SMALL = {"m": 64, "n": 64, "k": 64, "batch": 1, "tokens": 64, "context": 64}
BUDGET_S, HEADER = 1.0, ("target", "fraction", "reached", "ceiling", "unit", "of", "median_us", "relative_error")


def plain_cases(device: str) -> Iterator[tuple[str, Any, float, str]]:
    """Targets that are operations of `validate --kernel`: name, case, work of a call [FLOP or bytes], ceiling."""
    from perfmodel.validate.bench.own_kernel import kernel_case
    from perfmodel.validate.bench.own_ops import OPS

    for target, (name, sizes, fmt, ceiling) in PLAIN.items():
        own = OPS[name]
        if device == "cpu":
            sizes = {key: min(size, SMALL.get(key, size)) for key, size in sizes.items()}
            fmt = "bf16"
        call = own.ours(fmt) if device == "cuda" and own.ours is not None else _theirs(own)
        case = kernel_case(call, target, own, sizes, fmt, device)
        cost = case.op.unit_cost
        work = float(cost.bytes) if ceiling == "memory" else float(cost.matrix_flops)
        yield target, case, work, ceiling if device == "cuda" or ceiling == "memory" else "peak:bf16"


def _theirs(own: Any) -> Callable[..., Any]:
    """The library's call on plain arguments, where it needs nothing else."""
    from perfmodel.validate.bench.own_calls import Operands, in_order

    def call(*args: Any) -> Any:
        if own.name not in ("decode", "mla"):
            return own.theirs(Operands(args))
        *caches, table, lengths = args[1:]
        return own.theirs(Operands(args, tuple(in_order(x, table, int(lengths[0])) for x in caches)))

    return call


def narrow_case(device: str) -> tuple[str, Any, float, str]:
    """W4A16: 16 rows against 28672 x 8192 weights of 4 bits in groups of 128."""
    import torch

    from perfmodel.kernels.gemm.w4_packing import from_integers
    from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
    from perfmodel.validate.bench.case import Case, pick
    from perfmodel.validate.bench.operators import gemm

    m, n, k, group = 16, 28672, 8192, 128
    width = 0.5 + 2 / group  # four bits, and a 16-bit scale a group

    def make() -> Any:
        q = torch.randint(0, 16, (k, n), dtype=torch.uint8, device=device)
        scales = (torch.rand(k // group, n, device=device) * 0.02 + 0.01).to(torch.bfloat16)
        return torch.randn(m, k, dtype=torch.bfloat16, device=device), from_integers(q, scales, group=group), q, scales

    def reference(x: Any, result: Any) -> tuple[Any, Any]:
        columns = pick(n, 64).to(device)
        weights = (x[2][:, columns].double() - 8) * x[3][:, columns].double().repeat_interleave(group, 0)
        return result[:, columns].double(), x[0].double() @ weights

    op = gemm(m, n, k, "bf16", weight_width=width)
    case = Case(
        "gemm_w4a16", op, "triton", "gemm_w4a16", "bf16", make, lambda x: gemm_w4a16(x[0], x[1]), reference,
        1.5 * n * k,
    )  # fmt: skip
    return "gemm_w4a16", case, float(op.unit_cost.bytes), "memory"


def vocabulary_case(device: str) -> tuple[str, Any, float, str]:
    """The pass of verification over the vocabulary: 64 x 4 rows of 128k logits in bf16, each read once."""
    import torch

    from perfmodel.kernels.speculative.rows import logsumexp_rows
    from perfmodel.validate.bench.case import Case
    from perfmodel.validate.bench.operators import rejection

    rows, vocabulary = 256, 128256

    def make() -> Any:
        return torch.randn(rows, vocabulary, dtype=torch.bfloat16, device=device), torch.ones(rows, device=device)

    def reference(x: Any, result: Any) -> tuple[Any, Any]:
        return result.double(), torch.logsumexp(x[0].double(), -1)

    moved = 2.0 * rows * vocabulary
    op = rejection(1, 1, vocabulary, 2.0)
    case = Case(
        "verification", op, "triton", "logsumexp_rows", "bf16", make, lambda x: logsumexp_rows(*x), reference, moved,
        1e-4,
    )  # fmt: skip
    return "verification", case, moved, "memory"


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

    makers: list[Callable[[], Iterator[tuple[str, Any, float, str]]]] = [lambda: plain_cases(s.device)]
    if s.device == "cuda":
        makers += [lambda: iter([narrow_case(s.device)]), lambda: iter([vocabulary_case(s.device)])]
    for make in makers:
        for target, case, work, ceiling in make():
            if ceiling not in found.items:
                tell(f"{target}: no ceiling {ceiling}")
                continue
            try:
                row = measure(case, s.room, BUDGET_S)
            except Exception as error:  # a kernel that fails is a result; the others go on
                tell(f"{target}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
                continue
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
    with session(device, "targets", False, 1 if device == "cpu" else None, tell) as s:
        rows = list(measured(s, found, tell))
        s.store.finish(s.run)
    with (folder / "kernel_targets.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0 if rows else 1
