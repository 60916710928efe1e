"""Measured steps as a source of step times: a table or a log, its own times first, a model's beyond it."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.batch import Batch
from perfmodel.roofline.measured.steps import MeasuredSource, Steps
from perfmodel.roofline.time_source import model_source
from perfmodel.validate.measured_steps import measured_steps

HEADER = "context_requests,context_tokens,generation_requests,generation_tokens,elapsed_ms,mean_context"
MODEL = model_source("llama3-8b", "h100", fidelity="calibrated", engine="vllm")


def engine(noise: float = 0.0, seed: int = 0) -> Steps:
    """Steps of an engine whose host adds 2 ms and whose kernels take 1.1 times the model's, over a day's batches."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 200, 400).astype(float)
    prompts = np.where(rng.random(400) < 0.3, 1.0, 0.0)
    tokens = prompts * rng.integers(64, 2000, 400)
    contexts = rng.uniform(200, 4000, 400).round()
    listed = Steps(prompts, tokens, counts, counts, np.ones(400), contexts)
    true = np.array([2e-3 + 1.1 * MODEL.step_time(b).seconds for b in listed.batches(1.0)])
    return Steps(prompts, tokens, counts, counts, true * np.exp(rng.normal(0, noise, 400)), contexts)


def test_a_step_of_the_log_takes_its_time() -> None:
    """Each batch of the log has the time that was measured, and is said to be measured."""
    steps = engine()
    source = MeasuredSource(steps, MODEL)
    for batch, seconds in list(zip(steps.batches(1.0), steps.seconds, strict=True))[:20]:
        assert source.step_time(batch).seconds == pytest.approx(seconds, rel=1e-9)
        assert source.origin(batch) == "measured"


def test_between_steps_it_is_nearer_than_the_model() -> None:
    """Steps left out in turn: the mean error is under 2 %, the model's is 10 to 60 % (no host, no factor)."""
    source = MeasuredSource(engine(), MODEL)
    mine, plain = (float(np.abs(np.expm1(e)).mean()) for e in source.errors())
    assert mine < 0.02
    assert 0.1 < plain < 0.6


def test_new_steps_fall_into_the_interval() -> None:
    """3 % noise: of 400 steps of another day, 70 to 90 % of those in range are inside the 80 % interval."""
    source, other = MeasuredSource(engine(0.03), MODEL), engine(0.03, seed=1)
    inside = []
    for batch, seconds in zip(other.batches(1.0), other.seconds, strict=True):
        if source.origin(batch) == "interpolated":
            found = source.step_time(batch)
            inside.append(found.low <= seconds <= found.high)
    assert len(inside) > 200
    assert 0.7 <= np.mean(inside) <= 0.9


@pytest.mark.parametrize(
    "batch", [Batch(5000, 1000), Batch(10, 100_000), Batch(10, 1000, 8, 500, 500), Batch(10, 1000, 1, 500, 900)]
)
def test_beyond_the_log_it_is_the_model(batch: Batch) -> None:
    """More sequences, longer contexts, more prompts, and chunks behind cached tokens, of which a log tells nothing."""
    source = MeasuredSource(engine(), MODEL)
    assert source.origin(batch) == "model"
    assert source.step_time(batch) == MODEL.step_time(batch)


def test_a_log_without_contexts_needs_their_mean() -> None:
    """The length of the contexts is asked for when no column has it and something decodes."""
    one, none = np.ones(3), np.zeros(3)
    steps = Steps(none, none, one, one, one * 1e-2)
    with pytest.raises(UsageError, match="give their mean as context"):
        MeasuredSource(steps, MODEL)
    assert MeasuredSource(steps, MODEL, context=1000).step_time(Batch(1, 1000)).seconds == pytest.approx(1e-2)
    prompts = Steps(one, one * 100, none, none, one * 2e-2)
    found = MeasuredSource(prompts, MODEL).step_time(Batch(0, 1, 1, 100, 100))
    assert found.seconds == pytest.approx(2e-2)


def test_no_steps_and_no_times_are_refused() -> None:
    """An empty table, and a step that took nothing."""
    none, one = np.zeros(0), np.ones(1)
    with pytest.raises(UsageError, match="empty"):
        MeasuredSource(Steps(none, none, none, none, none), MODEL)
    with pytest.raises(UsageError, match="above zero"):
        MeasuredSource(Steps(one, one, one, one, one * 0, one), MODEL)


def test_a_table_is_read(tmp_path: Path) -> None:
    """Counts, milliseconds and contexts; without the last column there are none."""
    path = tmp_path / "steps.csv"
    path.write_text(f"{HEADER}\n1,512,8,8,12.5,900\n0,0,8,16,9,901\n")
    steps = measured_steps(path)
    assert steps.seconds == pytest.approx([0.0125, 0.009])
    assert steps.batches(1.0) == [Batch(8, 900, 1, 512, 512), Batch(8, 901, 0, 1, 1, 2)]
    path.write_text(f"{HEADER.removesuffix(',mean_context')}\n1,512,8,8,12.5\n")
    assert measured_steps(path).context is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,512,8,8,-1,9", "line 2: elapsed_ms is '-1', no number"),
        ("x,512,8,8,1,9", "context_requests is 'x', no number from 0 on"),
        ("1,512,8,8,inf,9", "elapsed_ms is 'inf'"),
        ("1,512", "line 2: has another number of fields"),
        ("", "has a header and no rows"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, row: str, says: str) -> None:
    """The line and what is wrong with it."""
    path = tmp_path / "steps.csv"
    path.write_text(f"{HEADER}\n{row}\n")
    with pytest.raises(SpecError, match=says):
        measured_steps(path)


def test_another_table_is_refused(tmp_path: Path) -> None:
    """The columns that it lacks are named."""
    path = tmp_path / "steps.csv"
    path.write_text("elapsed_ms,batch\n1,1\n")
    with pytest.raises(SpecError, match="lacks the columns context_requests, context_tokens"):
        measured_steps(path)


LOG = (
    "INFO 09-27 10:00:0{i} [core.py:1] Iteration({i}): 0 context requests, 0 context tokens, 8 generation requests, "
    "8 generation tokens, iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: 10.0%"
)


def test_a_log_of_vllm_is_read(tmp_path: Path) -> None:
    """Lines of an engine: counts and times; contexts from how full the cache is (10 % of 100,000 tokens, 8 times)."""
    lines = ["INFO [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens"]
    lines += [LOG.format(i=i, ms=9.0 + i) for i in range(1, 5)]
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    steps = measured_steps(path)
    assert len(steps.seconds) == 4
    assert (steps.seconds >= 0.009).all()
    assert steps.context is not None
    assert steps.context == pytest.approx(np.full(4, 1250.0))
    assert MeasuredSource(steps, MODEL).origin(Batch(8, 1250)) == "measured"
