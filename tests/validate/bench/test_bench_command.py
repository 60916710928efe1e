"""`perfmodel validate` for real: this processor is measured, fitted, judged on fresh shapes, and what rests on it."""

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfmodel.cli import main
from perfmodel.validate.bench import cpu, session
from perfmodel.validate.bench import store as stores
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.suites import suite
from perfmodel.validate.bench.watch import Crowded

pytest.importorskip("scipy")
#: Seconds for each set of shapes: what is not reached is left out. An idle machine needs a tenth of it.
BUDGET = "120"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with one calibrated run of this processor in it, and what the run wrote."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFMODEL_DATA", str(folder / "data"))
        found = run(
            "validate", "--device", "cpu", "--calibrate", "--threads", "1", "--budget", BUDGET, "--format", "json",
            "--export", folder / "mine.csv", "-o", folder / "mine.png",
        )  # fmt: skip
        assert found.exception is None or isinstance(found.exception, SystemExit), found.output
        (folder / "report.json").write_text(found.stdout)
        (folder / "stderr.txt").write_text(found.stderr)
        assert found.exit_code in (0, 1), found.output  # 1: a family outside its tolerance, on a machine that is busy
        yield folder


@pytest.fixture(scope="module")
def report(measured: Path) -> dict[str, Any]:
    """What the run found."""
    found: dict[str, Any] = json.loads((measured / "report.json").read_text())
    return found


@pytest.mark.slow
def test_fresh_shapes_are_predicted(report: dict[str, Any]) -> None:
    """After the fit, the median error on shapes that it has not seen is 15 % or less; noise stands beside it."""
    total = report["families"][-1]
    assert total["name"] == "all"
    assert total["n"] >= 20
    assert total["error"] <= 0.15
    assert 0 < total["noise"] < 0.5
    assert set(report["columns"]) == {"fit", "ceilings"}
    fresh = [c for c in report["cases"] if c["set"] == "fresh"]
    assert {c["judged"] for c in fresh} == {"fit"}
    assert not {c["case"] for c in fresh} & {c["case"] for c in report["cases"] if c["set"] == "fit"}


@pytest.mark.slow
def test_the_device_is_a_cpu(report: dict[str, Any], measured: Path) -> None:
    """The report says what was measured and how: a processor, its threads, its ceilings and their methods."""
    assert report["kind"] == "cpu"
    assert report["device"].endswith("1 thread")
    assert report["threads"] == 1
    ceilings = report["ceilings"]["items"]
    assert {"memory", "peak:fp32", "peak:bf16", "exp", "fma", "launch"} <= set(ceilings)
    assert all(c["method"].startswith("measured here: ") for c in ceilings.values())
    assert 1e8 < ceilings["memory"]["value"] < 1e13
    assert "fitting" in (measured / "stderr.txt").read_text()


@pytest.mark.slow
def test_every_case_was_checked(report: dict[str, Any]) -> None:
    """Each has the error of its result, samples enough, a limiter, and terms that add up to its time."""
    for c in report["cases"]:
        assert c["samples"] >= 9
        assert c["error_of_result"] < 3e-2
        assert c["limiter"]
        assert sum(c["terms_s"].values()) == pytest.approx(c["measured_s"])
    assert report["wrong"] == []


