"""Tables of an installed aiconfigurator-core as tables of ours; with a small folder of its layout."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

from perfmodel.base.errors import SpecError, UnknownName, UsageError
from perfmodel.validate import table_aiconfigurator
from perfmodel.validate.calibrate import calibrate
from perfmodel.validate.fit_predict import HEADERS, predict_frame
from perfmodel.validate.table_aiconfigurator import Table, folder, tables

INSTALLED = importlib.util.find_spec("aiconfigurator_core") is not None

HEAD = {"framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H100 80GB HBM3", "kernel_source": "made up"}
HEADS = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "beam_width": 1}
ATTENTION = {"batch_size": 4, **HEADS, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}
MLA = {"mla_dtype": "bfloat16", "kv_cache_dtype": "fp8", "num_heads": 16, "batch_size": 8, "tp_size": 8}
MOE = {"moe_dtype": "bfloat16", "num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128,
       "moe_tp_size": 1, "moe_ep_size": 1}  # fmt: skip
NCCL = {"op_name": "all_reduce", "num_gpus": 8}


def put(root: Path, place: str, *rows: dict[str, object]) -> None:
    """A table of the layout, as text: the columns are those of the package's files. Times in milliseconds."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([{**HEAD, **row} for row in rows]).to_csv(path, index=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A system with a table of each kind."""
    h = "h100_sxm"
    put(tmp_path, f"{h}/gemm/vllm/0.24.0/gemm_perf.txt",
        {"gemm_dtype": "bfloat16", "m": 8, "n": 4096, "k": 4096, "latency": 0.0158})  # fmt: skip
    context = {**ATTENTION, "isl": 1024, "step": 0, "latency": 0.1}
    put(tmp_path, f"{h}/attention/vllm/0.24.0/context_attention_perf.txt", context,
        {**context, "window_size": 128}, {**context, "step": 512})  # fmt: skip
    put(tmp_path, f"{h}/attention/vllm/0.24.0/generation_attention_perf.txt",
        {**ATTENTION, "isl": 1, "step": 1023, "latency": 0.02})  # fmt: skip
    put(tmp_path, f"{h}/mla/vllm/0.24.0/context_mla_perf.txt", {**MLA, "isl": 512, "step": 0, "latency": 0.1})
    put(tmp_path, f"{h}/mla/vllm/0.24.0/generation_mla_perf.txt", {**MLA, "isl": 1, "step": 511, "latency": 0.02})
    put(tmp_path, f"{h}/moe/vllm/0.24.0/moe_perf.txt", {**MOE, "distribution": "balanced", "latency": 0.5},
        {**MOE, "distribution": "power_law_1.2", "latency": 0.6})  # fmt: skip
    put(tmp_path, f"{h}/comm/nccl/2.29.2/nccl_perf.txt",
        {**NCCL, "nccl_dtype": "half", "message_size": 4096, "latency": 0.012},
        {**NCCL, "nccl_dtype": "int8", "message_size": 4096, "latency": 0.011})  # fmt: skip
    return tmp_path


def by_kind(found: list[Table]) -> dict[str, list[Table]]:
    """Tables by kind."""
    return {kind: [t for t in found if t.kind == kind] for kind in HEADERS}


def test_every_kind_becomes_a_table_of_ours(data: Path) -> None:
    """Each has our header and microseconds, and every row is predicted as it stands."""
    found = by_kind(tables("h100_sxm", "vllm", data))
    assert {kind: len(t) for kind, t in found.items()} == {
        "gemm": 1, "prefill": 1, "decode": 1, "mla": 2, "experts": 1, "collective": 1,
    }  # fmt: skip
    for kind, listed in found.items():
        for table in listed:
            assert set(table.frame.columns) >= HEADERS[kind]
            assert (table.frame["framework"] == "vllm").all()
            assert predict_frame(table.frame, kind)["skipped"].tolist() == [""]
    assert found["gemm"][0].frame["latency_us"][0] == pytest.approx(15.8)
    assert found["decode"][0].frame["context_len"][0] == 1024  # one new token after 1,023 in the cache
    assert [t.frame["length"][0] for t in found["mla"]] == [512, 512]
    assert [t.frame["phase"][0] for t in found["mla"]] == ["context", "generation"]
    assert found["collective"][0].frame["message_bytes"][0] == 8192  # 4,096 elements of 16 bits


