"""vLLM's memory budget against start-up logs: weights, overheads, KV tokens and concurrency."""

import csv
from pathlib import Path

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.capacity import Specs, cases
from perfmodel.roofline.engines.fit import Case, cross_validate, residuals, summary
from perfmodel.roofline.engines.layers import CacheLayers
from perfmodel.roofline.engines.overheads import Overheads, overheads
from perfmodel.roofline.engines.vllm_blocks import layout

DATA = Path(__file__).parent / "data"
GIB = 2.0**30


@pytest.fixture(scope="module")
def logs() -> list[Case]:
    """Start-up logs of vLLM 0.19.0 on H100 (accuracy runs of llm-d-incubation/llm-d-planner) that are complete."""
    found = cases(DATA / "vllm_capacity.csv", Specs())
    return [Case(row, question) for row, question, _ in found if question is not None]


@pytest.fixture(scope="module")
def log_rows() -> dict[str, dict[str, str]]:
    """Other start-up logs by their number, each with its source."""
    with (DATA / "memory_logs.csv").open() as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def test_every_row_of_the_capacity_table_is_asked_but_the_one_that_ends_early() -> None:
    """A row is skipped only with a reason: here one whose log has no KV tokens."""
    found = list(cases(DATA / "vllm_capacity.csv", Specs()))
    assert [why for _, question, why in found if question is None] == [
        "no KV tokens were recorded: the log ends before"
    ]
    assert len(found) == 34


def test_left_out_models_are_predicted_within_the_promise(logs: list[Case]) -> None:
    """Overheads fitted without a model: weights 0.11 % and KV tokens 0.09 % off on average, none above 1 %."""
    scores = summary(cross_validate(logs, overheads()))
    assert scores["weights_mean"] < 0.002
    assert scores["kv_tokens_mean"] < 0.0015
    assert max(scores["weights_max"], scores["kv_tokens_max"]) < 0.01


def test_shipped_overheads_say_what_is_true_of_them(logs: list[Case]) -> None:
    """The residuals and errors in the file are those that its numbers give on the table they were fitted on."""
    shipped = overheads()
    again = residuals(logs, shipped)
    for found, written in zip(again, shipped.residuals, strict=True):
        assert found["model"] == written["model"]
        assert found["kv_tokens_error"] == pytest.approx(written["kv_tokens_error"], abs=2e-6)
        assert found["activations"] == pytest.approx(written["activations"], abs=1e6)
    left_out = summary(cross_validate(logs, shipped))
    for name in ("weights_mean", "kv_tokens_mean", "kv_tokens_max"):
        assert left_out[name] == pytest.approx(shipped.cross_validation[name], abs=2e-5)


def test_half_of_the_activation_peaks_are_right_to_ten_mebibytes(logs: list[Case]) -> None:
    """The peak follows from the profiling run's own tensors: one parameter is fitted, and it matters for few rows."""
    errors = sorted(abs(row["activations"]) for row in residuals(logs, overheads()) if row["pp"] == 1)
    assert errors[len(errors) // 2] < 10 * 2**20
    assert errors[-1] < 120 * 2**20


def test_concurrency_is_as_printed(logs: list[Case]) -> None:
    """Blocks over blocks of a request: within the error of the KV tokens, for hybrid models too."""
    for case in logs:
        found = memory(**case.question)
        printed = float(case.row["max_concurrency"])
        off = found.kv_tokens / float(case.row["kv_tokens"])
        assert found.max_concurrency / printed == pytest.approx(off, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "log", "tp", "share"),
    [
        ("gpt-oss-20b", "ML0576", 1, 0.9), ("gpt-oss-120b", "ML0577", 1, 0.95), ("llama3.1-8b", "ML0579", 1, 0.9),
        ("qwen3-0.6b", "ML0580", 1, 0.9), ("qwen3-32b", "ML0581", 1, 0.9), ("qwen3-32b", "ML0582", 2, 0.9),
    ],
)  # fmt: skip
def test_version_0_11_takes_more_for_sampling(
    log_rows: dict[str, dict[str, str]], name: str, log: str, tp: int, share: float
) -> None:
    """0.11 sorts the logits: 38 bytes each. Pools of six logs come out within 0.1 GiB.

    ML0577 says 0.9, but its terms add up to 0.95 of the device: 64.38 + 7.38 + 0.13 + 3.33 = 75.22 of 79.18 GiB.
    """
    row = log_rows[log]
    found = memory(
        name, "h100", version="0.11.0", tp=tp, memory_fraction=share, max_model_len=16000, block_size=128,
        usable=79.18 * GIB, max_num_batched_tokens=8192, max_num_seqs=1024,
    )  # fmt: skip
    assert found.weights / GIB == pytest.approx(float(row["weights_per_gpu"]), abs=0.08)
    assert found.kv_pool / GIB == pytest.approx(float(row["kv_mem"]), abs=0.1)


