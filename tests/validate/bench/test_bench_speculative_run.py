"""`perfmodel validate --speculative`: what is measured, what is kept, and when the formula counts as refuted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.reports import bench_text
from perfmodel.reports.speculated_text import text
from perfmodel.validate.bench import ceilings_cpu, runner, speculative_run
from perfmodel.validate.bench.case import Case
from perfmodel.validate.bench.operators import gemm
from perfmodel.validate.bench.session import session
from perfmodel.validate.bench.speculation_report import Outcome, Speculated
from perfmodel.validate.bench.store import Store
from perfmodel.validate.bench.streams import sizes
from perfmodel.validate.bench.suites import Wanted
from perfmodel.validate.bench.transformer import Sizes, Transformer

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
            return speculative_run.measure(s, (1, 3), rounds=150, seconds=20, seed=4, pair=PAIR)


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
        assert o.speedup_low <= o.speedup <= o.speedup_high
        assert o.noise == pytest.approx((o.speedup_high - o.speedup_low) / o.speedup)


def test_rows_are_kept_apart_from_kernels(found: Speculated, folder: Path) -> None:
    """Each draft length has a row with all its figures, under an engine of its own: no table of operators takes it."""
    with Store(folder / "validate.sqlite") as store:
        rows = store.results(store.runs()[0])
    assert [row.shape["gamma"] for row in rows] == [1, 3]
    assert {row.engine for row in rows} == {"speculative"}
    assert rows[0].more["tau"] == found.outcomes[0].tau
    assert rows[0].samples == 150


def test_text_has_measured_and_expected(found: Speculated) -> None:
    """The table shows acceptance, tokens a round with their error, c, v, both speedups with their noise, and the test
    of the output; JSON has all of it."""
    table = text(found, "csv") + text(found, "table")
    for word in (
        "acceptance", "tau measured", "std. error", "tau expected", "speedup measured", "noise", "tau / (gamma c + v)",
        "chi-square",
    ):  # fmt: skip
        assert word in table
    data = json.loads(text(found, "json"))
    assert data["rows"][1]["tau"] == found.outcomes[1].tau
    assert data["verifier"] == "torch"
    assert data["refuted"] == []


def test_limits_are_those_of_three_standard_errors_for_the_family(found: Speculated) -> None:
    """One draft length has two tests, three have six: together they refute a right run once in 370."""
    one, three = replace(found, outcomes=found.outcomes[:1]), replace(found, outcomes=(*found.outcomes,) * 2)
    assert (round(one.limit, 2), round(three.limit, 2)) == (3.2, 3.58)
    for some in (one, three):
        assert 1 - (1 - some.level) ** (2 * len(some.outcomes)) == pytest.approx(1 / 370.4, rel=1e-3)
    assert "together refute 1 right run in 370" in text(found, "table")


def test_a_broken_sampler_is_refuted(found: Speculated) -> None:
    """Tokens a round that are five errors off contradict the formula, and so does an output with p of a millionth; on
    few rounds neither is judged."""
    right = found.outcomes[0]
    wrong = replace(right, tau=right.tau_expected + 5 * right.tau_error)
    other = replace(right, chi2=60.0, chance=1e-6)
    assert replace(found, outcomes=(wrong, right, other)).refuted == [wrong, other]
    assert "p = 1e-06" in found.contradictions(other)[0]
    few = replace(found, outcomes=(replace(wrong, rounds=29),))
    assert few.refuted == []
    assert "not judged, since there are fewer than 30 rounds: gamma 1" in text(few, "table")


def test_a_seed_repeats_a_run(found: Speculated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that is printed gives the same tokens again; without one each run has its own."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    seen, seeds = [], []
    for seed in (4, None, None):
        with session("cpu", speculative_run.SUITE, False, 1, lambda line: None) as s:
            got = speculative_run.measure(s, (1,), rounds=150, seconds=20, seed=seed, pair=PAIR)
        seen.append(got.outcomes[0].tau)
        seeds.append(got.seed)
    assert (seeds[0], seen[0]) == (4, found.outcomes[0].tau)
    assert len(set(seeds)) == 3
    assert f"--seed {found.seed} repeats it" in text(found, "table")
    with pytest.raises(UsageError, match="--seed is a whole number from 0 to 4294967295, not -1"):
        speculative_run.run(device="cpu", seed=-1)


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the second draft length: the first one is kept, and said."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    monkeypatch.setitem(speculative_run.PAIRS, "cpu", PAIR)
    whole = speculative_run.run_pair

    def stopped(model: Transformer, layers: int, gamma: int, **more: Any) -> Outcome:
        if gamma == 3:
            raise KeyboardInterrupt
        return whole(model, layers, gamma, **more)

    monkeypatch.setattr(speculative_run, "run_pair", stopped)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted: 1 finished draft length is kept in run 1 of .*\.sqlite"):
        speculative_run.run(device="cpu", seconds=2)
    with Store() as store:
        assert [r.shape["gamma"] for r in store.results(store.run(1))] == [1]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full suite of one product, ceilings in a moment, a small pair."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    monkeypatch.setattr(ceilings_cpu, "EACH", 0.005)
    monkeypatch.setattr(ceilings_cpu, "SIDES", {"fp32": (128,), "bf16": (128,)})
    monkeypatch.setattr(ceilings_cpu, "sizes", lambda most: sizes(2.0**22))
    monkeypatch.setattr(runner, "suite", lambda device, name: [Wanted(gemm(8, 64, 64, "fp32", 4.0))])
    monkeypatch.setitem(speculative_run.PAIRS, "cpu", PAIR)
    monkeypatch.setattr(speculative_run, "ROUNDS", 30)


@pytest.mark.usefixtures("tiny")
def test_the_full_suite_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full suite runs the pair too, shows it, and takes it from the store when it is resumed."""
    ended = Store.finish
    monkeypatch.setattr(Store, "finish", lambda *args: None)  # as if it were interrupted at the very end
    report = runner.run(runner.Options("cpu", "full", budget=0.1, threads=1), lambda line: None)
    assert report.speculated is not None
    assert "Speculative decoding on" in bench_text.text(report)
    assert [row["gamma"] for row in report.to_dict()["speculative"]["rows"]] == [1, 3, 5]
    monkeypatch.setattr(Store, "finish", ended)
    again = runner.run(runner.Options("cpu", "full", resume=True), lambda line: None)
    assert again.speculated == report.speculated
    assert [c.result.name for c in again.compared] == [c.result.name for c in report.compared]


