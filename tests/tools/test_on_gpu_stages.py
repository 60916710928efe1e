"""The GPU measuring script's stages: a dry run of all of it, limits, interrupts, and machines that lack something."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from on_gpu import checkout, stages  # noqa: E402

from perfmodel.validate.replay import replay  # noqa: E402

PYTHON = sys.executable


def run(*arguments: object, timeout: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user would, without any CUDA device in sight."""
    env = {**os.environ, "PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [str(ROOT / "tools/on_gpu.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd="/")


# ---- the dry run


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """All stages on the CPU."""
    folder = tmp_path_factory.mktemp("on_gpu") / "new/results"
    return folder, run(folder, "--dry-run")


@pytest.mark.slow
def test_every_stage_does_its_work(dry: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The same command lines run on the CPU, end with 0, and `stages.json` says how each ended."""
    folder, done = dry
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "stages.json").read_text())
    assert [(one["name"], one["status"]) for one in told["stages"]] == [(stage.name, "ok") for stage in listed(True)]
    assert told["dry_run"] is True
    assert told["torch"]


@pytest.mark.slow
def test_files_are_small_and_of_known_kinds(dry: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Tables, a picture, reports and logs, under a megabyte together; nothing else is left."""
    files = [path for path in dry[0].rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".csv", ".png", ".json", ".log", ".txt", ".yaml"}
    assert sum(path.stat().st_size for path in files) < 1e6
    assert {"validate-gemm.csv", "gemm.csv", "kernel_targets.csv", "device.yaml", "suite.json", "validate.png"} <= {
        path.name for path in files
    }
    assert " passed" in (dry[0] / "kernel-tests.txt").read_text()


@pytest.mark.slow
def test_the_folder_can_be_replayed(dry: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """What a run leaves is what the replay of recorded runs reads."""
    found = replay(dry[0])
    assert len(found.compared) >= 5
    assert any(table.kind.name == "gemm" for table in found.tables)


@pytest.mark.slow
def test_targets_are_fractions_of_this_run(dry: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """`kernel_targets.csv` is what the kernels' page reads: a target and a fraction of its ceiling."""
    import csv

    with (dry[0] / "kernel_targets.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["target"] for row in rows] == ["gemm_bf16", "prefill", "decode", "mla_decode"]
    for row in rows:
        assert float(row["fraction"]) == pytest.approx(float(row["reached"]) / float(row["ceiling"]), rel=1e-2)
        assert float(row["fraction"]) > 0


def test_targets_are_those_of_the_kernels_page() -> None:
    """On a GPU every target of the page is measured, each by a kernel of ours at the page's shape."""
    pytest.importorskip("triton")
    from kernel_aot.page import TARGETS
    from on_gpu import targets

    from perfmodel.validate.bench import cuda

    listed = targets.targets("cuda")
    assert [name for name, *_ in listed] == [target.name for target in TARGETS]
    assert {cuda.realise(op, device="meta").engine for _, op, _ in listed} == {"triton"}


# ---- the plan


def listed(dry_run: bool, budget: float = stages.BUDGET_S) -> list[stages.Stage]:
    return stages.stages(Path("/results"), dry_run, budget)


def test_a_run_stays_under_eight_minutes() -> None:
    """All stages together are cut off before 480 s, and what comes before the tests leaves time for them."""
    assert stages.BUDGET_S + stages.GRACE_S + stages.EXPORT_S <= 480
    found = listed(False)
    assert [stage.name for stage in found] == ["suite", "model", "targets", "speculative", "libraries", "kernel-tests"]
    assert sum(stage.limit for stage in found[:-1]) + 45 <= stages.BUDGET_S
    half = listed(False, stages.BUDGET_S / 2)
    assert [stage.limit for stage in half] == pytest.approx([stage.limit / 2 for stage in found])


@pytest.mark.parametrize("dry_run", [False, True])
def test_command_lines_are_understood(dry_run: bool) -> None:
    """Every call of `perfmodel validate` parses: on a GPU nothing can be tried before."""
    from perfmodel.commands.validate import command

    for stage in listed(dry_run):
        if "validate" in stage.command:
            words = list(stage.command[stage.command.index("validate") + 1 :])
            made = command.make_context("validate", words)
            assert made.params["device"] == ("cpu" if dry_run else "cuda")


def test_the_eight_billion_model_is_measured() -> None:
    """On a GPU: the full suite with tables and picture, the steps of Llama 3 8B, and the kernels' GPU tests."""
    words = {stage.name: " ".join(stage.command) for stage in listed(False)}
    assert "--suite full" in words["suite"]
    assert "--export /results/validate.csv" in words["suite"]
    assert "--model llama3-8b" in words["model"]
    assert "-m gpu" in words["kernel-tests"]


def test_stages_can_be_chosen() -> None:
    """Names pick stages in their order; an unknown one is refused with the list."""
    assert [stage.name for stage in stages.chosen(listed(True), "targets, suite")] == ["suite", "targets"]
    with pytest.raises(ValueError, match="no stage 'nap'; there are suite, model, targets"):
        stages.chosen(listed(True), "suite,nap")


# ---- how stages end


def script(code: str, name: str = "one", limit: float = 20.0, **more: object) -> stages.Stage:
    return stages.Stage(name, (PYTHON, "-c", code), limit, **more)  # type: ignore[arg-type]


SLOW = "import time, signal\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('kept', flush=True)\n"


def test_stages_do_not_take_each_other_down(tmp_path: Path) -> None:
    """One that fails, one that is killed and one that works: each ends as it is, and its output is kept."""
    found = stages.run(
        tmp_path,
        [
            script("import sys; print('out'); sys.exit(3)", "fails"),
            script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "dies"),
            script("import sys; print('warn', file=sys.stderr); sys.exit(1)", "judged", codes=(0, 1)),
        ],
        60.0, lambda line: None, {"host": "here"},
    )  # fmt: skip
    assert [(one.status, one.code) for one in found] == [("failed", 3), ("failed", -9), ("ok", 1)]
    assert (tmp_path / "fails.txt").read_text() == "out\n"
    assert (tmp_path / "judged.log").read_text() == "warn\n"
    told = json.loads((tmp_path / "stages.json").read_text())
    assert told["host"] == "here"
    assert len(told["stages"]) == 3


def test_a_stage_past_its_limit_is_interrupted(tmp_path: Path) -> None:
    """It is interrupted as by Ctrl-C, so that it writes what it has."""
    found = stages.run_stage(script(SLOW), tmp_path, 3.0, dict(os.environ))
    assert (found.status, found.code) == ("cut short", 0)
    assert found.seconds < 3.0 + stages.GRACE_S
    assert (tmp_path / "one.txt").read_text() == "kept\n"


def test_a_stage_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignoring the interrupt does not hold the machine."""
    monkeypatch.setattr(stages, "GRACE_S", 0.5)
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    found = stages.run_stage(script(deaf), tmp_path, 1.0, dict(os.environ))
    assert (found.status, found.code) == ("cut short", -9)


def test_stages_without_time_are_not_begun(tmp_path: Path) -> None:
    """What there is no time for is said, and the core decides whether the run is complete."""
    plan = [script("pass", "core", core=True), script("pass", "more")]
    found = stages.run(tmp_path, plan, 1.0, lambda line: None, {})
    assert [one.status for one in found] == ["not begun", "not begun"]
    assert not stages.complete(found, plan)
    fine = [stages.Ended("core", "ok", 0, 1.0), stages.Ended("more", "failed", 1, 1.0)]
    assert stages.complete(fine, plan)


def test_a_suite_that_was_cut_short_has_its_tables(tmp_path: Path) -> None:
    """Cases that were finished before the limit are written as tables, from the database."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools/on_gpu')!r}); import checkout; checkout.use();"
        "from perfmodel.validate.bench.store import Store, Result\n"
        "from perfmodel.validate.bench.operators import gemm, pack\n"
        "with Store() as store:\n"
        "    run = store.start('NVIDIA H200', 'cuda', 'full', {})\n"
        "    op = gemm(16, 4096, 4096, 'bf16')\n"
        "    store.add(run, Result('x', 'gemm', 'triton', 'bf16', pack(op), 1e-5, 1e-5, 1e-5, 0.0, 9, {}))\n"
        "sys.exit(130)"
    )
    stages.run(tmp_path, [script(code, "suite")], 60.0, lambda line: None, {})
    assert (tmp_path / "validate.csv").read_text().splitlines()[1].startswith("h200,triton,")
    assert not (tmp_path / "data").exists()


def test_results_stay_where_no_table_was_written(tmp_path: Path) -> None:
    """The database is dropped once its tables are written, and kept when they are not."""
    data = tmp_path / "data"
    (data / "devices").mkdir(parents=True)
    (data / "devices/h200-measured.yaml").write_text("title: x\n")
    (data / "validate.sqlite").write_text("")
    stages.keep(data, tmp_path)
    assert (data / "validate.sqlite").exists()
    assert (tmp_path / "device.yaml").read_text() == "title: x\n"
    (tmp_path / "validate-gemm.csv").write_text("")
    stages.keep(data, tmp_path)
    assert not data.exists()


def test_an_interrupt_ends_the_stage_that_runs(tmp_path: Path) -> None:
    """SIGTERM stops the script and its stage; what was finished before stays."""
    env = {**os.environ, "PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path / "x"
    command = [str(ROOT / "tools/on_gpu.sh"), str(folder), "--dry-run", "--stages", "suite"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    end = time.monotonic() + 60
    while not (folder / "suite.log").exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "on_gpu: interrupted" in told


def test_a_kernel_that_takes_the_device_with_it_ends_no_stage(tmp_path: Path) -> None:
    """Exit code 5 of a stage that can be resumed: it goes on in a new process, while there is time for it."""
    code = "import sys; print(sys.argv[1:], file=sys.stderr); sys.exit(0 if '--resume' in sys.argv else 5)"
    found = stages.run_through(script(code, resumed=True), tmp_path, 100.0, dict(os.environ))
    assert (found.status, found.code) == ("ok", 0)
    assert (tmp_path / "one.log").read_text().splitlines() == ["[]", "['--resume', '--budget', '40']"]
    assert stages.run_through(script(code, "two", resumed=True), tmp_path, 30.0, dict(os.environ)).code == 5
    assert stages.run_through(script(code, "three"), tmp_path, 100.0, dict(os.environ)).code == 5


def test_an_error_that_nobody_foresaw_is_a_failure(tmp_path: Path) -> None:
    """Python ends with 1 after a traceback, as a judged report does: the one without a report failed."""
    stage = stages.Stage("one", (PYTHON, "-c", "raise RuntimeError", "--format", "json"), 20.0, (0, 1))
    assert stages.run_stage(stage, tmp_path, 20.0, dict(os.environ)).status == "failed"


# ---- machines that lack something


def test_parallel_tests_find_the_checkout(tmp_path: Path) -> None:
    """pytest's worker processes import this checkout where no perfmodel is installed."""
    pytest.importorskip("xdist")
    import sysconfig
    import venv

    venv.EnvBuilder(symlinks=True).create(tmp_path / "bare")
    bare, paths = tmp_path / "bare/bin/python", sysconfig.get_paths()
    ask = [bare, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    place = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (place / "others.pth").write_text(f"{paths['purelib']}\n{paths['platlib']}\n")  # but not their own .pth files
    (tmp_path / "test_it.py").write_text(
        "import perfmodel.base.units\n\n\ndef test_it():\n    print(perfmodel.base.units.__file__)\n"
    )
    words = ("pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-rP", str(tmp_path / "test_it.py"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [bare, ROOT / "tools/on_gpu/checkout.py", *words], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert str(ROOT / "base/units.py") in done.stdout, done.stdout + done.stderr


def test_the_checkout_is_used_whatever_is_installed(tmp_path: Path) -> None:
    """Without an installed package, and before another one of that name, the checkout's own code runs."""
    (tmp_path / "perfmodel").mkdir()
    (tmp_path / "perfmodel/__init__.py").write_text("raise ImportError('another perfmodel')")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools/on_gpu')!r}); import checkout; checkout.use();"
        "import perfmodel.base.units, perfmodel.commands.validate, perfmodel.kernels as k;"
        "print(perfmodel.base.units.__file__, k.__file__)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([PYTHON, "-P", "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.stdout.split() == [str(ROOT / "base/units.py"), str(ROOT / "kernels/__init__.py")], done.stderr


def test_without_the_packages_dependencies_the_libraries_are_measured(tmp_path: Path) -> None:
    """Where click and pydantic are missing it says so and runs the cases that need nothing but torch."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(
        "import sys\nsys.modules['click'] = sys.modules['pydantic'] = None\n"
    )
    done = run(tmp_path / "x", "--dry-run", "--budget", "0", PYTHONPATH=str(tmp_path / "hidden"))
    assert "stand-alone cases alone: our kernels and the comparison need click, pydantic" in done.stderr
    assert (tmp_path / "x/details.csv").exists()
    assert not (tmp_path / "x/stages.json").exists()


def test_what_is_needed_is_what_is_imported() -> None:
    """Importing what a run uses brings no other package than those that are asked for beforehand."""
    code = (
        "import sys; import perfmodel.commands.validate, perfmodel.commands._bench, perfmodel.validate.bench.runner;"
        "import perfmodel.validate.bench.export, perfmodel.reports.bench_text;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'pandas', 'scipy', 'matplotlib', 'rich', 'jinja2', 'plotly', 'transformers', *sys.argv[1:]}))"
    )
    done = subprocess.run([PYTHON, "-P", "-c", code, *checkout.NEEDED], capture_output=True, text=True)
    assert done.stdout.split() == sorted(checkout.NEEDED)


def test_unknown_stages_are_refused(tmp_path: Path) -> None:
    """A misspelt stage ends with 2 before a folder is made."""
    done = run(tmp_path / "x", "--dry-run", "--stages", "suit")
    assert done.returncode == 2
    assert "no stage 'suit'" in done.stderr
    assert not (tmp_path / "x").exists()


def test_help_of_validate_names_what_stages_use() -> None:
    """The options of the stages are those that the command documents."""
    from perfmodel.cli import main

    text = CliRunner().invoke(main, ["validate", "--help"]).output
    for option in ("--suite", "--export", "--model", "--speculative", "--budget", "--threads"):
        assert option in text
