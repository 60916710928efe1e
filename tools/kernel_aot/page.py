"""docs/kernels.md: each kernel's configurations beside what the compiler makes of them, targets, tested versions."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from kernel_cases.case import Case

from kernel_aot import store, work
from perfmodel.kernels import table
from perfmodel.kernels.device import KNOWN

HEAD = """# Kernels

<!-- Written by tools/kernels.py doc; change that, the tables in kernels/data or the figures, not this page. -->

The Triton kernels that `validate` measures. Each has one public function, which checks its arguments, takes a launch
configuration from a table in `kernels/data/` (no autotuning at run time) and launches; a torch reference lies beside
it. `tools/kernels.py prune KERNEL` proposes rows for the kernels with matrix products: it compiles candidates, drops
those that spill, serialise their matrix instructions or do not fit, and ranks the rest with the roofline of the GPU,
the waves of their blocks and the traffic of their tiles. Rows of the other kernels, and ties, were settled by hand from
the compiler's figures below; none has been tuned on a GPU yet.

"""

HOW_CHECKED = """## How they are checked

`pytest -m interpreter` runs every kernel on the CPU in Triton's interpreter against float64 references; `pytest -m gpu`
runs the same tests on a GPU. `pytest -m aot` compiles: every row below was compiled for its architecture without a GPU,
by the path that a launch takes, and must compile, ask for no more shared memory than a block may, spill nothing (32
bytes where a reason is given), and show no warning of ptxas that `wgmma` instructions are serialised; tensor cores and
TMA must be used where they are meant to be.

"""

VERSIONS = """## Versions of Triton

Results of `pytest -m interpreter tests/kernels`, as `tools/triton_versions.py`, alone or in `nox -s interpreter`, last
recorded them.

"""

WEIGHTS = """SASS instructions that the main loop spends on a weight, counted in the compiled kernel (a thread's, all of
them: unpacking, loads, addresses, matrix instructions); with the limit that the compilation is held to, where there is
one. An H200's multiprocessor issues 128 instructions for threads a clock, and at 1.98 GHz and 4.3 TB/s reads 31 weights
in it: about 4.1 instructions a weight take as long as reading it. A loop with tcgen05 is not counted.

"""

COLUMNS = """"Registers" are those of a thread, "spill" the bytes of them stored to memory, "shared" the KiB of shared
memory of a block. "Blocks" are resident on a multiprocessor at once, "occupancy" is the share of its 64 warps (48
on sm_86, sm_89 and sm_120) that they hold, and "limit" what stops a further block. "Warps" are those of the running
block: warp specialisation adds to the configured ones. "MMA" is the shape of the matrix instructions, "TMA" counts the
tile loads and stores in the code. sm_86, sm_89 and sm_120 take the rows of sm_80 that fit in their 99 KiB of shared
memory; some calls were compiled for them.
The first row whose condition holds is taken.
"Calls" is how many argument types and features were compiled with a row of the launch table: where they differ, the
least and the greatest figure stand here, and each call's own in `tests/kernels/data/aot`. Each kernel that a call
launches has a line.

