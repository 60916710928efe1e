"""Reading results of ``vllm bench serve``: what a client's pauses tell about an engine's steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import SpecError
from perfmodel.validate.logs_vllm_bench import BenchResult, is_bench, read
from perfmodel.validate.step_rows import StepRows
from perfmodel.validate.steps_of_bench import rows_of

#: Keys and their order as vLLM 0.33 writes them; the medians of one run at 8 requests in flight.
SUMMARY: dict[str, Any] = {
    "date": "20260927-111718", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": "meta-llama/Meta-Llama-3-8B", "tokenizer_id": "meta-llama/Meta-Llama-3-8B", "num_prompts": 80,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 41.2, "completed": 80, "failed": 0,
    "total_input_tokens": 80 * 1024, "total_output_tokens": 80 * 512, "request_throughput": 1.94,
    "request_goodput": None, "output_throughput": 994.0, "total_token_throughput": 2983.0,
    "max_output_tokens_per_s": 1100.0, "max_concurrent_requests": 9, "rtfx": 0.0, "mean_ttft_ms": 120.0,
    "median_ttft_ms": 90.0, "std_ttft_ms": 20.0, "p99_ttft_ms": 300.0, "mean_tpot_ms": 8.1, "median_tpot_ms": 8.0,
    "std_tpot_ms": 0.1, "p99_tpot_ms": 8.5, "mean_itl_ms": 8.1, "median_itl_ms": 7.6, "std_itl_ms": 4.0,
    "p99_itl_ms": 30.0,
}  # fmt: skip


def written(folder: Path, *results: dict[str, Any]) -> Path:
    """A file as ``--save-result`` or ``--append-result`` writes it."""
    path = folder / "openai-infqps.json"
    path.write_text("\n".join(json.dumps(r) for r in results))
    return path


def detailed(**changed: Any) -> dict[str, Any]:
    """Two requests that meet: the second is sent while the first is answered. Steps of 10 ms, 20 ms with a prompt."""
    lists = {
        "input_lens": [1000, 2000], "output_lens": [13, 12], "ttfts": [0.05, 0.025],
        "itls": [[0.01] * 6 + [0.02] + [0.01] * 5, [0.01] * 11], "start_times": [1000.0, 1000.105], "errors": ["", ""],
    }  # fmt: skip
    return {**SUMMARY, "completed": 2, "total_input_tokens": 3000, "total_output_tokens": 25, **lists, **changed}


def decodes(rows: StepRows) -> list[tuple[float, float, float]]:
    """Sequences, context and seconds of the decode steps."""
    at = rows.chunks == 0
    return list(zip(rows.decodes[at], rows.context[at].round(6), rows.seconds[at].round(6), strict=True))


def prefills(rows: StepRows) -> list[tuple[float, float, float]]:
    """Prompts, tokens and seconds of the prefill steps, whole prompts all."""
    at = rows.chunks > 0
    assert rows.tokens[at].tolist() == rows.reach[at].tolist()
    assert not rows.decodes[at].any()
    return list(zip(rows.chunks[at], rows.tokens[at], rows.seconds[at].round(6), strict=True))


def test_medians_give_one_decode_step(tmp_path: Path) -> None:
    """Of a summary the median pause, at the requests in flight and the mean context: 1,024 + 513/2."""
    path = written(tmp_path, SUMMARY)
    assert is_bench(path)
    assert decodes(rows_of(read(path))) == [(8, 1280.5, 0.0076)]


def test_one_request_at_a_time_tells_prefill_too(tmp_path: Path) -> None:
    """With one in flight the time to the first token is that of a prompt alone, as a client sees it."""
    rows = rows_of(read(written(tmp_path, {**SUMMARY, "max_concurrency": 1})))
    assert decodes(rows) == [(1, 1280.5, 0.0076)]
    assert prefills(rows) == [(1, 1024, 0.09)]
    assert rows.client.tolist() == [False, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_concurrency": None}, "how many ran at once"),
        ({"request_rate": 4.0}, "how many ran at once"),
        ({"max_concurrency": 200, "completed": 800, "total_output_tokens": 800 * 512}, "prompt"),
        ({"median_itl_ms": 16.0}, "bundles"),
        ({"spec_decode_acceptance_rate": 0.7}, "speculative"),
    ],
)  # fmt: skip
def test_what_medians_do_not_tell_is_counted(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Unknown batch, steps full of prompts, bundled tokens, drafts: no row, and the reason."""
    rows = rows_of(read(written(tmp_path, {**SUMMARY, **change})))
    assert len(rows) == 0
    assert [n for why, n in rows.skipped.items() if reason in why] == [1]


