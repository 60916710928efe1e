"""Whether speculation pays: against brute force, laws, memory, and times that were published."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.load import model
from perfmodel.roofline.speculative import drafts
from perfmodel.roofline.speculative.candidates import candidate, candidates, default_candidate, shape_of, stacked
from perfmodel.roofline.speculative.compare import compare, default_draft
from perfmodel.roofline.speculative.crossover import ALPHAS, BATCHES, CONTEXTS, MAPS, crossover
from perfmodel.roofline.speculative.evaluate import Speculation, speculate
from perfmodel.roofline.speculative.methods import Acceptance, method
from perfmodel.roofline.speculative.room import most_fitting, room
from perfmodel.roofline.speculative.rounds import Host
from perfmodel.roofline.speculative.why import shares

SETTING = {"setting": "a test", "source": "a test"}
TARGET = {"model": "llama3-70b", "gpu": "h100", "tp": 8}


@pytest.fixture(scope="module")
def sampling() -> Speculation:
    """Llama 3 70B with a 1B draft over a grid."""
    return speculate(
        **TARGET, method="sps", draft="llama3.2-1b", batch=[1, 8, 64, 256], context=[2048, 32768]
    )  # fmt: skip


@given(
    alphas=st.lists(st.floats(0.05, 0.95), min_size=1, max_size=5), siblings=st.lists(st.floats(0, 0.6), max_size=3),
    gamma=st.integers(1, 6), nodes=st.integers(1, 20),
)  # fmt: skip
def test_reach_is_the_chance_of_each_length(
    alphas: list[float], siblings: list[float], gamma: int, nodes: int
) -> None:  # fmt: skip
    """A shape's tokens are its tree's, its chances of a length fall, and a batch of one is the sequence itself."""
    acceptance = Acceptance(alphas=tuple(alphas), siblings=tuple(siblings), **SETTING)
    for c in (candidate(acceptance, gamma), candidate(acceptance, gamma, nodes, 4)):
        ranks = acceptance.ranks(c.tree.depth)
        assert c.tokens == pytest.approx(c.tree.expected_tokens(c.tree.acceptances_by_rank(ranks)))
        assert all(after <= before + 1e-12 for before, after in pairwise(c.reach))
        assert c.slowest(1) == pytest.approx(c.tokens)
        assert c.slowest(8) <= c.slowest(2) + 1e-12
        assert 1 <= c.width <= 4


def test_the_slowest_of_a_batch_of_trees_by_simulation() -> None:
    """The fewest tokens that any of four sequences gets from a tree equal a simulation within three errors."""
    acceptance = Acceptance(alphas=(0.7, 0.6), siblings=(0.4,), **SETTING)
    c = candidate(acceptance, 3, 6)
    rng = np.random.default_rng(3)
    u = rng.random((200_000, 4))
    lengths = sum((u < reach).astype(float) for reach in c.reach)  # one path is accepted, to a depth
    fewest = lengths.min(axis=1) + 1
    assert abs(fewest.mean() - float(c.slowest(4))) < 3 * fewest.std() / np.sqrt(len(fewest))


def test_a_drafter_expands_no_more_than_the_tree_keeps() -> None:
    """A chain runs one token a pass, however wide the method's trees; a tree as many as its widest inner level."""
    acceptance = method("eagle-3").acceptance
    assert candidate(acceptance, 4, 4, 10).width == 1
    c = candidate(acceptance, 8, 50, 10)
    inner = np.bincount(c.tree.depths)[1:-1]
    assert c.width == min(10, inner.max())


def test_shapes_stack() -> None:
    """Stacked shapes are those of each option."""
    m = method("eagle-2")
    options = candidates(m, m.acceptance)
    got = stacked(options, 2)
    assert np.shape(got.gamma) == (len(options), 1, 1)
    assert np.ravel(got.nodes)[-1] == shape_of(options[-1]).nodes == 128


def test_all_at_once_is_each_alone(sampling: Speculation) -> None:
    """The speedup of every shape over the grid is what each shape gives at each point alone."""
    for k in (0, 3, 15):
        for i in (0, 3):
            alone = sampling.bench.round(sampling.options[k], sampling.batch[i : i + 1], sampling.context[:1])
            assert float(alone.speedup(sampling.options[k].tokens)[0]) == pytest.approx(
                sampling.gains[k, i, 0], rel=1e-10
            )


def test_the_best_shape_is_the_best(sampling: Speculation) -> None:
    """No chain of up to 16 tokens is faster than the one named; shorter ones win as batches grow."""
    best = [row[0] for row in sampling.best]
    assert all(c is not None for c in best)
    lengths = [len(c.tree) for c in best if c]
    assert lengths == sorted(lengths, reverse=True)
    for i, c in enumerate(best):
        gains = [
            float(
                speculate(
                    **TARGET, method="sps", draft="llama3.2-1b", gamma=g, batch=float(sampling.batch[i])
                ).speedup[0, 0]
            )
            for g in range(1, 9)
        ]  # fmt: skip
        assert c is not None
        assert int(np.argmax(gains)) + 1 == len(c.tree)


