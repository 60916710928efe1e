"""vLLM's logs: blocks and tokens, tokens and concurrency, bytes and tokens; the whole budget where all is stated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.capacity import FORMAT_WORDS, base_name
from perfmodel.roofline.engines.result import EngineMemory
from perfmodel.validate.logs_pools import model_name
from perfmodel.validate.models import UNKNOWN, Found, Models
from perfmodel.validate.rows import Comparison, Missing, Printed, Row, Skip, printed, whole

GIB = 2.0**30

#: Columns without which vLLM's budget is not known.
BUDGET = ("engine_version", "gpu", "mem_fraction")
MIXTURE = "which layers the checkpoint stores in which format is in its configuration, not in the row"
#: First word of the format column, in lower case -> storage format of ours.
FORMATS = {**FORMAT_WORDS, "bf16": "bf16", "fp16": "fp16", "nvfp4": "nvfp4"}


def compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """Every number of a row that follows from others of it, or from the settings."""
    identities = list(_identities(row))
    yield from identities
    try:
        yield from _predicted(row, models)
    except Skip as skip:
        if not identities:
            raise
        yield Missing("weights_per_gpu" if row["weights_per_gpu"] else "kv_tokens", str(skip))


def _number(row: Row, column: str) -> Printed | None:
    """A printed number; words around it make it no number, and none is guessed."""
    return printed(row.get(column, "").strip().removesuffix("x"))


def _identities(row: Row) -> Iterator[Comparison]:
    """Tokens from blocks, concurrency from tokens: sums of printed numbers, without a model."""
    tokens, blocks = _number(row, "kv_tokens"), _number(row, "gpu_blocks")
    size, length = _number(row, "block_size"), _number(row, "max_len_or_n_ctx")
    concurrency = _number(row, "max_concurrency")
    if tokens and blocks and size:
        text = f"{blocks.value:,.0f} blocks x {size.value:,.0f} tokens"
        yield Comparison(
            "kv_tokens", tokens.value, blocks.value * size.value, text, "printed numbers",
            half_unit=tokens.half_unit, group={"given": "printed blocks"},
        )  # fmt: skip
    if tokens and length and concurrency:
        text = f"{tokens.value:,.0f} tokens / {length.value:,.0f}"
        yield Comparison(
            "max_concurrency", concurrency.value, tokens.value / length.value, text, "printed numbers",
            half_unit=concurrency.half_unit, group={"given": "printed tokens"},
        )  # fmt: skip


def _predicted(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """Weights, the need of a request, and the pool and its tokens, from the settings."""
    if "inferred" in row["model"] + row.get("quality", ""):
        raise Skip("the row's model was inferred from the number to compare with")
    found = _find(models, model_name(row["model"]))
    asked = _question(row, found)
    weights, needed = _number(row, "weights_per_gpu"), re.match(r"([\d.]+) needed", row["kv_mem"])
    if weights:
        answer = memory(**asked)
        yield _of(answer, "weights_per_gpu", weights, answer.weights / GIB, found, "weights")
    if needed and (number := printed(needed[1])):
        answer = memory(**asked)
        text = f"one request of {asked['max_model_len']:,} tokens: {answer.request_bytes:,.0f} B"
        yield Comparison(
            "kv_mem", number.value, answer.request_bytes / GIB, text, found.source, half_unit=number.half_unit
        )
    yield from _pool(row, found, asked)


def _pool(row: Row, found: Found, asked: dict[str, Any]) -> Iterator[Comparison | Missing]:
    """The pool, and its tokens; from a printed pool the tokens alone where the row does not state the settings."""
    pool, tokens = _number(row, "kv_mem"), _number(row, "kv_tokens")
    if pool and tokens:  # the pool is printed: it is taken as given
        held = memory(**asked, kv_cache_memory_bytes=pool.value * GIB)
        text = f"{pool.value:g} GiB // {held.block_bytes:,.0f} B a block of {held.block_size} tokens"
        yield Comparison(
            "kv_tokens", tokens.value, float(held.kv_tokens), text, found.source, half_unit=tokens.half_unit,
            group={"given": "printed pool"},
        )  # fmt: skip
    if not pool and not tokens:
        return
    name = "kv_mem" if pool else "kv_tokens"
    if asked["memory_fraction"] is None or not all(row.get(column, "").strip() for column in BUDGET):
        yield Missing(name, f"the budget depends on {', '.join(BUDGET)}, and the row does not state them all")
        return
    if (share := _stated_share(row, asked)) is not None and abs(share / asked["memory_fraction"] - 1) > 0.01:
        yield Missing(name, "the row's own terms add up to another share of the memory than it states")
        return
    answer = memory(**asked)
    if tokens and not pool:
        yield _of(answer, "kv_tokens", tokens, float(answer.kv_tokens), found)
    if pool:
        yield _of(answer, "kv_mem", pool, answer.kv_pool / GIB, found, "kv_pool")


def _stated_share(row: Row, asked: dict[str, Any]) -> float | None:
    """The share of the memory that a row's own terms add up to; ``None`` where it does not state them all."""
    found = {
        name: re.search(name + r" (-?[\d.]+) ?GiB", row.get("other_numbers", ""))
        for name in ("activation", "non_torch")
    }
    weights, pool = _number(row, "weights_per_gpu"), _number(row, "kv_mem")
    if not weights or not pool or not asked["usable"] or not all(found.values()):
        return None
    parts = [float(match[1]) for match in found.values() if match]
    return float((weights.value + pool.value + sum(parts)) * GIB / asked["usable"])