def test_rows_of_another_kind_are_counted(data: Path) -> None:
    """Windows, cached prefixes, uneven experts and 8-bit collectives are left out by reason."""
    found = by_kind(tables("h100_sxm", "vllm", data))
    assert found["prefill"][0].skipped == {"sliding windows": 1, "prompts of which a part is cached": 1}
    assert found["experts"][0].skipped == {"tokens spread unevenly over the experts": 1}
    assert found["collective"][0].skipped == {"elements of other than 16 bits": 1}


def test_the_fullest_version_is_taken(data: Path) -> None:
    """Of versions with as many rows the newest by its numbers; one with fewer rows does not replace them."""
    row = {"gemm_dtype": "bfloat16", "m": 8, "n": 4096, "k": 4096, "latency": 0.02}
    put(data, "h100_sxm/gemm/vllm/0.9.0/gemm_perf.txt", {**row, "version": "0.9.0"})
    assert by_kind(tables("h100_sxm", "vllm", data))["gemm"][0].frame["version"][0] == "0.24.0"
    put(data, "h100_sxm/gemm/vllm/0.8.0/gemm_perf.txt", *[{**row, "version": "0.8.0", "m": m} for m in (1, 2)])
    assert by_kind(tables("h100_sxm", "vllm", data))["gemm"][0].frame["version"][0] == "0.8.0"


def test_what_is_missing_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system, an engine, a column, the package: each with what there is or what to do."""
    with pytest.raises(UnknownName, match=r"unknown system .* 'h100_sx'; did you mean h100_sxm"):
        tables("h100_sx", None, data)
    with pytest.raises(UnknownName):
        tables("../h100_sxm", None, data)
    put(data, "l4/gemm/vllm/0.24.0/gemm_perf.txt", {"m": 1, "latency": 1.0})
    with pytest.raises(SpecError, match="gemm_dtype: is missing from the table"):
        tables("l4", None, data)
    with pytest.raises(UsageError, match="no operator tables of l4 under trtllm"):
        tables("l4", "trtllm", data)
    monkeypatch.setattr(table_aiconfigurator, "PACKAGE", "no_such_package_here")
    with pytest.raises(UsageError, match=r"not installed: install perfmodel\[aiconfigurator\]"):
        calibrate(["aiconfigurator:h100_sxm"])


def test_a_fit_of_the_package_takes_its_tables(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aiconfigurator:SYSTEM` is read where the package would be; one row a kind is too few to fit, and said so."""
    monkeypatch.setattr(table_aiconfigurator, "folder", lambda: data)
    with pytest.raises(UsageError, match="gemm bf16: 1 rows; at least 60 are needed"):
        calibrate(["aiconfigurator:h100_sxm"], engine="vllm")
    rows = [{"gemm_dtype": "bfloat16", "m": m, "n": 1024 * n, "k": 4096, "latency": 0.01 + 4e-3 * n + 1.2e-5 * m * n}
            for m in (1, 16, 64, 256, 1024, 4096) for n in range(1, 13)]  # fmt: skip
    put(data, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.txt", *rows)
    found = calibrate(["aiconfigurator:h100_sxm"], engine="vllm")
    assert [(line["kind"], line["rows"]) for line in found.lines] == [("gemm", 72)]
    assert "Apache-2.0" in found.content("aiconfigurator:h100_sxm")["licence"]
    assert any("h100_sxm vllm 0.24.0 moe_perf.txt: 1 rows: tokens spread unevenly" in why for why in found.skipped)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs aiconfigurator-core")
def test_the_installed_package_has_what_is_read() -> None:
    """Of the real package every kind has rows, each row is predicted or has a reason, and few are below the bound."""
    assert (folder() / "h100_sxm").is_dir()
    found = by_kind(tables("h100_sxm", "trtllm"))
    for kind, listed in found.items():
        assert listed, kind
        for table in listed:
            some = predict_frame(table.frame.iloc[:: max(1, len(table.frame) // 200)], kind)
            fine = some[some["skipped"] == ""]
            assert len(fine) > len(some) / 2
            assert (fine["latency_us"] < fine["bound_us"]).mean() < 0.1
