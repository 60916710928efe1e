"""Costs of a round: against hand arithmetic, and the laws that they keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.roofline.clock import clock
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.speculative import drafts, rounds
from perfmodel.roofline.speculative.drafts import Draft


@pytest.fixture(scope="module")
def target() -> Setup:
    """Llama 3 70B on eight H100."""
    return setup("llama3-70b", "h100", tp=8)


def every_draft(target: Setup) -> list[Draft]:
    eagle = drafts.eagle(target, 3)
    return [
        drafts.independent(target, "llama3.2-1b"), drafts.eagle(target, 1), eagle, drafts.medusa(target),
        drafts.lookup(target), drafts.parallel(eagle), drafts.own_sparse(target, 512),
    ]  # fmt: skip


def test_eagle_1_weights_by_hand(target: Setup) -> None:
    """An EAGLE-1 head is one Llama layer and a 2d -> d matrix; embedding and LM head are the target's."""
    d, ffn, kv = 8192, 28672, 1024
    layer = 2 * d * d + 2 * d * kv + 3 * d * ffn  # q, o; k, v; gate, up, down
    norms = 3 * d  # two of the layer and the last one
    by_rank = 2 * (layer / 8 + norms) + 2 * 2 * d * d  # the fc is whole on every rank
    assert drafts.eagle(target, 1).weight_bytes == by_rank


def test_eagle_3_has_a_head_of_its_own(target: Setup) -> None:
    """EAGLE-3 adds an LM head of 32,000 tokens, a 3d -> d fusion and the embedding's half of QKV."""
    d, ffn, kv = 8192, 28672, 1024
    layer = 2 * d * d + 2 * d * kv + 3 * d * ffn
    more = 32_000 * d / 8 + (d + 2 * kv) * d / 8 + 3 * d * d
    assert drafts.eagle(target, 3).weight_bytes == 2 * (layer / 8 + 3 * d + more)


def test_medusa_weights_by_hand(target: Setup) -> None:
    """Each Medusa head is a d x d block and an LM head."""
    d = 8192
    assert drafts.medusa(target, 4).weight_bytes == 4 * 2 * (d * d + 128_256 * d) / 8


def test_mtp_layer_is_the_models_own() -> None:
    """DeepSeek-V3's MTP layer drafts with its 256 experts, and shares embedding and head as stored."""
    ready = setup("deepseek-v3", "h200", tp=8)
    found = drafts.mtp(ready)
    assert found.ready is not None
    assert found.ready.model.num_layers == 1
    names = [op.name for op in found.pass_ops(1.0, 1.0, 1000.0)]
    assert "experts_gate_up" in names
    assert "draft_eh_proj" in names


def test_lookup_costs_nothing(target: Setup) -> None:
    """A lookup has no operators, so the round is the verification alone."""
    got = rounds.measure(drafts.lookup(target), 8.0, 1000.0, rounds.chain_shape(4.0))
    assert got.draft.seconds == 0
    assert got.whole.seconds == got.verify.seconds


def test_verifying_one_token_less_is_a_decode_step(target: Setup) -> None:
    """Verification of no drafted token is a decode step: the same operators with the same costs."""
    ready = rounds.verification(target, 4.0, 0.0, 500.0)
    plain = rounds.timed(clock(target), ready[:-1]).seconds
    got = rounds.measure(drafts.lookup(target), 4.0, 500.0, rounds.chain_shape(0.0))
    assert plain == pytest.approx(float(got.plain.seconds))


def test_verification_shares_the_cache(target: Setup) -> None:
    """Five queries a sequence read the weights and the cache once: at batch 1 they cost hardly more than one."""
    got = rounds.measure(drafts.lookup(target), 1.0, 32_768.0, rounds.chain_shape(4.0))
    assert 1.0 <= float(got.verify_cost) < 1.05


def test_verification_stops_being_free(target: Setup) -> None:
    """At large batches verification needs the FLOPs that batching has used: its cost rises towards gamma + 1."""
    costs = [float(rounds.measure(drafts.lookup(target), float(b), 512.0, rounds.chain_shape(4.0)).verify_cost)
             for b in (1, 32, 128, 512)]  # fmt: skip
    assert costs == sorted(costs)
    assert costs[-1] > 3


