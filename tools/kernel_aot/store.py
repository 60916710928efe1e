"""The figures that are kept: one JSON file a case file, `{"triton": VERSION, "cases": {NAME: RECORD}}`.

A record holds the case's `key` (see `fingerprint`), the table `rows` it takes, and the figures of its `launches`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton

Record = dict[str, Any]


def load(folder: Path, family: str) -> dict[str, Record]:
    """The records of a family by case name; empty if there are none for this version of Triton."""
    path = folder / f"{family}.json"
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    records: dict[str, Record] = kept["cases"] if kept["triton"] == triton.__version__ else {}
    return records


def save(folder: Path, family: str, records: dict[str, Record]) -> None:
    """Replace a family's file; one line a launch keeps the difference between two versions readable."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, record in sorted(records.items()):
        launches = ",\n   ".join(json.dumps(launch) for launch in record["launches"])
        head = json.dumps({"key": record["key"], "rows": record["rows"]})[:-1]
        lines.append(f'  {json.dumps(name)}: {head}, "launches": [\n   {launches}]}}')
    text = f'{{"triton": "{triton.__version__}", "cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    json.loads(text)
    (folder / f"{family}.json").write_text(text, encoding="utf-8")


def update(folder: Path, family: str, fresh: dict[str, Record], names: set[str]) -> None:
    """Put fresh records into a family's file and drop those of cases that are gone; an equal file is left alone."""
    before = load(folder, family)
    after = {name: record for name, record in (before | fresh).items() if name in names}
    if after != before:
        save(folder, family, after)
