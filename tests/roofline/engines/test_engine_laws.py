"""Laws of the memory budget: what must hold for every model, GPU, engine and setting."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.roofline.engines import kv_cache_bytes, memory
from perfmodel.roofline.engines.layers import CacheLayers, cache_layers, held_bytes
from perfmodel.roofline.engines.sglang import pools
from perfmodel.roofline.engines.vllm_blocks import layout
from perfmodel.roofline.memory import rank_kv_bytes
from perfmodel.roofline.sharding import stage_weight_bytes
from perfmodel.roofline.step import Plan

MODELS = ["llama3.1-8b", "gpt-oss-20b", "gemma3-12b", "deepseek-v2-lite", "qwen3-30b-a3b", "llama4-scout", "phi4-mini"]
POOLED = ["vllm", "sglang", "trtllm"]
names, engines = st.sampled_from(MODELS), st.sampled_from(POOLED)
lengths = st.integers(1, 40_000)
versions = st.sampled_from(["0.8.5", "0.11.0", "0.19.0", "0.22.0", "0.26.0", "0.33.0"])

layer = st.builds(
    CacheLayers, st.integers(1, 60), st.sampled_from([512.0, 1024.0, 2048.0, 8192.0]), st.sampled_from([0, 128, 4096])
)
states = st.builds(CacheLayers, st.integers(1, 60), st.just(0.0), state_bytes=st.sampled_from([1e5, 3207168.0]))
stacks = st.lists(st.one_of(layer, states), min_size=1, max_size=4).filter(
    lambda found: len({(x.token_bytes, x.window, x.state_bytes) for x in found}) == len(found)
)


@given(names, engines, st.integers(1000, 8000))
@settings(max_examples=30)
def test_terms_add_up(name: str, engine: str, length: int) -> None:
    """Nothing of the device is lost or counted twice: the terms that are no part of others make up the whole."""
    m = memory(name, "h200", engine=engine, max_model_len=length)
    parts = {term.name: term.bytes for term in m.terms if not term.part}
    if engine == "vllm":
        taken = parts["weights"] + parts["activations"] + parts["non_torch"] + parts["cuda_graph_estimate"]
        assert taken + parts["kv_pool"] == pytest.approx(parts["requested"])
        assert parts["requested"] + parts["reserved"] == pytest.approx(m.usable)
        assert sum(term.bytes for term in m.terms if term.part) == pytest.approx(m.weights)
    elif engine == "sglang":
        assert parts["requested"] + parts["reserved"] + parts["non_torch"] == pytest.approx(m.usable)
        assert parts["weights"] + parts["kv_pool"] == pytest.approx(parts["requested"])
    else:
        taken = parts["weights"] + parts["activations"] + parts["non_torch"] + parts["kv_pool"] + parts["reserved"]
        assert taken == pytest.approx(m.usable)


@given(names, engines, st.sampled_from([0.5, 0.7, 0.85]), st.sampled_from([0.02, 0.1]))
@settings(max_examples=30)
def test_more_of_the_device_holds_more(name: str, engine: str, share: float, more: float) -> None:
    """KV tokens grow with the share of the memory."""
    a, b = (memory(name, "h200", engine=engine, memory_fraction=f, max_model_len=4096) for f in (share, share + more))
    assert a.kv_tokens <= b.kv_tokens
    assert a.max_concurrency <= b.max_concurrency


@given(names, engines)
@settings(max_examples=20)
def test_smaller_weights_leave_more(name: str, engine: str) -> None:
    """What weights give up goes to the cache, byte for byte in vLLM and SGLang."""
    wide, narrow = (memory(name, "h200", engine=engine, weights=w, max_model_len=4096) for w in ("bf16", "fp8"))
    assert narrow.weights < wide.weights
    assert narrow.kv_tokens > wide.kv_tokens


@given(names, versions, st.sampled_from([512, 2048, 8192]))
@settings(max_examples=40)
def test_larger_steps_leave_less(name: str, version: str, tokens: int) -> None:
    """The profiling run passes more tokens: the peak grows, the pool shrinks, and concurrency with it."""
    small, large = (
        memory(name, "h200", version=version, max_num_batched_tokens=n, max_model_len=4096)
        for n in (tokens, 4 * tokens)
    )
    assert large.activations > small.activations
    assert large.kv_pool <= small.kv_pool
    assert large.max_concurrency <= small.max_concurrency


@given(names, engines, lengths, lengths)
@settings(max_examples=40)
def test_longer_requests_are_fewer(name: str, engine: str, one: int, two: int) -> None:
    """Concurrency falls with the length; the bytes of a request rise."""
    short, long = sorted((one, two))
    a, b = (memory(name, "h100", engine=engine, max_model_len=n) for n in (short, long))
    assert b.max_concurrency <= a.max_concurrency
    assert b.request_bytes >= a.request_bytes


@given(names, versions, st.integers(16, 20_000))
@settings(max_examples=40)
def test_requests_of_full_layers_stay_within_the_tokens(name: str, version: str, length: int) -> None:
    """Concurrency x length is at most the tokens printed, but for hybrids, whose windows hold more than they keep."""
    m = memory(name, "h100", version=version, max_model_len=length)
    if m.facts["groups"] == 1:
        assert m.max_concurrency * length <= m.kv_tokens + 1e-6 * m.kv_tokens
    assert m.blocks * m.block_bytes <= max(m.kv_pool, 0)
    assert (m.blocks + 1) * m.block_bytes > m.kv_pool


@given(names, engines, st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=30)
def test_more_ranks_hold_more(name: str, engine: str, tp: int) -> None:
    """A rank's weights fall with tensor parallelism, and its tokens do not."""
    m, n = (memory(name, "h200", engine=engine, tp=t, max_model_len=2048, memory_fraction=0.9) for t in (1, tp))
    assert n.weights <= m.weights * 1.001
    assert n.max_concurrency >= 0.97 * m.max_concurrency


