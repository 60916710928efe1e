"""Options of ``perfmodel memory``: each is read and held to its limits, or refused; none is swallowed."""

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.cli import main
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.options import OPTIONS, Choice, Share, Size, Switch, Whole, checked

GIB = 2.0**30
BASE = ["memory", "--gpu", "h100", "--model", "llama3.1-8b", "--context", "4096"]


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that ends without a traceback."""
    found = CliRunner().invoke(main, list(arguments))
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("engine", "name", "value"),
    [
        *(("vllm", "kv_cache_memory_bytes", v) for v in ("banana", "0", "-1", "nan", "inf", "5 MB/s")),
        *(("vllm", "decode_context_parallel_size", v) for v in ("0", "banana", "1.5", "-2")),
        *(("vllm", "enforce_eager", v) for v in ("3", "maybe", "")),
        ("vllm", "mamba_cache_mode", "everything"),
        *(("sglang", "chunked_prefill_size", v) for v in ("x", "0", "1e99")),
        *(("sglang", "page_size", v) for v in ("0", "x", "3")),
        *(("sglang", "swa_full_tokens_ratio", v) for v in ("x", "-1", "0", "1.01", "nan")),
        *(("llamacpp", "swa_full", v) for v in ("2", "x")),
        *(("llamacpp", "type_k", v) for v in ("q9", "7")),
        *(("llamacpp", "ngl", v) for v in ("-1", "x")),
        ("llamacpp", "mla", "banana"), ("llamacpp", "weights_bytes", "x"), ("trtllm", "free_bytes", "x"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_what_the_option_takes(engine: str, name: str, value: str) -> None:
    """Exit code 2; the message has the option, what it takes and the value."""
    code, out, err = run(*BASE, "--engine", engine, "-O", f"{name}={value}")
    assert (code, out) == (2, "")
    assert f"{name} takes" in err
    assert repr(value) in err


@pytest.mark.parametrize("engine", OPTIONS)
@pytest.mark.parametrize("pair", ["model=x", "fitted=3", "tp=2", "gpu=h200", "engine=vllm", "batch=3"])
def test_an_option_is_only_what_the_engine_has(engine: str, pair: str) -> None:
    """Arguments of the function behind the command are not options of an engine."""
    code, _, err = run(*BASE, "--engine", engine, "-O", pair)
    assert code == 2
    assert f"{engine} has no option" in err


@given(st.sampled_from([(e, n) for e in OPTIONS for n in OPTIONS[e]]), st.text(max_size=12))
@settings(max_examples=60)
def test_any_text_is_read_or_refused(option: tuple[str, str], text: str) -> None:
    """Whatever is typed: a value of the option's kind, or a ``UsageError`` that names the option."""
    engine, name = option
    kinds = {Whole: int, Share: float, Size: float, Switch: bool, Choice: str}
    try:
        found: object = checked(engine, {name: text})[name]
    except UsageError as error:
        found = error
    refused = isinstance(found, UsageError) and str(found).startswith(f"{name} takes")
    assert refused or type(found) is kinds[type(OPTIONS[engine][name])]


@pytest.mark.parametrize("text", ["10 GiB", "10GiB", str(10 * 2**30), "10240 MiB"])
def test_bytes_are_taken_with_a_unit(text: str) -> None:
    """10 GiB in four ways of writing are the same pool."""
    assert memory("llama3.1-8b", "h100", max_model_len=4096, kv_cache_memory_bytes=text).kv_pool == 10 * GIB


def test_a_pool_beyond_the_device_does_not_fit() -> None:
    """75 GiB beside 14.99 of weights are more than 79.19: the most that is left is named, and it is a remedy."""
    found = memory("llama3.1-8b", "h100", max_model_len=4096, kv_cache_memory_bytes="75 GiB")
    assert not found.fits
    assert "take at most 64.20 GiB" in found.notice
    size = next(text.partition("=")[2] for text in found.remedies if "kv_cache_memory_bytes" in text)
    assert memory("llama3.1-8b", "h100", max_model_len=4096, kv_cache_memory_bytes=size).fits
    assert not memory("llama3.1-8b", "h100", max_model_len=4096, kv_cache_memory_bytes=int(size) + 2).fits