def test_requests_give_the_steps_between_prompts(tmp_path: Path) -> None:
    """Two requests that overlap: 5 steps of the first alone (1,001 to 1,005 tokens in the cache), 5 of both, 6 of the
    second alone; the pause with the second's prompt in it, and that in which it was sent, are no steps of decode."""
    rows = rows_of(read(written(tmp_path, detailed())))
    assert {(n, seconds) for n, _, seconds in decodes(rows)} == {(1, 0.01), (2, 0.01)}
    assert rows.skipped["pauses in which another request waited for its first token"] == 2
    assert sorted(context for n, context, _ in decodes(rows) if n == 1) == pytest.approx([1003, 2008.5])
    assert [context for n, context, _ in decodes(rows) if n == 2] == pytest.approx([(1010 + 2003) / 2])
    assert prefills(rows) == [(1, 1000, 0.05)]  # the second's was not alone


def test_a_prompt_that_was_alone_is_a_prefill(tmp_path: Path) -> None:
    """The second request is sent after the first has ended: both prompts were alone."""
    later = detailed(start_times=[1000.0, 1001.0])
    rows = rows_of(read(written(tmp_path, later)))
    assert prefills(rows) == [(1, 1000, 0.05), (1, 2000, 0.025)]
    assert rows.client.sum() == 2


def test_bundled_requests_and_failed_ones_are_left_out(tmp_path: Path) -> None:
    """A request with fewer pieces than tokens gives no steps; one that failed is none at all."""
    bundled = detailed(start_times=[1000.0, 1001.0], output_lens=[13, 40])
    rows = rows_of(read(written(tmp_path, bundled)))
    assert rows.skipped["requests whose tokens came in bundles: their pauses are no steps"] == 1
    failed = detailed(ttfts=[0.05, 0.0], itls=[[0.01] * 12, []], output_lens=[13, 0], completed=1)
    found = read(written(tmp_path, failed))[0].requests
    assert found is not None
    assert len(found.ttft) == 1


def test_appended_results_are_all_read(tmp_path: Path) -> None:
    """`--append-result`: one result a line."""
    found = read(written(tmp_path, SUMMARY, {**SUMMARY, "max_concurrency": 16}))
    assert [r.concurrency for r in found] == [8, 16]
    assert all(isinstance(r, BenchResult) for r in found)


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    """Cut off in the second result; lists of unequal length; a word for a number; nothing completed; no result."""
    path = written(tmp_path, SUMMARY, SUMMARY)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(SpecError, match=r"line 2.*cut off"):
        read(path)
    for change, message in (
        (detailed(ttfts=[0.05]), "differ in length"),
        (detailed(ttfts=["soon", 0.1]), "something else than numbers"),
        ({**SUMMARY, "completed": 0}, "no request was answered"),
        ({**SUMMARY, "median_itl_ms": "fast"}, "no number of 0 or more"),
        ({k: v for k, v in SUMMARY.items() if k != "total_output_tokens"}, "no result of `vllm bench serve`"),
    ):
        with pytest.raises(SpecError, match=message):
            read(written(tmp_path, change))
    path.write_text("[1, 2]")
    with pytest.raises(SpecError, match=r"line 1.*is no result"):
        read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(SpecError, match="line 1"):
        read(path)


def test_many_requests_take_no_square_of_time(tmp_path: Path) -> None:
    """500 requests of 200 tokens at 50 in flight: 10^5 pauses are sorted, not compared with one another."""
    start = np.repeat(np.arange(10) * 3.0, 50) + 1000
    result = detailed(
        completed=500, total_input_tokens=500 * 128, total_output_tokens=500 * 201, start_times=start.tolist(),
        ttfts=[0.2] * 500, input_lens=[128] * 500, output_lens=[201] * 500,
        itls=[np.full(200, 0.01).tolist() for _ in range(500)],
    )  # fmt: skip
    rows = rows_of(read(written(tmp_path, result)))
    assert set(rows.decodes) == {50.0}
    assert rows.seconds == pytest.approx(0.01)
