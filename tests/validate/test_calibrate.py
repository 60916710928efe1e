"""Fitting a user's own operator tables, and using the fit."""

import gzip
import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import SpecError, UsageError
from perfmodel.cli import main
from perfmodel.validate.calibrate import calibrate

TABLE = Path(__file__).parent / "data" / "measured" / "generation_attention.csv.gz"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sixth decode row of two GPUs under vLLM."""
    with gzip.open(TABLE) as stream:
        frame = pd.read_csv(stream)
    kept = frame[(frame.framework == "VLLM") & frame.gpu.isin(["h100_sxm", "b200_sxm"])].iloc[::6]
    path = tmp_path_factory.mktemp("tables") / "decode.csv"
    kept.to_csv(path, index=False)
    return path


def test_a_fit_is_written_and_used(table: Path, tmp_path: Path) -> None:
    """The file holds a kernel a format, its errors on unseen shapes are small, and `estimate` takes it first."""
    path = tmp_path / "mine.yaml"
    result = CliRunner().invoke(main, ["calibrate", str(table), "--gpu", "h100", "-o", str(path)])
    assert result.exit_code == 0, result.output
    found = calibrate([table], "h100")
    assert {line["format"] for line in found.lines} == {"bf16", "fp8"}
    assert all(line["mape_10us"] < 0.15 for line in found.lines)
    a = pm.analyze("llama3-8b", "h100", fidelity="calibrated", efficiency=[str(path)])
    assert any(re.match(r"fitted: h100-sxm under vllm .* in mine\.yaml$", origin) for origin in a.origins)


def test_several_gpus_must_be_told_apart(table: Path) -> None:
    """Two GPUs in a table: the message names both."""
    with pytest.raises(UsageError, match="b200 under vllm, h100-sxm under vllm: choose by --gpu"):
        calibrate([table])


def test_too_few_rows_are_not_fitted(table: Path, tmp_path: Path) -> None:
    """Ten rows fix nothing; the limit is named."""
    path = tmp_path / "few.csv"
    pd.read_csv(table).query("gpu == 'h100_sxm' and kv_cache_dtype == 'bfloat16'").head(10).to_csv(path, index=False)
    with pytest.raises(UsageError, match="10 rows; at least 60 are needed"):
        calibrate([path])
    one = pd.read_csv(table).query("gpu == 'h100_sxm' and kv_cache_dtype == 'bfloat16'")
    one.assign(num_heads=32, num_key_value_heads=8, head_dim=128, latency_us=1e4).to_csv(path, index=False)
    with pytest.raises(UsageError, match="1 groups of shapes; at least 5 are needed"):
        calibrate([path])
    one.assign(latency_us=1e-6).to_csv(path, index=False)
    with pytest.raises(UsageError, match=r"0 of \d+ rows are not faster than the bound"):
        calibrate([path])


def test_collectives_need_fewer_rows(tmp_path: Path) -> None:
    """34 message sizes an operation are fitted and judged, 19 are not."""
    frame = pd.read_csv(TABLE.with_name("nccl.csv.gz")).query("gpu == 'h100_sxm' and op_name == 'all_reduce'")
    path = tmp_path / "nccl.csv"
    frame.to_csv(path, index=False)
    found = calibrate([path])
    assert [(line["kind"], line["format"], line["rows"]) for line in found.lines] == [("collective", "all_reduce", 34)]
    assert found.lines[0]["mape_10us"] < 0.1
    frame.head(19).to_csv(path, index=False)
    with pytest.raises(UsageError, match="19 rows; at least 20 are needed"):
        calibrate([path])


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    """Other columns, no file, a picture's ending."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SpecError, match="columns of no table"):
        calibrate([path])
    with pytest.raises(SpecError, match="cannot be read"):
        calibrate([tmp_path / "none.csv"])
    result = CliRunner().invoke(main, ["calibrate", str(path), "-o", "x.png"])
    assert result.exit_code == 2
    assert "name it .yaml" in result.stderr