"""


@dataclass(frozen=True)
class Target:
    """What a kernel should reach on an H200, as a fraction of a ceiling measured in the same run."""

    name: str
    kernel: str
    shape: str
    fraction: float
    ceiling: str


PEAK, COPY = "matrix peak", "copy bandwidth"
TARGETS = (
    Target("gemm_bf16", "bf16 GEMM", "M = N = K = 8192", 0.75, PEAK),
    Target("gemm_fp8", "FP8 GEMM", "M = N = 8192, K = 4096", 0.63, PEAK),
    Target("gemm_w4a16", "W4A16 GEMM", "M up to 16, N = 28672, K = 8192", 0.67, COPY),
    Target("prefill", "prefill attention", "causal, 4 x 8192 tokens, 32 query and 8 KV heads of 128", 0.5, PEAK),
    Target("decode", "paged decode attention", "64 x 8192 tokens, 32 query and 8 KV heads of 128", 0.93, COPY),
    Target("mla_decode", "MLA decode", "64 x 8192 tokens, 128 heads", 0.4, PEAK),
    Target("verification", "speculative verification", "64 x 4 rows, vocabulary 128k", 0.75, COPY),
)


def measured(recorded: Path, gpu: str = "h200") -> dict[str, float]:
    """Fractions reached, by target: `kernel_targets.csv` (target, fraction) in the newest such folder of a GPU."""
    found: dict[str, float] = {}
    for path in sorted(recorded.glob(f"{gpu}*/kernel_targets.csv"), key=lambda path: path.parent.name[-10:]):
        with path.open(newline="", encoding="utf-8") as file:
            found |= {row["target"]: float(row["fraction"]) for row in csv.DictReader(file)}
    return found


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n\n"
    )


def targets(recorded: Path) -> str:
    """The section on targets."""
    reached = measured(recorded)
    rows = [
        (t.kernel, t.shape, f"{t.fraction:.2f} of {t.ceiling}", f"{reached[t.name]:.2f}" if t.name in reached else "")
        for t in TARGETS
    ]
    state = "" if reached else "No H200 has run them yet: the measured column is empty. "
    text = (
        f"## Targets on an H200\n\n{state}Fractions are of ceilings measured in the same run: the fastest library\n"
        "product of the same format for the matrix peak, a large device-to-device copy for the bandwidth.\n\n"
    )
    return text + markdown_table(("kernel", "shape", "target", "measured"), rows)


def versions(path: Path) -> str:
    """The section on the versions of Triton that passed, from the file that `tools/triton_versions.py` writes."""
    passed = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = [
        (name, run["torch"], run["numpy"], run["passed"], run["failed"], run["skipped"])
        for name, run in sorted(passed.items(), key=lambda item: [int(part) for part in item[0].split(".")])
    ]
    return VERSIONS + markdown_table(("triton", "torch", "numpy", "passed", "failed", "skipped"), rows)


def first_paragraph(root: Path, caller: str) -> str:
    """The public function `module:name` and the first paragraph of its docstring."""
    module, name = caller.split(":")
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            return f"`{module}.{name}`: {text}"
    raise ValueError(f"{path} has no function {name}")


def _condition(row: table.Row) -> str:
    parts = []
    for name, (low, high) in row.when.items():
        bounds = [f"{low:g} ≤" if low > float("-inf") else "", name, f"≤ {high:g}" if high < float("inf") else ""]
        parts.append(f"{name} = {low:g}" if low == high else " ".join(bound for bound in bounds if bound))
    return ", ".join(parts) or "otherwise"


def _span(values: Sequence[float], form: str = "{:g}") -> str:
    """One value, or the least and the greatest."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}–{high}"


