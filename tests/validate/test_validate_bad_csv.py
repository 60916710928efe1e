"""Files that are no table, or not quite: one clear line, or a reason for each row."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.validate import csvfile
from perfmodel.validate.check import check

HEADER = "model,total_params,architecture,num_layers\n"
LLAMA = "meta-llama/Meta-Llama-3-8B,8030261248,llama,32\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8 text"),
        (HEADER.encode("utf-16"), "not UTF-8 text"),
        (HEADER.encode() + b"caf\xe9,1,llama,2\n", "not UTF-8 text"),
        (b"model\x00,total_params\n1,2\n", "NUL bytes"),
        (HEADER.encode(), "a header and no rows"),
        (HEADER.replace(",", ";").encode() + b"a;1;b;2\n", "separated by ';'"),
        (HEADER.replace(",", "\t").encode() + b"a\t1\tb\t2\n", "separated by '\\t'"),
        (b"model,model,total_params\n1,2,3\n", "in the header twice"),
        (b"a,b\n1,2\n", "known are param_counts, param_counts_bulk, vllm_capacity, memory_logs"),
        (b"model,total_params,architecture\na,1,llama\n", "nearest is param_counts_bulk, it lacks num_layers"),
        (b"model,total_params,total_kind\na,1,llama\n", "nearest is param_counts, it lacks active_params"),
        ((",".join(f"c{i}" for i in range(2000)) + "\n").encode(), "2,000 columns; at most"),
        (HEADER.encode() + b'"' + b"x" * 200_000 + b'",1,llama,2\n', "not a comma-separated table"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    """The message names the file and what is wrong with it, on one line."""
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        check(path)
    assert words in str(caught.value)
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """100 MB are refused by their size: what is read is bounded."""
    path = tmp_path / "mine.csv"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(SpecError, match=f"more than {csvfile.MAX_BYTES:,} bytes"):
        check(path)


@pytest.mark.parametrize("name", ["missing.csv", ".", "a\x00b.csv"])
def test_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    """A missing file, a folder and an impossible name say so."""
    with pytest.raises(SpecError, match="cannot be read"):
        check(f"{tmp_path}/{name}")


@pytest.mark.parametrize("folder", ["missing", "file.json"])
def test_configs_must_be_a_folder(tmp_path: Path, table: Callable[..., Path], folder: str) -> None:
    """--configs of what is no folder is a usage error that names it."""
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(UsageError, match=folder):
        check(table("param_counts_bulk"), configs=tmp_path / folder)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + LLAMA,
        (HEADER + LLAMA).replace("\n", "\r\n"),
        (HEADER + LLAMA).replace("\n", "\r"),
        HEADER + "\n\n" + LLAMA + "\n",
        (HEADER + LLAMA).rstrip("\n"),
        'note,"model",total_params,architecture,num_layers\n"a, ""b""\nc",Qwen/Qwen3-8B,8190735360,qwen3,36\n',
        "num_layers,architecture,total_params,model\n32,llama,8030261248, meta-llama/Meta-Llama-3-8B \n",
    ],
    ids=["byte-order mark", "CRLF", "CR", "empty lines", "no last line end", "quotes", "other order"],
)
def test_ways_of_writing_the_same_table(tmp_path: Path, text: str) -> None:
    """Line ends, a byte-order mark, quotes, empty lines, more columns and their order do not matter."""
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode())
    found = check(path)
    assert (found.rows, found.metrics["total_params"]["overall"]["exact"]) == (1, 1.0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("meta-llama/Meta-Llama-3-8B,nan,llama,32\n", "total_params is no number above zero"),
        ("meta-llama/Meta-Llama-3-8B,-5,llama,32\n", "total_params is no number above zero"),
        ("meta-llama/Meta-Llama-3-8B,,llama,32\n", "total_params is no count"),
        ("meta-llama/Meta-Llama-3-8B,8030261248\n", "the line has not the 4 fields that the header has"),
        ("meta-llama/Meta-Llama-3-8B,8030261248,llama,32,5\n", "the line has not the 4 fields that the header has"),
        ("../../etc/passwd,1,llama,32\n", "no built-in model and no configuration of that name"),
        (",1,llama,32\n", "no built-in model and no configuration of that name"),
    ],
)
def test_a_bad_row_is_skipped_with_a_reason(tmp_path: Path, row: str, reason: str) -> None:
    """The rows around it are compared as ever."""
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + LLAMA + row + LLAMA)
    found = check(path, configs=tmp_path)
    assert found.skipped == [{"reason": reason, "rows": 1}]
    assert found.metrics["total_params"]["overall"]["n"] == 2
    assert found.skips[0].line == 3


def test_names_from_strangers_are_made_printable(tmp_path: Path) -> None:
    """An escape sequence in a name reaches neither the frame nor the text."""
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "\x1b[2J<b>,1,llama,32\n" + LLAMA.replace("llama,32", "\x1b[31mred,32"))
    found = check(path)
    assert "\x1b" not in found.skips[0].model
    assert "\x1b" not in str(found.to_dict(rows=True))
    assert "<b>" not in found._repr_html_()


CELL = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12) | st.sampled_from(
    ["1", "0", "-1", "nan", "8192", "1e308", "vllm", "sglang", "llama.cpp", "TensorRT-LLM", "h100", "H100 80GB",
     "auto", "llama3-8b", "meta-llama/Meta-Llama-3-8B", "deepseek-ai/DeepSeek-V3", "fp8", "bfloat16", "0.9", "bytes",
     "published", "exact int (HF", "as printed by llama.cpp", "KV self size = 1 MiB, K (f16): 0.5 MiB, V (q9): 0.5 MiB",
     "c^KV (f16): 5 MiB", "0.9.0", "21.89 available before fraction", "1 needed", "swa size 9", "max_num_seqs 4"]
)  # fmt: skip


@pytest.mark.parametrize("name", ["param_counts", "param_counts_bulk", "vllm_capacity", "memory_logs"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_cell_brings_it_down(name: str, data: st.DataObject, table: Callable[..., Path]) -> None:
    """Whatever stands in the cells, each row is compared or has a reason."""
    from perfmodel.validate.kinds import KINDS

    columns = [*next(kind.columns for kind in KINDS if kind.name == name), "notes", "n_layer", "params_printed"]
    chosen = data.draw(st.dictionaries(st.sampled_from(columns), CELL, max_size=6))
    line = data.draw(st.integers(0, 30))
    path = table(name, lambda row, seen=[]: seen.append(row) or len(seen) - 1 == line or len(seen) == 1)
    known = path.read_text().splitlines()[0].split(",")
    path = table(
        name, lambda row, seen=[]: seen.append(row) or len(seen) - 1 == line or len(seen) == 1,
        **{key: value for key, value in chosen.items() if key in known},
    )  # fmt: skip
    found = check(path)
    assert found.rows == len({r.line for r in found.results}) + len(found.skips)
    assert all(skip.reason for skip in found.skips)
