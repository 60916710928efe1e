"""Spreading a model over GPUs loses nothing: all ranks' weights and FLOPs are the model's, plus what is replicated."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import Gqa, ModelSpec, Moe
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.modelspecs.tensors import Tensor, tensors
from perfmodel.roofline.graph import graph
from perfmodel.roofline.memory import memory, rank_kv_bytes
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import rank_weight_bytes, stage_layers, stage_weight_bytes
from perfmodel.roofline.step import Plan, Step, decode, make_plan, prefill
from perfmodel.roofline.topology import Topology

EXPERT = ("expert_out", "expert_in")
DEGREES = [1, 2, 4, 8]


def copies(t: Tensor, model: ModelSpec, plan: Plan) -> float:
    """On how many of a stage's tp x dp ranks each element of a tensor lies."""
    if t.shard in EXPERT:
        group = plan.dp if plan.ep == 1 else 1
        return group * (plan.expert_tp if len(t.shape) == 1 and t.shard == "expert_in" else 1)
    kv_heads = {c.name: c.attention.kv_heads for c in model.layer_classes if isinstance(c.attention, Gqa)}
    shares = {"whole": plan.tp, "kv": max(1.0, plan.tp / kv_heads.get(t.layer, plan.tp))}
    return plan.dp * shares.get(t.shard, 1)


def loaded(model: ModelSpec) -> list[Tensor]:
    return [t for t in tensors(model) if t.role not in ("mtp", "buffer")]


@pytest.mark.parametrize("tp", DEGREES)
def test_weight_bytes_of_all_tp_ranks_are_the_total_and_the_replicas(spec: ModelSpec, tp: int, toy_gpu: Gpu) -> None:
    """tp x a rank's bytes = the model's bytes + (copies - 1) x what is replicated, to the byte."""
    plan = make_plan(spec, toy_gpu, tp)
    replicas = sum((copies(t, spec, plan) - 1) * 2 * t.total for t in loaded(spec))
    assert tp * rank_weight_bytes(spec, plan) == weight_bytes(spec, "bf16") + replicas


@pytest.mark.parametrize(
    ("tp", "dp", "ep"), [(1, 2, 2), (2, 2, 2), (2, 2, 4), (1, 8, 8), (4, 1, 2), (4, 2, 8), (2, 2, 1)]
)
def test_experts_lie_on_one_rank_each(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, tp: int, dp: int, ep: int
) -> None:
    """Under expert parallelism all ranks together hold each expert once, and the rest once a data-parallel rank."""
    for name in ("moe", "shared", "mla", "chunks"):
        model = structures[name]
        plan = make_plan(model, toy_gpu, tp, 1, ep, dp)
        expected = sum(copies(t, model, plan) * 2 * t.total for t in loaded(model))
        assert tp * dp * rank_weight_bytes(model, plan) == expected


@pytest.mark.parametrize("fmt", ["fp8", "int8", "fp8_block", "int4"])
def test_quantized_ranks_hold_at_least_the_total(spec: ModelSpec, fmt: str, toy_gpu: Gpu) -> None:
    """A cut can split a group of one scale: the ranks together hold the model's bytes or a little more, never less."""
    one = rank_weight_bytes(spec, make_plan(spec, toy_gpu, 1, weights=fmt))
    assert one == weight_bytes(spec, fmt)
    for tp in (2, 4):
        assert tp * rank_weight_bytes(spec, make_plan(spec, toy_gpu, tp, weights=fmt)) >= one