@pytest.mark.parametrize("name", ["ngram", "medusa-1"])
def test_break_even_is_where_it_stops(name: str) -> None:
    """At the break-even batch no shape pays, at the batch before it one does, and far above it none."""
    found = speculate(**TARGET, method=name)
    stop = found.break_even_batch
    assert stop is not None
    gains = found.bench.speedups(found.options, np.array([stop - 1.0, float(stop), 2.0 * stop]), np.array(2048.0))
    assert (gains.max(axis=0) > 1).tolist() == [True, False, False]


def test_what_never_pays_breaks_even_at_one() -> None:
    """Drafting with the target's own weights at a short context pays at no batch."""
    assert speculate(**TARGET, method="magicdec-self", context=512).break_even_batch == 1


def test_padding_costs(sampling: Speculation) -> None:
    """A batch that advances together gains less, more so the larger it is, and nothing changes for one sequence."""
    padded = speculate(**TARGET, method="sps", draft="llama3.2-1b", batch=[1, 8, 64, 256], padded=True)
    ratio = padded.speedup[:, 0] / sampling.speedup[:, 0]
    assert ratio[0] == pytest.approx(1)
    assert (np.diff(ratio) < 0).all()


def test_padded_trees_are_modelled() -> None:
    """Trees have chances of each length too, so they can be padded."""
    alone, padded = (speculate(**TARGET, batch=16, padded=p) for p in (False, True))
    assert padded.tokens[0, 0] < alone.tokens[0, 0]


def test_intervals(sampling: Speculation) -> None:
    """The interval holds the speedup at every point, of the asked shape and of the best; bounds have none."""
    for low, high, value in (
        (*sampling.interval, sampling.speedup), (*sampling.best_interval, sampling.best_speedup),
    ):  # fmt: skip
        assert (low < value).all()
        assert (value < high).all()
    bound = speculate(**TARGET, method="ngram", fidelity="bound")
    assert bound.rows()[0]["speedup_low"] is None


def test_host_time_lowers_the_gain_of_cheap_drafts(sampling: Speculation) -> None:
    """An engine's time a draft pass counts against the draft."""
    slow = speculate(**TARGET, method="sps", draft="llama3.2-1b", host=Host(draft_pass=1e-3))
    assert slow.speedup[0, 0] < sampling.speedup[0, 0]


def test_concurrent_drafts_are_apart() -> None:
    """Mirror's draft takes no memory of the target's GPUs and hides behind the verification."""
    mirror, serial = (
        speculate(**TARGET, method=name, draft="llama3.2-1b", alpha=0.75, gamma=4) for name in ("mirror", "sps")
    )
    assert mirror.speedup[0, 0] > serial.speedup[0, 0]
    gap = serial.room.needed[0, 0] - mirror.room.needed[0, 0]
    assert gap == pytest.approx(serial.draft.weight_bytes + float(np.ravel(serial.room.draft_kv)[0]))


def test_what_does_not_fit_has_no_times() -> None:
    """On one H100 the model does not fit: the speedup is there, marked, and no time is."""
    row = speculate("llama3-70b", "h100", method="ngram").rows()[0]
    assert row["fits"] is False
    assert row["tpot_s"] is row["plain_tpot_s"] is row["tokens_per_s"] is None
    assert row["speedup"] > 1


def test_largest_batch_by_counting() -> None:
    """The largest batch that fits does, and one more does not."""
    found = speculate(**TARGET, method="sps", draft="llama3-8b")
    held = most_fitting(found.draft, 4, 2048.0)
    batches = np.array([held, held + 1.0])[:, None]
    assert room(found.draft, 4, batches, np.array([[2048.0]])).fits.ravel().tolist() == [True, False]


def test_shares_of_limiters_sum_to_one(sampling: Speculation) -> None:
    """What limits a step and a verification adds up; at batch 1 memory does, at 256 the verification's FLOPs matter."""
    plain, checked = sampling.limits(0)
    assert sum(plain.values()) == pytest.approx(1)
    assert next(iter(checked)) == "hbm"
    _, checked = sampling.limits(3)
    assert next(iter(checked)).startswith("matrix:")
    assert shares(sampling.bench.clock, []) == {}


