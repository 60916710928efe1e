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
    assert "fp8: a100-sxm has no fp8 units: engines fall back to weights only (W8A16), by Marlin in vLLM" in done.stdout
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


#: A Llama of two layers whose matrices a test can quantize.
TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SHAPES = {
    "self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256), "mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256), "mlp.down_proj": (256, 512),
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path):
    """A model's configuration, its whole checkpoint, and a file with some of it and something else."""
    (tmp_path / "tiny").mkdir()
    config, whole, part = (
        tmp_path / "tiny" / "config.json",
        tmp_path / "whole.safetensors",
        tmp_path / "part.safetensors",
    )
    config.write_text(json.dumps(TINY))
    draw = torch.Generator().manual_seed(1)
    tensors = {
        f"model.layers.{i}.{name}.weight": torch.randn(*shape, generator=draw)
        for i in (0, 1)
        for name, shape in SHAPES.items()
    }
    tensors |= {"model.embed_tokens.weight": torch.randn(1000, 256), "lm_head.weight": torch.randn(1000, 256)}
    save_file(tensors | {"model.norm.weight": torch.ones(256)}, whole)
    some = {name: t for name, t in tensors.items() if ".0.mlp." in name}
    save_file(some | {"score.weight": torch.zeros(128, 256)}, part)
    return str(config), str(whole), str(part)


def test_compare_with_weights(tiny) -> None:
    """Errors of the formats that have a quantizer stand beside the times, with how much of the model they are of."""
    config, whole, part = tiny
    formats = "bf16,int4,gptq3_g128,type:q4_k"
    found = data(config, "--compare", formats, "--gpu", "h100", "--input", "100", "--weights", whole)
    errors = {line["format"]: line["error"] for line in found["formats"]}
    assert errors["bf16"] < errors["int4"] < errors["gptq3_g128"]
    assert errors["q4_k"] is None
    assert found["errors_of"].endswith("whole.safetensors holds all the weights of tiny's linear layers")
    table = call(config, "--compare", "int4", "--gpu", "h100", "--input", "100", "--weights", part).stdout
    share = 3 * 512 * 256 / (2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256))
    assert f"holds {100 * share:.3g} % of the weights of tiny's linear layers" in table


@pytest.mark.parametrize("question", [("--compare", "int4", "--gpu", "h100"), ("--budget", "1GB"), ()])
def test_weights_of_another_model(tiny, weights, tmp_path, question) -> None:
    """Beside a model its own tensors are taken alone: other names, and other shapes, are refused in every question."""
    config, whole, _ = tiny
    done = call(config, *question, "--weights", weights[0])
    assert done.exit_code == 2
    assert "holds no matrix of tiny, but layers.0.down.weight and others" in done.stderr
    done = call("llama3.1-8b", *question, "--weights", whole)
    assert done.exit_code == 3
    assert "lm_head.weight: the shape [128256, 4096] expected, [1000, 256] stored" in done.stderr
    assert "of 17 tensors have another shape than those of llama3.1-8b" in done.stderr


def test_budget_of_a_model_needs_all_of_it(tiny) -> None:
    """A budget is of all weights: part of a checkpoint is refused beside its model, and shared out without it."""
    config, whole, part = tiny
    done = call(config, "--budget", "1MB", "--weights", part)
    assert done.exit_code == 2
    assert "give the whole checkpoint, or leave the model out" in done.stderr
    assert len(data("--budget", "1MB", "--weights", part)["tensors"]) == 4
    found = data(config, "--budget", "2MB", "--weights", whole)
    assert len(found["tensors"]) == 15  # 7 a layer and the LM head
    assert found["total_bytes"] <= 2e6
    assert "all the weights of tiny's linear layers" in found["basis"]


def test_errors_beside_a_model(tiny) -> None:
    """MODEL with --weights alone measures what the model has, and counts what it has not."""
    config, _, part = tiny
    found = data(config, "--weights", part, "--format", "int4")
    assert {line["name"].rpartition(".0.")[2] for line in found["matrices"]} == {
        "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
    }  # fmt: skip
    assert {"reason": "tensors that tiny does not have", "tensors": 1} in found["skipped"]
    assert "% of the weights" in found["remarks"][0]


def test_few_calibration_rows_are_warned_of(weights, tmp_path) -> None:
    """GPTQ on fewer rows than inputs is warned of; 400 rows of 256 inputs, 300 of them for calibration, are not."""
    path, inputs = weights
    assert data("--weights", path, "--activations", inputs, "--format", "int4")["remarks"] == []
    few = tmp_path / "few.safetensors"
    save_file({"layers.0.up": torch.randn(300, 256), "layers.1.up": torch.randn(8, 256)}, few)
    found = data("--weights", path, "--activations", str(few), "--format", "int4")["remarks"]
    assert len(found) == 1
    assert found[0].startswith(
        "2 matrices, such as layers.0.up.weight, with fewer calibration rows (225) than inputs (256)"
    )
    assert data("--weights", path, "--activations", str(few), "--format", "fp8")["remarks"] == []  # no GPTQ
    assert "fewer calibration rows" in call("--weights", path, "--activations", str(few)).stdout