def _of(
    answer: EngineMemory, metric: str, number: Printed, predicted: float, found: Found, term: str = ""
) -> Comparison:
    """A term of the budget, or the KV tokens, with the interval that they have."""
    low, high = float(answer.kv_tokens_low), float(answer.kv_tokens_high)
    if term:
        one = answer.term(term)
        low, high = (predicted if x is None else x / GIB for x in (one.low, one.high))
    known = low != high
    return Comparison(
        metric, number.value, predicted, answer.sentence, found.source, low if known else None, high if known else None,
        half_unit=number.half_unit,
    )  # fmt: skip


def _find(models: Models, name: str) -> Found:
    try:
        return models.find(name)
    except Skip as skip:
        short = base_name(name)[0]
        if str(skip) != UNKNOWN or short == name:
            raise
        return models.find(short)


def _question(row: Row, found: Found) -> dict[str, Any]:
    """Arguments of ``memory`` for a row.

    Raises
    ------
    Skip
        When the row does not say how GPUs share the model, or stores the weights in no format of ours.
    """
    if whole(row, "n_gpus", 1) > 1 and not row["tp"].strip():
        raise Skip("the row does not say how its GPUs share the model")
    settings, kv = row.get("other_settings", ""), row["kv_dtype"].partition("(")[0].strip()
    size = re.search(r"([\d.]+) GiB|(\d{9,}) bytes", row.get("gpu", ""))
    budget = re.search(r"max[_-]num[_-]batched[_-]tokens[ =](\d+)", settings)
    seqs = re.search(r"max[_-]num[_-]seqs[ =](\d+)", settings)
    fraction = re.match(r"[\d.]+(?= |$)", row.get("mem_fraction", ""))
    return {
        "model": found.model, "gpu": _gpu(row.get("gpu", "")), "engine": "vllm",
        "version": row.get("engine_version") or None, "tp": whole(row, "tp", 1), "weights": _weights(row, found),
        "kv": kv or "auto", "max_model_len": whole(row, "max_len_or_n_ctx", found.model.max_context),
        "max_num_batched_tokens": int(budget[1]) if budget else None, "max_num_seqs": int(seqs[1]) if seqs else None,
        "memory_fraction": float(fraction[0]) if fraction else None,
        "block_size": whole(row, "block_size", 16),
        "usable": float(size[1]) * GIB if size and size[1] else float(size[2]) if size else None,
    }  # fmt: skip


def _weights(row: Row, found: Found) -> str | None:
    """The storage format of a row's weights; ``None`` for the checkpoint's own.

    Raises
    ------
    Skip
    """
    text = row["weight_format"].strip()
    if re.search(r"some layers|mixed", text):
        raise Skip(MIXTURE)
    word = re.split(r"[ (/]", text.casefold(), maxsplit=1)[0]
    fmt = base_name(model_name(row["model"]))[1] or FORMATS.get(word)
    if text and fmt is None:
        raise Skip("the weights are in no format that the row names clearly")
    if fmt == "nvfp4" and not found.model.native_format.startswith("nvfp4"):
        raise Skip(MIXTURE)
    same = fmt == found.model.native_format or (word == "fp8" and found.model.native_format.startswith("fp8"))
    return None if same else fmt


def _gpu(text: str) -> str:
    """The catalogue's name of a GPU as logs call it: ``H100 80GB``, ``8x H100``, ``RTX 4090 (25250627584 bytes)``.

    Where none is named the weights are still the same: an H100's.
    """
    return re.sub(r"\s*\(.*$|\s+~?\d+(?:\.\d+)?\s?GB.*$|^\d+x ", "", text).strip() or "h100"
