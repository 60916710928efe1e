"""``perfmodel validate``: data on stdout, exit codes, formats, the picture beside the figures."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import perfmodel as pm
from perfmodel.cli import main

Excerpt = Callable[[str], Path]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["validate", "--against", *map(str, words)])


def test_figures_go_to_stdout(table: Callable[..., Path]) -> None:
    """A table for people: what was compared, the figures by column, the reasons of the skipped rows."""
    found = run(table("vllm_capacity", lambda row: row["tp"] == "2"))
    assert found.exit_code == 0
    assert "2 rows, 2 compared, 0 skipped" in found.stdout
    assert "kv_tokens" in found.stdout
    assert found.stderr == ""
    found = run(table("vllm_capacity", lambda row: row["tp"] == "2", model="nobody/knows"))
    assert "2 rows skipped: no built-in model" in found.stdout


def test_json_is_that_of_the_library(excerpt: Excerpt) -> None:
    """pm.check gives what the command prints."""
    found = run(excerpt("memory_logs"), "--format", "json")
    assert json.loads(found.stdout) == json.loads(json.dumps(pm.check(excerpt("memory_logs")).to_dict()))


def test_rows_show_each_prediction(excerpt: Excerpt) -> None:
    """--rows lists measured and predicted; in JSON beside the figures, with the skipped rows."""
    found = run(excerpt("param_counts"), "--rows", "--format", "csv")
    header, *lines = found.stdout.splitlines()
    assert header.startswith("line,model,measured column,measured,predicted,ratio")
    assert len(lines) == len(pm.check(excerpt("param_counts")).results)
    rows = json.loads(run(excerpt("param_counts"), "--rows", "--format", "json").stdout)
    assert len(rows["results"]) == len(lines)
    assert {"line", "model", "reason", "metric"} == rows["skipped_rows"][0].keys()


def test_groups_are_listed_on_request(excerpt: Excerpt) -> None:
    """Without --groups a line a column, with it the groups and their values too."""
    plain, grouped = (run(excerpt("memory_logs"), "--format", "csv", *more).stdout for more in ([], ["--groups"]))
    assert len(plain.splitlines()) == 10  # a header and nine measured columns
    assert "ik_llama.cpp" in grouped
    assert "ik_llama.cpp" not in plain


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ([], 0), (["0.5"], 0), (["50%"], 0), (["0.0001"], 1), (["kv_tokens=0.02", "weights_gib=0.5%"], 0),
        (["0.5", "cudagraph_gib=0.001"], 1), (["cudagraph_gib=0.5", "0"], 1),
    ],
)  # fmt: skip
def test_exit_code_follows_the_tolerance(excerpt: Excerpt, limits: list[str], code: int) -> None:
    """1 when a mean error is above its tolerance, by column or for all; the figures are printed either way."""
    found = run(excerpt("vllm_capacity"), *(word for limit in limits for word in ("--tolerance", limit)))
    assert found.exit_code == code
    assert "kv_tokens" in found.stdout
    assert ("outside the tolerance" in found.stderr) == (code == 1)


def test_what_is_outside_is_named(excerpt: Excerpt) -> None:
    """The message names the column, its error and the limit."""
    found = run(excerpt("vllm_capacity"), "--tolerance", "cudagraph_gib=0.1%")
    assert "cudagraph_gib: mean error" in found.stderr
    assert "above 0.1000%" in found.stderr
    assert "kv_tokens" not in found.stderr


def test_nothing_compared_is_outside_any_tolerance(table: Callable[..., Path]) -> None:
    """A table of unknown models passes without a tolerance and fails with one: nothing was shown."""
    path = table("param_counts_bulk", model="nobody/knows")
    assert run(path).exit_code == 0
    found = run(path, "--tolerance", "0.5")
    assert found.exit_code == 1
    assert "nothing was compared" in found.stderr


@pytest.mark.parametrize("limit", ["", "x", "-1", "nan", "inf", "kv_tokens=", "1e999"])
def test_a_wrong_tolerance_is_a_usage_error(excerpt: Excerpt, limit: str) -> None:
    """Exit code 2, one line."""
    found = run(excerpt("vllm_capacity"), "--tolerance", limit)
    assert found.exit_code == 2
    assert len(found.stderr.splitlines()) == 1


def test_a_tolerance_of_an_unknown_column_names_the_known(excerpt: Excerpt) -> None:
    """kv_token is not a column of the table; the columns are listed."""
    found = run(excerpt("vllm_capacity"), "--tolerance", "kv_token=0.1")
    assert found.exit_code == 2
    assert "weights_gib, kv_tokens" in found.stderr


def test_a_bad_table_is_exit_code_3(tmp_path: Path) -> None:
    """A file that is no table is a bad spec; nothing goes to stdout."""
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    found = run(tmp_path / "mine.csv")
    assert (found.exit_code, found.stdout) == (3, "")
    assert len(found.stderr.splitlines()) == 1


def test_output_goes_to_a_file(excerpt: Excerpt, tmp_path: Path) -> None:
    """-o x.json writes the figures and -o x.svg the picture, beside the figures on stdout."""
    found = run(excerpt("param_counts_bulk"), "--format", "json", "-o", tmp_path / "x.json")
    assert found.stdout == ""
    assert json.loads((tmp_path / "x.json").read_text())["table"] == "param_counts_bulk"
    found = run(excerpt("param_counts_bulk"), "-o", tmp_path / "x.svg")
    assert "total_params" in found.stdout
    assert (tmp_path / "x.svg").read_text().lstrip().startswith("<?xml")


def test_markdown_escapes_names(table: Callable[..., Path]) -> None:
    """What a table's cells hold is text in every form."""
    path = table("param_counts_bulk", lambda row: row["model"] == "Qwen/Qwen3-8B", architecture="<img> | *x*")
    shown = run(path, "--groups", "--format", "md").stdout
    assert "<img>" not in shown
    assert "\\|" in shown