@pytest.mark.usefixtures("tiny")
def test_a_refuted_formula_is_outside() -> None:
    """Tokens a round that contradict the formula make the exit code 1, as a wrong kernel does."""
    report = runner.run(runner.Options("cpu", "full", budget=0.1, threads=1), lambda line: None)
    assert report.speculated is not None
    first = report.speculated.outcomes[0]
    wrong = replace(first, tau=first.tau_expected + 9 * first.tau_error)
    broken = replace(report, speculated=replace(report.speculated, outcomes=(wrong,)))
    assert "speculative, gamma 1: +9.0 standard errors from the formula" in broken.outside


def test_a_kernel_that_fails_takes_no_other_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel raises is told beside its name, and the cases after it are measured."""
    from perfmodel.validate.bench import session as sessions

    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    make = sessions.realiser("cpu")

    def fails(inputs: object) -> None:
        raise RuntimeError("CUDA error: misaligned address\nat line 3")

    def broken(wanted: Wanted) -> Case:
        case = make(wanted)
        return replace(case, run=fails) if wanted.op.inputs["m"] == 8 else case

    monkeypatch.setattr(sessions, "realiser", lambda device: broken)
    with session("cpu", "quick", False, 1, lambda line: None) as s:
        sessions.measure_all(s, [Wanted(gemm(m, 64, 64, "fp32", 4.0)) for m in (8, 16)], 1.0)
        assert len(s.wrong) == 1
        assert s.wrong[0].endswith("torch.mm fails: RuntimeError: CUDA error: misaligned address")
        assert [r.shape["m"] for r in s.results] == [16]


@pytest.mark.parametrize("gammas", [(), (0,), (17,)])
def test_impossible_draft_lengths_are_refused(gammas: tuple[int, ...], folder: Path) -> None:
    """Draft lengths are 1 to 16."""
    with pytest.raises(UsageError, match="draft lengths are 1 to 16"):
        speculative_run.measure(None, gammas, pair=PAIR)  # type: ignore[arg-type]
