"""What a GPU must send in a collective: closed forms, limits, and groups that are wider than a scale-up domain."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.collectives import all_gather, all_reduce, expert_exchange, send
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Plan, decode, prefill
from perfmodel.roofline.times import Rates
from perfmodel.roofline.topology import place

SIZE = st.integers(1, 2**40).map(float)
DOMAINS = st.tuples(st.integers(1, 64), st.integers(2, 16)).map(lambda x: (float(x[0]), float(x[0] * x[1])))


@given(SIZE, st.integers(2, 1024).map(float))
def test_all_reduce_lies_between_one_way_and_the_ring(size: float, ranks: float) -> None:
    """Each rank sends at least what the others lack, S(n-1)/n, and at most a ring's 2 S(n-1)/n."""
    ring = float(all_reduce(size, ranks, "scale_up", False).sent)
    switch = float(all_reduce(size, ranks, "scale_up", True).sent)
    least = size * (ranks - 1) / ranks
    assert ring == pytest.approx(2 * least, rel=1e-12)
    assert least * (1 - 1e-12) <= switch <= min(size, ring) * (1 + 1e-12)


def test_one_rank_sends_nothing() -> None:
    """A group of one has nothing to send in any collective."""
    assert all_reduce(8.0, 1.0, "scale_up", False).sent == 0
    assert all_reduce(8.0, 1.0, "scale_up", True).sent == 0
    assert all_gather(8.0, 1.0, "scale_up").sent == 0
    assert expert_exchange(8.0, 2.0, 1.0, 4.0, "scale_up").sent == 0


@given(SIZE, DOMAINS)
def test_two_levels_send_as_much_as_one_flat_group(size: float, domain: tuple[float, float]) -> None:
    """Over several domains the bytes of a rank are those of a flat group; what crosses the network is 1/inside of a
    ring of domains."""
    inside, ranks = domain
    domains = ranks / inside
    for flat, split, ring in (
        (all_reduce(size, ranks, "scale_up", False), all_reduce(size, ranks, "scale_up", False, inside), 2.0),
        (all_gather(size, ranks, "scale_up"), all_gather(size, ranks, "scale_up", inside), 1.0),
    ):
        assert float(split.sent) == pytest.approx(float(flat.sent), rel=1e-12)
        assert split.comm["scale_out"] == pytest.approx(ring * (domains - 1) / domains * size / inside, rel=1e-12)


@given(st.integers(1, 10**6).map(float), st.integers(1, 16).map(float), DOMAINS)
def test_expert_rows_cross_the_network_once_a_domain(tokens: float, chosen: float, domain: tuple[float, float]) -> None:
    """Rows sent are those of a flat exchange; at most one a domain, and one a chosen expert, cross the network."""
    inside, ranks = domain
    domains = ranks / inside
    flat = expert_exchange(tokens, chosen, ranks, 1.0, "scale_up")
    split = expert_exchange(tokens, chosen, ranks, 1.0, "scale_up", inside)
    assert float(split.sent) == pytest.approx(float(flat.sent), rel=1e-9)
    assert split.comm["scale_up"] >= -1e-9 * tokens
    assert split.comm["scale_out"] <= tokens * min(domains - 1, chosen) * (1 + 1e-12)
    assert split.comm["scale_out"] <= flat.comm["scale_up"] * (1 + 1e-12)


def test_hand_arithmetic_of_an_exchange() -> None:
    """2 experts on 4 ranks: 3 (1 - (3/4)^2) = 1.3125 other ranks; over 2 domains 1 (1 - (1/2)^2) = 0.75 cross."""
    assert expert_exchange(1.0, 2.0, 4.0, 1000.0, "scale_up").comm == {"scale_up": 1312.5}
    assert expert_exchange(1.0, 2.0, 4.0, 1000.0, "scale_up", 2.0).comm == {"scale_up": 562.5, "scale_out": 750.0}


def test_a_stage_hands_on_a_part_a_rank() -> None:
    """Two tensor-parallel ranks send half of the activations each."""
    assert send(100.0, 2.0, "scale_out").comm == {"scale_out": 50.0}


def comm(ready: Setup, name: str) -> dict[str, float]:
    for op in graph(ready.model, prefill(8.0, 16.0), ready.plan, ready.topology):
        if op.name == name:
            return dict(op.unit_cost.comm)
    raise AssertionError(f"no {name}")


