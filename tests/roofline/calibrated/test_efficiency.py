"""Which fit answers for which GPU and engine, and what its files must hold."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import perfmodel as pm
from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.calibrated.kernel import Regime
from perfmodel.roofline.efficiency import FOLDER, OTHER_ENGINE, SISTER, load
from perfmodel.roofline.efficiency_file import read_fit

LISTS = ("mean", "scale", "low", "high", "weights")
OWN = FOLDER / "h100-sxm-vllm.yaml"


def width(regime: Regime) -> float:
    """Ratio of an interval's ends."""
    return regime.high / regime.low


@pytest.mark.parametrize(
    ("gpu", "engine", "kind", "fmt", "origin"),
    [
        ("h100", "vllm", "decode", "bf16", "fitted: h100-sxm under vllm"),
        ("h100", "vllm", "gemm", "bf16", "taken from h100-sxm under trtllm .* another engine"),
        ("h200", "vllm", "decode", "fp8", "taken from h100-sxm under vllm .* same architecture"),
        ("gb200", "trtllm", "experts", "nvfp4", "taken from b200 under trtllm .* same architecture"),
        ("rtx-4090", "vllm", "decode", "bf16", "taken from h100-sxm under vllm .* another architecture; full form"),
        ("mi300x", "vllm", "prefill", "bf16", "another architecture; full form"),
        ("b300", "vllm", "decode", "bf16", "taken from b200 under vllm .* same architecture"),
        ("rtx-5090", "vllm", "decode", "bf16", "another architecture; simple form"),
    ],
)
def test_the_nearest_fit_answers(gpu: str, engine: str, kind: str, fmt: str, origin: str) -> None:
    """Own fit first, then another engine, a sister GPU, another architecture; each says which it is."""
    found = load(gpu, engine).kernel(kind, (fmt,)).origin
    assert re.search(origin, found), found


def test_farther_fits_have_wider_intervals() -> None:
    """H100's decode on H200 has the logarithms of its interval widened by 1.5; another engine's GEMM by 2."""
    own, sister = (load(g, "vllm").kernel("decode", ("bf16",)) for g in ("h100", "h200"))
    assert width(sister.regimes[0]) == pytest.approx(width(own.regimes[0]) ** SISTER)
    assert sister.params == own.params
    own, other = (load("h100", e).kernel("gemm", ("bf16",)) for e in ("trtllm", "vllm"))
    assert width(other.regimes[0]) == pytest.approx(width(own.regimes[0]) ** OTHER_ENGINE)


def test_what_nothing_was_fitted_for_says_so() -> None:
    """A kind without any fit gets the plain form with an assumed, wide interval."""
    found = load("h100", "vllm").kernel("no such kind", ("bf16",))
    assert found.form.name == "simple"
    assert found.origin.startswith("assumed")
    assert width(found.regimes[0]) >= 2.5


def test_a_format_without_a_fit_takes_the_next() -> None:
    """FP8 on an A100's table of 16-bit GEMMs: the last of the formats asked for."""
    assert load("h100", "sglang").kernel("gemm", ("fp8_block", "bf16")).fmt == "fp8_block"
    assert load("h100", "sglang").kernel("gemm", ("int3", "bf16")).fmt == "bf16"


def test_an_unknown_engine_is_refused() -> None:
    """The message lists the engines."""
    with pytest.raises(UsageError, match="no efficiencies for the engine 'tgi'; there are sglang, trtllm, vllm"):
        load("h100", "tgi")


def test_a_file_of_ones_own_goes_first(tmp_path: Path) -> None:
    """A user's fit of a GPU answers before the shipped one."""
    data = yaml.safe_load(OWN.read_text())
    data["kernels"] = [k for k in data["kernels"] if k["kind"] == "decode"]
    for kernel in data["kernels"]:
        kernel["parameters"]["launch"] = "3 us"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    assert load("h100", "vllm", [path]).kernel("decode", ("bf16",)).params["launch"] == pytest.approx(3e-6)


def test_a_file_of_another_gpu_does_not_go_before_a_nearer_fit(tmp_path: Path) -> None:
    """A user's fit of an H100: an A100's shipped fit is nearer and says so; on an H200 it goes before the shipped H100,
    and on a B200 it answers for nothing that was fitted there."""
    path = tmp_path / "mine.yaml"
    path.write_text((FOLDER / "h100-sxm-trtllm.yaml").read_text())
    a100 = load("a100-sxm", "", [path]).kernel("gemm", ("bf16",)).origin
    assert a100.startswith("fitted: a100-sxm under trtllm")
    assert a100.endswith("; nearer than mine.yaml of h100-sxm")
    assert " in mine.yaml, a GPU of the same" in load("h200", "trtllm", [path]).kernel("gemm", ("bf16",)).origin
    assert load("h100", "trtllm", [path]).kernel("gemm", ("bf16",)).origin.endswith(" in mine.yaml")
    assert "taken from h100-sxm" not in load("b200", "trtllm", [path]).kernel("gemm", ("bf16",)).origin


