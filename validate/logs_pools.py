"""Pools in the logs of SGLang and TensorRT-LLM: bytes from printed tokens, tokens and blocks from printed bytes.

SGLang prints GiB and calls them GB. What the log does not print (memory that was free, tokens) is not guessed: such a
row is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.engines.layers import CacheLayers, cache_layers
from perfmodel.roofline.engines.sglang import cells, pools
from perfmodel.roofline.engines.trtllm import pool_blocks, pool_tokens
from perfmodel.roofline.step import make_plan
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Printed, Row, Skip, measured, printed, whole

GIB = 2.0**30


def model_name(text: str) -> str:
    """A model's name without what a log's reader added in brackets; a quantizer in them makes it another checkpoint.

    >>> model_name("Qwen/Qwen3-30B-A3B-Instruct-2507 (Qwen3MoeForCausalLM)")
    'Qwen/Qwen3-30B-A3B-Instruct-2507'
    >>> model_name("DeepSeek-R1 (AWQ/GPTQ)")
    'DeepSeek-R1 (AWQ/GPTQ)'
    """
    return re.sub(r"\s*\((?!.*(?:AWQ|GPTQ|GGUF)).*\)\s*$", "", text, flags=re.IGNORECASE)


def layers_of(model: ModelSpec, row: Row) -> tuple[CacheLayers, ...]:
    """Cache layers on a rank of the row's tensor parallelism; the GPU's size plays no part."""
    kv = "fp8" if row["kv_dtype"].casefold().startswith("fp8") else "bf16"
    return cache_layers(model, make_plan(model, gpu("h100"), whole(row, "tp", 1), kv=kv))


def sglang(row: Row, models: Models) -> Iterator[Comparison]:
    """Bytes of the pools from their printed tokens; tokens from a printed budget."""
    tokens = measured(row, "kv_tokens")
    if tokens is None:
        raise Skip("no pool was allocated: the log ends before")
    found = models.find(model_name(row["model"]))
    layers = layers_of(found.model, row)
    full, window, _ = cells(layers)
    numbers = row["other_numbers"]
    windows = re.search(r"swa size (\d+)", numbers)
    bytes_ = tokens.value * full + float(windows[1] if windows else tokens.value) * window
    words = f"{tokens.value:,.0f} tokens x {full:,.0f} B" + (
        f" + {float(windows[1]):,.0f} x {window:,.0f} B in layers with windows" if windows else ""
    )
    if (size := measured(row, "kv_mem")) is not None:
        yield _given("printed tokens", "kv_mem", size, bytes_ / GIB, words, found.source)
    budget = re.search(r"candidate_kv_budget (\d+)", numbers)
    if budget:
        held = pools(float(budget[1]), layers, ratio=1.0).tokens
        text = f"{int(budget[1]):,} B // {full:,.0f} B a token"
        yield _given("printed pool", "kv_tokens", tokens, held, text, found.source)


def trtllm(row: Row, models: Models) -> Iterator[Comparison]:
    """Tokens or blocks of the pool from the bytes that the log says it takes, or that were free."""
    free = re.match(r"([\d.]+) available before fraction", row["kv_mem"])
    allocated = measured(row, "kv_mem") if row["kv_mem_unit"] == "bytes" else None
    if free is None and allocated is None:
        raise Skip("the log does not print the memory that the pool could take")
    token, source = _token_bytes(row, models)
    if allocated is not None and (tokens := measured(row, "kv_tokens")) is not None:
        held = pool_tokens(allocated.value, 1.0, token)
        text = f"{allocated.value:,.0f} B // {token:,.0f} B a token"
        yield _given("printed pool", "kv_tokens", tokens, held, text, source)
    if free is not None and (blocks := measured(row, "gpu_blocks")) is not None:
        share = re.search(r"[\d.]+", row["mem_fraction"])
        fraction = printed(share[0]) if share else None
        if fraction is None:
            raise Skip("the log does not print the fraction of the free memory")
        size = whole(row, "block_size")
        held = pool_blocks(pool_tokens(float(free[1]) * GIB, fraction.value, token), size)
        text = f"{fraction.value:g} x {free[1]} GiB // {token:,.0f} B a token, in blocks of {size}"
        yield _given("printed free memory", "gpu_blocks", blocks, held, text, source)


def _given(given: str, metric: str, number: Printed, predicted: float, words: str, source: str) -> Comparison:
    return Comparison(
        metric, number.value, float(predicted), words, source, half_unit=number.half_unit, group={"given": given}
    )


def _token_bytes(row: Row, models: Models) -> tuple[float, str]:
    """Bytes of a token in all layers: of the model, else as the row states them."""
    try:
        found = models.find(model_name(row["model"]))
    except Skip:
        stated = re.search(r"([\d,]{4,}) B(?:/token|,| )", f"{row['model']} {row.get('notes', '')}")
        if stated is None:
            raise
        return float(stated[1].replace(",", "")), "the row's own bytes a token"
    full, window, _ = cells(layers_of(found.model, row))
    return full + window, found.source
