"""What speculate takes when it is not told: acceptances, drafts, shapes, and the engine's own time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import perfmodel as pm
from perfmodel.base.errors import UsageError
from perfmodel.reports.speculation_tables import comparison_text
from perfmodel.reports.speculation_text import notes
from perfmodel.roofline.speculative.acceptance_fit import from_lengths
from perfmodel.roofline.speculative.candidates import default_candidate
from perfmodel.roofline.speculative.compare import compare
from perfmodel.roofline.speculative.methods import methods

TARGET: dict[str, Any] = {"model": "llama3-70b", "gpu": "h100", "tp": 8}
ALONE: dict[str, Any] = {"model": "llama3-8b", "gpu": "h100", "engine": "vllm"}
SPS: dict[str, Any] = {"method": "sps", "draft": "llama3.2-1b"}


def fitted(folder: Path, factor: float = 1.0) -> str:
    """A file of step times: 0.5 ms a step and 10 us a sequence."""
    step = {
        "model": "llama3-8b", "settings": "1 x h100-sxm, weights bf16, KV cache bf16", "version": "0.33.0",
        "measured": "from one line to the next", "host": "500 us", "sequence": "10 us", "factor": factor,
    }  # fmt: skip
    head = {"title": "mine", "gpu": "h100-sxm", "engine": "vllm", "date": "2026-09-27", "source": "run.log"}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**head, "step": step}))
    return str(path)


def test_a_fit_of_steps_brings_its_host(tmp_path: Path) -> None:
    """16 sequences: 0.5 ms + 16 x 10 us are added to the plain step and once to the round, and said."""
    plain, found = (
        pm.speculate(**ALONE, method="ngram", batch=16, efficiency=e) for e in ((), (fitted(tmp_path),))
    )  # fmt: skip
    for part in ("plain", "whole"):
        before, after = (getattr(one.round, part).seconds for one in (plain, found))
        assert float(np.ravel(after)[0] - np.ravel(before)[0]) == pytest.approx(660e-6)
    analyzed = pm.analyze("llama3-8b", "h100", fidelity="calibrated", engine="vllm", batch=16, efficiency=[
        fitted(tmp_path)
    ])  # fmt: skip
    assert float(np.ravel(found.round.plain.seconds)[0]) == pytest.approx(analyzed.tpot_s, rel=0.01)
    said = notes(found)[-1]
    assert "660 us a plain step and 660 us a round" in said
    assert "step times fitted" in said
    low, high = (float(side[0, 0]) for side in found.interval)
    assert 0.6 < low / float(found.speedup[0, 0]) < 1 < high / float(found.speedup[0, 0]) < 1.6
    assert found.to_dict()["host_step_s"] == pytest.approx(660e-6)


def test_a_host_that_is_given_goes_before_a_fit(tmp_path: Path) -> None:
    """With ``host`` the fit's own host time is not added."""
    given = pm.Host(step=1e-3, round=2e-3)
    one, other = (
        pm.speculate(**ALONE, method="ngram", efficiency=e, host=given) for e in ((), (fitted(tmp_path),))
    )  # fmt: skip
    assert other.speedup == pytest.approx(one.speedup)
    assert one.host == (1e-3, 2e-3, "given")


@pytest.mark.parametrize(("m", "own"), [(m, own) for m in methods() for own in m.own], ids=str)
def test_a_target_s_own_acceptance_yields_its_length(m: Any, own: Any) -> None:
    """Each acceptance of single targets gives the published tokens a round, and is what those targets get."""
    assert default_candidate(m, own.acceptance).tokens == pytest.approx(own.acceptance.tau, rel=5e-3)
    assert own.acceptance.tau in {r.tau for r in m.published}
    assert all(m.acceptance_for(name) == own.acceptance for name in own.models)


def test_the_setting_of_the_acceptance_is_said_first() -> None:
    """The third line says whose acceptance it is and how to give another; a ranking says it too."""
    said = notes(pm.speculate(**TARGET))[2]
    assert "0.798 (Llama 3.3 70B, MT-bench, temperature 0)" in said
    assert "--alpha or --acceptance-log" in said
    assert "engines mostly reach less" in comparison_text(compare(**TARGET), "table")


def test_a_log_is_of_one_drafter() -> None:
    """All methods with one log are refused."""
    with pytest.raises(UsageError, match="name its method"):
        compare(**TARGET, log=from_lengths([1, 2, 0], 2, "a test"))


@pytest.mark.parametrize("more", [SPS, {"method": "eagle-3"}])
def test_no_shape_beyond_the_log_is_tried(more: dict[str, Any]) -> None:
    """Three positions were seen: nothing deeper is asked or tried; a deeper question gets a caution."""
    log = from_lengths([3] * 50 + [1, 0], 3, "a test")
    found = pm.speculate(**TARGET, **more, log=log)
    assert found.asked.tree.depth <= 3
    assert max(c.tree.depth for c in found.options) == 3
    deeper = pm.speculate(**TARGET, **more, log=log, gamma=5)
    assert deeper.unseen == 2
    assert "Caution: the log holds 3 positions; 2 more as asked" in "\n".join(notes(deeper))


@pytest.mark.parametrize("gamma", [None, 5, 20])
def test_the_best_is_no_worse_than_what_was_asked(gamma: int | None) -> None:
    """The asked shape is among those tried, chains longer than the search's too."""
    for more in (SPS, {"method": "specdec"}):
        found = pm.speculate(**TARGET, **more, gamma=gamma, alpha=0.97, batch=[1, 32])
        assert (found.best_speedup >= found.speedup).all()


@pytest.mark.parametrize("more", [{"method": "medusa-1"}, {**SPS, "alpha": 0.3}, {"method": "mtp", "model": "glm-4.5"}])
def test_no_batch_from_the_break_even_on_pays(more: dict[str, Any]) -> None:
    """Of every batch up to 2,048, the last that pays is the one before the break-even."""
    found = pm.speculate(**{**TARGET, **more})
    gains = found.bench.speedups(found.options, np.arange(1.0, 2049.0), np.array(2048.0)).max(axis=0)
    paying = np.flatnonzero(gains > 1) + 1
    stop = found.break_even_batch
    assert (int(paying[-1]) + 1 if paying.size else 1) == (2049 if stop is None else min(stop, 2049))


def test_a_draft_chooses_its_method_and_a_method_its_draft() -> None:
    """With a draft alone it is Speculative Sampling; an independent method alone takes the family's small model."""
    assert pm.speculate(**TARGET, draft="llama3.2-1b").method.name == "speculative-sampling"
    found = pm.speculate(**TARGET, method="mirror")
    assert "llama3.2-1b was chosen" in found.draft.note
    with pytest.raises(UsageError, match="needs --draft"):
        pm.speculate("deepseek-v3", "h200", tp=8, method="sps")


def test_other_families_are_warned_of() -> None:
    """A draft of another family with as many tokens is warned of; one of the same family is not."""
    found = pm.speculate("mistral-7b", "h100", draft="tinyllama-1.1b")
    assert "of different families" in found.draft.note
    assert pm.speculate(**TARGET, draft="llama3.2-1b").draft.note == ""
