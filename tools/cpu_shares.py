"""Write the shares of its ceilings that torch reaches on a processor, from a recorded run with one thread.

    perfmodel validate --device cpu --threads 1 --suite full --calibrate -o FOLDER/suite.json     (and device.yaml)
    python tools/cpu_shares.py

Reads the newest folder under validate/recorded whose name begins with ``cpu-`` and has ``-1t-`` in it. The result is
``roofline/data/efficiency_cpu/torch-cpu.yaml``; the same folder gives the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.validate.bench.compare import FIT_SET
from perfmodel.validate.bench.fit import fit_device
from perfmodel.validate.replay import RECORDED, recorded_suite

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Written by tools/cpu_shares.py: run it again rather than edit. What they mean: roofline/calibrated.\n"


def content(folder: Path) -> dict[str, object]:
    """The file of a recorded run."""
    run = recorded_suite(folder / "suite.json")
    spec = load_gpu(str(folder / "device.yaml"))
    rows = [r for r in run.results if r.more["set"] == FIT_SET]
    call = run.ceilings.get("launch")
    place = f"{run.device} ({folder.name})"
    fit = fit_device(rows, spec, rows[0].engine, call, run.versions["torch"], f"{folder.name}/suite.json").content
    return {"recorded_on": place, "call": f"{call * 1e9:.4g} ns", "fit": {**fit, "machine": ""}}


def newest(threads: int = 1) -> Path:
    """The newest recorded run of a processor by so many threads."""
    return max(RECORDED.glob(f"cpu-*-{threads}t-*"), key=lambda path: path.name[-10:])


def main() -> int:
    path = ROOT / "roofline/data/efficiency_cpu/torch-cpu.yaml"
    text = yaml.safe_dump(content(newest()), sort_keys=False, allow_unicode=True, width=120)
    path.write_text(HEAD + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
