"""Fitting whole steps: planted numbers are found again, and what the rows do not tell is said."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import UsageError
from perfmodel.cli import main
from perfmodel.roofline.batch import Batch
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.setup import setup
from perfmodel.validate.calibrate_files import notes
from perfmodel.validate.calibrate_steps import StepCalibration, calibrate_steps, device_times
from perfmodel.validate.step_rows import MOST_ROWS, StepRows, make

HOST, SEQUENCE, FACTOR, POOL = 6e-4, 1.5e-5, 1.12, 800_000
READY, SHIPPED = setup("llama3-8b", "h100"), load("h100", "vllm")
Rows = list[tuple[Batch, float, bool]]


def shapes(levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128), each: int = 30) -> StepRows:
    """Decode steps of some numbers of sequences, and prompts alone, without times."""
    rng = np.random.default_rng(1)
    rows: Rows = [(Batch(n, int(rng.integers(1000, 5000))), 0.0, False) for n in levels for _ in range(each)]
    rows += [(Batch(chunks=1, tokens=q, reach=q), 0.0, False) for q in rng.integers(800, 8000, each).tolist()]
    return make(rows, measured="planted", version="0.33.0")


def timed(rows: StepRows, noise: float = 0.02, seed: int = 2) -> StepRows:
    """The rows with the times of our own model, planted host times, and noise."""
    plain = device_times(rows, READY, SHIPPED).plain.sum(0)
    spread = np.exp(np.random.default_rng(seed).normal(0, noise, len(rows)))
    seconds = (HOST + SEQUENCE * rows.sequences + FACTOR * plain) * spread
    return replace(rows, seconds=seconds, skipped=Counter())


@pytest.fixture(scope="module")
def found() -> StepCalibration:
    """A fit of planted times."""
    return calibrate_steps(timed(shapes()), READY, "vllm", SHIPPED)


def test_a_factor_far_from_one_is_warned_of(found: StepCalibration) -> None:
    """Times three times the predicted ones are likely of another GPU: the notes say so; the planted factor is fine."""
    assert not any(note.startswith("warning") for note in notes(found))
    for factor in (0.4, 3.0):
        far = replace(found, params={**found.params, "factor": factor})
        assert any(f"warning: operators take {factor:g} times" in note for note in notes(far))


def log_of(path: Path, rows: StepRows, between: float = 2e-4) -> Path:
    """Rows as lines of vLLM 0.33 with stamps of milliseconds; a part of each step is between two waits."""
    now, lines = 1000.0, [f"GPU KV cache size: {POOL:,} tokens"]
    for i in range(len(rows)):
        n, m, q = (int(v[i]) for v in (rows.decodes, rows.chunks, rows.tokens))
        now += float(rows.seconds[i])
        counts = (m, m * q, n, n)
        minute, second = divmod(now, 60)
        stamp = f"2026-09-27T11:{int(minute) % 60:02}:{second:012.9f}Z"
        usage = 100 * (n * rows.context[i] + m * rows.reach[i]) / POOL
        lines.append(
            f"{stamp} (APIServer pid=1) INFO 09-27 11:00:00 [loggers.py:199] Engine 000: Iteration({i}): "
            f"{counts[0]} context requests, {counts[1]} context tokens, {counts[2]} generation requests, "
            f"{counts[3]} generation tokens, iteration elapsed time: {(rows.seconds[i] - between) * 1e3:.2f} ms, "
            f"GPU KV cache usage: {usage:.1f}%"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def calibrate(*arguments: str) -> Any:
    """The command."""
    return CliRunner().invoke(main, ["calibrate", *arguments])


def test_planted_numbers_are_found_again(found: StepCalibration) -> None:
    """From 270 steps with 2 % noise: host times within 15 %, the factor within 2 %, all inside 3 standard errors."""
    assert found.held == []
    for name, planted, near in (("host", HOST, 0.15), ("sequence", SEQUENCE, 0.15), ("factor", FACTOR, 0.02)):
        assert found.params[name] == pytest.approx(planted, rel=near)
        assert abs(np.log(found.params[name] / planted)) < 3 * found.sigma[name]


def test_the_error_is_that_of_steps_left_out(found: StepCalibration) -> None:
    """Numbers of sequences that the fit did not see are predicted to the noise; the interval covers about 80 %."""
    scores = found.scores
    assert "left out" in str(scores["judged"])
    for phase in ("decode", "prefill"):
        assert float(scores[f"{phase}_mape"]) < 0.025
        assert float(scores[f"{phase}_plain_mape"]) > 0.08
        low, high, n = found.intervals[phase]
        assert 0.95 < low < 1 < high < 1.05
        at = found.rows.phase == phase
        ratio = found.rows.seconds[at] / found.predicted[at]
        assert ((ratio >= low) & (ratio <= high)).mean() == pytest.approx(0.8, abs=0.1)
        assert n == at.sum()


def test_outliers_do_not_move_the_fit() -> None:
    """One step in fifteen takes five times as long (a compilation, a pause): the numbers stay."""
    rows = timed(shapes())
    rows.seconds[::15] *= 5
    params = calibrate_steps(rows, READY, "vllm", SHIPPED).params
    assert params["factor"] == pytest.approx(FACTOR, rel=0.05)
    assert params["sequence"] == pytest.approx(SEQUENCE, rel=0.2)


def test_one_number_of_sequences_does_not_tell_the_host_apart() -> None:
    """Steps of one shape fix a sum, not its parts: the host's times are held near what is usual, and named."""
    rows = timed(make([(Batch(16, 2000), 0.0, False)] * 40))
    found = calibrate_steps(rows, READY, "vllm", SHIPPED)
    assert set(found.held) == {"host", "sequence"}
    assert found.predicted == pytest.approx(rows.seconds, rel=0.08)
    assert found.content("x")["held"] == found.held