def test_long_contexts_keep_it_cheap(target: Setup) -> None:
    """At batch 64 verification is relatively cheaper with a longer cache, which it reads once for all its tokens."""
    short, long = (
        float(rounds.measure(drafts.lookup(target), 64.0, context, rounds.chain_shape(4.0)).verify_cost)
        for context in (512.0, 32_768.0)
    )
    assert long < short


def test_experts_grow_with_verified_tokens() -> None:
    """In a mixture of experts five tokens wake more experts than one: verification is dearer than in a dense one."""
    moe = setup("qwen3-30b-a3b", "h100")
    got = rounds.measure(drafts.lookup(moe), 1.0, 512.0, rounds.chain_shape(4.0))
    # 8 of 128 experts a token: 128 (1 - (120/128)^5) = 35.3 distinct ones, 4.4 times as many
    assert 2 < float(got.verify_cost) < 5


def test_concurrent_draft_hides_the_shorter(target: Setup) -> None:
    """On a device of its own the draft hides behind verification: the round is the longer of the two."""
    draft = drafts.independent(target, "llama3.2-1b")
    got = rounds.measure(draft, 1.0, 1000.0, rounds.chain_shape(4.0), concurrent=True)
    assert float(got.whole.seconds) == max(float(got.draft.seconds), float(got.verify.seconds))


def test_host_time_counts_once_a_round_and_once_a_pass(target: Setup) -> None:
    """The engine's own time adds to the plain step, to the round, and to each draft pass."""
    draft = drafts.independent(target, "llama3.2-1b")
    bare = rounds.measure(draft, 1.0, 1000.0, rounds.chain_shape(4.0))
    slow = rounds.measure(draft, 1.0, 1000.0, rounds.chain_shape(4.0), host=rounds.Host(1e-3, 2e-3, 1e-4))
    assert float(slow.plain.seconds - bare.plain.seconds) == pytest.approx(1e-3)
    assert float(slow.whole.seconds - bare.whole.seconds) == pytest.approx(2e-3 + 4 * 1e-4)


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 512), context=st.integers(1, 100_000), gamma=st.integers(1, 16), which=st.integers(0, 6))
def test_laws(batch: int, context: int, gamma: int, which: int) -> None:
    """A round costs at least a plain step and grows with gamma; a vector gives what scalars give."""
    ready = setup("llama3-70b", "h100", tp=8)
    draft = every_draft(ready)[which]
    for fidelity in ("bound", "calibrated"):
        timer = clock(ready, fidelity)
        shape = rounds.chain_shape(np.array([float(gamma), gamma + 1.0]))
        got = rounds.measure(draft, float(batch), float(context), shape, clock=timer)
        cost = np.broadcast_to(np.asarray(got.cost), (2,))
        assert cost[0] >= 1 - 1e-9
        assert cost[1] >= cost[0] * (1 - 1e-9)
        alone = rounds.measure(draft, float(batch), float(context), rounds.chain_shape(float(gamma)), clock=timer)
        assert cost[0] == pytest.approx(float(alone.cost), rel=1e-12)


def test_errors_of_the_ratio_are_smaller_than_of_the_times(target: Setup) -> None:
    """Plain step and verification share their kernels' errors, so the cost of a round is surer than either time."""
    timer = clock(target, "calibrated")
    got = rounds.measure(drafts.lookup(target), 8.0, 1000.0, rounds.chain_shape(4.0), clock=timer)
    alone = np.hypot(sum(got.plain.shared.values()), got.plain.own) / got.plain.seconds
    assert 0 < float(got.spread) < float(alone)
    low, high = got.interval(3.0)
    assert low < got.speedup(3.0) < high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: drafts.independent(t, "qwen3-0.6b"), "a draft needs the target's vocabulary"),
        (lambda t: drafts.mtp(t), "has no multi-token-prediction layer"),
        (lambda t: drafts.eagle(t, 4), "EAGLE 4 is not known"),
        (lambda t: drafts.medusa(t, 0), "0 Medusa heads; 1 to 16"),
        (lambda t: drafts.parallel(drafts.lookup(t)), "no layers to run over mask tokens"),
    ],
)
def test_drafts_that_cannot_be(target: Setup, call: object, message: str) -> None:
    """A draft that the target cannot use is refused with the reason."""
    with pytest.raises(UsageError, match=message):
        call(target)  # type: ignore[operator]
