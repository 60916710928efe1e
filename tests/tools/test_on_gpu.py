"""The GPU measuring script from the outside: its stand-alone cases in a dry run, their files and what it refuses."""

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from on_gpu import environment, tables  # noqa: E402

DOCUMENTED = {
    "gemm": "gpu,framework,version,kernel_source,dtype,m,n,k,latency_us",
    "context_attention": "gpu,framework,version,kernel_source,dtype,kv_cache_dtype,batch_size,isl,num_heads,"
    "num_key_value_heads,head_dim,latency_us",
    "generation_attention": "gpu,framework,version,kernel_source,kv_cache_dtype,batch_size,context_len,num_heads,"
    "num_key_value_heads,head_dim,latency_us",
    "copy": "gpu,framework,version,kernel_source,op,buffer_bytes,moved_bytes,latency_us",
    "launch": "gpu,framework,version,kernel_source,mode,latency_us",
}


def run(*arguments, python=sys.executable, timeout=120):
    """Run the script as a user would, without any CUDA device in sight."""
    variables = {**os.environ, "PYTHON": str(python), "CUDA_VISIBLE_DEVICES": ""}
    command = [str(ROOT / "tools/on_gpu.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables, cwd="/")


def read(folder, table):
    with (folder / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_gpu") / "new/results"
    start = time.monotonic()
    done = run(folder, "--dry-run", "--standalone")
    return folder, done, time.monotonic() - start


# ---- the dry run, from the outside


def test_dry_run_succeeds_in_half_a_minute(dry):
    """The same code path runs on the CPU with exit code 0, in under 30 s, and says what it did."""
    _, done, seconds = dry
    assert done.returncode == 0, done.stderr
    assert "finished: " in done.stdout
    assert " 0 failed" in done.stdout
    assert seconds < 30


@pytest.mark.parametrize("table", DOCUMENTED)
def test_headers_are_the_documented_ones(dry, table):
    """Every table starts with the header that the comparison with recorded tables tells it by."""
    assert (dry[0] / f"{table}.csv").read_text().splitlines()[0] == DOCUMENTED[table]


def test_row_counts(dry):
    """Every case gave its row: 3 formats x (2 rows x 4 layers + LM head + square) and the sustained GEMM, and so on."""
    counts = {table: len(read(dry[0], table)) for table in DOCUMENTED}
    assert counts == {"gemm": 31, "context_attention": 2, "generation_attention": 4, "copy": 6, "launch": 4}
    # with 6 of cuDNN that need a GPU
    assert len(read(dry[0], "details")) == 53


def test_latencies_are_positive_and_ordered(dry):
    """Latencies are positive finite microseconds, and each lies between its 20th and 80th percentile."""
    for table in DOCUMENTED:
        for row in read(dry[0], table):
            assert 0 < float(row["latency_us"]) < math.inf
    for row in read(dry[0], "details"):
        if row["status"] == "ok":
            times = [float(row[name]) for name in ("min_us", "p20_us", "median_us", "p80_us")]
            assert times == sorted(times)
            assert int(row["repeats"]) >= 3


def test_dry_run_cannot_be_taken_for_a_gpu(dry):
    """Rows of a dry run carry the CPU's name and a framework that says so."""
    for table in DOCUMENTED:
        for row in read(dry[0], table):
            assert row["gpu"] == environment.gpu_slug(environment.cpu_name())
            assert row["framework"] == "torch-cpu-dry-run"
            assert row["version"] == torch.__version__


def test_correctness_is_recorded(dry):
    """Every timed case was checked first: its error is recorded and within its tolerance, exactly zero for int8."""
    done = [row for row in read(dry[0], "details") if row["status"] == "ok"]
    assert all(0 <= float(row["relative_error"]) <= float(row["tolerance"]) for row in done)
    assert {row["relative_error"] for row in done if row["group"] in ("gemm int8", "copy")} == {"0"}
    assert any(float(row["relative_error"]) > 0 for row in done if row["group"] == "gemm fp8")


def test_environment_file(dry):
    """environment.json names machine, versions, clocks, script and what was left out with the reason."""
    found = json.loads((dry[0] / "environment.json").read_text())
    for key in ("gpu", "device_name", "torch", "triton", "cuda", "python", "date", "git_revision", "script_sha256"):
        assert key in found
    assert found["status"] == "finished"
    assert found["dry_run"] is True
    assert found["correctness"]["checked"] == found["correctness"]["passed"] >= 47
    assert [s["when"] for s in found["nvidia_smi"]][:: len(found["nvidia_smi"]) - 1] == ["before", "after"]
    assert found["failures"] == []
    assert {s["reason"] for s in found["skipped"] if "cudnn" in s["name"]} == {"needs a CUDA device"}
    assert found["rows"]["gemm"] == len(read(dry[0], "gemm"))


def test_only_the_documented_files(dry):
    """The folder holds seven files and no temporary one."""
    assert {path.name for path in dry[0].iterdir()} == {f"{t}.csv" for t in tables.HEADERS} | {"environment.json"}


# ---- what it refuses


@pytest.mark.parametrize("way", [[], ["--standalone"]])
def test_no_cuda_device(tmp_path, way):
    """Without a CUDA device and --dry-run it says so in one line, exits with 5 and makes no folder."""
    done = run(tmp_path / "x", *way)
    assert done.returncode == 5
    assert done.stderr == "on_gpu: torch finds no CUDA device here; --dry-run tries the script on the CPU\n"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("way", [[], ["--standalone"]])
def test_folder_that_cannot_be_written(tmp_path, way):
    """A folder beneath a file is refused in one line with exit code 2."""
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file/results", "--dry-run", *way)
    assert done.returncode == 2
    assert done.stderr == f"on_gpu: cannot write to '{tmp_path}/file/results': Not a directory\n"


def test_earlier_results_are_kept(dry):
    """A folder with results is refused, so that two runs never mix."""
    before = (dry[0] / "gemm.csv").read_bytes()
    for way, name in ([], "context_attention.csv"), (["--standalone"], "gemm.csv"):
        done = run(dry[0], "--dry-run", *way)
        assert done.returncode == 2
        assert f"already holds {name}: name a new or empty folder" in done.stderr
    assert (dry[0] / "gemm.csv").read_bytes() == before


def test_python_without_torch(tmp_path):
    """An interpreter without torch, and a missing one, are told apart in one line each."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = run(tmp_path / "x", "--dry-run", python=bare)
    assert done.returncode == 1
    assert "torch cannot be imported by" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "there is no nonesuch on the PATH" in run(tmp_path / "x", python="nonesuch").stderr


@pytest.mark.parametrize("arguments", [[], ["x", "--budget", "-1"], ["x", "--budget", "nan"], ["x", "y"]])
def test_usage(arguments):
    """Wrong arguments exit with 2."""
    assert run(*arguments).returncode == 2


def test_budget_stops_it_cleanly(tmp_path):
    """With no time at all every case is named as skipped with the reason, and the exit code says: incomplete."""
    done = run(tmp_path, "--dry-run", "--standalone", "--budget", "0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "on_gpu: not all core cases ran: see environment.json"
    skipped = json.loads((tmp_path / "environment.json").read_text())["skipped"]
    assert len(skipped) == 53
    assert "the time budget was used up" in {s["reason"] for s in skipped}
    assert read(tmp_path, "gemm") == []


def test_watchdog_ends_a_hung_process():
    """A case that never returns does not hold the machine: the last word is said and the exit code is 1."""
    code = (
        "import time; from on_gpu.app import Watchdog; Watchdog(0.1, lambda: print('hung', flush=True)); time.sleep(60)"
    )
    paths = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=paths)
    assert (done.returncode, done.stdout) == (1, "hung\n")
