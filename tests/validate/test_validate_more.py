"""`perfmodel validate` with `--kernel`, `--speculative` or `--ncu`: exit codes, files, and what excludes what."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfmodel.cli import main
from perfmodel.validate.bench import speculation_report, speculative_run
from perfmodel.validate.bench.store import Store
from perfmodel.validate.bench.transformer import Sizes

KERNELS = Path(__file__).parent / "bench/own_kernels.py"
SMALL = ("--shapes", "m=8,n=32,k=64", "--device", "cpu", "--threads", "1", "--budget", "0.02")
EXPORT = """==PROF== Connected to process 1 (python)
"ID","Kernel Name","CC","gpu__time_duration.sum","dram__bytes.sum","sm__ops_path_tensor_src_bf16_dst_fp32.sum"
"","","","us","Mbyte",""
"0","gemm","9.0","200.00","100.66","137,438,953,472"
"""


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a folder of the test."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path / "data"))


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["validate", *map(str, words)])


def test_a_right_kernel_ends_with_zero() -> None:
    """The table goes to stdout, progress to stderr."""
    done = run("--kernel", f"{KERNELS}:matmul", "--op", "gemm", *SMALL)
    assert done.exit_code == 0, done.stderr
    assert "own_kernels.py:matmul" in done.stdout
    assert "torch.mm" in done.stdout
    assert "gemm bf16 m=8 n=32 k=64" in done.stderr


def test_a_wrong_kernel_ends_with_one() -> None:
    """The error that was measured is told in one line, and nothing else is printed."""
    done = run("--kernel", f"{KERNELS}:drops_a_term", "--op", "gemm", *SMALL)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "perfmodel: gemm bf16 m=8 n=32 k=64" in done.stderr
    assert "relative error 0." in done.stderr


def test_a_shape_that_does_not_fit_ends_with_one() -> None:
    """Nothing measured is no success: what each shape needs is said, and no empty table is printed."""
    huge = "m=16777216,n=16777216"
    done = run("--kernel", f"{KERNELS}:matmul", "--op", "gemm", *SMALL[2:], "--shapes", huge)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "perfmodel: not measured: gemm bf16 m=16777216 n=16777216 k=4096: needs" in done.stderr
    done = run("--kernel", f"{KERNELS}:matmul", "--op", "gemm", *SMALL, "--shapes", huge)
    assert done.exit_code == 1
    assert "m=8 n=32 k=64" in done.stdout


def test_an_interrupt_says_what_is_kept() -> None:
    """Ctrl-C ends with 130: the shapes that were finished before are in the store."""
    words = ("--op", "gemm", *SMALL, "--shapes", "m=9,n=32,k=64")
    done = run("--kernel", f"{KERNELS}:interrupted", *words)
    assert (done.exit_code, done.stdout) == (130, "")
    assert "interrupted: 1 finished shape is kept in run 1 of" in done.stderr
    with Store() as store:
        assert {r.name for r in store.results(store.run(1))} == {"gemm bf16 m=8 n=32 k=64"}


def test_a_kernel_that_ends_the_process_fails() -> None:
    """SystemExit of a user's function is a failure of it, not the end of the command."""
    done = run("--kernel", f"{KERNELS}:exits", "--op", "gemm", *SMALL)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "own_kernels.py:exits raises SystemExit: 0" in done.stderr


def test_a_kernel_that_cannot_be_imported_ends_with_two() -> None:
    """With the remedy."""
    done = run("--kernel", "surely_no_module:f", "--op", "gemm", *SMALL)
    assert done.exit_code == 2
    assert "set PYTHONPATH, or give FILE.py:FUNCTION" in done.stderr


