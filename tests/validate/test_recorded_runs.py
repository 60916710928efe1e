"""Runs that were recorded are replayed: predicted by the code of today, within stated tolerances.

No GPU's may be recorded yet; then one skipped test says so. The replay itself is tested on a run of this processor.
"""

import csv
import gzip
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.base.errors import SpecError
from perfmodel.cli import main
from perfmodel.validate.bench import ceilings_cpu
from perfmodel.validate.bench.runner import Options, run
from perfmodel.validate.bench.streams import sizes
from perfmodel.validate.replay import RECORDED, folders, replay

DATA = Path(__file__).parent / "data"
NONE = "no recorded GPU run under validate/recorded"
GPUS = [path for path in folders() if not path.name.startswith("cpu-")]
CPUS = [path for path in folders() if path.name.startswith("cpu-")]
#: Share of cases inside their 80 % interval that a recorded run must at least have.
COVERED = 0.5


@pytest.mark.parametrize("folder", CPUS + (GPUS or [pytest.param(None, marks=pytest.mark.skip(NONE))]), ids=str)
def test_recorded_runs_are_predicted(folder: Path) -> None:
    """Families of operators are within their tolerance, half of the cases are inside their 80 % interval, and every row
    of every table is compared or skipped with a reason."""
    found = replay(folder)
    assert found.compared or found.tables, f"{folder} holds nothing that can be replayed"
    assert found.outside == []
    assert found.coverage >= COVERED
    for table in found.tables:
        assert table.rows == len({r.line for r in table.results}) + len(table.skips)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a run leaves it: a few cases of this processor, its spec, and a table of a GPU."""
    folder, data = tmp_path_factory.mktemp("cpu-2026-01-31"), tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFMODEL_DATA", str(data))
        patch.setattr(ceilings_cpu, "EACH", 0.01)
        patch.setattr(ceilings_cpu, "sizes", lambda most: sizes(2.0**24))
        patch.setattr(ceilings_cpu, "SIDES", {"fp32": (256,), "bf16": (256,), "int8": (256,)})
        report = run(Options("cpu", "quick", budget=0.5, threads=1), lambda line: None)
    (folder / "suite.json").write_text(json.dumps(report.to_dict(), default=float))
    shutil.copyfile(next(data.glob("devices/*.yaml")), folder / "device.yaml")
    with gzip.open(DATA / "measured/gemm.csv.gz", "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
        rows = rows[:: len(rows) // 40][:40]
    with (folder / "gemm.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "copy.csv").write_text("gpu,op,buffer_bytes,latency_us\nh100,copy,1,2\n")
    return folder


def test_a_replay_repeats_the_run(recorded: Path) -> None:
    """Cases, measured times and predictions come back as the run reported them."""
    report = json.loads((recorded / "suite.json").read_text())
    found = replay(recorded)
    assert [c.result.name for c in found.compared] == [case["case"] for case in report["cases"]]
    for again, case in zip(found.compared, report["cases"], strict=True):
        assert again.measured == case["measured_s"]
        assert again.predicted == pytest.approx(case["predictions"]["ceilings"][0], rel=2e-3)  # rates are kept rounded
    assert found.outside == [text for text in report["outside"] if "median error" in text]


def test_tables_of_a_folder_are_compared(recorded: Path) -> None:
    """Tables of a known kind are checked with their intervals; others are left alone."""
    found = replay(recorded)
    assert [table.kind.name for table in found.tables] == ["gemm"]
    assert found.tables[0].metrics["latency_us"]["overall"]["n"] > 30
    assert found.tables[0].metrics["latency_us"]["overall"]["coverage80"] > 0.5


def test_a_wrong_prediction_is_seen(recorded: Path, tmp_path: Path) -> None:
    """With times ten times shorter the default column is outside: the replay can fail."""
    report = json.loads((recorded / "suite.json").read_text())
    for case in report["cases"]:
        for name in ("measured_s", "p20_s", "p80_s"):
            case[name] /= 10
    shutil.copyfile(recorded / "device.yaml", tmp_path / "device.yaml")
    (tmp_path / "suite.json").write_text(json.dumps(report))
    found = replay(tmp_path)
    assert found.outside != []
    assert found.coverage < COVERED


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cases": []}', '{"ceilings": {"items": {}}, "cases": [{}], "kind": "x"}']
)
def test_a_damaged_report_is_named(recorded: Path, tmp_path: Path, text: str) -> None:
    """A suite that cannot be read is an error that names the file."""
    shutil.copyfile(recorded / "device.yaml", tmp_path / "device.yaml")
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(SpecError, match=r"suite.json: is no report of `perfmodel validate --format json`"):
        replay(tmp_path)


def test_folders_are_those_of_runs(tmp_path: Path) -> None:
    """Only folders count, in the order of their names; the shipped place has a page that says how to add one."""
    for name in ("h200-2026-02-01", "h100-2026-01-01"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").write_text("")
    assert [path.name for path in folders(tmp_path)] == ["h100-2026-01-01", "h200-2026-02-01"]
    assert (RECORDED / "README.md").exists()


def test_the_command_writes_what_a_replay_reads(recorded: Path) -> None:
    """The header of a recorded table is one that `validate --against` takes."""
    done = CliRunner().invoke(main, ["validate", "--against", str(recorded / "gemm.csv"), "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["compared"] == json.loads(done.stdout)["rows"] > 30