def test_a_vision_model_of_version_0_11_is_ten_percent_off(log_rows: dict[str, dict[str, str]]) -> None:
    """The seventh log: weights of Mistral-Small-3.2 (3.1's shapes) to the digit, 166,272 tokens against 184,832."""
    row = log_rows["ML0583"]
    found = memory(
        "mistral-small-3.1", "h100", version="0.11.0", memory_fraction=0.95, max_model_len=16000, block_size=128,
        usable=79.18 * GIB, max_num_batched_tokens=8192, max_num_seqs=1024,
    )  # fmt: skip
    assert found.weights / GIB == pytest.approx(float(row["weights_per_gpu"]), abs=0.01)
    assert found.kv_tokens / float(row["kv_tokens"]) - 1 == pytest.approx(-0.10, abs=0.005)


def test_gpt_oss_in_marlin_is_padded_in_both_dimensions(log_rows: dict[str, dict[str, str]]) -> None:
    """65.97 GiB for gpt-oss-120b with Marlin's padding (2880 to 3072 and 2944), against 64.38 with Triton's."""
    found = memory("gpt-oss-120b", "a100-sxm", version="0.11.0")
    assert found.weights / GIB == pytest.approx(float(log_rows["ML0009"]["weights_per_gpu"]), rel=1e-3)


def test_a_hybrid_of_recurrent_and_attention_layers_gets_blocks_that_hold_a_state() -> None:
    """A state of 3,207,168 bytes and 2,048 bytes a token: blocks of 1568 tokens, padding 0.13 % (a log says so).

    3,207,168 / 2,048 = 1566, and the next multiple of 16 is 1568.
    """
    found = layout([CacheLayers(16, 2048.0), CacheLayers(48, 0.0, state_bytes=3207168.0)], 16)
    assert found.block_size == 1568
    assert found.block_bytes / (16 * 3207168) - 1 == pytest.approx(0.0013, abs=1e-4)
    assert len(found.groups) == 4  # 16 of attention, and 48 recurrent ones in three groups of 16
    assert found.request_blocks(1568 * 10, 8192) == 10 + 3


def test_pages_of_different_sizes_get_blocks_of_different_lengths() -> None:
    """Layers with half the page have twice the tokens a block, so that every block of the pool has one size."""
    found = layout([CacheLayers(50, 16384.0, window=1024), CacheLayers(10, 8192.0)], 16)
    assert sorted({group.block_size for group in found.groups}) == [16, 32]
    assert found.block_bytes == 10 * 16 * 16384


def test_pages_that_no_factor_brings_together_give_up_the_windows() -> None:
    """3,000 and 2,000 bytes a token: no whole number of blocks, so that every layer keeps every token."""
    found = layout([CacheLayers(4, 3000.0, window=128), CacheLayers(4, 2000.0)], 16)
    assert not found.hybrid
    assert found.request_blocks(1024, 8192) == 64


def test_buckets_of_similar_size_are_padded_to_the_larger_one() -> None:
    """12 and 13 layers make two groups of 13, not one of 12 and two more for one layer."""
    found = layout([CacheLayers(13, 2048.0), CacheLayers(12, 2048.0, window=128)], 16)
    assert len(found.groups) == 2
    assert found.block_bytes == 13 * 16 * 2048


@pytest.mark.parametrize(
    ("kv", "expected"),
    [("auto", 2 * 576 + 132), ("fp8", 656 + 132), ("fp8_ds_mla", 656 + 132), ("nvfp4_ds_mla", 352 + 132)],
)
def test_sparse_latent_attention_has_formats_of_its_own(kv: str, expected: float) -> None:
    """DeepSeek-V3.2: 656 bytes a token and layer in FP8, 352 in NVFP4, and 132 for the indexer's key; on every rank."""
    for tp in (1, 8):
        found = memory("deepseek-v3.2", "h200", tp=tp, kv=kv, max_model_len=4096)
        assert found.block_bytes / found.settings["block_size"] / 61 == expected


def test_context_parallel_decoding_divides_the_sequence() -> None:
    """Every rank keeps an eighth of each sequence: eight times the tokens."""
    one, eight = (
        memory("kimi-k2", "h200", tp=8, weights="int4", max_model_len=32768, decode_context_parallel_size=n)
        for n in (1, 8)
    )
    assert eight.kv_tokens == 8 * one.kv_tokens > 0


def test_a_pool_given_in_bytes_is_taken_as_it_is() -> None:
    """``kv_cache_memory_bytes`` skips the profile: 4 GiB at 131,072 bytes a token are 32,768 tokens."""
    found = memory("llama3.1-8b", "h100", kv_cache_memory_bytes=4 * GIB, max_model_len=8192)
    assert found.kv_tokens == 32768