def test_few_rows_give_no_interval_and_no_certainty() -> None:
    """One median of a benchmark: its sum is met, no error of a part is believed below some percent."""
    found = calibrate_steps(timed(make([(Batch(8, 1500), 0.0, False)]), noise=0), READY, "vllm", SHIPPED)
    assert found.intervals == {}
    assert found.judged == ""
    assert found.sigma["factor"] > 0.04
    assert "host" in found.held


def test_a_client_has_a_time_of_its_own() -> None:
    """Prompts that a client timed carry 10 ms of HTTP: found beside the host, and not put into its steps."""
    rows = timed(shapes())
    client = rows.phase == "prefill"
    late = replace(rows, seconds=rows.seconds + 0.01 * client, client=client)
    found = calibrate_steps(late, READY, "vllm", SHIPPED)
    assert found.params["request"] == pytest.approx(0.01, rel=0.1)
    assert found.params["factor"] == pytest.approx(FACTOR, rel=0.03)
    assert found.content("x")["request"].endswith(" us")


def test_steps_faster_than_the_bound_are_counted_out() -> None:
    """A wait for the rest of a step is no step; when all are such the model or the plan is another one."""
    rows = timed(shapes())
    rows.seconds[:20] = 3e-5
    found = calibrate_steps(rows, READY, "vllm", SHIPPED)
    assert len(found.rows) == len(rows) - 20
    assert any("roofline bound" in why and n == 20 for why, n in found.rows.skipped.items())
    with pytest.raises(UsageError, match="all 270 steps are shorter than Llama 3 70B"):
        calibrate_steps(timed(shapes()), setup("llama3-70b", "h100", tp=1), "vllm", SHIPPED)


def test_steps_of_both_kinds_take_part() -> None:
    """Prompts beside decodes are predicted as one step: a fit on them alone finds the planted factor."""
    rng = np.random.default_rng(4)
    mixed = [(Batch(n, 2000, 1, q, q), 0.0, False) for n in (1, 8, 32, 64, 128) for q in rng.integers(100, 4000, 30)]
    found = calibrate_steps(timed(make(mixed)), READY, "vllm", SHIPPED)
    assert found.params["factor"] == pytest.approx(FACTOR, rel=0.02)
    assert set(found.intervals) == {"prefill"}
    assert float(found.scores["prefill_mape"]) < 0.025


def test_long_logs_are_thinned_evenly() -> None:
    """Of 10,000 steps of a phase every fourth takes part."""
    rows = make([(Batch(4, 1000 + i), 0.01, False) for i in range(10_000)]).thinned()
    assert len(rows) == 2500 <= MOST_ROWS
    assert np.unique(np.diff(rows.context)).tolist() == [4.0]


