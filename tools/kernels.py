"""Compile the kernels' launch configurations ahead of time, judge and document them, propose table rows.

    python tools/kernels.py compile [FILTER] [--changed] [--jobs N]    compile cases and keep their figures
    python tools/kernels.py check [FILTER] [--anew]                    do the kept figures hold, and are they current?
    python tools/kernels.py doc [--check]                              write docs/kernels.md from them
    python tools/kernels.py prune KERNEL [--arch A] [--top N]          rank candidate configurations of a kernel

No GPU is needed: the public functions are called with tensors on the meta device, and each launch becomes a compilation
for sm_80, sm_90 or sm_100. FILTER is a part of kernel/arch/label. `check` exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported, below
ROOT = Path(__file__).resolve().parents[1]

import triton  # noqa: E402

os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build" / f"triton-{triton.__version__}"))

from kernel_aot import checking, page, pruning, store, work  # noqa: E402
from kernel_cases.case import Case  # noqa: E402

CASES = ROOT / "tools" / "kernel_cases"
FIGURES = ROOT / "tests" / "kernels" / "data" / "aot"


def compile_cases(given: argparse.Namespace) -> int:
    """Compile what was asked for, keep the figures, drop those of cases that are gone."""
    tasks: list[work.Task] = []
    named: dict[str, Case] = {}
    fresh: dict[str, dict[str, store.Record]] = {}
    for path in work.case_files(given.cases):
        family, records = work.cases(path), store.load(given.figures, path.stem)
        fresh[path.stem] = {}
        for name, case in family.items():
            current = given.changed and name in records and work.look(case)["key"] == records[name]["key"]
            if given.filter in name and not current:
                named[name] = case
                tasks.append((str(path), name, None))
    failed: list[str] = []
    begun = time.monotonic()

    def done(task: work.Task, result: work.Result) -> None:
        path, name, _ = task
        faults = checking.judge(named[name], result)
        failed.extend(faults)
        if "error" not in result:
            fresh[Path(path).stem][name] = result
        print(f"{time.monotonic() - begun:5.0f} s  {name}: {'; '.join(faults) or 'ok'}", flush=True)

    work.perform(tasks, given.jobs, done)
    for path in work.case_files(given.cases):
        store.update(given.figures, path.stem, fresh[path.stem], set(work.cases(path)))
    print(f"{len(tasks)} cases compiled, {len(failed)} failures")
    return 1 if failed else 0


def check(given: argparse.Namespace) -> int:
    """Print what is wrong with the kept figures; with --json, write the findings to a file."""
    findings = checking.check(given.cases, given.figures, given.filter, anew=given.anew, jobs=given.jobs)
    if given.json:
        given.json.write_text(json.dumps(findings))
    for kind, lines in findings.items():
        for line in lines:
            print(f"{kind}: {line}")
    return 1 if any(findings.values()) else 0


def doc(given: argparse.Namespace) -> int:
    """Write docs/kernels.md, or say that it is not what would be written."""
    text = page.render(ROOT, given.cases, given.figures)
    if given.check:
        same = given.output.exists() and given.output.read_text(encoding="utf-8") == text
        if not same:
            print(f"{given.output} is out of date; run tools/kernels.py doc", file=sys.stderr)
        return 0 if same else 1
    given.output.write_text(text, encoding="utf-8")
    return 0


def prune(given: argparse.Namespace) -> int:
    """Print the candidates of a kernel, best first, and the rows they would be."""
    ranked = pruning.rank(given.cases, given.kernel, given.arch, given.jobs)
    if not ranked:
        print(f"no candidates for {given.kernel} {given.arch or ''} in {given.cases}", file=sys.stderr)
        return 1
    print(pruning.text(ranked, given.top))
    return 0


def main() -> int:
    """Run a subcommand; its return value is the exit code."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--cases", type=Path, default=CASES, help="folder of case files")
    shared.add_argument("--figures", type=Path, default=FIGURES, help="folder of the figures that are kept")
    shared.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="compiling processes")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compile", parents=[shared])
    one.add_argument("filter", nargs="?", default="")
    one.add_argument("--changed", action="store_true", help="only what has no current figures")
    one.set_defaults(run=compile_cases)
    one = commands.add_parser("check", parents=[shared])
    one.add_argument("filter", nargs="?", default="")
    one.add_argument("--anew", action="store_true", help="compile, and compare with what is kept")
    one.add_argument("--json", type=Path, help="also write the findings here")
    one.set_defaults(run=check)
    one = commands.add_parser("doc", parents=[shared])
    one.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    one.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "kernels.md")
    one.set_defaults(run=doc)
    one = commands.add_parser("prune", parents=[shared])
    one.add_argument("kernel")
    one.add_argument("--arch", default="", help="only this architecture")
    one.add_argument("--top", type=int, default=10, help="how many to print for each problem")
    one.set_defaults(run=prune)
    given = parser.parse_args()
    code: int = given.run(given)
    return code


if __name__ == "__main__":
    sys.exit(main())
