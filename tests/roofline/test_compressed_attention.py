"""Compressed attention (DeepSeek V4): counted pair by pair, by hand, and for the published model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.attention_compressed import compressed, distinct_entries, entry_indexer, entry_pairs
from perfmodel.roofline.graph import graph
from perfmodel.roofline.memory import rank_kv_bytes
from perfmodel.roofline.op import Op
from perfmodel.roofline.step import Plan, Step, decode, make_plan, prefill

LENGTHS = st.tuples(st.integers(1, 200), st.integers(0, 200))


@given(LENGTHS, st.integers(1, 40), st.none() | st.integers(1, 30))
def test_pairs_are_those_of_a_loop(lengths: tuple[int, int], ratio: int, topk: int | None) -> None:
    """Each query at position p sees floor(p / ratio) entries, or the topk of them: counted one query at a time."""
    q, before = lengths
    seen = [(before + i) // ratio for i in range(1, q + 1)]
    looped = sum(n if topk is None else min(n, topk) for n in seen)
    assert float(entry_pairs(float(q), float(before + q), float(ratio), topk and float(topk))) == looped


@given(LENGTHS, st.integers(1, 40), st.integers(1, 30))
def test_what_is_read_lies_between_one_query_s_and_all(lengths: tuple[int, int], ratio: int, topk: int) -> None:
    """A chunk reads at least what its last query sees, at most every entry, and all of them without an indexer."""
    q, kv = float(lengths[0]), float(sum(lengths))
    read, every = float(distinct_entries(q, kv, ratio, topk)), kv // ratio
    assert min(every, topk) <= read <= every == float(distinct_entries(q, kv, ratio))


def test_one_decoded_token_by_hand() -> None:
    """Position 1000, window 16, an entry every 4 tokens, 8 heads of 32: 16 tokens and 250 entries, read once each."""
    cost = compressed(2.0, 8.0, 32.0, 1.0, 1000.0, 16.0, 1.0, 2.0, "bf16", ratio=4.0)
    assert cost.ops["matrix:bf16"] == 2 * 8 * (16 + 250) * 4 * 32  # 2 (q k) + 2 (p v) of 32, for 2 sequences x 8 heads
    assert cost.hbm["kv_read"] == 2 * (16 + 250) * 32  # one head, one byte, keys and values both
    chosen = compressed(2.0, 8.0, 32.0, 1.0, 1000.0, 16.0, 1.0, 2.0, "bf16", ratio=4.0, topk=10.0)
    assert chosen.ops["matrix:bf16"] == 2 * 8 * (16 + 10) * 4 * 32
    assert chosen.hbm["kv_read"] == 2 * (16 + 10) * 32
    alone = compressed(2.0, 8.0, 32.0, 1.0, 1000.0, 16.0, 1.0, 2.0, "bf16")
    assert alone.hbm["kv_read"] == 2 * 16 * 32


def test_the_scorer_reads_every_entry_of_its_own() -> None:
    """The indexer scores all 250 entries for the one query, with 4 heads of 8, from entries of 8 bytes and a scale."""
    cost = entry_indexer(2.0, 4.0, 8.0, 1.0, 1000.0, 4.0, "fp8")
    assert cost.ops["matrix:fp8"] == 2 * 250 * 4 * 2 * 8
    assert cost.hbm["kv_read"] == 2 * 250 * (8 + 4)


def found(spec: ModelSpec, step: Step, **plan: int) -> list[Op]:
    return graph(spec, step, replace(Plan(), **plan))


def read(spec: ModelSpec, context: float) -> float:
    return sum(float(np.asarray(op.cost().hbm.get("kv_read", 0.0))) for op in found(spec, decode(1.0, context)))


def test_a_million_tokens_of_deepseek_v4() -> None:
    """At 2^20 tokens in 2 bytes, V4-Pro reads 128 tokens a layer and 1024 or 8192 entries, and every index entry.

    61 layers: 31 with an entry every 128 tokens, 30 with one every 4 and an indexer that keeps 1024.
    """
    spec, context = model("deepseek-v4-pro"), 2.0**20
    ratios = [c.attention.ratio for c in spec.layer_classes for _ in range(c.count)]  # type: ignore[union-attr]
    assert (ratios.count(128), ratios.count(4), len(ratios)) == (31, 30, 61)
    latent = 512 * 2 * (61 * 128 + 31 * 2**20 // 128 + 30 * 1024)
    index = 30 * 2**20 // 4 * (128 + 4)
    assert read(spec, context) == latent + index


def test_the_cache_holds_window_entries_and_index(structures: dict[str, ModelSpec], toy_gpu: Gpu) -> None:
    """Four layers at 400 tokens: 16 tokens each; 50, 100 and 50 entries of 16 in two bytes; 100 index entries."""
    spec = structures["compressed"]
    plan = make_plan(spec, toy_gpu)
    expected = 16 * 2 * (4 * 16 + 50 + 100 + 50) + 100 * (8 + 4)
    assert rank_kv_bytes(spec, plan, 3.0, 400.0) == 3 * expected
    assert rank_kv_bytes(spec, make_plan(spec, toy_gpu, tp=8), 3.0, 400.0) == 3 * expected  # one head: whole


def test_output_groups_are_cut_whole(
    structures: dict[str, ModelSpec], build_model: Callable[..., ModelSpec], toy_gpu: Gpu
) -> None:
    """Eight groups take tp 8; a model of four groups does not, and the message says what it takes."""
    make_plan(structures["compressed"], toy_gpu, tp=8)
    part = {
        "kind": "compressed", "heads": 8, "head_dim": 16, "rope_head_dim": 8, "q_lora_rank": 24, "o_groups": 4,
        "o_lora_rank": 12, "window": 16,
    }  # fmt: skip
    spec = build_model(
        attention={"a": part}, ffn={"f": {"kind": "dense", "intermediate_size": 192}}, layers=[[4, ["a/f"]]]
    )
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 output groups .* tp can be 1, 2, 4"):
        make_plan(spec, toy_gpu, tp=8)


def ops_of(spec: ModelSpec, step: Step, name: str) -> Op:
    return next(op for op in found(spec, step) if op.name == name)


def test_kept_choices_and_kept_keys(structures: dict[str, ModelSpec]) -> None:
    """Half of the layers score keys or write them: the other half reads what the layer before chose or wrote."""
    indexed, scored = structures["indexer"], structures["shared_indexer"]
    assert ops_of(indexed, decode(1.0, 100.0), "indexer").count == 4
    assert ops_of(scored, decode(1.0, 100.0), "indexer").count == 2
    attention = [op for op in found(scored, decode(1.0, 100.0)) if op.name == "attention"]
    assert {float(np.asarray(op.cost().hbm["kv_read"])) for op in attention} == {
        16 * (32 + 8) * 2.0 * 2
    }  # 2 layers each
    shared = found(structures["shared_keys"], prefill(1.0, 100.0))
    assert sum(op.count for op in shared if op.name == "kv_write") == 2
    assert sum(op.count for op in shared if op.name == "attention") == 4
