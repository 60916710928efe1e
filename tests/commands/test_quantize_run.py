"""`perfmodel quantize --compare`, `--budget` and `--weights`: tables, JSON, exit codes."""

import csv
import io
import json
import struct

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from perfmodel.cli import main


def call(*arguments: str):
    return CliRunner().invoke(main, ["quantize", *arguments])


def data(*arguments: str):
    done = call(*arguments, "--format", "json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def weights(tmp_path):
    """Two layers with four matrices, a norm and an embedding; and inputs of one of them."""
    draw = torch.Generator().manual_seed(0)
    tensors = {
        f"layers.{i}.{name}.weight": torch.randn(128, 256, generator=draw) * (1 + 9 * (name == "up")) for i in (0, 1)
        for name in ("up", "down")
    }  # fmt: skip
    tensors |= {"norm.weight": torch.ones(256), "embed.weight": torch.randn(64, 256, generator=draw)}
    path, inputs = tmp_path / "w.safetensors", tmp_path / "x.safetensors"
    save_file(tensors, path)
    save_file({"layers.0.up": torch.randn(400, 256, generator=draw)}, inputs)
    return str(path), str(inputs)


def test_compare_as_a_table() -> None:
    """One line a format, with what stands in for a missing unit below."""
    done = call("llama3.1-8b", "--compare", "bf16,fp8,int4", "--gpu", "a100")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("llama3.1-8b on a100-sxm, batch 1, 2,048 tokens in, 256 out")
    for word in ("bits a weight", "TTFT", "TPOT", "max batch", "tokens/s at it", "KV tokens"):
        assert word in lines[1]
    assert [line.split()[0] for line in lines[3:6]] == ["bf16", "fp8", "int4"]
    assert "fp8: a100-sxm has no fp8 units: weights only (W8A16), by Marlin in vLLM" in done.stdout
    assert "error" not in lines[1]


def test_compare_as_json_and_csv() -> None:
    """The same numbers in SI units; what does not fit has nulls and the reason."""
    found = data(
        "llama3-70b", "--compare", "bf16,int4", "--gpu", "h100", "--batch", "2", "--input", "100", "--output", "9"
    )
    assert (found["model"], found["batch"], found["input"], found["output"]) == ("llama3-70b", 2, 100, 9)
    wide, narrow = found["formats"]
    assert wide["ttft_s"] is None
    assert wide["max_batch"] == 0
    assert "not even one request of 109 tokens fits" in wide["note"]
    assert narrow["weights_bytes"] == pytest.approx(39.77e9, rel=1e-3)
    assert 0 < narrow["tpot_s"] < narrow["ttft_s"]
    text = call("llama3.1-8b", "--compare", "bf16,int4", "--gpu", "h100", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["format"] for row in rows] == ["bf16", "int4"]
    assert float(rows[1]["bits_per_weight"]) < 6


def test_compare_with_options() -> None:
    """Fidelity, engine, parallelism, cache format and the cost of unpacking reach the times."""
    base = ("llama3.1-8b", "--compare", "int4", "--gpu", "h100")
    plain = data(*base)["formats"][0]["tpot_s"]
    calibrated = data(*base, "--fidelity", "calibrated", "--engine", "vllm")["formats"][0]
    assert calibrated["tpot_s"] > plain
    assert calibrated["tpot_high_s"] is not None
    slow = data(*base, "--fidelity", "calibrated", "--engine", "vllm", "--dequantization", "50")["formats"][0]
    assert slow["tpot_s"] > 2 * calibrated["tpot_s"]
    assert data(*base, "--tp", "2")["formats"][0]["tpot_s"] < plain
    assert data(*base, "--kv", "fp8")["formats"][0]["kv_tokens"] > 1.8 * data(*base)["formats"][0]["kv_tokens"]


def test_compare_with_weights(weights) -> None:
    """Errors of the formats that have a quantizer stand beside the times."""
    path, inputs = weights
    found = data("llama3.1-8b", "--compare", "bf16,int4,gptq3_g128,q4_k", "--gpu", "h100", "--weights", path)
    errors = {line["format"]: line["error"] for line in found["formats"]}
    assert errors["bf16"] < errors["int4"] < errors["gptq3_g128"]
    assert errors["q4_k"] is None
    table = call("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--weights", path, "--activations", inputs).stdout
    assert "error: mean over the matrices that were given" in table


def test_budget_by_the_chapters_order() -> None:
    """The table is by role with the layers of each width; the basis is named; the total is within the budget."""
    done = call("llama3-70b", "--budget", "24GiB")
    assert done.exit_code == 0
    assert "o_proj" in done.stdout
    assert "no weights were given" in done.stdout
    assert "order of the chapter's section 4.6" in done.stdout
    found = data("llama3-70b", "--budget", "40 GB")
    assert found["total_bytes"] <= 40e9
    assert found["proven"]
    assert len(found["tensors"]) == 562
    assert {"name", "role", "layer", "shape", "count", "format", "bits", "bytes", "error"} == set(found["tensors"][0])


def test_budget_from_measured_errors(weights) -> None:
    """With weights the errors are measured, and the basis says so; no MODEL is needed."""
    path, inputs = weights
    found = data("--weights", path, "--budget", "120kB")
    assert found["basis"].startswith("measured: relative squared errors of weights")
    assert len(found["tensors"]) == 4
    assert found["total_bytes"] <= 120e3
    assert found["kept_bytes"] == 2 * (256 + 64 * 256)
    given = data("--weights", path, "--activations", inputs, "--budget", "120kB")
    assert "outputs on the given inputs" in given["basis"]


def test_budget_that_nothing_fits() -> None:
    """Exit code 4 and the least that is needed."""
    done = call("llama3-70b", "--budget", "9GB")
    assert done.exit_code == 4
    assert done.stdout == ""
    assert "takes 18.88 GB at the narrowest widths" in done.stderr


def test_weights_are_quantized(weights) -> None:
    """Per matrix: error, SQNR and theory; with inputs also GPTQ, AWQ, held-out errors and salience."""
    path, inputs = weights
    done = call("--weights", path, "--format", "int4", "--format", "fp8")
    assert done.exit_code == 0
    assert "SQNR dB" in done.stdout
    assert "theory : measured" in done.stdout
    assert "held out" not in done.stdout
    assert done.stdout.count("round to nearest  ") == 8
    assert "left out: 1 vectors (norms, biases)" in done.stdout
    found = data("--weights", path, "--activations", inputs, "--format", "gptq3_g128,fp8")
    lines = [line for line in found["matrices"] if line["name"] == "layers.0.up.weight"]
    assert [(line["format"], line["method"]) for line in lines] == [
        ("gptq3_g128", "round to nearest"), ("gptq3_g128", "GPTQ"), ("gptq3_g128", "AWQ"), ("fp8", "round to nearest"),
    ]  # fmt: skip
    assert all(line["held_out_error"] > 0 and 0 < line["salience"] < 1 for line in lines)
    assert {s["reason"] for s in found["skipped"]} >= {"vectors (norms, biases)"}


def test_no_bar_without_a_terminal(weights) -> None:
    """stderr stays empty where it is no terminal."""
    assert call("--weights", weights[0]).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give a MODEL to size, or --weights"),
        (("--compare", "int4", "--gpu", "h100"), 2, "--compare needs a MODEL"),
        (("--budget", "1GB"), 2, "--budget without --weights needs a MODEL"),
        (("llama3.1-8b", "--compare", "int4"), 2, "--compare needs a --gpu"),
        (("llama3.1-8b", "--compare", ",", "--gpu", "h100"), 2, "--compare takes names of formats"),
        (("llama3.1-8b", "--compare", "int4,int5x", "--gpu", "h100"), 2, "unknown weight format 'int5x'"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--budget", "1GB"), 2, "two questions"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--format", "int4"), 2, "--compare names its formats"),
        (("llama3.1-8b", "--activations", "x.safetensors"), 2, "--activations are inputs of --weights"),
        (("llama3.1-8b", "--budget", "24"), 2, "'24' has no unit"),
        (("llama3.1-8b", "--budget", "nan GB"), 2, "--budget"),
        (("llama3.1-8b", "--budget", "24 GB/s"), 2, "--budget"),
        (("--weights", "/nowhere.safetensors"), 3, "cannot be read"),
    ],
)
def test_bad_questions(arguments, code, message) -> None:
    """One line on stderr with the value and what to do, and the exit code of its kind."""
    done = call(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_hostile_weights(tmp_path) -> None:
    """A header that claims more than the file has is refused in one line."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    done = call("--weights", str(path))
    assert done.exit_code == 3
    assert "a header of 1,099,511,627,776 bytes" in done.stderr
