"""Reading vLLM's iteration details: formats of its versions, damaged lines, and how long the steps took."""

import gzip
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.batch import Batch
from perfmodel.roofline.setup import setup
from perfmodel.validate.iteration_times import step_times
from perfmodel.validate.logs_vllm_iterations import Iteration, read
from perfmodel.validate.step_rows import StepRows
from perfmodel.validate.steps_of_iterations import keeps_every_token, rows_of

CONFIG = (
    "(EngineCore pid=71) INFO 09-27 11:16:58 [core.py:122] Initializing a V1 LLM engine (v0.33.0) with config: "
    "model='meta-llama/Meta-Llama-3-8B', speculative_config=None, tokenizer='meta-llama/Meta-Llama-3-8B', "
    "dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, "
    "decode_context_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda"
)
POOL = (
    "(EngineCore pid=71) INFO 09-27 11:17:05 [kv_cache_utils.py:2390] GPU KV cache size: 400,000 tokens, Maximum "
    "concurrency for 8,192 tokens per request: 48.83x"
)
COUNTS = "{} context requests, {} context tokens, {} generation requests, {} generation tokens"

#: As vLLM prints them: 0.16 and 0.22; 0.24 with a dummy; 0.26; 0.33, coloured; 0.33 as JSON; under docker's stamps.
OLD = "(EngineCore_DP0 pid=71) INFO 09-27 11:17:19 [core.py:385] Iteration(320): " + COUNTS.format(0, 0, 8, 8)
OLD += ", iteration elapsed time: 12.41 ms"
DUMMY = "(EngineCore_DP1 pid=72) INFO 09-27 11:17:19 [core.py:452] Iteration(7): " + COUNTS.format(0, 0, 0, 0)
DUMMY += ", iteration elapsed time: 3.07 ms (dummy)"
NEW = "(APIServer pid=1) INFO 09-27 11:17:19 [loggers.py:199] Engine 001: Iteration(3): " + COUNTS.format(1, 512, 0, 0)
NEW += ", iteration elapsed time: 20.00 ms, GPU KV cache usage: 3.4%"
ENCODER = NEW + ", encoder inputs: 2, encoder output embeddings: 576"
COLOURED = f"\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO {NEW.split('INFO ')[1]}\x1b[0m"
AS_JSON = json.dumps(
    {"asctime": "2026-09-27 11:17:19,482", "levelname": "INFO", "name": "vllm", "message": NEW.split("] ")[1]}
)
DOCKER = f"2026-09-27T11:17:19.482123456Z {NEW}"


def written(folder: Path, *lines: str) -> Path:
    """A log of these lines."""
    path = folder / "run.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def decode(index: int, n: int, ms: float, stamp: str, usage: float | None = None) -> str:
    """A line of a decode step."""
    line = f"INFO {stamp} [x.py:1] Engine 000: Iteration({index}): " + COUNTS.format(0, 0, n, n)
    return f"{line}, iteration elapsed time: {ms:.2f} ms" + ("" if usage is None else f", GPU KV cache usage: {usage}%")


def test_each_version_prints_the_same_facts(tmp_path: Path) -> None:
    """The six forms give engine, counts, seconds, cache usage and stamp; other lines are passed over."""
    lines = (CONFIG, POOL, "INFO: Started server", OLD, DUMMY, NEW, ENCODER, COLOURED, AS_JSON, DOCKER, "Iteration(x)")
    log = read(written(tmp_path, *lines))
    assert (log.version, log.pool, log.settings) == ("0.33.0", 400_000, {
        "tensor_parallel_size": "1", "pipeline_parallel_size": "1", "data_parallel_size": "1",
        "decode_context_parallel_size": "1", "kv_cache_dtype": "auto", "speculative_config": "None",
    })  # fmt: skip
    old, dummy, new, encoder, coloured, as_json, docker = log.iterations
    assert (old.line, old.index, old.engine, old.generation_requests) == (4, 320, "0", 8)
    assert old.elapsed == pytest.approx(0.01241)
    assert (old.usage, old.fine, old.dummy) == (None, False, False)
    assert (dummy.engine, dummy.dummy) == ("1", True)
    assert (new.engine, new.context_requests, new.context_tokens) == ("1", 1, 512)
    assert new.usage == pytest.approx(0.034)
    assert encoder.encoder
    assert not new.encoder
    for other in (coloured, as_json, docker):
        assert (other.engine, other.context_tokens, other.elapsed, other.usage) == ("1", 512, new.elapsed, new.usage)
    assert new.stamp == coloured.stamp == old.stamp
    assert as_json.fine
    assert docker.stamp is not None
    assert docker.stamp - int(docker.stamp) == pytest.approx(0.482123, abs=1e-6)


