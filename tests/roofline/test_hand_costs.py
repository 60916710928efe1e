"""Costs that were worked out by hand, each with its arithmetic; all bytes at 16 bits unless said."""

from typing import Any

import numpy as np
import pytest

from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.counts import kv_bytes, kv_bytes_per_token, total_params
from perfmodel.modelspecs.load import model as load
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline import attention, ops
from perfmodel.roofline.analysis import analyze, estimate
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.phases import POSITIONS, decode_contexts, decode_phase, prefill_phase
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import Plan, Step, decode, make_plan, prefill
from perfmodel.roofline.sweep import step_time
from perfmodel.roofline.topology import Topology

# Llama-3 70B
D, LAYERS, HEADS, KV_HEADS, HEAD, FFN, WORDS = 8192, 80, 64, 8, 128, 28672, 128256
LAYER = D * (HEADS + 2 * KV_HEADS) * HEAD + HEADS * HEAD * D + 3 * D * FFN  # matrices of a layer: 855,638,016
HEAD_PARAMS = D * WORDS  # 1,050,673,152
PEAK, BANDWIDTH, NVLINK = 989.4e12, 3.35e12, 450e9  # H100 SXM: BF16 FLOP/s, bytes/s, one-way bytes/s


def by_name(model: ModelSpec, step: Step, plan: Plan | None = None, layer: str = "") -> dict[str, Op]:
    """Operators by name; of one layer class where a name occurs in several."""
    found = graph(model, step, plan or Plan(), Topology(bandwidth={"scale_up": NVLINK}))
    return {op.name: op for op in found if not layer or op.layer in ("", layer)}


def test_llama3_70b_has_the_parameters_of_its_matrices() -> None:
    """70,553,706,496: 80 layers, embedding and head, and 161 norms of 8192."""
    assert LAYER == 855_638_016
    assert total_params(load("llama3-70b")) == LAYERS * LAYER + 2 * HEAD_PARAMS + 161 * D == 70_553_706_496


def test_decode_of_llama3_70b_on_h100_is_41_7_ms() -> None:
    """141.1 GB less the 2.1 GB embedding is 139.0 GB of weights, 41.5 ms; 2048 tokens of KV cache are 0.2 ms more."""
    ops_ = [op.cost() for op in graph(load("llama3-70b"), decode(1.0, 2048.0), Plan())]
    total = sum(ops_, Cost())
    weights = 2 * (LAYERS * LAYER + HEAD_PARAMS) + 2 * D  # and one row of the embedding
    assert total.hbm["weights"] == weights
    assert weights / 1e9 == pytest.approx(141.107 - 2.101 - 0.003, abs=0.001)  # the norms' 3 MB are left out
    assert total.hbm["kv_read"] == LAYERS * 2048 * KV_HEADS * 2 * HEAD * 2 == 671_088_640
    assert total.hbm["kv_write"] == LAYERS * KV_HEADS * 2 * HEAD * 2 == 327_680
    milliseconds = 1e3 * float(step_time(setup("llama3-70b", "h100"), decode(1.0, 2048.0)))
    assert milliseconds == pytest.approx(41.7, abs=0.05)
    assert milliseconds == pytest.approx(1e3 * (weights + 671_088_640) / BANDWIDTH, rel=1e-3)


