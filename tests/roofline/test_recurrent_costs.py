"""Laws and hand arithmetic of recurrent mixers' costs: the state moves once, work grows with tokens, pieces add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.counts import layer_state_bytes, recurrent_part, state_bytes
from perfmodel.modelspecs.load import MODELS, model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.schema_recurrent import Mamba2
from perfmodel.roofline import recurrent
from perfmodel.roofline.flops import crossovers, flops_per_token, layer_work
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import rank_state_bytes
from perfmodel.roofline.step import Plan, Step, chunked_prefill, decode, make_plan, prefill, verify
from perfmodel.roofline.topology import Topology

BUILT_IN = [name for name in MODELS.names if state_bytes(model(name))]
EACH = pytest.mark.parametrize("name", BUILT_IN)
ONE_LINK = Topology(bandwidth={"scale_up": 1e11})


def stateful(spec: ModelSpec, step: Step, plan: Plan | None = None) -> list[Op]:
    """Scans and convolutions of a step."""
    return [op for op in graph(spec, step, plan or Plan(), ONE_LINK) if op.kind in ("recurrent", "conv")]


def stream(ops: list[Op], name: str) -> float:
    return float(sum(op.cost().hbm.get(name, 0.0) for op in ops))


def test_there_are_built_ins() -> None:
    """Eighteen built-ins keep a state, among them all that are named in the documentation."""
    assert len(BUILT_IN) >= 18


@EACH
def test_decode_reads_and_writes_the_state_once(name: str) -> None:
    """A decoded token moves exactly the state that ``state_bytes`` counts, in and out, at any context."""
    spec = model(name)
    for context in (2.0, 100_000.0):
        ops = stateful(spec, decode(3.0, context))
        assert stream(ops, "kv_read") == 3 * state_bytes(spec)
        assert stream(ops, "kv_write") == 3 * state_bytes(spec)


@EACH
def test_a_new_prompt_has_no_state_to_read(name: str) -> None:
    """Prefill from the first token on writes the state and reads none; a later piece of the prompt reads it too."""
    spec = model(name)
    whole, piece = stateful(spec, prefill(2.0, 700.0)), stateful(spec, chunked_prefill(2.0, 700.0, 300.0))
    assert (stream(whole, "kv_read"), stream(whole, "kv_write")) == (0, 2 * state_bytes(spec))
    assert (stream(piece, "kv_read"), stream(piece, "kv_write")) == (2 * state_bytes(spec), 2 * state_bytes(spec))


@EACH
def test_decode_does_not_depend_on_the_context(name: str) -> None:
    """A recurrent layer costs the same after ten tokens and after a hundred thousand."""
    spec = model(name)
    near, far = stateful(spec, decode(4.0, 10.0)), stateful(spec, decode(4.0, 1e5))
    assert [op.cost() for op in near] == [op.cost() for op in far]


@EACH
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_share_the_state(name: str, tp: int) -> None:
    """TP cuts the state by heads: all ranks hold it once, but for groups of B and C that are copied."""
    spec, plan = model(name), Plan(tp=tp)
    mine, whole = rank_state_bytes(spec, plan), state_bytes(spec)
    copied = 0.0
    for layer in spec.layer_classes:
        part = recurrent_part(layer)
        if isinstance(part, Mamba2) and part.groups < tp:
            copied += layer.count * 2 * 2 * part.conv_columns * part.state * (tp - part.groups)
    assert tp * mine == whole + copied
    assert stream(stateful(spec, decode(1.0, 50.0), plan), "kv_read") == mine


def test_stages_share_the_state() -> None:
    """PP splits the layers: the fullest stage of Jamba's four has 7 of 28 recurrent layers."""
    spec = model("jamba-v0.1")
    one = layer_state_bytes(spec.layer_class("mamba/dense"))
    assert rank_state_bytes(spec, Plan(pp=4)) == 7 * one == state_bytes(spec) / 4
    assert [rank_state_bytes(spec, Plan(pp=32), stage) / one for stage in range(8)] == [1, 1, 1, 1, 0, 1, 1, 1]


