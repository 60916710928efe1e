"""``perfmodel speculate``: the contract of keys and exit codes, and what each option does."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import perfmodel as pm
from perfmodel.cli import main

TARGET = ["--gpu", "h100", "--model", "llama3-70b", "--tp", "8"]


def run(*arguments: str) -> Result:
    """Run perfmodel in this process."""
    return CliRunner().invoke(main, ["speculate", *arguments])


def data(*arguments: str) -> dict:
    """The JSON of a run that must succeed."""
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "more", [[], ["--method", "eagle2"], ["--draft", "llama3.2-1b"], ["--method", "all", "--batch", "1,8,32"]]
)
def test_json_has_the_contract_s_keys(more: list[str]) -> None:
    """Every form of the question gives tau, speedup, best_gamma and break_even_batch."""
    found = data(*TARGET, *more)
    assert {"tau", "speedup", "best_gamma", "break_even_batch"} <= found.keys()
    assert found["speedup"] > 1


def test_options_reach_the_model() -> None:
    """What the command says is what the function says."""
    found = data(
        *TARGET, "--draft", "llama3-8b", "--draft-tp", "8", "--draft-weights", "fp8", "--alpha", "0.8,0.7", "--gamma",
        "3", "--batch", "4,8", "--context", "512,4096", "--padded", "--weights", "fp8",
    )  # fmt: skip
    same = pm.speculate(
        "llama3-70b", "h100", tp=8, method="speculative-sampling", draft="llama3-8b", draft_tp=8, draft_weights="fp8",
        alpha=[0.8, 0.7], gamma=3, batch=[4, 8], context=[512, 4096], padded=True, weights="fp8",
    )  # fmt: skip
    assert [p["speedup"] for p in found["points"]] == pytest.approx([r["speedup"] for r in same.rows()])
    assert found["acceptance"]["alphas"] == [0.8, 0.7]


def test_defaults() -> None:
    """Calibrated; EAGLE-3, or speculative sampling where a draft is named."""
    assert data(*TARGET)["method"] == "eagle-3"
    assert data(*TARGET)["fidelity"] == "calibrated"
    assert data(*TARGET, "--draft", "llama3.2-1b")["method"] == "speculative-sampling"
    assert data(*TARGET, "--fidelity", "bound")["speedup_low"] is None


def test_a_log_gives_the_best_shape_with_its_interval(tmp_path: Path) -> None:
    """From a vLLM log come acceptances, the best draft length and its speedup with an interval."""
    path = tmp_path / "vllm.log"
    path.write_text(
        "INFO SpecDecoding metrics: Mean acceptance length: 2.40, Accepted: 140 tokens, Drafted: 300 tokens, "
        "Per-position acceptance rate: 0.700, 0.450, 0.250, Avg Draft acceptance rate: 46.7%\n"
    )
    found = data(*TARGET, "--draft", "llama3.2-1b", "--acceptance-log", str(path))
    assert found["log"]["alphas"] == pytest.approx([0.7, 0.45 / 0.7, 0.25 / 0.45])
    point = found["points"][0]
    assert point["best_speedup_low"] < point["best_speedup"] < point["best_speedup_high"]
    assert run(*TARGET, "--acceptance-log", str(tmp_path / "none")).exit_code == 3
    assert run(*TARGET, "--acceptance-log", str(path), "--alpha", "0.5").exit_code == 2


@pytest.mark.parametrize("axes", ["batch,context", "alpha,gamma", "batch,gamma"])
def test_maps(tmp_path: Path, axes: str) -> None:
    """A map is a table on stdout, a CSV with a row a point, or a picture."""
    question = [*TARGET, "--method", "ngram", "--map", axes]
    assert "speedup over" in run(*question).stdout
    for name in ("map.csv", "map.png"):
        result = run(*question, "-o", str(tmp_path / name))
        assert result.exit_code == 0
        assert "wrote" in result.stderr
        assert (tmp_path / name).stat().st_size > 500
    header = (tmp_path / "map.csv").read_text().splitlines()[0].split(",")
    assert {*axes.split(","), "speedup", "fits"} <= set(header)


@pytest.mark.parametrize("name", ["one.png", "one.svg"])
@pytest.mark.parametrize("method", ["ngram", "all"])
def test_pictures(tmp_path: Path, name: str, method: str) -> None:
    """-o with a picture's ending writes it, and the data goes to stdout."""
    result = run(*TARGET, "--method", method, "--batch", "1,8", "-o", str(tmp_path / name), "--dark")
    assert result.exit_code == 0
    assert "batch" in result.stdout
    assert (tmp_path / name).stat().st_size > 5000


def test_what_does_not_fit_is_hypothetical() -> None:
    """Nothing fits one H100: the speedup is told, no time is, and the exit code is 4 with what would fit."""
    result = run("--gpu", "h100", "--model", "llama3-70b", "--method", "ngram", "--format", "json")
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert found["points"][0]["tpot_s"] is None
    assert "hypothetical" in result.stderr
    assert "--tp 2" in result.stderr


def test_what_fits_in_part_succeeds() -> None:
    """Where some points fit the exit code is 0 and the others are marked."""
    result = run(*TARGET, "--method", "ngram", "--batch", "1,4096")
    assert result.exit_code == 0
    assert "no: hypothetical" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--alpha", "x"], "--alpha takes fractions"), (["--alpha", "1.2"], "between 0 and 1"),
        (["--gamma", "0"], "gamma is 0"), (["--batch", "1;2"], "--batch takes whole numbers"),
        (["--batch", "0"], "batch"), (["--context", "-5"], "context"), (["--method", "eagle-9"], "unknown method"),
        (["--method", "mtp"], "no multi-token-prediction layer"), (["--map", "x,y"], "choose one of"),
        (["--method", "all", "--map", "batch,context"], "--map shows one method"), (["-o", "x.pdf"], "cannot write"),
        (["--host", "1"], "has no unit"), (["--draft", "llama3.2-1b", "--draft-tp", "16"], "target's tp of 8"),
        (["--method", "all", "--acceptance-log", "none.log"], "name its method"),
        (["--map", "alpha,gamma", "--alpha", "0.5"], "no use for --alpha"),
        (["--map", "batch,gamma", "--gamma", "5", "--context", "512,1024"], "--gamma and several contexts"),
        (["--method", "eagle3", "--draft", "llama3.2-1b"], "leave out"),
        (["--draft", "qwen3-0.6b"], "target's vocabulary"), (["--method", "medusa", "--gamma", "9"], "4 heads"),
        (["--draft", "nothing-7b"], "unknown model"),
    ],
)  # fmt: skip
def test_bad_arguments_exit_with_2(arguments: list[str], says: str) -> None:
    """What cannot be asked is told in one line with exit code 2."""
    result = run(*TARGET, *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr


def test_a_method_file(tmp_path: Path) -> None:
    """A YAML file is a method; a bad one is refused with exit code 3."""
    from perfmodel.roofline.speculative.methods import METHODS

    path = tmp_path / "mine.yaml"
    path.write_text((METHODS.folder / "ngram.yaml").read_text())
    assert data(*TARGET, "--method", str(path))["method"] == "mine"
    path.write_text("title: x\n")
    assert run(*TARGET, "--method", str(path)).exit_code == 3
