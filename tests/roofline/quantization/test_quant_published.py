"""Published figures of quantized models beside ours: errors as the page states them, nothing above the roofline."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.quantization.published import (
    deployment_spread,
    implied_step,
    marlin_speedup,
    measured_speedup,
    most_at_once,
    of_speedup,
    pairs,
    predict,
    predicted_speedup,
    published,
    sequences_for_rate,
    speedup_interval,
    widened,
)

ROWS = published().rows


def test_every_row_has_a_source_and_a_group() -> None:
    """Nothing stands without the document that it was read in."""
    assert len(ROWS) == 68
    assert {row.group for row in ROWS} == set(published().groups)
    named = [row.source for row in ROWS] + [s.source for s in published().speedups.values()]
    assert {*named, published().marlin.source, published().served.source} == set(published().sources)


def test_no_measurement_is_above_the_roofline() -> None:
    """A bound that is beaten is a bug: of the roofline, or of the setting that was assumed."""
    assert [row.words for row in ROWS if row.tokens_per_s > predict(row).bound] == []


#: Group -> mean error and share inside the 80 % interval, as the page says.
STATED = {"gpt-fast": (0.10, 0.85), "modelopt": (0.20, 0.75), "trtllm-0.17": (0.06, 0.9)}


@pytest.mark.parametrize("group", STATED)
def test_errors_of_rates(group) -> None:
    """The mean error of each table is no more than it says, and as many rows are inside the interval."""
    rows = [row for row in ROWS if row.group == group]
    found = [predict(row) for row in rows]
    mean = sum(abs(p.rate / row.tokens_per_s - 1) for row, p in zip(rows, found, strict=True)) / len(rows)
    inside = sum(p.low <= row.tokens_per_s <= p.high for row, p in zip(rows, found, strict=True)) / len(rows)
    assert mean < STATED[group][0]
    assert inside > STATED[group][1]


def test_errors_of_speedups() -> None:
    """Narrow weights over 16 bits in the same setting: 11 % on average, a slowdown predicted as one."""
    ratios = [predicted_speedup(*pair) / measured_speedup(*pair) for pair in pairs()]
    assert len(ratios) == 17
    assert sum(abs(r - 1) for r in ratios) / len(ratios) < 0.12
    assert median(ratios) == pytest.approx(1, abs=0.06)
    base, row = next(p for p in pairs() if (p[1].model, p[1].batch, p[1].weights) == ("llama3.1-8b", 64, "int4"))
    assert measured_speedup(base, row) < 1
    assert predicted_speedup(base, row) < 1 < predicted_speedup(base, row, "bound")


def test_intervals_of_speedups() -> None:
    """16 of 17 measured speedups are inside, not the 4-bit product for eight rows of the 8B."""
    outside = [
        (row.model, row.batch, row.weights)
        for base, row in pairs()
        if not speedup_interval(base, row)[0] <= measured_speedup(base, row) <= speedup_interval(base, row)[1]
    ]
    assert outside == [("llama3.1-8b", 8, "int4")]


@given(
    rate=st.floats(1e-3, 1e6), low=st.floats(0.2, 1), high=st.floats(1, 5), spread=st.floats(0, 1),
    bound=st.floats(1, 10),
)  # fmt: skip
def test_widening(rate: float, low: float, high: float, spread: float, bound: float) -> None:
    """A spread widens an interval on both sides, none leaves it, and no end is above the bound."""
    first, last = widened(rate, rate * low, rate * high, spread=spread)
    assert first <= rate * low * (1 + 1e-9)
    assert last >= rate * high * (1 - 1e-9)
    same = widened(rate, rate * low, rate * high, spread=0.0)
    assert same == pytest.approx((rate * low, rate * high))
    assert widened(rate, rate * low, rate * high, rate * bound, spread)[1] <= rate * bound


def test_spread_between_deployments() -> None:
    """It is the standard deviation of the medians of seven deployments; none is of a version that a row here has."""
    found = published().deployments
    middle = sum(one.log_ratio for one in found) / len(found)
    assert deployment_spread() ** 2 == pytest.approx(sum((one.log_ratio - middle) ** 2 for one in found) / 6)
    assert all(one.rows >= 20 for one in found)
    assert not {one.version for one in found} & {"0.15", "0.17"}
    assert deployment_spread() == pytest.approx(0.135, abs=0.001)


def test_steps_that_follow_from_rates() -> None:
    """A decode step is what is left of a request's time after its prefill; by hand for one row."""
    row = next(r for r in ROWS if (r.model, r.batch, r.weights) == ("llama3.1-70b", 8, "int4"))
    p = predict(row)
    assert implied_step(row) * 127 + p.ttft_s == pytest.approx(8 * 128 / 93.98)
    assert implied_step(row) > 2 * p.tpot_s
    decode = next(r for r in ROWS if r.group == "gpt-fast")
    assert implied_step(decode) == 1 / decode.tokens_per_s


def test_pairs_differ_by_format_alone() -> None:
    """The same model, GPU, batch and lengths; GPUs too, but where a source compares rates a GPU."""
    for base, row in pairs():
        assert base.setting == row.setting
        assert base.gpu == row.gpu
        assert base.tp == row.tp or row.group == "modelopt"
        assert (base.weights in ("bf16", "fp16"), row.weights in ("bf16", "fp16")) == (True, False)


@pytest.mark.parametrize(("name", "limit"), [("gptq-a100", 0.1), ("gptq-a6000", 0.1), ("smoothquant", 0.1)])
def test_published_speedups(name, limit) -> None:
    """GPTQ on fewer cards and SmoothQuant: within 10 % calibrated, and below the bound."""
    s = published().speedups[name]
    assert of_speedup(name) == pytest.approx(s.speedup, rel=limit)
    assert s.speedup < of_speedup(name, "bound")


def test_more_cards_do_not_help_one_sequence() -> None:
    """Layers spread over cards in turn: GPTQ's bound is the ratio of bytes, on five cards and on eight."""
    assert of_speedup("gptq-a100", "bound") == pytest.approx(of_speedup("gptq-a6000", "bound"), rel=1e-3)


def test_marlin_is_near_its_bound_up_to_32_rows() -> None:
    """3.87x at 16 and 32 rows within 1 %; matrix units limit more rows."""
    for rows in (1, 16, 32):
        assert marlin_speedup(rows) == pytest.approx(published().marlin.speedup, rel=0.01)
    assert marlin_speedup(128) < 2


def test_as_many_as_fit() -> None:
    """The batch of a row without one is what the cache holds, and at most TensorRT-LLM's default."""
    row = next(r for r in ROWS if r.group == "trtllm-0.17" and r.gpu == "h200" and r.tp == 2 and r.output == 128)
    assert most_at_once(row) == 2048
    assert predict(row).batch == 2048


def test_the_quoted_rate_is_of_a_few_sequences() -> None:
    """741 tokens a second are a handful of sequences at once: a rate without its load says little."""
    assert 2 <= sequences_for_rate() <= 20
    assert sequences_for_rate(1) == 0