# Sadhukhan et al., MagicDec (arXiv:2408.11049v5), table 6: Llama 3.1 8B on 8 x H100, PG-19, 32,000 tokens: batch, plain
# step, verification of 3 drafted tokens, 3 passes of Llama 3.2 1B on a StreamingLLM cache (ms), and the speedup.
MAGICDEC = [
    (16, 6.18, 6.71, 4.43, 1.27), (32, 9.10, 9.70, 4.71, 1.46), (64, 14.84, 15.86, 5.05, 1.67),
    (128, 26.07, 28.51, 5.79, 1.81),
]  # fmt: skip


def test_published_times_of_magicdec() -> None:
    """Plain steps and verifications within 8 % of those published, draft passes within 25 %, speedups within 16 %."""
    found = speculate(
        "llama3.1-8b", "h100", tp=8, method="magicdec", draft="llama3.2-1b", batch=[r[0] for r in MAGICDEC],
        context=32000,
    )  # fmt: skip
    for i, (_, plain, checked, drafted, speedup) in enumerate(MAGICDEC):
        ours = found.rows()[i]
        assert float(found.round.plain.seconds[i, 0]) * 1e3 == pytest.approx(plain, rel=0.08)
        assert float(found.round.verify.seconds[i, 0]) * 1e3 == pytest.approx(checked, rel=0.08)
        assert float(found.round.draft.seconds[i, 0]) * 1e3 == pytest.approx(drafted, rel=0.25)
        assert ours["speedup"] == pytest.approx(speedup, rel=0.16)


def test_magicdec_gains_with_the_batch_at_long_contexts() -> None:
    """At 32,000 tokens the gain of a windowed draft grows with the batch; at 512 tokens it falls."""
    options = {"method": "magicdec", "draft": "llama3.2-1b", "tp": 8, "batch": [16, 128], "context": [512, 32000]}
    short, long = speculate("llama3.1-8b", "h100", **options).speedup.T
    assert long[1] > long[0]
    assert short[1] < short[0]


def test_a_copied_model_forgets_what_was_worked_out() -> None:
    """A windowed copy of a model that was used before has the window in its layers."""
    spec = model("llama3.1-8b")
    assert spec.layer_classes[0].attention.window is None
    assert drafts.windowed(spec, 512).layer_classes[0].attention.window == 512


@settings(max_examples=15, deadline=None)
@given(alpha=st.floats(0.1, 0.99), more=st.floats(0.001, 0.5), batch=st.integers(1, 512))
def test_more_acceptance_is_never_worse(alpha: float, more: float, batch: int) -> None:
    """A higher acceptance gives a higher speedup at every batch."""
    one, two = (
        speculate(**TARGET, method="sps", draft="llama3.2-1b", alpha=min(a, 1.0), batch=batch)
        for a in (alpha, alpha + more)
    )
    assert two.speedup[0, 0] >= one.speedup[0, 0]
    assert two.best_speedup[0, 0] >= one.best_speedup[0, 0]


def test_acceptance_0_and_1() -> None:
    """Nothing accepted loses what the draft costs; all accepted yields gamma + 1 tokens."""
    none, every = (speculate(**TARGET, method="sps", draft="llama3.2-1b", alpha=a, gamma=4) for a in (0.0, 1.0))
    assert none.tokens[0, 0] == 1
    assert none.speedup[0, 0] < 1
    assert none.best[0][0] is None
    assert none.best_speedup[0, 0] == 1
    assert every.tokens[0, 0] == 5


def test_all_methods_beside_each_other() -> None:
    """Every method is found or refused with its reason, the fastest first, each as it is alone."""
    got = compare(**TARGET, batch=[1, 32])
    names = {one.method.name for one in got.found} | {one.method.name for one in got.refused}
    assert len(names) == 16
    assert [(r.method.name, "no multi-token-prediction layer" in r.reason) for r in got.refused] == [("mtp", True)]
    tops = [float(one.gains.max(axis=0)[0, 0]) for one in got.found]
    assert tops == sorted(tops, reverse=True)
    assert (got.draft, got.chosen) == ("llama3.2-1b", True)
    alone = speculate(**TARGET, method="eagle-2", batch=[1, 32])
    same = next(one for one in got.found if one.method.name == "eagle-2")
    assert same.speedup == pytest.approx(alone.speedup)


def test_methods_that_a_mixture_with_mtp_can_use() -> None:
    """DeepSeek-V3 has MTP, no small sibling of its vocabulary, and no keys to keep a window of."""
    got = compare("deepseek-v3", "h200", tp=8)
    assert "mtp" in {one.method.name for one in got.found}
    refused = {one.method.name: one.reason for one in got.refused}
    assert "small" in refused["speculative-sampling"]
    assert "full attention" in refused["magicdec-self"]


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("llama3-70b", "llama3.2-1b"), ("llama3.1-405b", "llama3.1-8b"), ("qwen3-32b", "qwen3-0.6b"),
        ("llama3.2-1b", None), ("mixtral-8x7b", None),
    ],
)  # fmt: skip
def test_default_drafts(name: str, draft: str | None) -> None:
    """The default draft is of the same maker and vocabulary, about a hundredth of the size; else there is none."""
    assert default_draft(model(name)) == draft