STEP = {
    "model": "llama3-8b", "settings": "1 x h100-sxm", "measured": "a log", "host": "1 ms", "sequence": "10 us",
    "factor": 1.1,
}  # fmt: skip


def step_file(path: Path, engine: str, gpu: str = "h100-sxm") -> Path:
    """A file that holds step times alone."""
    head = {"title": "mine", "gpu": gpu, "engine": engine, "date": "2026-01-01", "source": "a log"}
    path.write_text(yaml.safe_dump({**head, "step": STEP}))
    return path


def test_step_times_choose_the_engine_that_they_are_of(tmp_path: Path) -> None:
    """Steps fitted on vLLM's operators are used with those; of several engines one must be named."""
    path = step_file(tmp_path / "steps.yaml", "vllm")
    found = load("h100", None, [path])
    assert found.engine == "vllm"
    assert found.warnings() == ()
    assert load("a100", None, [path]).engine == ""
    with pytest.raises(UsageError, match="step times of sglang and vllm: choose one by --engine"):
        load("h100", None, [path, step_file(tmp_path / "other.yaml", "sglang")])


def test_step_times_that_are_not_used_are_said(tmp_path: Path) -> None:
    """Of another engine or another GPU: the estimate and its JSON say so; the step's origin names the file."""
    path = step_file(tmp_path / "steps.yaml", "vllm")
    options = {"fidelity": "calibrated", "efficiency": [path]}
    other = pm.estimate("llama3-8b", "h100", engine="trtllm", **options)
    assert other.to_dict()["warnings"] == ["the step times in steps.yaml are of vllm, and not used for trtllm"]
    assert not any(r.op.kind == "host" for r in other.analysis.decode.ops)
    elsewhere = pm.estimate("llama3-8b", "a100", **options)
    assert elsewhere.to_dict()["warnings"] == [
        "the step times in steps.yaml are of h100-sxm, and not used for a100-sxm"
    ]
    used = pm.estimate("llama3-8b", "h100", **options)
    assert used.to_dict()["warnings"] == []
    assert any("under vllm in steps.yaml" in origin for origin in used.analysis.origins)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "magic"}, "'magic' is not a form"),
        ({"parameters": {"launch": "9 us"}}, "lacks the parameters .* of the form"),
        ({"parameters": {"speed": 3}}, "is not a parameter of the form"),
        ({"parameters": {"launch": "9"}}, "has no unit"),
        ({"intervals": [{"low": -1, "high": 2}]}, "greater than 0"),
        ({"residual": {"features": ["a"], "constant": 0} | {name: [] for name in LISTS}}, "do not match its 1 feat"),
        ({"colour": "red"}, "not a known key"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """A broken fit names the file, the key and what is the matter."""
    data = yaml.safe_load(OWN.read_text())
    data["kernels"] = [{**data["kernels"][0], **change}]
    path = tmp_path / "broken.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML, and has no anchors
    with pytest.raises(SpecError, match=message):
        read_fit(path)


@pytest.mark.parametrize("path", sorted(p for p in FOLDER.glob("*.yaml") if p.stem != "transfer"), ids=lambda p: p.stem)
def test_shipped_files_say_where_they_come_from(path: Path) -> None:
    """Every shipped kernel names its table, rows, engine version, errors and intervals; shares are physical."""
    data = yaml.safe_load(path.read_text())
    assert data["source"]
    assert data["date"]
    fit = read_fit(path)
    for spec in data["kernels"]:
        assert spec["rows"] > 30
        assert spec["table"]
        assert spec["version"]
        kernel = fit.kernels[spec["kind"], spec["format"]]
        assert {p.name for p in kernel.form.params} == set(kernel.params)
        assert 0.72 <= spec["scores"]["coverage80"] <= 0.9
        assert all(r.low < 1.1 and r.high > 0.95 and r.low < r.high for r in kernel.regimes)
        assert len(spec["correlation"]) == len(spec["sigma"]) - 1


def test_residuals_are_small() -> None:
    """A correction has far fewer numbers than the rows behind it: it cannot be a copy of them."""
    for path in FOLDER.glob("*-*.yaml"):
        for spec in yaml.safe_load(path.read_text())["kernels"]:
            if "residual" in spec:
                assert len(spec["residual"]["weights"]) < spec["rows"] / 8


def test_a_step_pays_the_replay_once() -> None:
    """In a step's graph a call costs its kernels' gaps, not the harness's whole replay."""
    eff = load("h100", "vllm")
    kernel = eff.kernel("decode", ("bf16",))
    assert eff.step_launch(kernel, 1) < kernel.params["launch"]
    quick = replace(kernel, params={**kernel.params, "launch": 1e-6})
    assert eff.step_launch(quick, 1) == 1e-6