@pytest.mark.slow
def test_the_picture(measured: Path) -> None:
    """A PNG is written beside the figures."""
    assert (measured / "mine.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_fit_is_used_from_now_on(measured: Path) -> None:
    """`estimate --fidelity calibrated --gpu cpu` takes the fit and says so; measured times come from the store."""
    words = ("estimate", "--gpu", "cpu", "--model", "qwen3-0.6b", "--input", "128", "--output", "8", "--format", "json")
    found = json.loads(run(*words, "--fidelity", "calibrated").stdout)
    assert found["gpu"].endswith("-1t")
    assert all("measured on this machine" in origin for origin in found["origins"])
    assert json.loads(run(*words, "--fidelity", "calibrated", "--engine", "torch-cpu").stdout)["ttft_s"] > 0
    tables = json.loads(run(*words, "--fidelity", "measured").stdout)
    assert tables["fidelity"] == "measured"
    assert any("this machine's gemm.csv" in origin for origin in tables["origins"])


@pytest.mark.slow
def test_its_own_export_round_trips(measured: Path, report: dict[str, Any]) -> None:
    """The tables hold every case once, with the measured time, and --against predicts them as the run did."""
    files = sorted(measured.glob("mine-*.csv"))
    assert {path.stem for path in files} >= {"mine-gemm", "mine-generation_attention", "mine-operators"}
    compared = 0
    wanted = sorted(float(f"{c['measured_s'] * 1e6:.6g}") for c in report["cases"])
    seen: list[float] = []
    for path in files:
        found = json.loads(run("validate", "--against", path, "--rows", "--format", "json").stdout)
        compared += found["compared"]
        seen += [r["measured"] for r in found["results"]]
        assert all("measured on this machine" in r["source"] for r in found["results"])
        beaten = sum(s["rows"] for s in found["skipped"] if s["reason"].startswith("measured faster"))
        assert found["compared"] + beaten == found["rows"]
    assert compared > 0.8 * len(wanted)
    assert set(seen) <= set(wanted)
    by_time = {float(f"{c['measured_s'] * 1e6:.6g}"): c["predictions"]["fit"][0] * 1e6 for c in report["cases"]}
    rows = json.loads(run("validate", "--against", measured / "mine-gemm.csv", "--rows", "--format", "json").stdout)
    for r in rows["results"]:
        assert r["predicted"] == pytest.approx(by_time[r["measured"]], rel=1e-3)


@pytest.mark.slow
def test_calibrate_reads_the_export(measured: Path) -> None:
    """It names what is missing: a quick suite has too few rows of a kind for it."""
    found = run("calibrate", measured / "mine-gemm.csv", "-o", measured / "fit.yaml")
    assert found.exit_code == 2
    assert "rows; at least 60 are needed" in found.stderr


@pytest.mark.slow
def test_history(measured: Path) -> None:
    """The run is listed, and its tables can be written again."""
    found = run("validate", "--history", "--format", "json", "--export", measured / "again.csv")
    (line,) = json.loads(found.stdout)
    assert line["state"] == "finished"
    assert line["suite"] == "quick, calibrate"
    assert (measured / "again-gemm.csv").read_text() == (measured / "mine-gemm.csv").read_text()


@pytest.fixture
def quick(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another data folder; the ceilings are those that were measured, and the suite is its first four operators."""
    with stores.Store() as store:
        kept = next(r for r in store.results(store.runs()[-1]) if r.operator == session.CEILINGS)
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(session, "_ceilings", lambda *_: Ceilings.from_dict(kept.more))
    some = suite("cpu", "quick")[:4]
    monkeypatch.setattr("perfmodel.validate.bench.runner.suite", lambda *_, **__: some)


WORDS = ("validate", "--device", "cpu", "--threads", "1", "--budget", "2")


@pytest.mark.slow
def test_a_wrong_kernel_ends_with_1(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with its error, the others are measured, and the exit code is 1."""
    right = cpu.MAKERS["gemm"]

    def spoiled(op: Any) -> Any:
        case = right(op)
        return replace(case, run=lambda x: case.run(x).mul_(2)) if case.fmt == "fp32" else case

    monkeypatch.setitem(cpu.MAKERS, "gemm", spoiled)
    found = run(*WORDS)
    assert found.exit_code == 1
    assert "torch.mm gives a wrong result: relative error 1" in found.stderr
    assert "WRONG: " in found.stdout
    assert "3 cases" in found.stdout


@pytest.mark.slow
def test_a_crowded_machine_is_not_a_wrong_kernel(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that others take up end the run with that reason, exit code 2, and leave no run behind."""

    def crowded(*_: object) -> Any:
        raise Crowded("other processes keep the cores busy")

    monkeypatch.setattr(session, "measure", crowded)
    found = run(*WORDS)
    assert found.exit_code == 2
    assert "other processes keep the cores busy" in found.stderr
    assert "WRONG" not in found.output
    with stores.Store() as store:
        assert store.runs() == []


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "code"), [("1000%", 0), ("gemm=0.00001", 1)])
def test_the_tolerance_decides(quick: None, limit: str, code: int) -> None:
    """Within a wide tolerance the exit code is 0; a family above its own is named and ends with 1."""
    found = run(*WORDS, "--tolerance", limit)
    assert found.exit_code == code, found.stderr
    assert ("gemm: median error" in found.stderr) == (code == 1)
    assert "a CPU, no GPU" in found.stdout


@pytest.mark.slow
def test_a_locked_store(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process writes, the command waits a little and says what holds it."""
    monkeypatch.setattr(stores, "PATIENCE", 0.1)
    stores.Store().close()
    holder = sqlite3.connect(tmp_path / "data" / "validate.sqlite")
    holder.execute("BEGIN EXCLUSIVE")
    found = run(*WORDS)
    holder.rollback()
    assert found.exit_code == 2
    assert "locked; another perfmodel is writing to it" in found.stderr


@pytest.mark.slow
def test_a_full_disk(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is no room for the next row the command says so, and the rows before it are there."""
    opened = stores.Store.__init__

    def small(self: stores.Store, path: Path | None = None) -> None:
        opened(self, path)
        self._base.execute("PRAGMA max_page_count = 7")

    monkeypatch.setattr("perfmodel.validate.bench.runner.suite", lambda *_, **__: suite("cpu", "quick")[:25])
    with monkeypatch.context() as patch:
        patch.setattr(stores.Store, "__init__", small)
        found = run(*WORDS)
    assert found.exit_code == 2
    assert "full; make room on the disk; what was finished before is kept" in found.stderr
    with stores.Store() as store:
        assert store.results(store.runs()[0])


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT in the middle: exit code 130, finished rows kept, and --resume measures only the others."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    program = [sys.executable, "-P", "-m", "perfmodel", "validate", "--device", "cpu", "--threads", "1"]
    child = subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("perfmodel: 4/"):
            child.send_signal(signal.SIGINT)
            break
    rest = child.stderr.read()
    assert child.wait(60) == 130
    assert "finished cases are kept in run 1 of" in rest
    assert "--resume goes on" in rest
    with stores.Store() as store:
        before = {r.name: r.median for r in store.results(store.runs()[0])}
    assert len(before) >= 5  # the ceilings and four cases
    done = subprocess.run([*program, "--resume", "--budget", "0.2"], capture_output=True, text=True, timeout=120)
    assert f"{len(before) - 1} cases are kept already" in done.stderr
    with stores.Store() as store:
        (only,) = store.runs()
        after = {r.name: r.median for r in store.results(only)}
    assert only.finished
    assert before.items() <= after.items()
    assert run("validate", "--device", "cpu", "--resume").exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "x.csv", "--device", "cpu"], "--device: --against measures nothing"),
        (["--against", "x.csv", "--input", "3"], "--input: --against measures nothing"),
        (["--rows"], "--rows: it belongs to --against"),
        (["--device", "cpu", "--tolerance", "foo=1"], "no family 'foo'; there are gemm"),
        (["--device", "cpu", "--threads", "100000"], "--threads is 1 to"),
        (["--device", "cpu", "--budget", "-1"], "--budget is the time for the cases"),
        (["--device", "cpu", "--ceilings", "--calibrate"], "--ceilings measures no cases"),
        (["--device", "cpu", "--calibrate", "--model", "qwen3-0.6b"], "--calibrate fits a suite"),
        (["--device", "cpu", "-o", "x.yaml"], "add --ceilings"),
        (["--device", "cpu", "--ceilings", "-o", "x.png"], "--ceilings has no picture"),
        (["--export", "x.csv", "--history"], "there is no run with cases"),
        (["--device", "cpu", "--model", "qwen3-0.6b", "--batch", "0"], "batch must be between 1"),
        (["--device", "cpu", "--batch", "2"], "--batch: it belongs to --model"),
        (["--device", "cpu", "--model", "nosuch"], "unknown model 'nosuch'"),
        (["--device", "cpu", "--tolerance", "=3"], "--tolerance takes a fraction"),
        (["--device", "cpu", "--export", "x.json"], "--export writes CSV"),
        (["--device", "cpu", "-o", "/nonexistent/x.png"], "the folder /nonexistent does not exist"),
        (["--history", "--resume"], "--resume: --history measures nothing"),
        (["--run", "3"], "--run: it belongs to --history --export"),
    ],
)
def test_what_contradicts_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured: exit code 2 and what to do."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    found = run("validate", *words)
    assert found.exit_code == 2
    assert message in found.stderr


def test_nothing_in_no_time(quick: None) -> None:
    """A budget in which no case begins is refused, and leaves no run behind."""
    found = run("validate", "--device", "cpu", "--threads", "1", "--budget", "1e-9")
    assert found.exit_code == 2
    assert "no case was measured" in found.stderr
    with stores.Store() as store:
        assert store.runs() == []


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed the remedy is named, with exit code 2."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = run("validate")
    assert found.exit_code == 2
    assert "measuring needs torch: install the extra perfmodel[gpu]" in found.stderr


def test_without_a_gpu() -> None:
    """Asked for a GPU where torch sees none: exit code 5 and the way to measure the processor."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = run("validate", "--device", "cuda")
    assert found.exit_code == 5
    assert "--device cpu measures this processor instead" in found.stderr


def test_measured_times_before_anything_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--fidelity measured` without a table, on a machine that was not measured, says how to."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    found = run("estimate", "--gpu", "cpu", "--model", "qwen3-0.6b", "--fidelity", "measured")
    assert found.exit_code == 2
    assert "nothing was measured on cpu yet: run `perfmodel validate` first" in found.stderr
