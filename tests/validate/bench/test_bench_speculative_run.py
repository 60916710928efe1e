"""`perfmodel validate --speculative`: what is measured, what is kept, and when the formula counts as refuted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.reports.speculated_text import text
from perfmodel.validate.bench import speculative_run
from perfmodel.validate.bench.session import session
from perfmodel.validate.bench.speculation_report import Speculated
from perfmodel.validate.bench.store import Store
from perfmodel.validate.bench.transformer import Sizes

PAIR = (Sizes(vocab=64, hidden=32, layers=4, heads=2, intermediate=64, positions=128), 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def found(folder: Path) -> Speculated:
    """Two draft lengths of a small pair, 150 rounds each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFMODEL_DATA", str(folder))
        with session("cpu", speculative_run.SUITE, False, 1, lambda line: None) as s:
            return speculative_run.measure(s, (1, 3), rounds=150, seconds=20, pair=PAIR)


def test_tokens_a_round_agree_with_the_formula(found: Speculated) -> None:
    """Measured tokens a round are within three standard errors of what the distributions promised."""
    for outcome in found.outcomes:
        assert outcome.rounds == 150
        assert 0 < outcome.tau_error < 0.2
        assert abs(outcome.off) < 3
        assert 1 < outcome.tau < outcome.gamma + 1
    assert found.refuted == []


def test_the_speedup_is_that_of_its_parts(found: Speculated) -> None:
    """Whole rounds take about what their drafts and their verification take by themselves, each timed alone."""
    for o in found.outcomes:
        assert o.speedup_expected == pytest.approx(o.tau / (o.gamma * o.draft_cost + o.verify_cost))
        assert o.speedup == pytest.approx(o.speedup_expected, rel=0.5)


def test_rows_are_kept_apart_from_kernels(found: Speculated, folder: Path) -> None:
    """Each draft length has a row with all its figures, under an engine of its own: no table of operators takes it."""
    with Store(folder / "validate.sqlite") as store:
        rows = store.results(store.runs()[0])
    assert [row.shape["gamma"] for row in rows] == [1, 3]
    assert {row.engine for row in rows} == {"speculative"}
    assert rows[0].more["tau"] == found.outcomes[0].tau
    assert rows[0].samples == 150


def test_text_has_measured_and_expected(found: Speculated) -> None:
    """The table shows acceptance, tokens a round with their error, c, v and both speedups; JSON has all of it."""
    table = text(found, "table")
    for word in ("acceptance", "tau measured", "std. error", "tau expected", "speedup measured", "tau / (gamma c + v)"):
        assert word in table
    data = json.loads(text(found, "json"))
    assert data["rows"][1]["tau"] == found.outcomes[1].tau
    assert data["verifier"] == "torch"
    assert data["refuted"] == []


def test_a_broken_sampler_is_refuted(found: Speculated) -> None:
    """Tokens a round that are four errors off contradict the formula."""
    wrong = replace(found.outcomes[0], tau=found.outcomes[0].tau_expected + 5 * found.outcomes[0].tau_error)
    assert replace(found, outcomes=(wrong,)).refuted == [wrong]


@pytest.mark.parametrize("gammas", [(), (0,), (17,)])
def test_impossible_draft_lengths_are_refused(gammas: tuple[int, ...], folder: Path) -> None:
    """Draft lengths are 1 to 16."""
    with pytest.raises(UsageError, match="draft lengths are 1 to 16"):
        speculative_run.measure(None, gammas, pair=PAIR)  # type: ignore[arg-type]