def test_a_log_becomes_a_file_that_estimates_take(tmp_path: Path) -> None:
    """Round trip: the command writes what it found in a log, and `estimate` gives the planted step, with the interval
    of steps; `explain` names the host's parts, and a sweep agrees."""
    order = np.random.default_rng(3).permutation(len(shapes()))
    log, out = log_of(tmp_path / "run.log", timed(shapes()).take(order)), str(tmp_path / "mine.yaml")
    result = calibrate(str(log), "--gpu", "h100", "--model", "llama3-8b", "-o", out)
    assert result.exit_code == 0, result.output
    assert "factor on operator times" in result.output
    assert "by stamps of milliseconds" in result.output
    step = yaml.safe_load(Path(out).read_text())["step"]
    assert step["factor"] == pytest.approx(FACTOR, rel=0.04)
    assert step["model"] == "llama3-8b"
    options = {"fidelity": "calibrated", "engine": "vllm", "efficiency": [out]}
    a = pm.analyze("llama3-8b", "h100", batch=48, input=2048, output=2, **options)
    plain = pm.analyze("llama3-8b", "h100", batch=48, input=2048, output=2, fidelity="calibrated", engine="vllm")
    planted = HOST + 48 * SEQUENCE + FACTOR * plain.tpot_s
    assert a.tpot_s == pytest.approx(planted, rel=0.02)
    low, high = a.tpot_interval
    assert low < planted < high
    assert (high - low) / a.tpot_s < 0.1
    assert sum(r.share for r in a.decode.ops) == pytest.approx(1)
    assert any(name.startswith("step times fitted: of llama3-8b on 1 x h100-sxm") for name in a.origins)
    frame = pm.sweep("llama3-8b", "h100", batch=[48], context=[2049], **options)
    assert frame.time_s[0] == pytest.approx(a.tpot_s, rel=1e-12)
    shared = ["--gpu", "h100", "--model", "llama3-8b", "--batch", "48", "--fidelity", "calibrated", "--efficiency", out]
    told = CliRunner().invoke(main, ["explain", "--op", "host", "--phase", "decode", *shared]).output
    assert "step " in told
    assert "sequences " in told
    assert "interval of whole steps" in CliRunner().invoke(main, ["estimate", *shared]).output


def test_results_of_a_benchmark_are_fitted(tmp_path: Path) -> None:
    """Medians at four numbers in flight: the command says what they fix and what not."""
    rows = timed(make([(Batch(n, 1024 + 513 / 2), 0.0, False) for n in (1, 8, 32, 64)]), noise=0)
    paths = []
    for n, seconds in zip(rows.decodes, rows.seconds, strict=True):
        result = {
            "request_rate": "inf", "max_concurrency": int(n), "completed": 640, "total_input_tokens": 640 * 1024,
            "total_output_tokens": 640 * 512, "median_itl_ms": seconds * 1e3, "median_tpot_ms": seconds * 1.02e3,
        }  # fmt: skip
        paths.append(tmp_path / f"c{n:.0f}.json")
        paths[-1].write_text(json.dumps(result))
    out = str(tmp_path / "mine.yaml")
    result = calibrate(*map(str, paths), "--gpu", "h100", "--model", "llama3-8b", "-o", out)
    assert result.exit_code == 0, result.output
    assert "no: held near what is usual" in result.output
    assert "no interval of steps: too few rows" in result.output
    step = yaml.safe_load(Path(out).read_text())["step"]
    assert "host" in step["held"]
    assert step["factor"] == pytest.approx(FACTOR, rel=0.06)
    a = pm.analyze("llama3-8b", "h100", batch=32, input=1024, output=512, fidelity="calibrated", efficiency=[out])
    assert a.tpot_s == pytest.approx(rows.seconds[2], rel=0.03)


Broken = Callable[[Path], list[str]]


def _cut(folder: Path) -> list[str]:
    path = log_of(folder / "run.log", timed(shapes(each=2)))
    path.write_text(path.read_text()[:-60])
    return [str(path), "--gpu", "h100", "--model", "llama3-8b"]


def _nothing(folder: Path) -> list[str]:
    path = folder / "run.log"
    path.write_text("INFO: nothing here\n")
    return [str(path)]


def _no_model(folder: Path) -> list[str]:
    return [str(log_of(folder / "run.log", timed(shapes(each=2)))), "--gpu", "h100"]