def test_speculative_decoding_is_printed_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures in JSON; a formula that measured rounds contradict ends with 1."""
    sizes = Sizes(vocab=64, hidden=32, layers=4, heads=2, intermediate=64, positions=128)
    monkeypatch.setitem(speculative_run.PAIRS, "cpu", (sizes, 1))
    monkeypatch.setattr(speculative_run, "ROUNDS", 40)
    words = ("--speculative", "--device", "cpu", "--budget", "3", "--seed", "1", "--format", "json")
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    assert [row["gamma"] for row in json.loads(done.stdout)["rows"]] == [1, 3, 5]
    monkeypatch.setattr(speculation_report, "FAMILY", 1 - 1e-12)  # any difference counts
    done = run(*words)
    assert done.exit_code == 1
    assert "perfmodel: the rounds contradict the formula: gamma 1: " in done.stderr


def test_a_profile_is_drawn(tmp_path: Path) -> None:
    """Table on stdout, picture in the file; without --gpu, or with a metric missing, it says what to do."""
    (tmp_path / "x.csv").write_text(EXPORT)
    done = run("--ncu", tmp_path / "x.csv", "--gpu", "h100", "-o", tmp_path / "x.png")
    assert done.exit_code == 0, done.stderr
    assert "BF16 tensor" in done.stdout
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    data = json.loads(run("--ncu", tmp_path / "x.csv", "--gpu", "h100", "--format", "json").stdout)
    assert data["kernels"][0]["attained"] == pytest.approx(0.6946, abs=1e-3)  # 138.9 of 200 us
    assert any("only tensor cores were counted" in note for note in data["notes"])
    done = run("--ncu", tmp_path / "x.csv")
    assert (done.exit_code, "--ncu needs --gpu" in done.stderr) == (2, True)
    (tmp_path / "y.csv").write_text(EXPORT.replace("dram__bytes.sum", "lts__t_bytes.sum"))
    done = run("--ncu", tmp_path / "y.csv", "--gpu", "h100")
    assert done.exit_code == 3
    assert "misses the bytes of device memory" in done.stderr
    assert "ncu --csv --page raw --metrics gpu__time_duration.sum" in done.stderr


def test_a_profile_of_copies_has_a_table_and_no_picture(tmp_path: Path) -> None:
    """What cannot be drawn is in the table all the same: it is printed first, then the exit code is that of usage."""
    (tmp_path / "x.csv").write_text(EXPORT.replace("137,438,953,472", "0"))
    done = run("--ncu", tmp_path / "x.csv", "--gpu", "h100", "-o", tmp_path / "x.png")
    assert done.exit_code == 2
    assert "HBM3 bandwidth" in done.stdout
    assert "no picture: no kernel made operations and moved bytes" in done.stderr
    assert not (tmp_path / "x.png").exists()
    (tmp_path / "y.csv").write_text(EXPORT + '"1","memcpy","9.0","200.00","100.66","0"\n')
    done = run("--ncu", tmp_path / "y.csv", "--gpu", "h100", "-o", tmp_path / "y.png")
    assert (done.exit_code, (tmp_path / "y.png").exists()) == (0, True)
    assert "memcpy" in done.stdout
    assert "1 kernel without FLOPs or bytes: in the table alone" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--op", "gemm"], "--op belongs to --kernel"),
        (["--gpu", "h100"], "--gpu belongs to --ncu"),
        (["--kernel", "a:b", "--speculative"], "--kernel and --speculative are different things"),
        (["--kernel", "a:b", "--suite", "full"], "--suite does not belong to --kernel, which takes --op, --shapes"),
        (["--kernel", "a:b", "--input", "3"], "--input does not belong to --kernel"),
        (["--seed", "0"], "--seed belongs to --speculative"),
        (["--speculative", "--seed", "-1"], "--seed is a whole number from 0 to"),
        (["--kernel", "a:b", "--op", "gemm", "--seed", "0"], "--seed does not belong to --kernel"),
        (["--speculative", "--calibrate"], "--calibrate does not belong to --speculative"),
        (["--ncu", "x.csv", "--gpu", "h100", "--device", "cpu"], "--device does not belong to --ncu"),
        (["--ncu", "x.csv", "--against", "y.csv"], "--against does not belong to --ncu"),
        (["--kernel", "a:b", "--op", "gemm", "-o", "x.png"], "--kernel does not write .png"),
        (["--speculative", "-o", "x.yaml"], "--speculative does not write .yaml"),
        (["--kernel", "a:b", "--op", "gemm", "--budget", "-1"], "--budget is the seconds for each shape"),
        (["--speculative", "--budget", "-1"], "--budget is the seconds for all of it"),
    ],
)
def test_options_that_do_not_belong_are_refused(words: list[str], says: str) -> None:
    """Before anything is measured: a usage error in one line."""
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
