"""Accepted lengths from the logs of engines and from lists: counts by hand, and every bad line with its reason."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.validate.logs_speculation import NOTHING, read

VLLM = (
    "(APIServer pid=1) INFO 09-04 11:01:16 [metrics.py:125] SpecDecoding metrics: Mean acceptance length: {mean}, "
    "Accepted throughput: 6.46 tokens/s, Drafted throughput: 7.77 tokens/s, Accepted: {accepted} tokens, Drafted: "
    "{drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 83.1%"
)


@pytest.fixture
def log(tmp_path: Path):
    """Writes a log and returns its path."""

    def write(*lines: str, name: str = "engine.log") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def test_vllm(log) -> None:
    """100 rounds of 3 and 50 of 2: rates are shares of all rounds, so positions add up as 70 + 40 of 150, and so on."""
    path = log(
        "INFO starting", VLLM.format(mean=2.4, accepted=140, drafted=300, rates="0.700, 0.450, 0.250"),
        VLLM.format(mean=2.4, accepted=70, drafted=100, rates="0.800, 0.600"),
    )  # fmt: skip
    found = read(path)
    assert found.rounds == 150
    assert found.trials == pytest.approx((150, 110, 45))
    assert found.accepted == pytest.approx((110, 75, 25))
    assert found.skipped == {NOTHING: 1}
    assert found.notes == ()


def test_vllm_of_varying_depth(log) -> None:
    """A real line with seven positions: 308 drafted tokens are 44 rounds, whose mean length is the printed one."""
    line = VLLM.format(mean=6.82, accepted=256, drafted=308, rates="1.000, 1.000, 1.000, 1.000, 0.795, 0.614, 0.409")
    found = read(log(line.replace("Accepted throughput", "Current speculative depth: 7, Accepted throughput", 1)))
    assert found.rounds == 44
    assert found.tau == pytest.approx(6.82, abs=0.005)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("SpecDecoding metrics: Drafted: 9 tokens, Per-position acceptance rate: 0.000 across all 5", "rates by"),
        ("SpecDecoding metrics: Mean acceptance length: 2.05", "no count of drafted"),
        (VLLM.format(mean=1, accepted=0, drafted=0, rates="0.0, 0.0"), "nothing drafted"),
        (VLLM.format(mean=1, accepted=1, drafted=10, rates="0.4, 0.6"), "rise with the position"),
        (VLLM.format(mean=1, accepted=1, drafted=10, rates="1.4, 0.6"), "between 0 and 1"),
    ],
)  # fmt: skip
def test_bad_vllm_lines_are_counted(log, line: str, reason: str) -> None:
    """A line that cannot be used is counted with its reason, and the others are used."""
    good = VLLM.format(mean=2, accepted=10, drafted=20, rates="0.6, 0.4")
    found = read(log(good, line))
    assert found.rounds == 10
    assert sum(n for why, n in found.skipped.items() if reason in why) == 1


def test_sglang(log) -> None:
    """A mean of 2.5 tokens with three drafted, in 40 batches of 4 requests: 160 rounds with that mean."""
    path = log(
        "server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk=1)",
        "[2025-05-01 TP0] Decode batch. #running-req: 4, #token: 900, token usage: 0.02, accept len: 2.50, "
        "accept rate: 0.62, gen throughput (token/s): 310.00, #queue-req: 0",
    )
    found = read(path)
    assert found.rounds == 160
    assert found.tau == pytest.approx(2.5)
    assert len(set(np.round(found.alphas, 9))) == 1
    assert "one acceptance is taken for all positions" in found.notes[0]
    with pytest.raises(SpecError, match="3 accepted of 2 drafted"):
        read(log("Decode batch. #running-req: 1, accept len: 4.00, accept rate: 1.0"), gamma=2)


def test_sglang_weighs_by_requests(log) -> None:
    """Lines count for their running requests and the log's interval."""
    path = log(
        "ServerArgs(speculative_num_steps=2, decode_log_interval=10)",
        "Decode batch, #running-req: 1, accept len: 1.00,",
        "Decode batch, #running-req: 3, accept len: 3.00,", "Decode batch, #running-req: 0, accept len: 2.00,",
    )  # fmt: skip
    found = read(path)
    assert found.rounds == 40
    assert found.tau == pytest.approx((1 * 1 + 3 * 3) / 4)
    assert found.skipped["no request was running"] == 1


