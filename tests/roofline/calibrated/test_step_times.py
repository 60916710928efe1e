"""Times of whole steps in files of efficiencies: whose they are, what they change, and when they do not apply."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import perfmodel as pm
from perfmodel.base.errors import SpecError
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.efficiency_file import read_fit
from perfmodel.roofline.efficiency_step import ELSEWHERE
from perfmodel.roofline.setup import setup

STEP: dict[str, Any] = {
    "model": "llama3-8b", "settings": "1 x h100-sxm, weights bf16, KV cache bf16", "version": "0.33.0",
    "measured": "from one line to the next", "host": "500 us", "sequence": "10 us", "factor": 1.1,
    "intervals": {"decode": {"low": 0.95, "high": 1.06, "rows": 400}},
}  # fmt: skip
HEAD = {"title": "mine", "gpu": "h100-sxm", "engine": "vllm", "date": "2026-09-27", "source": "run.log"}
OPTIONS: dict[str, Any] = {"fidelity": "calibrated", "engine": "vllm", "batch": 16}


def written(folder: Path, name: str = "mine.yaml", **changed: Any) -> str:
    """A file of step times."""
    path = folder / name
    path.write_text(yaml.safe_dump({**HEAD, "step": {**STEP, **changed}}))
    return str(path)


def test_a_step_is_the_host_and_the_operators_by_the_factor(tmp_path: Path) -> None:
    """16 sequences: 0.5 ms + 16 x 10 us + 1.1 x the operators (none at its bound here)."""
    file = written(tmp_path)
    plain = pm.analyze("llama3-8b", "h100", **OPTIONS)
    a = pm.analyze("llama3-8b", "h100", efficiency=[file], **OPTIONS)
    assert a.tpot_s == pytest.approx(500e-6 + 16 * 10e-6 + 1.1 * plain.tpot_s, rel=1e-9)
    assert a.decode.time.bound == pytest.approx(plain.decode.time.bound)
    host = next(r for r in a.decode.ops if r.op.kind == "host")
    assert host.time.predicted == pytest.approx(660e-6)
    assert (host.cost.flops, host.cost.bytes, host.time.bound) == (0, 0, 0)


def test_the_interval_is_that_of_whole_steps(tmp_path: Path) -> None:
    """Decode has one of its own; prefill, without one, keeps the operators', by the factor."""
    file = written(tmp_path)
    plain, a = (pm.analyze("llama3-8b", "h100", efficiency=e, **OPTIONS) for e in ([], [file]))
    low, high = a.tpot_interval
    assert (low, high) == (pytest.approx(0.95 * a.tpot_s), pytest.approx(1.06 * a.tpot_s))
    width = [(x.ttft_interval[1] - x.ttft_interval[0]) / x.ttft_s for x in (plain, a)]
    assert width[1] == pytest.approx(width[0], rel=0.05)


def test_no_factor_goes_below_the_bound(tmp_path: Path) -> None:
    """Half the operators' times would be below the roofline for most: they stop there, low ends too."""
    a = pm.analyze("llama3-8b", "h100", efficiency=[written(tmp_path, factor=0.5)], **OPTIONS)
    for phase in (a.prefill, a.decode):
        for r in phase.ops:
            assert r.time.bound <= r.time.low * (1 + 1e-12)
            assert r.time.low <= r.time.predicted * (1 + 1e-12) <= r.time.high * (1 + 1e-9)
    assert a.tpot_s >= a.decode.time.bound


def test_parts_add_up(tmp_path: Path) -> None:
    """The factor is a named part of every operator's time, beside its own."""
    file = written(tmp_path)
    a = pm.analyze("llama3-8b", "h100", efficiency=[file], fidelity="calibrated", engine="vllm", batch=16, output=2)
    for r in a.decode.ops:
        parts = r.time.parts  # type: ignore[attr-defined]
        assert sum(float(np.mean(v)) for v in parts.values()) == pytest.approx(r.time.predicted, rel=1e-9)
        assert ("step factor" in parts) == (r.op.kind != "host")


def test_another_model_takes_them_with_a_wider_interval(tmp_path: Path) -> None:
    """Another plan: the same numbers, the logarithms of the interval's ends twice as far, and it says so."""
    file = written(tmp_path)
    a = pm.analyze("llama3-70b", "h100", tp=4, efficiency=[file], **OPTIONS)
    low, high = a.tpot_interval
    assert high / a.tpot_s == pytest.approx(1.06**ELSEWHERE)
    assert low / a.tpot_s == pytest.approx(0.95**ELSEWHERE)
    assert any("another model or plan; interval widened" in name for name in a.origins)


def test_the_nearest_of_several_answers(tmp_path: Path) -> None:
    """Of two files that of the same model and plan; then that of the same model; of another GPU or engine none."""
    other = written(tmp_path, "b.yaml", model="llama3-70b", settings="4 x h100-sxm", host="900 us")
    plan = written(tmp_path, "c.yaml", settings="2 x h100-sxm", host="700 us")
    files = [other, plan, written(tmp_path)]

    def host(gpu: str, engine: str, listed: list[str]) -> float | None:
        found = load(gpu, engine, listed).step(setup("llama3-8b", gpu))
        return found.host if found else None

    assert host("h100", "vllm", files) == pytest.approx(500e-6)
    assert host("h100", "", files) == pytest.approx(500e-6)
    assert host("h100", "vllm", files[:2]) == pytest.approx(700e-6)
    assert host("h100", "trtllm", files) is None
    assert host("h200", "vllm", files) is None
    assert host("h100", "vllm", []) is None


def test_data_parallel_engines_have_a_host_each(tmp_path: Path) -> None:
    """64 sequences over four engines: each handles 16."""
    a = pm.analyze("llama3-8b", "h100", dp=4, batch=64, fidelity="calibrated", efficiency=[written(tmp_path)])
    host = next(r for r in a.decode.ops if r.op.kind == "host")
    assert host.time.predicted == pytest.approx(660e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"host": "500"}, "has no unit"),
        ({"factor": -1}, "greater than 0.05"),
        ({"intervals": {"train": {"low": 0.9, "high": 1.1}}}, "'train' is no phase"),
        ({"intervals": {"decode": {"low": 1.2, "high": 1.1}}}, "is above high"),
        ({"speed": 3}, "not a known key"),
        ({"model": None}, "step.model"),
    ],
)
def test_a_wrong_section_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    """The file, the key and what is the matter."""
    with pytest.raises(SpecError, match=message):
        read_fit(Path(written(tmp_path, **changed)))


def test_a_file_must_hold_something(tmp_path: Path) -> None:
    """Neither kernels nor a step."""
    path = tmp_path / "empty.yaml"
    path.write_text(yaml.safe_dump(HEAD))
    with pytest.raises(SpecError, match="neither kernels nor a step"):
        read_fit(path)