def test_a_packed_log_is_read(tmp_path: Path) -> None:
    """A `.gz` holds the same."""
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(f"{OLD}\n".encode()))
    assert read(path).iterations[0].elapsed == pytest.approx(0.01241)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(SpecError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize("cut", [len(OLD) - 3, len(OLD) - 12, len(OLD) - 40, OLD.index("320): ") + 6])
def test_a_line_that_is_cut_off_is_named(tmp_path: Path, cut: int) -> None:
    """Wherever the old form's line breaks off, the message has its number; nothing is taken from it."""
    with pytest.raises(SpecError, match=r"line 3.*is cut off or garbled"):
        read(written(tmp_path, CONFIG, OLD, OLD[:cut]))


@pytest.mark.parametrize("end", ["3.4", "3", "", "G"])
def test_a_cut_usage_is_not_a_line_without_one(tmp_path: Path, end: str) -> None:
    """The new form breaking off in the cache usage is damaged, not a line of the old form."""
    cut = NEW.split("GPU KV")[0] + ("" if end in ("", "G") else "GPU KV cache usage: ") + end
    with pytest.raises(SpecError, match=r"line 2"):
        read(written(tmp_path, NEW, cut.rstrip()))


def test_two_lines_written_into_one_another_are_refused(tmp_path: Path) -> None:
    """Two processes on one stream: the first line's end is lost in the second's start."""
    with pytest.raises(SpecError, match=r"line 1.*log one process to a file"):
        read(written(tmp_path, OLD[:-20] + OLD))


def test_a_log_without_such_lines_says_what_to_do(tmp_path: Path) -> None:
    """The option that prints them is named; a file that is not there is an error of its own."""
    with pytest.raises(SpecError, match="--enable-logging-iteration-details"):
        read(written(tmp_path, CONFIG, POOL))
    with pytest.raises(SpecError, match="No such file"):
        read(tmp_path / "none.log")


def batches(rows: StepRows) -> list[Batch]:
    """What the steps held."""
    numbers = np.stack([rows.decodes, rows.context, rows.chunks, rows.tokens, rows.reach], 1)
    return [Batch(int(n), context, int(m), tokens, reach) for n, context, m, tokens, reach in numbers.tolist()]


def series(elapsed: list[float], stamps: list[float], fine: bool, prompts: tuple[int, ...] = ()) -> list[Iteration]:
    """Decode lines of one engine; those in ``prompts`` have nothing but a prompt."""
    found = []
    for i, (wait, stamp) in enumerate(zip(elapsed, stamps, strict=True)):
        c, g = (1, 0) if i in prompts else (0, 4)
        found.append(Iteration(i + 1, i, "0", c, 100 * c, g, g, wait, None, False, False, stamp, fine))
    return found


def test_stamps_of_milliseconds_give_each_step() -> None:
    """A step lasts from the line before to its own; the first has its wait and the usual time between waits."""
    found = step_times(series([0.008, 0.001, 0.008], [0.0, 0.010, 0.021], fine=True))
    assert found.between == pytest.approx((0.009 + 0.003) / 2)
    assert found.seconds == pytest.approx([0.008 + 0.006, 0.010, 0.011])


def test_a_prompt_alone_may_have_been_waited_for() -> None:
    """Nothing shows that the engine was busy before a step with a prompt alone: its stamp is not taken as a start."""
    found = step_times(series([0.008] * 4, [0.0, 0.01, 5.0, 5.01], fine=True, prompts=(2,)))
    assert found.seconds[2] == pytest.approx(0.008 + 0.002)
    assert found.seconds[3] == pytest.approx(0.010)


def test_whole_seconds_give_the_mean_over_long_stretches_only() -> None:
    """9 ms waited and 1 ms between: 6,000 steps in 60 s fix it to 1 %, 100 steps in 1 s do not."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.uniform(0.009, 0.011, 6000)) + 0.3
    long = step_times(series([0.009] * 6000, list(np.floor(ends)), fine=False))
    assert long.between == pytest.approx(0.001, abs=1e-4)
    assert long.seconds == pytest.approx(0.009 + float(long.between or 0))
    short = step_times(series([0.009] * 100, list(np.floor(ends[:100])), fine=False))
    assert short.between is None
    assert short.seconds == pytest.approx(0.009)
    assert "its own work between steps is not in it" in short.measured


def test_rows_are_pure_steps_and_the_rest_is_counted(tmp_path: Path) -> None:
    """Decode and prefill with a known context are rows; mixed steps, drafts, images and empty steps are reasons."""
    at = "09-27 11:17:19"
    head = f"INFO {at} [x.py:1] Engine 000: Iteration("
    lines = [
        decode(0, 8, 9.31, at, 2.0),  # 8,000 tokens over 8 sequences
        decode(1, 8, 9.31, at, 0.0),  # under half of 0.1 %: no context
        decode(1, 0, 0.31, at, 0.0),  # nothing in it
        head + "2): " + COUNTS.format(1, 700, 8, 8) + ", iteration elapsed time: 30.00 ms, GPU KV cache usage: 2.2%",
        decode(3, 9, 9.40, at, 2.2),  # the next step has a prompt
        head + "4): " + COUNTS.format(1, 800, 0, 0) + ", iteration elapsed time: 31.00 ms, GPU KV cache usage: 0.2%",
        head + "5): " + COUNTS.format(0, 0, 8, 24) + ", iteration elapsed time: 12.00 ms, GPU KV cache usage: 2.2%",
        ENCODER,
    ]
    log = read(written(tmp_path, CONFIG, POOL, *lines))
    rows = rows_of(log, setup("llama3-8b", "h100"))
    assert batches(rows) == [Batch(8, 1000), Batch(chunks=1, tokens=800, reach=800)]
    assert sum(rows.skipped.values()) == len(lines) - 2
    assert any("prompts beside decodes" in why for why in rows.skipped)
    assert any("speculative" in why for why in rows.skipped)
    assert any("images" in why for why in rows.skipped)
    assert any("next step was given" in why for why in rows.skipped)
    assert any("state --input and --output" in why and "contexts" in why for why in rows.skipped)
    assert rows.version == "0.33.0"


def test_stated_lengths_stand_in_for_the_cache_usage(tmp_path: Path) -> None:
    """Without a printed usage, requests of 512 in and 101 out hold 563 tokens in the mean; chunks of prompts do not."""
    at = "09-27 11:17:19"
    head = f"INFO {at} [x.py:1] Iteration("
    tail = ", iteration elapsed time: 31.00 ms"
    lines = [head + "0): " + COUNTS.format(2, 1024, 0, 0) + tail, head + "1): " + COUNTS.format(1, 100, 0, 0) + tail]
    log = read(written(tmp_path, *lines, decode(2, 2, 9.0, at)))
    rows = rows_of(log, setup("llama3-8b", "h100"), (512, 101))
    assert batches(rows) == [Batch(chunks=2, tokens=512, reach=512), Batch(2, 563)]
    assert len(rows_of(log, setup("llama3-8b", "h100"))) == 0


def test_steps_of_both_kinds_are_rows_where_prompts_are_known(tmp_path: Path) -> None:
    """With stated lengths a whole prompt's tokens come off the printed usage: the decodes have the rest. A part of a
    prompt, or a usage that may count the next step's prompts, is not guessed: there the stated lengths answer alone."""
    at = "09-27 11:17:19"
    head, tail = f"INFO {at} [x.py:1] Iteration(", ", iteration elapsed time: 31.00 ms, GPU KV cache usage: 1.0%"
    mixed = COUNTS.format(1, 1000, 3, 3)
    lines = [
        head + "0): " + mixed + tail,
        decode(1, 4, 9.0, at, 1.0),
        head + "2): " + mixed + tail,
        head + "3): " + COUNTS.format(1, 900, 3, 3) + tail,
    ]
    log = read(written(tmp_path, POOL, *lines))
    rows = rows_of(log, setup("llama3-8b", "h100"), (1000, 201))
    assert batches(rows) == [
        Batch(3, 1000, 1, 1000, 1000),  # 4,000 tokens held, less 1,000, over 3
        Batch(4, 1101),
        Batch(3, 1101, 1, 1000, 1000),
    ]
    assert rows.phase.tolist() == ["prefill", "decode", "prefill"]
    assert rows.sequences.tolist() == [4, 4, 4]
    assert [n for why, n in rows.skipped.items() if "a part of a prompt" in why] == [1]


def test_a_log_of_another_plan_is_refused(tmp_path: Path) -> None:
    """What the engine printed of itself goes before what is asked."""
    path = written(tmp_path, CONFIG.replace("tensor_parallel_size=1", "tensor_parallel_size=4"), OLD)
    with pytest.raises(UsageError, match="says tensor_parallel_size=4, and --tp is 1: give --tp 4"):
        rows_of(read(path), setup("llama3-8b", "h100"))
    path = written(tmp_path, CONFIG.replace("pipeline_parallel_size=1", "pipeline_parallel_size=2"), OLD)
    with pytest.raises(UsageError, match="several stages"):
        rows_of(read(path), setup("llama3-8b", "h100"))
    path = written(tmp_path, CONFIG.replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8"), OLD)
    with pytest.raises(UsageError, match="kv_cache_dtype=fp8, and --kv is bf16"):
        rows_of(read(path), setup("llama3-8b", "h100"))
    assert read(path).settings


def test_a_log_of_another_model_or_cache_is_refused(tmp_path: Path) -> None:
    """An HF id or a path that means another built-in is contradicted; an instruct variant, and what no built-in is,
    are not. A cache of the model's own format is no FP8."""
    path = written(tmp_path, CONFIG, OLD)
    with pytest.raises(
        UsageError, match=r"says model=meta-llama/Meta-Llama-3-8B, and --model is .*give --model llama3-8b"
    ):
        rows_of(read(path), setup("llama3-70b", "h100", tp=1))
    with pytest.raises(UsageError, match="kv_cache_dtype=auto, and --kv is fp8"):
        rows_of(read(path), setup("llama3-8b", "h100", kv="fp8"))
    assert len(rows_of(read(path), setup("llama3-8b", "h100"), (512, 100)))
    for named, refused in (
        ("meta-llama/Meta-Llama-3-8B-Instruct", False), ("/models/Meta-Llama-3-8B", False), ("/models/mine", False),
        ("someone/fine-tune", False), ("/models/Meta-Llama-3-70B/", True),
    ):  # fmt: skip
        path = written(tmp_path, CONFIG.replace("model='meta-llama/Meta-Llama-3-8B'", f"model='{named}'", 1), OLD)
        assert read(path).model == named
        with pytest.raises(UsageError, match="give --model llama3-70b") if refused else nullcontext():
            rows_of(read(path), setup("llama3-8b", "h100"), (512, 100))


def test_ranks_that_wait_for_one_another_are_refused(tmp_path: Path) -> None:
    """Of experts spread over data-parallel ranks a line tells one rank only; dense replicas are steps of their own."""
    path = written(tmp_path, DUMMY, decode(8, 4, 9.0, "09-27 11:17:20"))
    with pytest.raises(UsageError, match="data-parallel ranks wait"):
        rows_of(read(path), setup("qwen3-30b-a3b", "h100"), (512, 100))
    rows = rows_of(read(path), setup("llama3-8b", "h100"), (512, 100))
    assert len(rows) == 1
    assert rows.skipped["it computes nothing"] == 1


def test_usage_tells_tokens_only_where_every_layer_keeps_all(tmp_path: Path) -> None:
    """A model with sliding windows holds fewer tokens than its blocks suggest: its usage is not read as a context."""
    assert keeps_every_token(setup("llama3-8b", "h100").model)
    assert not keeps_every_token(setup("gpt-oss-20b", "h100").model)
    log = read(written(tmp_path, POOL, decode(0, 8, 9.31, "09-27 11:17:19", 2.0)))
    assert len(rows_of(log, setup("gpt-oss-20b", "h100"))) == 0
    assert len(rows_of(log, setup("gpt-oss-20b", "h100"), (512, 100))) == 1
