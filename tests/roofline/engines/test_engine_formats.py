"""Formats of weights and caches as engines have them, and as the graph reads them."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.roofline.analysis import estimate
from perfmodel.roofline.engines import memory
from perfmodel.roofline.graph import Site
from perfmodel.roofline.memory import rank_kv_bytes
from perfmodel.roofline.setup import setup
from perfmodel.roofline.sharding import stage_weight_bytes
from perfmodel.roofline.step import decode

GIB = 2.0**30


def test_rotary_tables_of_gemma_3() -> None:
    """Gemma 3 12B under vLLM: 23.31 GiB are printed, of which 0.56 are tables: 131,072 positions and 8 times as many.

    Source: start-up log of vLLM 0.19 on H100, accuracy runs of llm-d-incubation/llm-d-planner.
    """
    found = memory("gemma3-12b", "h100", engine="vllm", max_model_len=8192)
    tables = next(t.bytes for t in found.terms if t.name == "weights: rotary")
    assert tables == 9 * 131_072 * 256 * 2
    assert found.weights / GIB == pytest.approx(23.31, rel=0.003)
    short = memory("gemma3-1b", "h100", engine="vllm", max_model_len=8192)  # its positions are not scaled
    assert next(t.bytes for t in short.terms if t.name == "weights: rotary") == 2 * 32_768 * 256 * 2


def test_engines_have_their_own_caches() -> None:
    """vLLM has no KIVI; TensorRT-LLM takes NVFP4, at 4.5 bits an element; llama.cpp has the types of ggml."""
    with pytest.raises(UsageError, match=r"vllm has no kivi2 cache, it takes bf16.*estimate --kv kivi2"):
        memory("llama3-8b", "h100", engine="vllm", kv="kivi2")
    with pytest.raises(UsageError, match="sglang has no nvfp4 cache"):
        memory("llama3-8b", "h100", engine="sglang", kv="nvfp4")
    full, small = (memory("llama3-8b", "b200-sxm", engine="trtllm", kv=kv).kv_tokens for kv in ("bf16", "nvfp4"))
    assert small / full == pytest.approx(16 / 4.5, rel=0.01)


def test_weights_in_blocks_on_a_rank() -> None:
    """Q4_K on four ranks: 4.5 bits of each linear weight, embedding, head and norms at 16 bits."""
    ready = setup("llama3-70b", "h100", tp=4, weights="q4_k")
    linear = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 28672 * 8192)
    outer = 2 * 128_256 * 8192
    norms = 161 * 8192
    expected = (linear / 4) * 4.5 / 8 + outer / 4 * 2 + norms * 2
    assert stage_weight_bytes(ready.model, ready.plan, 0) == expected


@pytest.mark.parametrize(
    ("kv", "bits"), [("nvfp4", 4.5), ("int4_head", 4.25), ("q8_0", 8.5), ("kivi2", (128 * 16 + 3968 * 3) / 4096)]
)
def test_a_step_reads_the_scales_too(kv: str, bits: float) -> None:
    """Decode at 4,096 tokens: what attention reads of the cache and what the cache takes are the same bytes."""
    ready = setup("llama3-8b", "h100", kv=kv)
    layer = ready.model.layer_classes[0]
    site = Site(ready.model, decode(1.0, 4096.0), ready.plan, ready.topology, {}, layer)
    assert site.cache_element(128) * 8 == pytest.approx(bits, rel=1e-14)
    held = rank_kv_bytes(ready.model, ready.plan, 1.0, 4096.0)
    assert held == pytest.approx(4096 * 65_536 * bits / 8, rel=1e-14)


def test_fewer_bits_in_the_cache_are_faster() -> None:
    """At a long context a decode step is shorter with each smaller cache, on a GPU that has no unit for it."""
    times = [
        estimate("llama3-8b", "h100", batch=16, input=32_000, output=16, kv=kv).to_dict()["tpot_s"]
        for kv in ("bf16", "fp8", "nvfp4", "kivi2")
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]