def _distinct(values: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _matrix_units(launch: Mapping[str, Any]) -> list[str]:
    return launch["shapes"] or (["tcgen05"] if launch["counts"].get("tcgen05") else [])


def _figures(cases: Sequence[Case], launches: Sequence[dict[str, Any]]) -> list[str]:
    """The figures of one kernel in the launches of several calls."""
    spills = [max(launch["spill_stores"], launch["spill_loads"]) for launch in launches]
    reasons = _distinct([case.why for case in cases]) if any(spills) else ""
    tma = [(launch["counts"].get("tma_load", 0), launch["counts"].get("tma_store", 0)) for launch in launches]
    costs = [launch["instructions_per_weight"] for launch in launches if "instructions_per_weight" in launch]
    return [
        f"`{launches[0]['kernel'].strip('_').removesuffix('_kernel')}`",
        *(_span([launch[name] for launch in launches]) for name in ("warps", "stages", "registers")),
        _span(spills) + (f": {reasons}" if reasons else ""),
        _span([launch["shared"] / 1024 for launch in launches], "{:.0f}"),
        _span([launch["blocks_per_sm"] for launch in launches]),
        _span([100 * launch["occupancy"] for launch in launches], "{:.0f}") + " %",
        _distinct([launch["limiter"] for launch in launches]),
        _distinct([shape for launch in launches for shape in _matrix_units(launch)]),
        "" if not any(map(any, tma)) else "/".join(_span(counts) for counts in zip(*tma, strict=True)),
        _span(costs) if costs else "",
    ]


LINE_HEAD = (
    "arch", "when", "meta", "calls", "launch", "warps", "stages", "registers", "spill", "shared", "blocks", "occupancy",
    "limit", "MMA", "TMA", "instr./weight",
)  # fmt: skip


def _row_of(case: Case, record: store.Record) -> int | None:
    """The row of the case's own table that it takes."""
    own = (case.kernel, KNOWN[case.arch].arch)
    return next((i for kernel, arch, i in record["rows"] if (kernel, arch) == own), None)


def _lines(cases: Sequence[Case], records: Mapping[str, store.Record]) -> Iterator[list[str]]:
    """A line for each row of the table and each kernel that calls with it launch."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        row = _row_of(case, records[case.name])
        groups.setdefault((case.arch, -1 if row is None else row), []).append(case)
    order = list(KNOWN)
    for (arch, position), members in sorted(groups.items(), key=lambda group: (order.index(group[0][0]), group[0][1])):
        row = table.rows(members[0].kernel, KNOWN[arch].arch)[position] if position >= 0 else None
        meta = ", ".join(f"{name} {value}" for name, value in row.config.meta.items()) if row else ""
        first = [arch, _condition(row) if row else members[0].label, meta, str(len(members))]
        launches: dict[str, list[dict[str, Any]]] = {}
        for case in members:
            for launch in records[case.name]["launches"]:
                launches.setdefault(launch["kernel"], []).append(launch)
        for i, found in enumerate(launches.values()):
            yield [*(first if i == 0 else [""] * len(first)), *_figures(members, found)]


def weight_costs(cases: Sequence[Case], records: Mapping[str, store.Record]) -> str:
    """The SASS instructions that each call spends on a packed weight, by architecture, and the limit; "" for none."""
    costs: dict[str, dict[str, str]] = {}
    for case in (one for one in cases if one.loop_weights):
        found = [launch.get("instructions_per_weight") for launch in records[case.name]["launches"]]
        most = case.expects.get("instructions_per_weight")
        for cost in filter(None, found):
            call = costs.setdefault(case.label.rpartition(", ")[0], {})
            call[case.arch] = f"{cost:.2f}" + (f" (at most {most:g})" if most else "")
    if not costs:
        return ""
    arches = [arch for arch in KNOWN if any(arch in call for call in costs.values())]
    rows = [(label, *(call.get(arch, "") for arch in arches)) for label, call in costs.items()]
    return WEIGHTS + markdown_table(("call", *arches), rows)


def kernel_section(root: Path, name: str, cases: Sequence[Case], records: Mapping[str, store.Record]) -> str:
    """One kernel: what it is, why it is built so, and its rows."""
    path = root / "kernels" / "data" / f"{name}.json"
    why = json.loads(path.read_text(encoding="utf-8"))["why"] if path.exists() else ""
    callers = [launch["caller"] for case in cases for launch in records[case.name]["launches"] if launch["caller"]]
    paragraphs = [*(first_paragraph(root, caller) for caller in dict.fromkeys(callers)), why]
    lines = list(_lines(cases, records))
    used = [i for i, _ in enumerate(LINE_HEAD) if any(line[i] != "" for line in lines)]
    rows = [[line[i] for i in used] for line in lines]
    text = "".join(f"{paragraph}\n\n" for paragraph in paragraphs if paragraph)
    listed = markdown_table([LINE_HEAD[i] for i in used], rows)
    return f"### {name}\n\n{text}" + listed + weight_costs(cases, records)


def render(root: Path, folder: Path, figures: Path) -> str:
    """The whole page."""
    versions_file = figures.parent / "triton_versions.json"
    parts = [HEAD, targets(root / "validate" / "recorded"), HOW_CHECKED, versions(versions_file)]
    records: dict[str, store.Record] = {}
    families: dict[str, list[Case]] = {}
    for path in work.case_files(folder):
        records |= store.load(figures, path.stem)
        for name, case in work.cases(path).items():
            if name in records:
                families.setdefault(case.kernel, []).append(case)
    sections = [kernel_section(root, kernel, cases, records) for kernel, cases in families.items()]
    total = sum(map(len, families.values()))
    head = f"## Configurations\n\n{total} calls, compiled by triton {triton.__version__}.\n\n"
    return "".join([*parts, head, COLUMNS, *sections]).rstrip() + "\n"