@pytest.mark.parametrize("axes", MAPS)
def test_maps_are_the_points(sampling: Speculation, axes: str) -> None:
    """Each map's corners are what the question gives there alone."""
    single = speculate(**TARGET, method="sps", draft="llama3.2-1b", batch=8)
    found = crossover(single, axes)
    assert found.speedup.shape == (len(found.ys), len(found.xs)) == found.fits.shape
    for i, j in ((0, 0), (-1, -1), (2, 3)):
        x, y = float(found.xs[j]), float(found.ys[i])
        at: dict = {"batch": 8.0, "context": 2048.0, found.x: x, found.y: y}
        gamma = int(at["gamma"]) if "gamma" in at else None
        alone = speculate(
            **TARGET, method="sps", draft="llama3.2-1b", batch=at["batch"], context=at["context"], gamma=gamma,
            alpha=at.get("alpha"),
        )  # fmt: skip
        expected = alone.speedup if gamma else alone.gains.max(axis=0)
        assert found.speedup[i, j] == pytest.approx(float(expected[0, 0]), rel=1e-9)
        assert found.fits[i, j] == bool(alone.fits[0, 0])
    assert len(found.rows()) == found.speedup.size


def test_maps_of_given_axes(sampling: Speculation) -> None:
    """Batches and contexts that were asked are the axes; otherwise the usual ones."""
    found = crossover(sampling, "batch,context")
    assert (list(found.xs), list(found.ys)) == (list(sampling.batch), list(sampling.context))
    single = speculate(**TARGET, method="ngram")
    found = crossover(single, "batch,context")
    assert (tuple(found.xs), tuple(found.ys)) == (BATCHES, CONTEXTS)
    assert tuple(crossover(single, "alpha,gamma").xs) == ALPHAS
    with pytest.raises(UsageError, match="choose one of batch,context"):
        crossover(single, "gamma,batch")


def test_break_even_of_a_map_is_the_last_that_pays() -> None:
    """For each row the last batch with a speedup above 1, or none."""
    found = crossover(speculate(**TARGET, method="ngram", gamma=10), "batch,context", asked=True)
    for x, row in zip(found.break_even(), found.speedup, strict=True):
        assert x == (None if not (row > 1).any() else max(b for b, s in zip(found.xs, row, strict=True) if s > 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0}, "gamma is 0; 1 to 64"), ({"gamma": 65}, "gamma is 65"), ({"alpha": 1.5}, "alpha is 1.5"),
        ({"alpha": float("nan")}, "alpha is nan"), ({"alpha": [0.5] * 65}, "65 positions"),
        ({"alpha": []}, "0 positions"),
        ({"batch": 0}, "batch"), ({"context": -1}, "context"), ({"method": "medusa-1", "gamma": 5}, "4 heads"),
        ({"method": "eagle-3", "draft": "llama3.2-1b"}, "leave out --draft"),
        ({"draft": "llama3.2-1b", "draft_tp": 16}, "draft_tp is 16; .* tp of 8"),
        ({"batch": []}, "batch is a number or a list"), ({"batch": "a"}, "batch must be a number"),
        ({"alpha": "x"}, "alpha is a fraction"), ({"gamma": 2.5}, "whole number"), ({"foo": 1}, "no option 'foo'"),
        ({"method": "sps", "draft": "qwen3-0.6b"}, "the target's vocabulary"),
    ],
)  # fmt: skip
def test_bad_questions(options: dict, message: str) -> None:
    """What cannot be asked is refused with the value and the limit."""
    with pytest.raises(UsageError, match=message):
        speculate(**TARGET, **options)


def test_default_shapes_keep_within_the_method() -> None:
    """A method's own shape is at most what its drafter was made for, and the search does not leave it."""
    for name, most in (("eagle-1", 5), ("eagle-3", 8), ("mtp", 4), ("medusa-2", 4)):
        m = method(name)
        assert default_candidate(m, m.acceptance).tree.depth <= most
        assert max(c.tree.depth for c in candidates(m, m.acceptance)) == most


def test_results_in_every_form(sampling: Speculation) -> None:
    """Frame, dictionary and words of a result hold the same first point."""
    frame, data = sampling.frame, sampling.to_dict()
    assert len(frame) == 8
    assert data["speedup"] == frame["speedup"][0] == sampling.speedup[0, 0]
    assert f"{sampling.speedup[0, 0]:.2f}" in repr(sampling)
    assert "<table" in sampling._repr_html_()
    assert data["acceptance"]["basis"] == "measured"