def test_prefill_of_2048_tokens_on_four_h100_is_93_5_ms() -> None:
    """70.8 ms of GEMMs, 1.4 of attention, 9.1 of memory-bound kernels, 12.0 of all-reduces, 0.2 of head, by hand."""
    n, tp, act = 2048, 4, 2
    phase = prefill_phase(setup("llama3-70b", "h100", tp=tp), 1, n)
    found = {r.op.name: 1e3 * float(r.time.bound) for r in phase.ops}
    gemms = 1e3 * 2 * n * LAYERS * LAYER / tp / PEAK
    assert sum(found[k] for k in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")) == pytest.approx(gemms, rel=1e-12)
    pairs = n * (n + 1) // 2
    scores = 1e3 * LAYERS * (HEADS // tp) * pairs * 2 * 2 * HEAD / PEAK
    assert found["attention"] == pytest.approx(scores, rel=1e-12)
    token = n * D * act  # the activations of a layer: 33.6 MB
    assert found["norm"] == pytest.approx(1e3 * 2 * LAYERS * 4 * token / BANDWIDTH, rel=1e-12)
    rope = 2 * n * (HEADS // tp + KV_HEADS // tp) * HEAD * act
    cache = 2 * n * (KV_HEADS // tp) * 2 * HEAD * act
    activation = 3 * n * FFN // tp * act
    small = 1e3 * LAYERS * (rope + cache + activation) / BANDWIDTH
    assert found["rope"] + found["kv_write"] + found["activation"] == pytest.approx(small, rel=1e-12)
    # the switch adds: each GPU sends the vector once, after the embedding and twice a layer
    reduces = found["embedding_all_reduce"] + found["attention_all_reduce"] + found["ffn_all_reduce"]
    assert reduces == pytest.approx(1e3 * (2 * LAYERS + 1) * token / NVLINK, rel=1e-12)
    # the head of the last token alone: its weights
    assert found["lm_head"] == pytest.approx(
        1e3 * (2 * HEAD_PARAMS / tp + D * 2 + WORDS / tp * 2) / BANDWIDTH, rel=1e-12
    )
    assert [round(x, 1) for x in (gemms, scores, found["norm"], small, reduces)] == [70.8, 1.4, 6.4, 2.7, 12.0]
    assert 1e3 * float(phase.time.bound) == pytest.approx(93.5, abs=0.05)


def test_qkv_projection_has_its_shape_on_every_rank() -> None:
    """[tokens, 8192] x [8192, 10240]: 64 + 2 x 8 heads of 128; a quarter on TP 4; at TP 16 one whole KV head."""
    model, gpu = load("llama3-70b"), "h100"
    for tp, n in ((1, 10240), (4, 2560), (8, 1280), (16, (4 + 2) * 128)):
        ready = setup(model, gpu, tp=tp)
        op = by_name(model, prefill(2.0, 100.0), ready.plan)["qkv_proj"]
        assert (op.inputs["m"], op.inputs["n"], op.inputs["k"]) == (200.0, n, 8192)
        assert op.inputs["weight_bytes"] == 2 * n * 8192
        assert op.unit_cost.matrix_flops == 2 * 200 * n * 8192
        assert op.unit_cost.hbm == {"weights": 2 * n * 8192, "act_read": 2 * 200 * 8192, "act_write": 2 * 200 * n}


def test_decode_attention_reads_each_kv_head_once() -> None:
    """32 sequences of 2048 tokens, 8 KV heads of 128: 268 MB of K and V a layer; 64 x 2048 x 512 FLOPs each."""
    cost = by_name(load("llama3-70b"), decode(32.0, 2048.0))["attention"].unit_cost
    assert cost.hbm["kv_read"] == 32 * 2048 * 8 * (128 + 128) * 2 == 268_435_456
    assert cost.hbm["act_read"] == cost.hbm["act_write"] == 32 * 64 * 128 * 2  # Q and O: one row a sequence
    assert cost.matrix_flops == 32 * 64 * 2048 * 2 * (128 + 128)
    assert cost.ops["exp"] == 32 * 64 * 2048
    assert cost.ops["vector"] == 4 * 32 * 64 * 2048


def test_intensity_of_decode_attention_is_the_group() -> None:
    """At 16 bits decode attention does 8 FLOPs a byte with 8 query heads a KV head, and 1 with one each."""
    for heads, kv_heads in ((64, 8), (32, 32)):
        cost = attention.gqa(1.0, heads, kv_heads, 128.0, 128.0, 1.0, 1e6, 2.0, 2.0, "bf16")
        assert float(cost.matrix_flops / cost.bytes) == pytest.approx(heads / kv_heads, rel=1e-3)


def test_kv_bytes_of_a_token() -> None:
    """Llama-3 70B: 80 x 2 x 8 x 128 x 2 = 327,680 B; 8B: 131,072; DeepSeek-V3: 61 x 576 x 2 = 70,272."""
    assert kv_bytes_per_token(load("llama3-70b")) == 327_680
    assert kv_bytes_per_token(load("llama3-8b")) == 131_072
    assert kv_bytes_per_token(load("deepseek-v3")) == 70_272
    assert kv_bytes(load("llama3-70b"), 8192.0, "fp8") == 8192 * 163_840


def test_absorbed_and_expanded_latent_attention() -> None:
    """DeepSeek-V3, a pair of a head: 2 (512 + 64 + 512) = 2176 FLOPs absorbed, 2 (192 + 128) = 640 expanded."""
    model, n = load("deepseek-v3"), 1000.0
    absorbed = by_name(model, decode(1.0, n), layer="mla/moe")["attention"].unit_cost
    assert absorbed.matrix_flops == 128 * n * 2176
    assert absorbed.hbm["kv_read"] == n * 576 * 2
    expanded = by_name(model, prefill(1.0, n), layer="mla/moe")
    assert expanded["attention"].unit_cost.matrix_flops == 128 * n * (n + 1) / 2 * 640
    # keys and values of all heads are made first: [n, 512] x [512, 128 x 256], then read once
    assert expanded["kv_b_proj"].unit_cost.matrix_flops == 2 * n * 512 * 128 * 256
    assert expanded["attention"].unit_cost.hbm["kv_read"] == n * 128 * 320 * 2
    assert "kv_b_proj" not in by_name(model, decode(1.0, n))


def test_absorbing_moves_the_up_projection_to_queries_and_outputs() -> None:
    """Per token and head 2 x 128 x 512 FLOPs into the latent space and as many out: together kv_b_proj's, once."""
    found = by_name(load("deepseek-v3"), decode(7.0, 100.0), layer="mla/moe")
    for name in ("q_absorb", "v_up"):
        assert found[name].unit_cost.matrix_flops == 7 * 128 * 2 * 128 * 512
        assert found[name].unit_cost.hbm["weights"] == 128 * 128 * 512 * 2  # half of kv_b_proj


def test_small_kernels_of_latent_attention() -> None:
    """DeepSeek-V3, 10 tokens: RoPE turns 64 numbers of 128 query heads and of one key; norms pass over 1536 + 512."""
    found = by_name(load("deepseek-v3"), decode(10.0, 100.0), layer="mla/moe")
    assert found["rope"].inputs["elements"] == 10 * (128 + 1) * 64
    assert found["latent_norm"].inputs["elements"] == 10 * (1536 + 512)
    assert found["kv_write"].unit_cost.hbm["kv_write"] == 10 * 576 * 2


def test_latent_cache_is_read_whole_on_each_rank() -> None:
    """TP 8 cuts DeepSeek-V3's 128 heads to 16, and the cache read of 576 numbers a token not at all."""
    model = load("deepseek-v3")
    ready = setup(model, "h100", tp=8, weights="bf16")
    one, eighth = (
        by_name(model, decode(1.0, 4096.0), p, "mla/moe")["attention"].unit_cost for p in (Plan(), ready.plan)
    )
    assert eighth.matrix_flops == one.matrix_flops / 8
    assert eighth.hbm["kv_read"] == one.hbm["kv_read"] == 4096 * 576 * 2


def test_experts_of_deepseek_v3_at_batch_32() -> None:
    """32 tokens wake 256 (1 - (1 - 8/256)^32) = 163.3 of 256 experts; rows are 32 x 8 = 256 all the same."""
    model = load("deepseek-v3")
    found = by_name(model, decode(32.0, 100.0), make_plan(model, setup(model, "h100").gpu, weights="bf16"))
    awake = 256 * (1 - (1 - 8 / 256) ** 32)
    assert awake == pytest.approx(163.3, abs=0.05)
    up, down = found["experts_gate_up"].unit_cost, found["experts_down"].unit_cost
    assert up.matrix_flops == 2 * 256 * 7168 * 2 * 2048
    assert down.matrix_flops == 2 * 256 * 2048 * 7168
    assert up.hbm["weights"] == pytest.approx(awake * 2 * 2048 * 7168 * 2, rel=1e-12)
    assert down.hbm["weights"] == pytest.approx(awake * 2048 * 7168 * 2, rel=1e-12)
    assert found["router"].unit_cost.matrix_flops == 2 * 32 * 7168 * 256


def test_windowed_layers_read_their_window() -> None:
    """Mistral 7B v0.1 at 32,768 tokens: 4096 keys a layer are read and scored, not 32,768."""
    cost = by_name(load("mistral-7b-v0.1"), decode(1.0, 32768.0))["attention"].unit_cost
    assert cost.hbm["kv_read"] == 4096 * 8 * 256 * 2
    assert cost.matrix_flops == 32 * 4096 * 2 * 256


def test_a_gemm_of_round_numbers(toy_gpu: Gpu) -> None:
    """100 x 1000 x 2000: 0.4 GFLOP is 4 us at 100 TFLOP/s; 4 + 0.4 + 0.2 MB is 4.6 us at 1 TB/s: memory decides."""
    from perfmodel.roofline.times import Rates

    cost = ops.gemm(100.0, 1000.0, 2000.0, 4e6, 2.0, 2.0, "bf16")
    assert (cost.matrix_flops, cost.bytes) == (4e8, 4.6e6)
    rates = Rates(toy_gpu)
    assert rates.terms(cost) == pytest.approx({"matrix": 4e-6, "hbm": 4.6e-6})
    assert (rates.bound(cost), rates.limiter(cost)) == (pytest.approx(4.6e-6), "hbm")


def test_small_kernels_of_round_numbers() -> None:
    """Norm, combine, embedding, cache write and sampling move what they read and write, once."""
    norm = ops.elementwise(1000.0, 2, 2, 2.0, 5)
    assert (norm.flops, norm.hbm) == (5000, {"act_read": 4000, "act_write": 4000})
    gate = ops.elementwise(1000.0, 2, 1, 2.0, 4, 1)
    assert (gate.ops["exp"], gate.bytes) == (1000, 6000)
    combine = ops.combine(10.0, 8.0, 100.0, 2.0)
    assert (combine.flops, combine.hbm) == (16_000, {"act_read": 16_000, "act_write": 2000})
    gather = ops.embedding(10.0, 100.0, 2.0, 2.0)
    assert (gather.flops, gather.hbm) == (0, {"weights": 2000, "act_write": 2000})
    write = ops.kv_write(10.0, 256.0, 1.0, 2.0)
    assert (write.flops, write.hbm) == (0, {"act_read": 5120, "kv_write": 2560})
    draw = ops.sampling(4.0, 1000.0, 2.0)
    assert (draw.ops["exp"], draw.bytes) == (4000, 8000)


def test_sparse_attention_reads_what_the_indexer_picks() -> None:
    """DeepSeek-V3.2 at 128K: the indexer scores all keys with 64 small heads; attention reads 2048 latents of them."""
    model, n = load("deepseek-v3.2"), 131072.0
    found = by_name(model, decode(1.0, n), layer=model.layer_classes[-1].name)
    indexer, main = found["indexer"].unit_cost, found["attention"].unit_cost
    assert indexer.matrix_flops == 64 * n * 2 * 128
    assert indexer.hbm["kv_read"] == n * (128 + 4)
    assert main.matrix_flops == 128 * 2048 * 2176
    assert main.hbm["kv_read"] == 2048 * 576 * 2


@pytest.mark.parametrize(
    ("weights", "bytes_a_weight"), [("fp8", 1.0), ("int4", 0.5 + 20 / 128 / 8), ("nvfp4", 0.5 + 1 / 16)]
)
def test_stored_formats_carry_their_scales_into_traffic(weights: str, bytes_a_weight: float) -> None:
    """Down projection of Llama-3 70B: 4-bit weights of group 128 are 4.156 bits, scales and zero points included."""
    ready = setup("llama3-70b", "h100", weights=weights)
    cost = by_name(ready.model, decode(1.0, 10.0), ready.plan)["down_proj"].unit_cost
    channels = {"fp8": 8192 * 4, "nvfp4": 4}.get(weights, 0)  # a 32-bit scale an output channel; one a matrix
    assert cost.hbm["weights"] == 8192 * 28672 * bytes_a_weight + channels


def test_eight_bit_math_reads_eight_bit_activations_and_keeps_the_head_at_sixteen() -> None:
    """FP8 on H100: linear layers in FP8 on 8-bit inputs, the head in BF16. On A100 FP8 weights compute in BF16."""
    step = prefill(1.0, 64.0)
    hopper, ampere = (setup("llama3-70b", gpu, weights="fp8") for gpu in ("h100", "a100"))
    ops_ = by_name(hopper.model, step, hopper.plan)
    assert set(ops_["qkv_proj"].unit_cost.ops) == {"matrix:fp8"}
    assert ops_["qkv_proj"].unit_cost.hbm["act_read"] == 64 * 8192
    assert set(ops_["lm_head"].unit_cost.ops) == {"matrix:bf16"}
    assert set(by_name(ampere.model, step, ampere.plan)["qkv_proj"].unit_cost.ops) == {"matrix:bf16", "issue"}


def test_what_a_checkpoint_leaves_at_sixteen_bits_computes_at_sixteen() -> None:
    """gpt-oss: experts are MXFP4 and run as FP4 where the GPU can; attention stays BF16 in storage and arithmetic."""
    ready = setup("gpt-oss-20b", "b200")
    found = by_name(ready.model, decode(1.0, 10.0), ready.plan)
    assert set(found["experts_down"].unit_cost.ops) == {"matrix:fp4"}
    for name in ("qkv_proj", "o_proj"):
        assert set(found[name].unit_cost.ops) == {"matrix:bf16"}
        assert found[name].inputs["act_bytes"] == 2.0
    assert found["o_proj"].unit_cost.hbm["weights"] == 2 * (2880 * 64 * 64 + 2880)


def test_the_mean_decode_step_is_the_mean_of_the_steps(toy_gpu: Gpu, structures: dict[str, ModelSpec]) -> None:
    """Ten output tokens after 100: one from prefill, nine steps with 101 to 109 tokens in the cache."""
    ready = setup(structures["windows"], toy_gpu)
    steps = [float(step_time(ready, decode(3.0, float(n)))) for n in range(101, 110)]
    assert float(decode_phase(ready, 3, 100, 10).time.bound) == pytest.approx(sum(steps) / 9, rel=1e-12)


def test_decode_steps_have_these_contexts() -> None:
    """The first output token comes from prefill: 10 after 100 are steps at 101 to 109; one alone is taken at 101."""
    assert np.asarray(decode_contexts(100, 10)).tolist() == list(range(101, 110))
    assert np.asarray(decode_contexts(100, 2)).tolist() == [101]
    assert np.asarray(decode_contexts(100, 1)).tolist() == [101]
    many = np.asarray(decode_contexts(1000, 10_001))
    assert (many.size, many[0], many[-1], many.mean()) == (POSITIONS, 1001, 11_000, 6000.5)


@pytest.mark.parametrize(
    ("batch", "microbatches", "passes"), [(1, 1, 1.0), (2, 2, 5 / 4), (4, 4, 7 / 4), (6, 3, 6 / 4)]
)
def test_a_batch_of_prompts_fills_a_pipeline(
    batch: int, microbatches: int, passes: float, toy_gpu: Gpu, toy_system: System, structures: dict[str, ModelSpec]
) -> None:
    """Over four stages m microbatches take (4 + m - 1)/4 passes of one; six prompts are three microbatches of two."""
    model = structures["gqa"]
    options: dict[str, Any] = {"batch": batch, "input": 32, "output": 1, "pp": 4, "system": toy_system}
    found = estimate(model, toy_gpu, **options)
    assert passes == (4 + microbatches - 1) / 4
    one = analyze(model, toy_gpu, **{**options, "batch": -(-batch // microbatches)})
    size = graph(model, prefill(float(batch), 32.0), found.analysis.setup.plan, found.analysis.setup.topology)[0]
    assert size.inputs["tokens"] == 32 * -(-batch // 4)
    assert found.ttft_s == pytest.approx(float(found.analysis.prefill.time.bound) * passes, rel=1e-12)
    assert one.prefill.time.bound <= found.analysis.prefill.time.bound


def test_throughput_counts_every_output_token_of_the_request() -> None:
    """tokens/s = batch x output / (ttft + (output - 1) x tpot)."""
    found = estimate("llama3-70b", "h100", tp=4, batch=8, input=1000, output=101)
    assert found.tokens_per_s == pytest.approx(8 * 101 / (found.ttft_s + 100 * found.tpot_s), rel=1e-12)