def test_graphs_are_captured_for_none_when_eager() -> None:
    """``enforce_eager`` leaves no graphs and, where their estimate is subtracted, a larger pool."""
    plain = memory("llama3.1-8b", "h100", version="0.22.0", max_model_len=8192)
    eager = memory("llama3.1-8b", "h100", version="0.22.0", max_model_len=8192, enforce_eager=True)
    assert plain.bytes_of("cuda_graph_estimate") > 0 == eager.bytes_of("cuda_graph_estimate")
    assert eager.kv_pool - plain.kv_pool == pytest.approx(plain.bytes_of("cuda_graph_estimate"))


def test_the_estimate_of_graphs_is_subtracted_from_0_21_on() -> None:
    """0.19 prints it and 0.21 takes it from the pool; both at 0.9."""
    old, new = (
        memory("llama3.1-8b", "h100", version=v, memory_fraction=0.9, max_model_len=8192) for v in ("0.19.0", "0.21.0")
    )
    assert old.kv_pool - new.kv_pool == pytest.approx(new.bytes_of("cuda_graph_estimate"))


def test_a_draft_model_takes_weights_and_joins_the_blocks() -> None:
    """Llama-3.2-1B beside Llama-3.1-8B: its weights leave the pool, its 16 layers share the blocks."""
    alone, drafted = (memory("llama3.1-8b", "h100", max_model_len=8192, draft=draft) for draft in (None, "llama3.2-1b"))
    assert drafted.weights - alone.weights == pytest.approx(2.47e9, rel=0.01)
    assert drafted.block_bytes - alone.block_bytes == 16 * 16 * 2 * 8 * 64 * 2  # layers x block x K and V x heads x dim


def test_mtp_layers_are_loaded_when_they_draft() -> None:
    """DeepSeek-V3's MTP layer takes weights and a 62nd layer of latent cache."""
    alone, drafted = (memory("deepseek-v3", "h200", tp=8, max_model_len=4096, draft=d) for d in (None, "mtp"))
    assert drafted.weights > alone.weights + 1e9
    assert drafted.block_bytes / alone.block_bytes == pytest.approx(62 / 61)


def test_more_than_is_free_at_the_start_is_refused() -> None:
    """Half a GiB is gone before vLLM measures: 0.999 of the device does not fit, and the message says what does."""
    found = memory("llama3.1-8b", "h100", memory_fraction=0.999, max_model_len=8192)
    assert not found.fits
    assert "memory_fraction can be at most 0.99" in found.notice


def test_what_does_not_fit_says_what_would() -> None:
    """Llama-3-70B in 16 bits on one H100: two GPUs or 4-bit weights would do."""
    found = memory("llama3-70b", "h100")
    assert not found.fits
    assert found.kv_tokens == 0
    assert "--tp 2" in found.remedies
    assert "--weights int4" in found.remedies


def test_a_request_too_long_names_the_longest_that_fits() -> None:
    """As vLLM's own message does: the remedy is the length that fits, and one more token does not."""
    found = memory("llama3.1-8b", "rtx-4090", max_model_len=131072)
    assert "vLLM refuses to start" in found.notice
    length = next(int(text.split()[1]) for text in found.remedies if text.startswith("--max-model-len"))
    assert memory("llama3.1-8b", "rtx-4090", max_model_len=length).fits
    assert not memory("llama3.1-8b", "rtx-4090", max_model_len=length + 1).fits


def test_a_version_that_was_not_read_says_so() -> None:
    """The nearest rules are used, and the notice names them."""
    assert "the rules of 0.8.5 are used" in memory("llama3.1-8b", "h100", version="0.6.0", max_model_len=8192).notice
    assert "the rules of 0.33.0 are used" in memory("llama3.1-8b", "h100", version="1.0", max_model_len=8192).notice


def test_an_unknown_option_is_refused() -> None:
    """An option of another engine is a slip, not something to ignore."""
    with pytest.raises(UsageError, match="vllm has no option 'ngl'"):
        memory("llama3.1-8b", "h100", ngl=3)


def test_overheads_can_be_given() -> None:
    """Other overheads than the shipped ones: more outside PyTorch leaves less for the cache, byte for byte."""
    shipped = overheads()
    more = shipped.non_torch.model_copy(update={"tp1": shipped.non_torch.tp1 + GIB})
    other = Overheads.model_validate({**shipped.model_dump(), "non_torch": more.model_dump()})
    plain = memory("llama3.1-8b", "h100", max_model_len=8192)
    assert plain.kv_pool - memory("llama3.1-8b", "h100", max_model_len=8192, fitted=other).kv_pool == GIB