def test_presets_and_types_in_one_table() -> None:
    """Names mean the same as for --format: presets first, ``type:`` for a type, and each row says which it is."""
    formats = "Q4_K_M,q4_k,type:q4_k,Q8_0,type:q8_0,Q4_K_S"
    found = data("llama3.1-8b", "--compare", formats, "--gpu", "h100")
    by_name = {line["format"]: line for line in found["formats"]}
    assert list(by_name) == ["Q4_K_M", "q4_k", "Q8_0", "q8_0", "Q4_K_S"]  # q4_k is llama.cpp's word for Q4_K_M
    for name, line in by_name.items():
        sized = data("llama3.1-8b", "--format", name if name.isupper() else f"type:{name}")
        assert line["weights_bytes"] == pytest.approx(sized["total_bytes"], rel=1e-9)
        assert sized["format"] == name
    assert "llama.cpp's preset, tensor by tensor (Q4_K 74 %, Q6_K 26 % of its bytes)" in by_name["Q4_K_M"]["note"]
    assert "every linear layer in this type of ggml, embedding and head at 16 bits" in by_name["q4_k"]["note"]
    assert "llama.cpp's preset is gguf:Q8_0" in by_name["q8_0"]["note"]
    assert by_name["Q4_K_S"]["tpot_s"] < by_name["Q4_K_M"]["tpot_s"] < by_name["Q8_0"]["tpot_s"]


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


def test_inputs_of_nothing(weights, tmp_path) -> None:
    """Calibration inputs under names that no matrix has are refused, and so is a file without any."""
    for tensors, word in (({"other": torch.zeros(8, 256)}, "it has other"), ({}, "names such as layers.0.down.weight")):
        save_file(tensors, tmp_path / "others.safetensors")
        done = call("--weights", weights[0], "--activations", str(tmp_path / "others.safetensors"))
        assert done.exit_code == 2
        assert "hold inputs of none of the matrices" in done.stderr
        assert word in done.stderr


def test_compare_on_a_processor() -> None:
    """A processor's memory is counted under llama.cpp, whoever made it."""
    found = data("llama3.2-1b", "--compare", "Q4_K_M,int4", "--gpu", "cpu", "--input", "10", "--output", "2")
    assert found["memory_engine"] == "llamacpp"
    assert all(line["max_batch"] > 0 for line in found["formats"])


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
        (("llama3.1-8b", "--compare", "int4,int5x", "--gpu", "h100"), 2, "unknown format 'int5x'"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--budget", "1GB"), 2, "two questions"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--format", "int4"), 2, "--compare names its formats"),
        (("llama3.1-8b", "--activations", "x.safetensors"), 2, "--activations are inputs of --weights"),
        (("llama3.1-8b", "--budget", "24"), 2, "'24' has no unit"),
        (("llama3.1-8b", "--budget", "nan GB"), 2, "--budget"),
        (("llama3.1-8b", "--budget", "24 GB/s"), 2, "--budget"),
        (("--weights", "/nowhere.safetensors"), 3, "cannot be read"),
        (("--weights", ""), 2, "--weights takes a .safetensors file"),
        (("llama3.1-8b", "--budget", "nanGiB"), 2, "'nanGiB' is out of range"),
        (("llama3.1-8b", "--budget", ""), 2, "'' is not a quantity"),
        (("llama3.1-8b", "--budget", "1 kB"), 4, "the budget is 1 kB"),
        (("llama3.1-8b", "--compare", ""), 2, "--compare needs a --gpu"),
        (("llama3.1-8b", "--compare", "", "--gpu", "h100"), 2, "--compare takes names of formats"),
        (("--weights", "x.safetensors", "--format", "int4,,fp8"), 2, "--format takes names of formats"),
        (("llama3.1-8b", "--batch", "4"), 2, "--batch is of --compare and changes nothing about sizes"),
        (("llama3.1-8b", "--fidelity", "calibrated"), 2, "--fidelity is of --compare"),
        (("llama3.1-8b", "--budget", "9GB", "--gpu", "h100"), 2, "--gpu is of --compare and changes nothing about --b"),
        (("llama3.1-8b", "--budget", "9GB", "--tensors"), 2, "--tensors is of sizes"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--keep", "o_proj"), 2, "--keep is of sizes"),
        (("llama3.1-8b", "--compare", "kivi2", "--gpu", "h100"), 2, "of the KV cache only: give it as --kv kivi2"),
        (("llama3.1-8b", "--format", "kivi2"), 2, "of the KV cache only: give it as --kv kivi2"),
        (("llama3.1-8b", "--compare", "int4", "--gpu", "h100", "--kv", "awq_g64"), 2, "a format of weights only"),
        (("opt-13b", "--compare", "Q4_K_M", "--gpu", "h100"), 2, "OPTForCausalLM"),
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
