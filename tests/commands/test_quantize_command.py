"""``perfmodel quantize`` at the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli import main


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["quantize", *args])
    assert result.exit_code == code, result.output
    return result.output


def test_format_is_said_twice() -> None:
    """--format takes a storage format and a form of output, in either order and case."""
    for args in (("--format", "q4_k_m", "--format", "json"), ("--format", "JSON", "--format", "Q4_K_M")):
        found = json.loads(run("llama3.1-8b", *args))
        assert found["format"] == "Q4_K_M"
        assert round(found["bits_per_weight"], 4) == 4.8944
        assert found["total_bytes"] == sum(t["bytes"] for t in found["tensors"])


def test_the_checkpoint_s_own_format_by_default() -> None:
    """Without a storage format it is the native one."""
    assert json.loads(run("gpt-oss-20b", "--format", "json"))["format"] == "mxfp4"


def test_table_adds_up_and_names_the_rest() -> None:
    """The table has a line a kind of tensor, the sum, the shares of types, and where the rules come from."""
    text = run("llama3.1-8b", "--format", "Q4_K_M")
    assert "4.58 GiB, 4.8944 bits a weight" in text
    assert "blk.*.attn_v.weight" in text
    assert "4,912,898,048" in text
    assert "src/llama-quant.cpp" in text
    assert "blk.17.attn_v.weight" in run("llama3.1-8b", "--format", "Q4_K_M", "--tensors")


def test_csv_has_every_tensor(tmp_path: Path) -> None:
    """CSV and files by their ending."""
    rows = list(csv.DictReader(io.StringIO(run("llama3.1-8b", "--format", "Q8_0", "--format", "csv"))))
    assert len(rows) == 291
    run("llama3.1-8b", "--format", "Q8_0", "-o", str(tmp_path / "x.csv"))
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 292


def test_options_reach_the_rules() -> None:
    """Importance matrix, date of the rules, types, and what is left alone change the sum."""
    plain = json.loads(run("llama3.1-8b", "--format", "IQ4_XS", "--format", "json"))
    matrix = json.loads(run("llama3.1-8b", "--format", "IQ4_XS", "--imatrix", "--format", "json"))
    assert matrix["total_bytes"] < plain["total_bytes"]
    old = json.loads(run("llama2-7b", "--format", "Q2_K", "--rules", "2023-09", "--format", "json"))
    assert old["total_bytes"] > json.loads(run("llama2-7b", "--format", "Q2_K", "--format", "json"))["total_bytes"]
    kept = json.loads(run("llama3-8b", "--format", "int4", "--keep", "o_proj", "--keep-first", "1", "--format", "json"))
    assert kept["total_bytes"] > json.loads(run("llama3-8b", "--format", "int4", "--format", "json"))["total_bytes"]
    typed = run("llama3-8b", "--format", "Q4_K_M", "--output-tensor-type", "q8_0", "--token-embedding-type", "q8_0")
    assert "Q4_K_M, output Q8_0, embedding Q8_0" in typed


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("llama3-8b", "--format", "int4", "--format", "awq"), 2, "one storage format at a time"),
        (("llama3-8b", "--format", "csv", "--format", "json"), 2, "the output has one form"),
        (("llama3-8b", "--format", "json", "-o", "x.csv"), 2, "contradicts the ending .csv"),
        (("llama3-8b", "--format", "q4_k_n"), 2, "did you mean q4_k"),
        (("no-such-model", "--format", "int4"), 2, "unknown model"),
        (("llama3-8b", "--format", "Q4_K_M", "--rules", "1999"), 2, "there are 2026"),
        (("missing.gguf",), 3, "cannot be read"),
    ],
)
def test_what_is_refused(args: tuple[str, ...], code: int, words: str) -> None:
    """One line that names the value and what to do, and the exit code."""
    text = run(*args, code=code)
    assert words in text
    assert len(text.strip().splitlines()) == 1
