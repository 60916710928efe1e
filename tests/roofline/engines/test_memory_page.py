"""The page about memory says what is true: its accuracy table is that of the shipped overheads."""

from pathlib import Path

from perfmodel.roofline.engines.overheads import overheads
from perfmodel.roofline.engines.rules import rules

PAGE = Path(__file__).resolve().parents[3] / "docs/memory.md"


def test_the_accuracy_table_is_that_of_the_fit() -> None:
    """Errors of left-out models, as the overheads file has them."""
    scores = overheads().cross_validation
    of = f"{scores['rows']} rows of {scores['models']} models"
    expected = [
        f"| weights, {of} | {scores['weights_mean']:.2%} | {scores['weights_max']:.2%} |",
        f"| KV tokens, {of} | {scores['kv_tokens_mean']:.2%} | {scores['kv_tokens_max']:.2%} |",
    ]
    table = PAGE.read_text().split("<!-- accuracy -->")[1].split("<!-- end -->")[0].strip().splitlines()
    assert table[2:] == [line.replace("%", " %") for line in expected]


def test_numbers_in_the_text_are_those_of_the_data() -> None:
    """Fitted numbers and rules by version that the page repeats."""
    text, fitted = PAGE.read_text(), overheads()
    assert f"widest layer + {fitted.hidden_copies:g} d" in text
    assert f"{fitted.non_torch.tp1 / 2**30:.2f} GiB alone, {fitted.non_torch.tp2 / 2**30:.2f} GiB at TP 2" in text
    assert f"some {fitted.moe_buffers / 2**30:.2f} GiB" in text
    for version, size in (("0.19.0", 12), ("0.11.0", 36)):
        assert rules("vllm", version)["sampler_bytes_per_logit"] == size
    assert not rules("vllm", "0.20.9")["graphs_subtracted"]
    assert rules("vllm", "0.21.0")["graphs_subtracted"]
    assert rules("sglang")["swa_full_tokens_ratio"] == 0.8
    assert rules("trtllm")["memory_fraction"] == 0.9
