"""The command line: its contract of names, JSON keys, endings and exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfmodel.cli import COMMANDS, main

TARGET = ["--gpu", "h100", "--model", "llama3-70b"]


def run(*arguments: str) -> Result:
    """Run perfmodel in this process."""
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    """--help of each command works and says what it does."""
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["estimate", *TARGET, "--tp", "4"], {"ttft_s", "tpot_s", "tokens_per_s", "fits", "ops", "ttft_low_s"}),
        (["params", "llama3-70b"], {"total_params", "active_params", "kv_bytes_per_token", "kv_bytes", "by_role"}),
        (["roofline", *TARGET], {"model", "gpu", "fits", "notice", "memory", "ops"}),
    ],
)
def test_json_has_the_contract_s_keys(arguments, keys):
    """The JSON of each command holds the keys that scripts rely on."""
    assert keys <= json.loads(run(*arguments, "--format", "json").output).keys()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["estimate", *TARGET], 4, "--tp 2 or --weights fp8 would fit"),
        (["estimate", "--gpu", "t4", "--model", "deepseek-v3"], 4, "no option tried would fit"),
        (["roofline", "--gpu", "h1000", "--model", "llama3-70b"], 2, "did you mean h100"),
        (["roofline", "--gpu", "h100", "--model", "nosuch.yaml"], 3, "cannot be read"),
        (["roofline", "--gpu", "local", "--model", "llama3-8b"], 5, "--gpu h100"),
        (["estimate", *TARGET, "--tp", "7"], 2, "tp can be 1, 2, 4, 8"),
        (["explain", *TARGET, "--op", "qkv"], 2, "did you mean qkv_proj?"),
        (["roofline", *TARGET, "--batch", "x"], 2, "takes whole numbers"),
        (["roofline", *TARGET, "-o", "x.jpg"], 2, "cannot write .jpg"),
        (["report", "-o", "x.png"], 2, "name a file in .html"),
        (["params", ""], 2, "unknown model ''"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_an_exit_code(arguments, code, says):
    """An error names the value and the remedy in one line; nothing goes to stdout."""
    result = run(*arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_file_s_ending_chooses_the_form(tmp_path: Path):
    """-o x.json writes JSON and x.csv CSV; another --format contradicts; - is stdout."""
    path = tmp_path / "x.json"
    assert run("params", "llama3-8b", "-o", str(path)).exit_code == 0
    assert json.loads(path.read_text())["total_params"] == 8030261248
    assert run("params", "llama3-8b", "-o", str(path), "--format", "csv").exit_code == 2
    assert json.loads(run("params", "llama3-8b", "--format", "json", "-o", "-").output)["layers"] == 32


def test_picture_and_table_come_together(tmp_path: Path):
    """-o x.svg writes the picture and the table still goes to stdout."""
    path = tmp_path / "x.svg"
    result = run("roofline", *TARGET, "-o", str(path))
    assert "<svg" in path.read_text()
    assert "gate_up_proj" in result.stdout


def test_what_does_not_fit_is_drawn_and_said():
    """`roofline` labels hypothetical times and names what would fit."""
    assert "hypothetical; --tp 2 or --weights fp8 would fit" in run("roofline", *TARGET).output


def test_a_context_beyond_the_model_s_is_said():
    """8,192 tokens is what Llama 3 8B is made for."""
    result = run("estimate", "--gpu", "h100", "--model", "llama3-8b", "--input", "100000")
    assert "100,256 tokens are more than the 8,192" in result.output