@given(st.integers(1, 300), st.integers(1, 64))
def test_stages_cover_all_layers_once_and_evenly(layers: int, stages: int) -> None:
    """Stages are neighbours that cover every layer, their sizes differ by one at most, and the last is a small one."""
    if stages > layers:
        return
    found = stage_layers(layers, stages)
    assert [i for stage in found for i in stage] == list(range(layers))
    sizes = [len(stage) for stage in found]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(22, 4, [5, 6, 6, 5]), (61, 2, [31, 30]), (61, 4, [15, 15, 16, 15]), (5, 3, [2, 2, 1]), (4, 3, [1, 2, 1])],
)
def test_left_over_layers_go_before_the_last_stage(layers: int, stages: int, sizes: list[int]) -> None:
    """The split is vLLM's get_pp_indices: 61 layers are 31 + 30 and 15 + 15 + 16 + 15; 4 over 3 are 1 + 2 + 1."""
    assert [len(stage) for stage in stage_layers(layers, stages)] == sizes


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_pipeline_stages_hold_the_whole_model(spec: ModelSpec, pp: int, toy_gpu: Gpu) -> None:
    """The stages' bytes add up to the model's, a tied embedding once more where first and last stage are two."""
    plan = make_plan(spec, toy_gpu, pp=pp)
    stages = [stage_weight_bytes(spec, plan, stage) for stage in range(pp)]
    again = 2 * spec.vocab_size * spec.hidden_size if spec.tied_embeddings and pp > 1 else 0
    assert sum(stages) == weight_bytes(spec, "bf16") + again
    assert rank_weight_bytes(spec, plan) == max(stages)


