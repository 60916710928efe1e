"""Fit the overheads of the memory model on a table of start-up logs, and write them with what is known about them.

    python tools/fit_memory.py CAPACITY.csv [--models FOLDER] [--provenance TEXT] [-o OVERHEADS.yaml]

The table's columns are those of ``perfmodel.roofline.engines.capacity``. Models that are not built in are looked for in
the folder. Rows without KV tokens are skipped. What is printed is the error of each model under overheads that were
fitted on the others.
"""

import argparse
from datetime import date
from pathlib import Path

import yaml

from perfmodel.roofline.engines.capacity import Specs, cases
from perfmodel.roofline.engines.fit import TERMS, Case, cross_validate, fit, half_width, residuals, summary
from perfmodel.roofline.engines.overheads import FILE, Overheads

START = {
    "date": "", "version": "", "provenance": "", "rows": 0, "hidden_copies": 4.0, "moe_buffers": 0.0,
    "non_torch": {"tp1": 2.0**28, "tp2": 2.0**31, "doubling": 0.0},
    "context": {"tp1": 2.0**29, "tp2": 1.5 * 2**30, "doubling": 0.0},
    "graphs": {"base": 0.0, "per_layer": 0.0, "per_moe_layer": 0.0},
    "graph_estimate": {"base": 0.0, "per_layer": 0.0, "per_moe_layer": 0.0},
    "intervals": {}, "cross_validation": {},
}  # fmt: skip
HEADER = "# Written by tools/fit_memory.py: run it again rather than edit. Bytes, and fractions for errors.\n"


def rounded(value: object) -> object:
    """Numbers short enough to read: whole bytes, six digits of a fraction."""
    if isinstance(value, float):
        return round(value, 6) if abs(value) < 1000 else float(round(value))
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--models", type=Path, help="folder of YAML specs and configurations of other models")
    parser.add_argument("--provenance", default="start-up logs", help="what the table is, in words")
    parser.add_argument("-o", "--output", type=Path, default=FILE)
    given = parser.parse_args()

    found, skipped = [], 0
    for row, question, why in cases(given.table, Specs(given.models)):
        if question is None:
            skipped += 1
            print(f"skipped {row['model']}: {why}")
        elif row["engine"] == "vllm":
            found.append(Case(row, question))
    start = Overheads.model_validate(START)
    fitted, left_out = fit(found, start), cross_validate(found, start)
    scores = {**summary(left_out), "models": len({row["group"] for row in left_out}), "rows": len(left_out)}
    data = {
        **fitted.model_dump(), "date": date.today().isoformat(), "version": found[0].row["version"],
        "provenance": given.provenance, "rows": len(found),
        "intervals": {term: half_width(left_out, term) for term in TERMS}, "cross_validation": scores,
        "residuals": residuals(found, fitted),
    }  # fmt: skip
    text = yaml.safe_dump(rounded(data), sort_keys=False, width=4000, default_flow_style=None)
    given.output.write_text(HEADER + text)
    print(f"{len(found)} rows of {scores['models']} models, {skipped} skipped; left out one model at a time:")
    print(", ".join(f"{key} {value:.3%}" for key, value in scores.items() if isinstance(value, float)))


if __name__ == "__main__":
    main()
