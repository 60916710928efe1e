"""Are there figures for every case and row, are they current, and do they pass the gates?"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from kernel_cases.case import Case

from kernel_aot import gates, store, work
from perfmodel.kernels import table

Findings = dict[str, list[str]]

STALE = "figures are stale: run tools/kernels.py compile --changed"


def judge(case: Case, result: work.Result) -> list[str]:
    """What is wrong with a case that was compiled: it does not compile, or gates fail."""
    if "error" in result:
        return [f"{case.name}: {result['error']}"]
    return gates.failures(case, result["launches"])


def table_rows() -> set[tuple[str, str, int]]:
    """Every row of every launch table: kernel, architecture, position."""
    found = set()
    for entry in resources.files(table.__package__).joinpath("data").iterdir():
        if entry.name.endswith(".json"):
            content = json.loads(entry.read_text(encoding="utf-8"))
            for arch, rows in content["architectures"].items():
                found |= {(content["kernel"], arch, i) for i in range(len(rows))}
    return found


def check(folder: Path, figures: Path, part: str, *, anew: bool, jobs: int) -> Findings:
    """Findings by kind, each a list of sentences.

    `gates`: figures that fail a gate, or a case that does not compile. `missing`: a case without figures. `stale`:
    figures that are no longer what the compiler makes. `uncovered`: rows that no case takes, if all cases are looked
    at. A case whose code or compiler changed is compiled, and is stale whether its figures changed or not:
    the kept key is that of the code. With `anew` every case is compiled.
    """
    findings: Findings = {"gates": [], "missing": [], "stale": [], "uncovered": []}
    again: list[work.Task] = []
    known: dict[str, tuple[Case, store.Record | None]] = {}
    taken: set[tuple[str, str, int]] = set()
    for path in work.case_files(folder):
        records = store.load(figures, path.stem)
        family = work.cases(path)
        if not part:
            gone = sorted(set(records) - set(family))
            findings["stale"] += [f"{name}: there is no such case any more; {STALE}" for name in gone]
        for name, case in family.items():
            if part not in name:
                continue
            record = records.get(name)
            known[name] = (case, record)
            try:
                seen = work.look(case)
            except Exception as error:  # whatever a kernel's checks or launch code raise is a finding
                findings["gates"].append(f"{name}: {type(error).__name__}: {error}")
                continue
            taken |= {(kernel, arch, position) for kernel, arch, position in seen["rows"]}
            if record is None:
                findings["missing"].append(f"{name}: no figures are kept; run tools/kernels.py compile --changed")
            elif not anew and work.current(record, seen):
                findings["gates"] += gates.failures(case, record["launches"])
                continue
            if record is not None or anew:
                again.append((str(path), name, None))

    def done(task: work.Task, result: work.Result) -> None:
        case, record = known[task[1]]
        findings["gates"].extend(judge(case, result))
        if record is not None and any(result.get(part) != record[part] for part in ("launches", "rows", "key")):
            findings["stale"].append(f"{case.name}: {STALE}")

    work.perform(again, jobs, done)
    if not part:
        findings["uncovered"] = [f"{k} {a} row {i} has no case" for k, a, i in sorted(table_rows() - taken)]
    return findings