def test_context_parallel_ranks_divide_what_would_be_copied() -> None:
    """It divides ``tp``, and no more ranks than keep the same KV heads: 8 heads at TP 8 leave nothing to divide."""
    for tp, degree, words in ((8, 3, "does not divide tp 8"), (8, 2, "take at most 1"), (16, 4, "take at most 2")):
        with pytest.raises(UsageError, match=words):
            memory("llama3.1-8b", "h200", tp=tp, max_model_len=4096, decode_context_parallel_size=degree)
    one, two = (
        memory("llama3.1-8b", "h200", tp=16, max_model_len=4096, decode_context_parallel_size=n) for n in (1, 2)
    )
    assert two.kv_tokens == 2 * one.kv_tokens


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "llamacpp", "--memory-fraction", "0.9"], "llama.cpp has no memory_fraction"),
        (["--engine", "llamacpp", "--max-num-seqs", "4"], "say n_parallel"),
        (["--engine", "llamacpp", "--max-num-batched-tokens", "4"], "say n_ubatch"),
        (["--engine", "llamacpp", "--block-size", "16"], "llama.cpp has no block_size"),
        (["--engine", "llamacpp", "--draft", "llama3.2-1b"], "llama.cpp has no draft"),
        (["--engine", "trtllm", "--draft", "llama3.2-1b"], "not counted"),
        (["--kv", "fp8_ds_mla"], "packs a latent"),
        (["--block-size", "17"], "a power of two or a multiple of 16"),
        (["--engine", "trtllm", "--block-size", "48"], "a power of two"),
        (["--batch", "3"], "for --solve context or gpus"),
        (["--solve", "batch", "--batch", "3"], "--solve batch finds it"),
        (["--solve", "context", "--batch", "0"], "batch must be 1 or more"),
        (["--solve", "gpus", "--tp", "2"], "--solve gpus finds --tp"),
        (["--solve", "gpus", "--pp", "1"], "--solve gpus finds --pp"),
        (["--any-count"], "for --solve gpus"),
        (["-O", "num_draft_tokens=3"], "needs a draft"),
        (["-O", "enforce_eager=yes", "-O", "enforce_eager=no"], "given twice"),
    ],
)
def test_what_would_have_no_effect_is_refused(arguments: list[str], words: str) -> None:
    """An option that the engine or the question has not is a slip: exit code 2, with what to do."""
    code, out, err = run(*BASE, *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("gpu", "engine"),
    [("m4-max", "vllm"), ("tpu-v5p", "sglang"), ("gaudi-3", "trtllm"), ("mi300x", "trtllm"), ("m2-ultra", "sglang")],
)
def test_an_engine_is_described_on_the_gpus_it_was_read_for(gpu: str, engine: str) -> None:
    """No CUDA graphs on a TPU or in unified memory: refused, with an engine that answers there."""
    code, _, err = run("memory", "--gpu", gpu, "--model", "llama3.2-1b", "--engine", engine)
    assert code == 2
    assert "is none: take another GPU" in err
    remedy = err.rpartition("--engine ")[2].strip()
    assert run("memory", "--gpu", gpu, "--model", "llama3.2-1b", "--engine", remedy)[0] == 0


def test_unified_memory_has_no_context_of_a_driver() -> None:
    """llama.cpp on a Mac takes weights, cache and buffers alone; on a GPU a context too."""
    mac, gpu = (memory("llama3.2-1b", name, engine="llamacpp", max_model_len=4096) for name in ("m4-max", "h100"))
    assert mac.non_torch == 0 < gpu.non_torch


@pytest.mark.parametrize(
    ("gpu", "model", "share"),
    [("t4", "llama3.2-1b", None), ("rtx-4090", "qwen2.5-14b", 0.98), ("rtx-3090", "qwen2.5-14b", 0.95)],
)
def test_what_started_is_not_refused(gpu: str, model: str, share: float | None) -> None:
    """At TP 2 an H100 has 1.5 GiB less when vLLM starts; a T4 and pairs of 3090 and 4090 started with less than that.

    The fitted number is said in a note where it would matter, and does not gate other GPUs than its own.
    """
    found = memory(model, gpu, tp=2, memory_fraction=share, max_model_len=4096)
    assert found.fits
    assert "gone when vLLM starts" in found.notice


def test_a_share_that_is_refused_has_a_remedy() -> None:
    """The largest share that the message names is among the remedies, starts, and the next thousandth does not."""
    found = memory("llama3.1-8b", "a100-sxm", memory_fraction=0.999, max_model_len=4096)
    named = found.notice.rpartition("at most ")[2]
    assert f"--memory-fraction {named}" in found.remedies
    assert memory("llama3.1-8b", "a100-sxm", memory_fraction=float(named), max_model_len=4096).fits
    assert not memory("llama3.1-8b", "a100-sxm", memory_fraction=float(named) + 0.001, max_model_len=4096).fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_larger_share_is_a_remedy(engine: str) -> None:
    """A small share of an H100 is too little for one long request: the proposed one fits, a hundredth less does not."""
    share = {"vllm": 0.3, "sglang": 0.3, "trtllm": 0.1}[engine]
    found = memory("llama3.1-8b", "h100", engine=engine, memory_fraction=share)
    proposed = next(float(text.split()[1]) for text in found.remedies if text.startswith("--memory-fraction"))
    assert memory("llama3.1-8b", "h100", engine=engine, memory_fraction=proposed).fits
    assert not memory("llama3.1-8b", "h100", engine=engine, memory_fraction=proposed - 0.01).fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_a_length_above_the_models_is_said(engine: str) -> None:
    """vLLM and SGLang refuse it unless they are told to take it, the others warn; no remedy is longer."""
    found = memory("llama3.1-8b", "h200", engine=engine, max_model_len=200_000)
    assert "longest context of 131,072" in found.notice
    assert found.fits == (engine in ("trtllm", "llamacpp"))
    if not found.fits:
        assert found.remedies == ("--max-model-len 131072",)
        assert memory("llama3.1-8b", "h200", engine=engine, max_model_len=200_000, allow_long_context=True).fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_remedy_is_never_longer_than_the_model(engine: str) -> None:
    """On an RTX 4090 neither 300,000 nor 131,072 tokens fit: the length that is proposed is below both, and fits."""
    found = memory("llama3.1-8b", "rtx-4090", engine=engine, max_model_len=300_000)
    length = next(int(text.split()[1]) for text in found.remedies if text.startswith("--max-model-len"))
    assert length < 131_072
    assert memory("llama3.1-8b", "rtx-4090", engine=engine, max_model_len=length).fits


def test_engines_are_listed() -> None:
    """Names, versions that were read, default shares and where they were found; the form for programs has them too."""
    code, out, _ = run("list", "engines")
    assert code == 0
    for word in ("vllm", "sglang", "trtllm", "llamacpp", "0.8.5 to 0.33.0", "0.92 (0.9 before 0.22.0)", "cache.py"):
        assert word in out
    code, _, err = run(*BASE, "--engine", "vlm")
    assert code == 2
    assert "`perfmodel list engines` shows all" in err