def test_tensor_parallelism_wider_than_a_domain(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """TP 8 over domains of 4: S = 8 x 16 x 128 x 2 B; 2 (3/4) S inside, 2 (1/2) S/4 across; each at its own rate."""
    ready = setup(structures["gqa"], toy_gpu, tp=8, system=toy_system)
    size = 8 * 16 * 128 * 2
    assert comm(ready, "attention_all_reduce") == {"scale_up": 1.5 * size, "scale_out": size / 4}
    # 49,152 B at 100 GB/s and 8,192 B at 10 GB/s: the network decides
    op = next(o for o in graph(ready.model, prefill(8.0, 16.0), ready.plan, ready.topology) if o.kind == "collective")
    rates = Rates(toy_gpu, ready.topology)
    assert rates.limiter(op.unit_cost) == "scale_out"
    assert rates.bound(op.unit_cost) == pytest.approx(8192 / 10e9, rel=1e-12)


def test_a_group_within_a_domain_stays_off_the_network(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """TP 4 on a domain of 4 sends over the scale-up link alone, though data parallelism fills more nodes."""
    ready = setup(structures["gqa"], toy_gpu, tp=4, dp=4, system=toy_system)
    assert set(comm(ready, "attention_all_reduce")) == {"scale_up"}
    assert set(comm(ready, "logits_all_gather")) == {"scale_up"}


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "inside", "across"),
    [(1, 4, 1, 3, 0), (2, 4, 1, 2, 1), (4, 2, 1, 0, 1), (8, 2, 1, 0, 1), (2, 2, 4, 1, 0), (1, 3, 1, 2, 0)],
)
def test_only_borders_between_domains_cross_the_network(
    structures: dict[str, ModelSpec],
    toy_gpu: Gpu,
    toy_system: System,
    tp: int,
    pp: int,
    dp: int,
    inside: int,
    across: int,
) -> None:
    """Stages of 2 GPUs fit a domain of 4 in pairs: of three borders two lie inside and one crosses."""
    ready = setup(structures["gqa"], toy_gpu, tp=tp, pp=pp, dp=dp, system=toy_system)
    ops = {op.name: op for op in graph(ready.model, decode(8.0, 16.0), ready.plan, ready.topology)}
    assert ops["pipeline_send"].count == inside if inside else "pipeline_send" not in ops
    assert ops["pipeline_send_out"].count == across if across else "pipeline_send_out" not in ops


def test_experts_exchange_only_where_tokens_are_spread(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """EP over data-parallel ranks sends tokens to their experts and back; EP over TP ranks needs no exchange."""

    def names(**degrees: int) -> set[str]:
        ready = setup(structures["moe"], toy_gpu, system=toy_system, **degrees)
        return {op.name for op in graph(ready.model, prefill(8.0, 16.0), ready.plan, ready.topology)}

    exchange = {"experts_dispatch", "experts_return"}
    assert exchange <= names(dp=4, ep=4)
    assert not exchange & names(tp=4, ep=4)
    assert "ffn_all_reduce" in names(tp=4, ep=4)
    wide = setup(structures["moe"], toy_gpu, dp=8, ep=8, system=toy_system)
    assert set(comm(wide, "experts_dispatch")) == {"scale_up", "scale_out"}


def test_tensor_parallel_ranks_share_the_sending_of_rows(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """TP 2 x DP 2, EP 4: a rank has 4 x 16 tokens and sends half of them, its TP partner the other half.

    Each row of 128 x 2 B goes to 3 (1 - (3/4)^2) = 1.3125 other ranks; combining reads the 2 rows of every token here.
    """
    ready = setup(structures["moe"], toy_gpu, tp=2, dp=2, ep=4, system=toy_system)
    assert comm(ready, "experts_dispatch") == {"scale_up": 4 * 16 / 2 * 1.3125 * 256}
    ops = {op.name: op for op in graph(ready.model, prefill(8.0, 16.0), ready.plan, ready.topology)}
    assert ops["experts_combine"].unit_cost.hbm["act_read"] == 4 * 16 * 2 * 128 * 2
    # without an exchange a rank of EP 4 has a quarter of each token's two rows
    alone = setup(structures["moe"], toy_gpu, tp=4, ep=4, system=toy_system)
    ops = {op.name: op for op in graph(alone.model, prefill(8.0, 16.0), alone.plan, alone.topology)}
    assert ops["experts_combine"].unit_cost.hbm["act_read"] == 8 * 16 * 2 / 4 * 128 * 2


@pytest.mark.parametrize("degrees", [{"tp": 8}, {"pp": 8}, {"dp": 8, "ep": 8}])
def test_a_group_that_leaves_a_domain_without_a_network_is_refused(
    build_model: Callable[..., ModelSpec], toy_gpu: Gpu, toy_system: System, degrees: dict[str, int]
) -> None:
    """Without a scale-out link nothing is guessed: the message names degree, domain, system and remedy."""
    lonely = toy_system.model_copy(update={"scale_out": None})
    name = "ep" if "ep" in degrees else next(iter(degrees))
    with pytest.raises(
        UsageError, match=f"{name} 8 leaves the 4 GPUs of toy-node.*no scale-out network.*stay within 4"
    ):
        place(Plan(**degrees), toy_gpu, lonely)
    place(Plan(tp=4, dp=8), toy_gpu, lonely)  # replicas do not talk to each other


def test_several_gpus_need_a_system(structures: dict[str, ModelSpec], toy_gpu: Gpu) -> None:
    """A GPU whose spec names no usual system cannot be multiplied without one."""
    with pytest.raises(UsageError, match="2 GPUs need a system that joins them; toy names none: give --system"):
        setup(structures["gqa"], toy_gpu, tp=2)