def test_tensorrt_llm(log) -> None:
    """Iteration statistics: 12 drafted and 7 accepted tokens of 4 requests are four rounds of 3 with 1.75 accepted."""
    line = (
        '{"iter": 7, "specDecodingStats": {"numDraftTokens": 12, "numAcceptedTokens": 7, '
        '"numRequestsWithDraftTokens": 4}}'
    )
    found = read(log(line, line.replace("12", "0")))
    assert found.rounds == 4
    assert found.tau == pytest.approx(2.75)
    assert found.skipped == {"nothing drafted": 1}


def test_llama_cpp_requests(log) -> None:
    """171 of 297 tokens accepted, 8 a draft: 37.1 rounds with 4.6 accepted; the draft length is in the log or asked."""
    line = "slot print_timing: id 0 | draft acceptance rate = 0.57576 (  171 accepted /   297 generated)"
    found = read(log(line), gamma=8)
    assert found.tau == pytest.approx(1 + 171 / 297 * 8)
    assert read(log("llama-server -m a.gguf --draft-max 8", line)).tau == pytest.approx(found.tau)
    with pytest.raises(SpecError, match="give --gamma"):
        read(log(line))


def test_llama_cpp_totals(log) -> None:
    """Totals since the start count once, the last of each: 15 drafts of 4 tokens, 12 with accepted ones, 30 in all."""
    line = (
        "statistics ngram_mod: #calls = {}, #gen drafts = {}, #acc drafts = {}, #gen tokens = {}, #acc tokens = {}, x"
    )
    path = log(line.format(9, 5, 5, 20, 10), line.format(99, 15, 12, 60, 30), "draft acceptance = 0.5 (1 / 2)")
    found = read(path)
    assert found.rounds == 15
    assert found.alphas[0] == pytest.approx(12 / 15)
    assert found.tau == pytest.approx(1 + 30 / 15)


def test_plain_list(log) -> None:
    """Numbers one a line are accepted drafted tokens; what is none is counted."""
    found = read(log("# accepted", "3", "2", "x", "", "0", "3", "-1", "2.5"), gamma=4)
    assert (found.trials, found.accepted) == ((4.0, 3.0, 3.0, 2.0), (3.0, 3.0, 2.0, 0.0))
    assert found.skipped == {"not a whole number": 2, "a negative length": 1}
    assert "the target's own not among them" in found.notes[0]


def test_the_longest_stands_for_a_missing_length(log) -> None:
    """Without a draft length the longest accepted one is taken, and said so."""
    found = read(log("1", "3"))
    assert len(found.trials) == 3
    assert "3 is the longest" in found.notes[-1]
    with pytest.raises(SpecError, match="give --gamma"):
        read(log("0", "0"))


def test_csv_columns(log) -> None:
    """A column of all tokens of a round has the target's own taken off; drafted tokens of a round bound its trials."""
    lengths = read(log("step,accept_length", "1,3", "2,1", name="a.csv"), gamma=2)
    assert lengths.accepted == (1.0, 1.0)
    varied = read(log("accepted,drafted", "2,2", "1,3", "0,1", "4,2", name="b.csv"))
    assert varied.trials == (3.0, 2.0)  # the round of one drafted token tells nothing of the second position
    assert varied.accepted == (2.0, 1.0)
    assert sum(n for why, n in varied.skipped.items() if "more than" in why) == 1


@pytest.mark.parametrize(
    "content", ["", "\n\n", "hello\nworld\n", "# nothing\n", "SpecDecoding metrics: ?\n", "\x00\x01"]
)
def test_nothing_to_fit_is_an_error(tmp_path: Path, content: str) -> None:
    """A file without a single round is refused, with what its lines were."""
    path = tmp_path / "empty.log"
    path.write_text(content)
    with pytest.raises(SpecError, match="no round of speculation"):
        read(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, and a bad draft length say what is wrong."""
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(SpecError, match="cannot be read"):
            read(path)
    with pytest.raises(UsageError, match="gamma is 0"):
        read(tmp_path / "none.log", gamma=0)


@given(text=st.text(max_size=400))
def test_any_text_gives_counts_or_an_error(tmp_path_factory, text: str) -> None:
    """Whatever a file holds, there is a result with as many successes as trials at most, or a SpecError."""
    path = tmp_path_factory.mktemp("any") / "x.log"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        found = read(path)
    except SpecError:
        return
    assert all(0 <= a <= t for a, t in zip(found.accepted, found.trials, strict=True))


def test_sglang_s_own_draft_length_goes_before_the_asked_one(log) -> None:
    """The log says three steps: a question about five does not make it five positions."""
    lines = ("speculative_num_steps=3", "Decode batch. #running-req: 1, accept len: 3.20, accept rate: 1.0")
    assert len(read(log(*lines), gamma=5).trials) == 3
