"""Cross-validate the calibrated times anew and write the scoreboard.

    python tools/accuracy.py [--tables FOLDER] [-o docs/accuracy.md] [--jobs N]

Takes about three minutes on two cores. Nothing is taken from the shipped fits: every figure is computed from the
tables.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from perfmodel.validate.fit_data import cells
from perfmodel.validate.fit_moved import summaries
from perfmodel.validate.fit_report import page, reference, row

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "tests" / "validate" / "data" / "measured"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "accuracy.md")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    listed = list(cells(given.tables))
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(row, listed))
    text = page(rows, reference(given.tables / "reference.csv"), summaries(listed))
    given.output.write_text(text, encoding="utf-8")
    print(f"{given.output}: {len(rows)} cells")


if __name__ == "__main__":
    main()