def test_each_stage_counts_its_own_layers(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """One dense layer in front of three with experts: the stages differ by exactly what they hold."""
    attention = {"a": {"kind": "gqa", "heads": 4, "kv_heads": 4, "head_dim": 32}}
    ffn = {
        "f": {"kind": "dense", "intermediate_size": 256},
        "m": {"kind": "moe", "experts": 16, "experts_per_token": 2, "intermediate_size": 128},
    }
    model = build_model(attention=attention, ffn=ffn, layers=[[1, ["a/f"]], [3, ["a/m"]]])
    plan = make_plan(model, toy_gpu, pp=2)
    common = 4 * 128 * 128 + 2 * 128  # q, k, v, o and two norms
    dense, moe = 3 * 128 * 256, 16 * 3 * 128 * 128 + 16 * 128  # experts and router
    outer = 512 * 128  # embedding or head
    assert stage_weight_bytes(model, plan, 0) == 2 * (outer + 2 * common + dense + moe)
    assert stage_weight_bytes(model, plan, 1) == 2 * (outer + 128 + 2 * common + 2 * moe)
    assert rank_weight_bytes(model, plan) == stage_weight_bytes(model, plan, 1)


def test_vision_and_mtp_lie_at_the_ends(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """Vision parts are whole on the first stage; MTP layers on the last, when they are asked for."""
    parts = {
        "attention": {"a": {"kind": "gqa", "heads": 4, "kv_heads": 4, "head_dim": 32}},
        "ffn": {"f": {"kind": "dense", "intermediate_size": 256}},
        "layers": [[4, ["a/f"]]],
    }
    bare = build_model(**parts)
    seeing = build_model(**parts, extra_tensors=[{"name": "tower", "role": "vision", "shape": [1000, 10], "count": 3}])
    plan = make_plan(bare, toy_gpu, tp=2, pp=2)
    for stage, more in ((0, 2 * 30_000), (1, 0)):
        assert stage_weight_bytes(seeing, plan, stage) - stage_weight_bytes(bare, plan, stage) == more
    drafting = build_model(**parts, mtp={"layers": 1, "layer": "a/f", "own_embedding": True})
    layer = (4 * 128 * 128 + 3 * 128 * 256) // 2 + 2 * 128  # matrices cut in two, norms whole
    own = 3 * 128 + 128 * 256 + 2 * 512 * 128 // 2  # three norms, the projection, embedding and head cut in two
    for stage, more in ((0, 0), (1, 2 * (layer + own))):
        with_mtp = stage_weight_bytes(drafting, plan, stage, mtp=True)
        assert with_mtp - stage_weight_bytes(bare, plan, stage) == more
        assert stage_weight_bytes(drafting, plan, stage) == stage_weight_bytes(bare, plan, stage)


def test_replicated_kv_heads_of_an_mtp_layer(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """An MTP layer is cut as the layers are: two KV heads on four ranks are one whole head each."""
    model = build_model(
        attention={"a": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 32}},
        ffn={"f": {"kind": "dense", "intermediate_size": 256}}, layers=[[2, ["a/f"]]], mtp={"layer": "a/f"},
    )  # fmt: skip
    plan = make_plan(model, toy_gpu, tp=4)
    attention = 2 * 32 * 128 + 2 * 32 * 128  # one query head, its columns of o; one whole K and V head
    layer = attention + 3 * 64 * 128 + 2 * 128
    mtp = rank_weight_bytes(model, plan, mtp=True) - rank_weight_bytes(model, plan)
    assert mtp == 2 * (layer + 3 * 128 + 128 * 256)


def test_kv_cache_of_a_stage_is_its_layers(structures: dict[str, ModelSpec], toy_gpu: Gpu) -> None:
    """Windowed and full layers alternate: each of four stages holds its own layer's cache, the whole is their sum."""
    model, context = structures["windows"], 1000.0
    plan = make_plan(model, toy_gpu, pp=4)
    token = 4 * (16 + 16) * 2  # 4 KV heads, K and V of 16, two bytes
    stages = [rank_kv_bytes(model, plan, 3.0, context, stage) for stage in range(4)]
    assert stages == [3 * token * 16, 3 * token * 1000, 3 * token * 16, 3 * token * 1000]
    assert rank_kv_bytes(model, plan, 3.0, context) == max(stages)
    assert rank_kv_bytes(model, make_plan(model, toy_gpu), 3.0, context) == sum(stages)


def test_memory_takes_the_fullest_stage(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """The stage with the largest sum of weights and cache decides, not the one with the largest weights.

    Three stages: a windowed layer with the embedding, a full one alone, a windowed one with the head. At a long context
    the one in the middle has the least weights and the most cache.
    """
    full = {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_dim": 16}
    model = build_model(
        attention={"w": full | {"window": 16}, "a": full}, ffn={"f": {"kind": "dense", "intermediate_size": 192}},
        layers=[[1, ["w/f", "a/f", "w/f"]]],
    )  # fmt: skip
    plan = make_plan(model, toy_gpu, pp=3)
    weights = [stage_weight_bytes(model, plan, stage) for stage in range(3)]
    caches = [rank_kv_bytes(model, plan, 3.0, 4000.0, stage) for stage in range(3)]
    assert weights[1] < min(weights[0], weights[2])
    found = memory(model, toy_gpu, plan, 3.0, 4000.0, 16.0)
    assert (found.weights, found.kv) == (weights[1], caches[1])


def test_latent_cache_is_whole_on_every_rank_and_heads_are_cut_to_one(
    structures: dict[str, ModelSpec], toy_gpu: Gpu
) -> None:
    """TP does not cut a latent cache; it cuts KV heads down to one whole head and no further; DP cuts sequences."""

    def held(name: str, tp: int, dp: int = 1) -> float:
        model = structures[name]
        return rank_kv_bytes(model, make_plan(model, toy_gpu, tp, dp=dp), 8.0, 100.0)

    assert [held("mla", tp) / held("mla", 1) for tp in (2, 4, 8)] == [1, 1, 1]
    assert [held("gqa", tp) / held("gqa", 1) for tp in (2, 4, 8)] == [1 / 2, 1 / 4, 1 / 4]
    assert [held("mqa", tp) / held("mqa", 1) for tp in (2, 4, 8)] == [1, 1, 1]
    assert [held("gqa", 1, dp) / held("gqa", 1) for dp in (2, 3, 16)] == [1 / 2, 3 / 8, 1 / 8]


KERNELS = ("attention", "mla", "recurrent")


def total(ops: list[Op], keep: Callable[[Op], bool]) -> float:
    return float(sum(op.cost().matrix_flops for op in ops if keep(op)))


def linear_flops(model: ModelSpec, plan: Plan, step: Step) -> float:
    """FLOPs of all ranks' matrix products with weights: two a weight, token and copy."""
    ffns = {c.name: c.ffn for c in model.layer_classes}
    found = 0.0
    for t in loaded(model):
        if len(t.shape) == 1 or t.role in ("embedding", "vision", "projector", "conv", "state", "compressor_bias"):
            continue
        rows = float(step.batch * step.logits) if t.role == "lm_head" else float(step.tokens)
        if t.shard in EXPERT:
            ffn = ffns[t.layer]
            assert isinstance(ffn, Moe)
            rows *= ffn.experts_per_token / ffn.experts
            found += 2 * t.total * rows
        else:
            found += 2 * t.total * rows * copies(t, model, plan) / plan.dp
    if model.tied_embeddings:
        found += 2 * model.vocab_size * model.hidden_size * float(step.batch * step.logits)
    return found


@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("make", [prefill, decode])
def test_flops_of_all_ranks_are_the_model_s_and_the_replicas(
    spec: ModelSpec, tp: int, make: Callable[[float, float], Step], toy_gpu: Gpu
) -> None:
    """Each weight meets each token once, a replicated one on every rank that holds it; attention is not replicated."""
    step = make(4.0, 32.0)
    plan = make_plan(spec, toy_gpu, tp)
    links = Topology(bandwidth={"scale_up": 1e11})
    ops, alone = graph(spec, step, plan, links), graph(spec, step, make_plan(spec, toy_gpu))
    assert np.isclose(tp * total(ops, lambda op: op.kind not in KERNELS), linear_flops(spec, plan, step), rtol=1e-14)
    for name, replicas in (("attention", 1), ("indexer", tp)):  # the small scorer runs whole on every rank
        whole = total(alone, lambda op, n=name: op.name == n)
        assert tp * total(ops, lambda op, n=name: op.name == n) == replicas * whole


@pytest.mark.parametrize(("tp", "dp", "ep"), [(1, 4, 4), (2, 2, 4), (2, 4, 4), (4, 1, 4), (1, 8, 8)])
def test_expert_flops_of_all_ranks_are_those_of_one(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, tp: int, dp: int, ep: int
) -> None:
    """However experts are spread, all ranks together multiply every token with its chosen experts once."""
    model, step = structures["moe"], prefill(8.0, 32.0)
    links = Topology(bandwidth={"scale_up": 1e11})

    def experts(plan: Plan) -> float:
        ops = graph(model, step, plan, links)
        return total(ops, lambda op: op.kind == "grouped_gemm") * plan.tp * plan.dp

    assert np.isclose(experts(make_plan(model, toy_gpu, tp, 1, ep, dp)), experts(make_plan(model, toy_gpu)), rtol=1e-14)


@settings(max_examples=20)
@given(tp=st.sampled_from(DEGREES), fmt=st.sampled_from(["bf16", "fp8", "int4"]))
@pytest.mark.parametrize("absorbed", [False, True])
def test_a_step_reads_every_weight_matrix_once(
    spec: ModelSpec, absorbed: bool, tp: int, fmt: str, toy_gpu: Gpu
) -> None:
    """Weight traffic of a step is the rank's weights less norms and embedding, plus the embedding rows gathered."""
    batch = 2.0**20  # so many tokens that every expert is chosen
    plan = make_plan(spec, toy_gpu, tp, weights=fmt)
    step = decode(batch, 1.0) if absorbed else prefill(batch, 1.0)
    moved = sum(float(op.cost().hbm.get("weights", 0.0)) for op in graph(spec, step, plan, Topology()))
    table = 2 * spec.vocab_size // tp * spec.hidden_size
    small = ["norm", "qk_norm", "sinks", "mixer_norm", "compressor_bias", *([] if spec.name == "mamba1" else ["state"])]
    vectors = sum(2 * t.total / (tp if t.shard in ("out", "parts") else 1) for t in loaded(spec) if t.role in small)
    held = rank_weight_bytes(spec, plan) + (table if spec.tied_embeddings else 0)  # the head reads the table
    assert np.isclose(moved, held - table - vectors + batch * spec.hidden_size * 2, rtol=1e-14)


def test_data_parallel_ranks_take_a_share_of_the_sequences(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """Seven sequences over two replicas: the fuller one has four; over two stages of microbatches again the larger."""
    model = structures["gqa"]
    for degrees, batch in (({"dp": 2}, 4.0), ({"pp": 2}, 4.0), ({"dp": 2, "pp": 2}, 2.0)):
        plan = make_plan(model, toy_gpu, **degrees)
        ops = {op.name: op for op in graph(model, decode(7.0, 10.0), plan, Topology())}
        assert ops["qkv_proj"].inputs["m"] == batch