@given(names, st.integers(1, 12))
@settings(max_examples=40)
def test_stages_hold_the_model_once(name: str, pp: int) -> None:
    """Pipeline stages together hold the model's weights, a tied head once more apart, and all of its cache layers."""
    spec, plan = model(name), Plan(pp=pp)
    held = sum(stage_weight_bytes(spec, plan, stage) for stage in range(pp))
    again = spec.vocab_size * spec.hidden_size * 2 if spec.tied_embeddings and pp > 1 else 0
    assert held == pytest.approx(weight_bytes(spec, "bf16") + again)
    counts = sum(one.count for stage in range(pp) for one in cache_layers(spec, plan, stage))
    assert counts == spec.num_layers


@given(names, st.integers(1, 100_000))
@settings(max_examples=40)
def test_layers_hold_what_the_roofline_says(name: str, tokens: int) -> None:
    """Without paging, the cache layers of an engine hold the bytes of ``rank_kv_bytes``."""
    spec, plan = model(name), Plan(tp=2)
    assert held_bytes(cache_layers(spec, plan), tokens) == pytest.approx(rank_kv_bytes(spec, plan, 1, tokens))


@given(stacks, st.integers(1, 200_000), st.integers(1, 32768))
def test_a_request_never_takes_less_than_it_holds(stack: list[CacheLayers], length: int, step: int) -> None:
    """Blocks cover the tokens that layers must keep, whatever the groups, and one more block holds no less."""
    found = layout(stack, 16)
    assert found.request_blocks(length, step) * found.block_bytes >= held_bytes(stack, length) - 1e-6
    assert found.request_blocks(length + 1, step) >= found.request_blocks(length, step)
    assert found.request_blocks(length, step + 1) >= found.request_blocks(length, step)


@given(stacks, st.floats(0, 1e12))
def test_blocks_fill_the_pool(stack: list[CacheLayers], available: float) -> None:
    """As many blocks as fit, and not one more."""
    found = layout(stack, 16)
    blocks = found.blocks(available)
    assert blocks * found.block_bytes <= available < (blocks + 1) * found.block_bytes or available == inf


@given(stacks, st.floats(0, 1e12), st.sampled_from([0.1, 0.8, 1.0]), st.sampled_from([1, 16, 64]))
def test_pools_stay_within_the_budget(stack: list[CacheLayers], available: float, ratio: float, page: int) -> None:
    """SGLang's pools and states together never exceed what is there."""
    found = pools(available, stack, ratio, page)
    assert found.full_bytes + found.window_bytes + found.state_bytes <= available * (1 + 1e-9)
    assert found.tokens % page == 0


@given(names, st.integers(1, 300_000), st.integers(1, 8), st.sampled_from(["f16", "q8_0", "q4_0"]))
@settings(max_examples=60)
def test_the_cache_of_llama_cpp_grows_with_its_context(name: str, n_ctx: int, slots: int, kind: str) -> None:
    """More tokens, more slots or full windows never take less; q4_0 takes less than q8_0, that less than f16."""
    spec = model(name)
    now = kv_cache_bytes(spec, n_ctx, kind, n_parallel=slots)
    assert kv_cache_bytes(spec, n_ctx + 256, kind, n_parallel=slots).kv >= now.kv
    assert kv_cache_bytes(spec, n_ctx, kind, n_parallel=slots + 1).kv >= now.kv
    assert kv_cache_bytes(spec, n_ctx, kind, n_parallel=slots, swa_full=True).kv >= now.kv
    if kind != "f16":
        assert now.kv < kv_cache_bytes(spec, n_ctx, "f16", n_parallel=slots).kv


@given(names, engines, st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_the_same_question_has_the_same_answer(name: str, engine: str, tp: int) -> None:
    """Nothing is left over from one answer to the next."""
    first = memory(name, "h200", engine=engine, tp=tp, max_model_len=4096)
    memory("llama3-70b", "h100", engine=engine, tp=8, max_model_len=4096)
    assert memory(name, "h200", engine=engine, tp=tp, max_model_len=4096).to_dict() == first.to_dict()
