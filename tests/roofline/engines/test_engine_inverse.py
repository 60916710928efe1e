"""Inverse questions: the answer holds, and one more does not."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.roofline.engines.inverse import _bisect, _counts, at, largest_batch, largest_context, smallest_gpu_count

ENGINES = ["vllm", "sglang", "trtllm", "llamacpp"]


@given(st.integers(0, 5000), st.integers(1, 4000))
def test_bisection_finds_the_edge(edge: int, most: int) -> None:
    """For any edge, whether it lies within the limit or not."""
    assert _bisect(lambda n: n <= edge, most) == min(edge, most)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_longest_context_holds_and_one_more_token_does_not(engine: str) -> None:
    """Llama-3.1-8B on an RTX 4090 does not reach its 131,072 tokens under any engine."""
    found = largest_context("llama3.1-8b", "rtx-4090", engine=engine).value
    assert 0 < found < 131072
    assert at("llama3.1-8b", "rtx-4090", 1, found, engine=engine)[0]
    assert not at("llama3.1-8b", "rtx-4090", 1, found + 1, engine=engine)[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_largest_batch_holds_and_one_more_does_not(engine: str) -> None:
    """Requests of 4096 tokens of Llama-3.1-8B on an H100."""
    found = largest_batch("llama3.1-8b", "h100", context=4096, engine=engine).value
    assert found > 50
    assert at("llama3.1-8b", "h100", found, 4096, engine=engine)[0]
    assert not at("llama3.1-8b", "h100", found + 1, 4096, engine=engine)[0]


@given(st.sampled_from(ENGINES), st.integers(1, 64), st.sampled_from([512, 4096, 30000]))
@settings(max_examples=15)
def test_context_and_batch_answer_each_other(engine: str, batch: int, context: int) -> None:
    """The batch that fits a context, asked for its longest context, gives at least that context."""
    fits = largest_batch("qwen2.5-7b", "l40s", context=context, engine=engine).value
    if fits >= batch:
        assert largest_context("qwen2.5-7b", "l40s", batch=batch, engine=engine).value >= context


def test_a_model_that_fits_whole_reaches_its_longest_context() -> None:
    """A small model on a large GPU is limited by itself, and the answer says so."""
    found = largest_context("llama3.2-1b", "h100")
    assert found.value == 131072
    assert "the model's longest" in found.words


def test_nothing_fits_is_an_answer() -> None:
    """0, with the reason."""
    found = largest_context("llama3-70b", "rtx-4090")
    assert found.value == 0
    assert "nothing is left" in found.words


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "llamacpp"])
def test_the_fewest_gpus_hold_it_and_no_way_with_fewer_does(engine: str) -> None:
    """Llama-3-70B in 16 bits, 8 requests of 8192 tokens: every way to use one H100 less fails."""
    found = smallest_gpu_count("llama3-70b", "h100", batch=8, context=8192, engine=engine, any_count=True)
    assert found.value >= 2
    for tp in (1, 2, 4, 8):
        if (found.value - 1) % tp or (engine == "llamacpp" and tp > 1):
            continue
        pp = (found.value - 1) // tp
        assert not at("llama3-70b", "h100", 8, 8192, engine=engine, tp=tp, pp=pp)[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
@pytest.mark.parametrize("gpu", ["rtx-4090", "l40s", "h100"])
def test_counts_are_those_that_machines_have(engine: str, gpu: str) -> None:
    """1, 2, 4, 8 and whole nodes of 8; the next smaller such count holds it in no way, and no count at all is less."""
    found = smallest_gpu_count("llama3-70b", gpu, batch=4, context=8192, engine=engine)
    counts = _counts(64, 8, False)
    assert found.value in counts
    smaller = counts[counts.index(found.value) - 1]
    any_count = smallest_gpu_count("llama3-70b", gpu, batch=4, context=8192, engine=engine, any_count=True)
    assert smaller < any_count.value <= found.value
    assert found.memory.settings["tp"] in (1, 2, 4, 8)


def test_the_limit_of_sequences_that_was_set_is_said() -> None:
    """``max_num_seqs`` follows the batch, which makes sampling cheaper than by default: words and settings say it."""
    found = largest_batch("llama3.1-8b", "h100", context=8192)
    assert f"with max_num_seqs set to {found.value}" in found.words
    assert found.memory.settings["max_num_seqs"] == found.value
    assert "max_num_seqs set" not in largest_batch("llama3.1-8b", "h100", context=8192, max_num_seqs=16).words
    assert "n_parallel set to" in largest_batch("llama3.1-8b", "h100", context=8192, engine="llamacpp").words


def test_replicas_share_a_batch() -> None:
    """Two data-parallel replicas hold twice what one does."""
    one, two = (largest_batch("llama3.1-8b", "h100", context=8192, dp=dp).value for dp in (1, 2))
    assert two == pytest.approx(2 * one, abs=2)


def test_a_given_limit_of_sequences_limits_the_batch() -> None:
    """``max_num_seqs`` 16 runs 16 at once, however much memory is left."""
    assert largest_batch("llama3.1-8b", "h100", context=1024, max_num_seqs=16).value == 16


def test_a_batch_is_a_whole_number() -> None:
    """Nothing else is."""
    with pytest.raises(UsageError, match="batch must be"):
        largest_context("llama3.1-8b", "h100", batch=0)


@pytest.mark.parametrize(
    "solve", [largest_context, smallest_gpu_count, lambda *a, **k: largest_batch(*a, context=512, **k)]
)
@pytest.mark.parametrize("wrong", [{"dp": 0}, {"enforce_eager": 3}, {"memory_fraction": 2.0}])
def test_a_wrong_setting_is_refused_whatever_is_asked(solve: Callable[..., object], wrong: dict[str, float]) -> None:
    """The setting is named, not an answer of zero given."""
    with pytest.raises(UsageError, match=next(iter(wrong))):
        solve("llama3.1-8b", "h100", **wrong)
