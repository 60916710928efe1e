"""Rules by version: how versions compare, and that the files say where each value was read."""

import pytest

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.ask import as_bytes, fraction, whole
from perfmodel.roofline.engines.rules import ENGINES, engine_rules, rules, version_key


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rule_has_a_source(engine: str) -> None:
    """A default without the place in which it was read is a guess."""
    found = engine_rules(engine)
    assert all(len(rule.source) > 5 for listed in found.parameters.values() for rule in listed)
    assert version_key(found.oldest) < version_key(found.newest)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.8.5", 0.9), ("0.11.0", 0.9), ("0.19.0", 0.9), ("0.21.9", 0.9), ("0.22.0", 0.92), ("0.33.0", 0.92),
        ("v0.26.1rc1.dev608", 0.92),
    ],
)  # fmt: skip
def test_the_default_share_of_vllm_by_version(version: str, expected: float) -> None:
    """0.9 up to 0.21, 0.92 from 0.22 on; pre-releases and a leading v are understood."""
    assert rules("vllm", version)["memory_fraction"] == expected


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "seqs"),
    [
        ("h100", "0.19.0", 8192, 1024), ("a100-sxm", "0.19.0", 2048, 256), ("a100-sxm", "0.8.5", 8192, 1024),
        ("rtx-4090", "0.33.0", 2048, 256), ("b200", "0.22.0", 8192, 1024), ("b200", "0.33.0", 16384, 1024),
    ],
)  # fmt: skip
def test_step_limits_of_vllm_by_gpu_and_version(gpu: str, version: str, tokens: int, seqs: int) -> None:
    """A large GPU has 8192 tokens and 1024 sequences a step; an A100 is small since 0.11, a B200 has more in 0.33."""
    settings = memory("llama3.1-8b", gpu, version=version, max_model_len=4096).settings
    assert (settings["max_num_batched_tokens"], settings["max_num_seqs"]) == (tokens, seqs)


def test_engines_have_other_names() -> None:
    """llama.cpp and TensorRT-LLM as people write them; a name of none is refused with the nearest."""
    assert rules("llama.cpp").engine == "llamacpp"
    assert rules("TensorRT-LLM").engine == "trtllm"
    with pytest.raises(UnknownName, match="did you mean vllm"):
        rules("vlm")


def test_a_version_that_is_no_version_is_refused() -> None:
    """Words are not a version."""
    with pytest.raises(UsageError, match="write one such as"):
        rules("vllm", "latest")


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "x", None, True])
def test_lengths_must_be_whole_numbers(value: object) -> None:
    """Nothing else is a number of tokens."""
    with pytest.raises(UsageError, match="must be"):
        whole(value, "max_model_len")


def test_shares_and_sizes_have_bounds() -> None:
    """A share is above 0 and at most 1; a size as text has a unit."""
    with pytest.raises(UsageError, match="at most 1"):
        fraction(1.2)
    with pytest.raises(UsageError, match="has no unit"):
        as_bytes("80", "usable")
    assert as_bytes("79.19 GiB", "usable") == 79.19 * 2**30
