"""What tools/kernels.py does: compile cases, check the kept figures, write the page, rank candidates."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from kernel_cases.case import Case

from kernel_aot import checking, page, pruning, store, work

ROOT = Path(__file__).resolve().parents[2]


def compile_cases(given: argparse.Namespace) -> int:
    """Compile what was asked for, keep the figures, drop those of cases that are gone."""
    tasks: list[work.Task] = []
    named: dict[str, Case] = {}
    fresh: dict[str, dict[str, store.Record]] = {}
    for path in work.case_files(given.cases):
        family, records = work.cases(path), store.load(given.figures, path.stem)
        fresh[path.stem] = {}
        for name, case in family.items():
            current = given.changed and name in records and work.current(records[name], work.look(case))
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