@EACH
@settings(max_examples=10)
@given(blocks=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_pieces_of_whole_blocks_do_the_scan_of_the_whole(name: str, blocks: list[int]) -> None:
    """Chunked prefill in whole blocks does exactly the scan's matrix FLOPs of the prompt at once."""
    spec, done, pieces = model(name), 0.0, 0.0
    sizes = [getattr(recurrent_part(layer), "scan_chunk", 1) for layer in spec.layer_classes]
    for count in blocks:
        q = float(count * max(sizes))
        pieces += sum(float(op.cost().matrix_flops) for op in stateful(spec, chunked_prefill(1.0, q, done)))
        done += q
    whole = sum(float(op.cost().matrix_flops) for op in stateful(spec, prefill(1.0, done)))
    assert np.isclose(pieces, whole, rtol=1e-12)


@EACH
@settings(max_examples=15)
@given(q=st.integers(1, 5000), more=st.integers(1, 5000), batch=st.integers(1, 64))
def test_more_tokens_are_never_less_work(name: str, q: int, more: int, batch: int) -> None:
    """FLOPs, exponentials and traffic grow with the prompt and with the batch."""
    spec = model(name)

    def work(b: float, tokens: float) -> list[float]:
        costs = [op.cost() for op in stateful(spec, prefill(b, tokens))]
        return [float(sum(c.flops for c in costs)), float(sum(c.ops.get("exp", 0.0) for c in costs)),
                float(sum(c.bytes for c in costs))]  # fmt: skip

    small, longer, wider = work(batch, q), work(batch, q + more), work(batch + 1, q)
    assert all(a <= b for a, b in zip(small, longer, strict=True))
    assert all(a <= b for a, b in zip(small, wider, strict=True))


@EACH
def test_a_sweep_is_its_numbers(name: str) -> None:
    """Arrays of batches and lengths cost what each of their numbers costs."""
    spec = model(name)
    batch, length = np.array([1.0, 7.0, 64.0]), np.array([1.0, 300.0, 4096.0])
    for make in (prefill, decode):
        swept = stateful(spec, make(batch, length))
        for i in range(3):
            alone = stateful(spec, make(float(batch[i]), float(length[i])))
            for many, one in zip(swept, alone, strict=True):
                for part in ("flops", "bytes"):
                    found = np.broadcast_to(np.asarray(getattr(many.cost(), part)), (3,))[i]
                    assert np.isclose(found, float(getattr(one.cost(), part)), rtol=1e-13)


@EACH
def test_every_operator_can_be_explained(name: str) -> None:
    """The traced cost of each operator has the value of its cost, and an expression in its inputs."""
    for step in (prefill(2.0, 300.0), decode(2.0, 300.0)):
        for op in stateful(model(name), step):
            traced, plain = op.traced_cost(), op.unit_cost
            assert {key: float(value) for key, value in traced.hbm.items()} == pytest.approx(
                {key: float(value) for key, value in plain.hbm.items()}
            )
            assert "batch" in traced.hbm["kv_write"].symbols()  # type: ignore[union-attr]


def test_verification_takes_the_step_form() -> None:
    """Three drafted tokens and one more pass the state four times in registers, and move it once."""
    spec = model("mamba-codestral-7b")
    one, four = stateful(spec, decode(1.0, 100.0)), stateful(spec, verify(1.0, 3.0, 100.0))
    assert [op.name for op in one] == [op.name for op in four] == ["conv1d", "ssd_step"]
    assert stream(one, "kv_read") == stream(four, "kv_read")
    assert float(four[1].cost().flops) == 4 * float(one[1].cost().flops)


def test_mamba_2_by_hand() -> None:
    """128 heads of 64 x 128, 8 groups, a prompt of two blocks of 256."""
    cost = recurrent.ssd_scan(1.0, 512.0, 512.0, 128.0, 8.0, 64.0, 128.0, 256.0, 4.0, 2.0, "bf16")
    pairs, state = 2 * 256 * 257 / 2, 64 * 128
    scores = 2 * pairs * (8 * 128 + 128 * 64)  # C B^T a group, times x a head
    assert cost.matrix_flops == scores + 2 * 128 * state * (512 + 256)  # all add to S, the second block reads it
    assert cost.ops["exp"] == 128 * pairs
    assert cost.hbm["kv_write"] == 128 * state * 4
    assert cost.hbm["act_read"] == 512 * (128 * 64 + 2 * 8 * 128 + 128) * 2


def test_delta_step_by_hand() -> None:
    """32 value heads of 128 x 128: seven operations an element of the state; at 32 bits 2 MiB in and 2 MiB out."""
    cost = recurrent.delta_step(1.0, 1.0, 9.0, 16.0, 32.0, 128.0, 128.0, 0.0, 4.0, 2.0)
    elements = 32 * 128 * 128
    assert cost.ops["vector"] == 7 * elements + 2 * 32 * 128 + 8 * 16 * 128  # and beta (v - S^T k), norms of q and k
    assert cost.hbm["kv_read"] == cost.hbm["kv_write"] == 4 * elements == 2 * 2**20
    assert cost.matrix_flops == 0


def test_selective_scan_by_hand() -> None:
    """Mamba's scan: an exponential and six operations for each of 16 elements a channel, none on the matrix units."""
    cost = recurrent.selective_scan(1.0, 10.0, 10.0, 8192.0, 16.0, 1000.0, 4.0, 2.0)
    assert cost.ops["exp"] == 10 * 8192 * (16 + 2)
    assert cost.ops["vector"] == 10 * 8192 * (6 * 16 + 8)
    assert (cost.matrix_flops, cost.hbm["weights"], cost.hbm["kv_read"]) == (0, 1000.0, 0)


def test_convolution_by_hand() -> None:
    """Four taps and SiLU on 10240 channels of five tokens; three columns of each channel are kept."""
    cost = recurrent.causal_conv(1.0, 5.0, 50.0, 10240.0, 4.0, 3.0, 1000.0, 2.0, 2.0, 1.0)
    assert cost.ops["vector"] == 5 * 10240 * (2 * 4 + 2)
    assert cost.hbm["kv_read"] == 10240 * 3 * 2


def test_graph_of_a_layer_that_is_one_part() -> None:
    """A mixer layer of Nemotron-H has no feed-forward operators, a feed-forward layer no mixer's, and each one norm."""
    ops = graph(model("nemotron-h-56b"), prefill(1.0, 8.0), Plan())
    layers = {layer: [op.name for op in ops if op.layer == layer] for layer in {op.layer for op in ops if op.layer}}
    assert layers["mamba/none"] == ["norm", "in_proj", "conv1d", "ssd_scan", "gated_norm", "out_proj"]
    assert layers["none/mlp"] == ["norm", "up_proj", "activation", "down_proj"]
    assert layers["full/none"] == ["norm", "qkv_proj", "kv_write", "attention", "o_proj"]
    assert {op.layer: op.count for op in ops if op.name == "norm"} == {
        "mamba/none": 54,
        "none/mlp": 54,
        "full/none": 10,
    }


def test_latent_experts_are_cheaper() -> None:
    """Nemotron 3 Super: an expert's GEMM takes 1024 of 4096 features, the projections to and fro are counted."""
    ops = {op.name: op for op in graph(model("nemotron-3-super-120b-a12b"), decode(1.0, 8.0), Plan())}
    assert (ops["experts_up"].inputs["k"], ops["experts_down"].inputs["n"]) == (1024, 1024)
    assert (ops["latent_in_proj"].inputs["n"], ops["latent_out_proj"].inputs["k"]) == (1024, 1024)
    assert ops["shared_up_proj"].inputs["k"] == 4096


def test_flops_of_a_token_are_twice_the_active_matrices() -> None:
    """Without attention a decoded token's matrix FLOPs are two a weight of its matrices, whatever the context."""
    spec = model("mamba-codestral-7b")
    matrices = 64 * (18560 * 4096 + 4096 * 8192) + 32768 * 4096
    assert flops_per_token(spec, 1) == flops_per_token(spec, 10**6) == 2 * matrices


def test_a_mamba_model_has_no_crossover() -> None:
    """Where nothing scores pairs of tokens, attention never passes other work, and scans count as linear."""
    spec = model("mamba-codestral-7b")
    assert crossovers(spec).ffn == crossovers(spec).ffn_with_projections == float("inf")
    work = layer_work(spec, 4096)
    assert (work.scores, work.ffn) == (0, 0)
    assert work.projections > 2 * 4096 * 64 * (18560 * 4096 + 4096 * 8192)


@pytest.mark.parametrize(
    ("name", "tp", "message"),
    [
        ("mamba-codestral-7b", 3, "tp 3 does not divide the 128 state-space heads"),
        ("mamba-codestral-7b", 256, "tp 256 does not divide the 128 state-space heads"),
        ("qwen3-next-80b-a3b", 64, "tp 64 does not divide the 32 value heads"),
        ("jamba-v0.1", 3, "tp 3 does not divide the 8192 channels"),
        ("falcon-h1-7b", 5, "tp 5 does not divide the 24 state-space heads"),
    ],
)
def test_degrees_that_do_not_divide_the_mixer(name: str, tp: int, message: str) -> None:
    """Tensor parallelism must divide heads, and is refused with what it does not divide."""
    with pytest.raises(UsageError, match=message):
        make_plan(model(name), gpu("h100"), tp)
