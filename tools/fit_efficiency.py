"""Fit the shipped efficiencies on recorded operator tables, and write them with their errors.

    python tools/fit_efficiency.py [--tables FOLDER] [-o FOLDER] [--jobs N]

Each GPU and engine becomes a file, and ``transfer.yaml`` says how the kinds transfer to an architecture without a fit.
Takes about two minutes on two cores.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.efficiency import FOLDER
from perfmodel.validate.calibrate import fit_cell
from perfmodel.validate.fit_data import Cell, cells
from perfmodel.validate.fit_moved import summaries
from perfmodel.validate.fit_store import write
from perfmodel.validate.fit_transfer import joint_fit, pooled

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "tests" / "validate" / "data" / "measured"
SOURCE = "PyPI package aiconfigurator-core 0.12.0 (NVIDIA), systems/data"


def fit(cell: Cell, simple: dict[str, float]) -> tuple[str, str, dict[str, object], str]:
    """Fit one cell: its GPU, engine, record, and a line for the screen. ``simple``: the simple form's parameters."""
    entry, found = fit_cell(cell, simple)
    line = (
        f"{cell.name:42s} {100 * found['mape_10us']:5.1f} % over 10 us"
        f" (physics {100 * found['physics_mape_10us']:.1f}),"
        f" {100 * found['mape']:.1f} all, bias {100 * found['bias']:+.1f}, coverage {100 * found['coverage80']:.0f}"
    )
    return cell.gpu, cell.engine, entry, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    listed = list(cells(given.tables))
    simple = {
        (gpu, kind): joint_fit(pooled(listed, kind, [gpu]), SIMPLE).params
        for gpu, kind in dict.fromkeys((cell.gpu, cell.kind) for cell in listed)
    }
    files: dict[tuple[str, str], list[dict[str, object]]] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for gpu, engine, entry, line in pool.map(fit, listed, [simple[cell.gpu, cell.kind] for cell in listed]):
            files.setdefault((gpu, engine), []).append(entry)
            print(line, flush=True)
    today = date.today().isoformat()
    given.output.mkdir(parents=True, exist_ok=True)
    for (gpu, engine), entries in files.items():
        title = f"{load_gpu(gpu).title} under {engine}: operator times fitted to measurements"
        head = {"title": title, "gpu": gpu, "engine": engine, "date": today, "source": SOURCE, "licence": "Apache-2.0"}
        write(given.output / f"{gpu}-{engine}.yaml", {**head, "kernels": entries})
    write_transfers(listed, given.output / "transfer.yaml", today)


def write_transfers(listed: Sequence[Cell], path: Path, today: str) -> None:
    """How each kind transfers to another architecture."""
    title = "Predictions of one architecture by parameters fitted on the nearest other one"
    write(path, {"title": title, "date": today, "kinds": summaries(listed)})


if __name__ == "__main__":
    main()