def _other_engine(folder: Path) -> list[str]:
    return [*_no_model(folder), "--model", "llama3-8b", "--engine", "sglang"]


def _half_lengths(folder: Path) -> list[str]:
    return [*_no_model(folder), "--model", "llama3-8b", "--input", "100"]


def _bad_result(folder: Path) -> list[str]:
    path = folder / "x.json"
    path.write_text('{"total_input_tokens": 1,\n "completed": ')
    return [str(path), "--gpu", "h100", "--model", "llama3-8b"]


def _no_log(folder: Path) -> list[str]:
    return [*_nothing(folder), "--model", "llama3-8b"]


HEADER = "gpu,framework,op_name,num_gpus,message_bytes,latency_us\n"


def _directory(folder: Path) -> list[str]:
    return [str(folder)]


def _table(folder: Path, content: bytes) -> list[str]:
    path = folder / "nccl.csv"
    path.write_bytes(content)
    return [str(path)]


def _latin(folder: Path) -> list[str]:
    return _table(folder, (HEADER + "h100_sxm,TRTLLM,all_r\u00e9duce,8,1024,9\n").encode("latin-1"))


def _twice(folder: Path) -> list[str]:
    return _table(folder, f"gpu,{HEADER}h100_sxm,h100_sxm,TRTLLM,all_reduce,8,1024,9\n".encode())


def _header_only(folder: Path) -> list[str]:
    return _table(folder, HEADER.encode())


def _other_model_of_results(folder: Path) -> list[str]:
    path = folder / "x.json"
    numbers = {"completed": 8, "total_input_tokens": 8192, "total_output_tokens": 4096, "max_concurrency": 1}
    path.write_text(json.dumps({"model_id": "meta-llama/Meta-Llama-3-70B", **numbers, "median_tpot_ms": 9.0}))
    return [str(path), "--gpu", "h100", "--model", "llama3-8b"]


@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        (_cut, 3, "line 19"),
        (_nothing, 3, "has one column only"),
        (_directory, 3, "cannot be read"),
        (_latin, 3, "is not UTF-8 text"),
        (_twice, 3, "gpu: is in the header twice"),
        (_header_only, 3, "has a header and no rows"),
        (_other_model_of_results, 2, "says model=meta-llama/Meta-Llama-3-70B, and --model is llama3-8b"),
        (_no_model, 2, "does not say what ran: give --gpu and --model"),
        (_other_engine, 2, "is a log of vLLM, and --engine is sglang"),
        (_half_lengths, 2, "--input and --output belong together"),
        (_bad_result, 3, "line 2"),
        (_no_log, 2, "--model is of a log, and no file is one"),
    ],
)
def test_exit_codes(tmp_path: Path, broken: Broken, code: int, message: str) -> None:
    """A damaged file is 3 with its line, a wrong or missing argument 2; nothing is written."""
    out = tmp_path / "mine.yaml"
    result = calibrate(*broken(tmp_path), "-o", str(out))
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert not out.exists()


def test_tables_and_a_log_make_one_file(tmp_path: Path) -> None:
    """Operator times are fitted first, and the steps on top of them: the file holds both, and says so."""
    data = Path(__file__).parent / "data" / "measured" / "generation_attention.csv.gz"
    frame = pd.read_csv(data)
    kept = frame[(frame.gpu == "h100_sxm") & (frame.framework == "VLLM") & (frame.kv_cache_dtype == "bfloat16")]
    table, out = tmp_path / "decode.csv", str(tmp_path / "mine.yaml")
    kept.iloc[::8].to_csv(table, index=False)
    log = log_of(tmp_path / "run.log", timed(shapes(each=8)))
    result = calibrate(str(table), str(log), "--gpu", "h100", "--model", "llama3-8b", "-o", out)
    assert result.exit_code == 0, result.output
    content = yaml.safe_load(Path(out).read_text())
    assert [(k["kind"], k["format"]) for k in content["kernels"]] == [("decode", "bf16")]
    assert content["source"] == "decode.csv, run.log"
    assert content["step"]["factor"] == pytest.approx(FACTOR, rel=0.1)
    again = load("h100", "vllm", [out])
    assert again.step(READY) is not None
    assert again.kernel("decode", ("bf16",)).params != SHIPPED.kernel("decode", ("bf16",)).params
