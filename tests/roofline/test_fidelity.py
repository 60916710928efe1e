"""One question at two fidelities: the roofline, and calibrated times with their intervals."""

import json

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import UsageError
from perfmodel.cli import main
from perfmodel.reports.roofline_table import estimate_text

CASES = [
    ("llama3-70b", "h100", {"tp": 4}),
    ("deepseek-v3", "h200", {"tp": 8, "batch": 32}),
    ("gpt-oss-120b", "b200", {"batch": 8, "engine": "vllm"}),
    ("llama3-8b", "rtx-4090", {}),
    ("qwen3-next-80b-a3b", "a100", {"tp": 4, "batch": 4}),
]


@pytest.mark.parametrize(("name", "card", "options"), CASES)
def test_calibrated_times_lie_above_the_bound_and_inside_their_interval(name, card, options):
    """Bound <= low <= predicted <= high for each operator and the whole; the bound is the roofline's own."""
    plain = {key: value for key, value in options.items() if key != "engine"}
    a, roof = pm.analyze(name, card, fidelity="calibrated", **options), pm.analyze(name, card, **plain)
    for phase, bound in ((a.prefill, roof.prefill), (a.decode, roof.decode)):
        assert phase.time.bound == pytest.approx(bound.time.bound, rel=1e-12)
        for t in (phase.time, *(result.time for result in phase.ops)):
            assert t.bound <= t.predicted * (1 + 1e-12)
            assert t.bound * (1 - 1e-12) <= t.low <= t.predicted <= t.high < float("inf")
    assert sum(r.share for r in a.prefill.ops) == pytest.approx(1)
    assert a.fidelity == "calibrated"
    assert a.origins


def test_the_interval_of_a_step_is_wider_than_no_error_and_narrower_than_all_errors_at_once():
    """Errors of different kinds partly cancel: the step's half-width is below the sum of its operators'."""
    phase = pm.analyze("llama3-70b", "h100", tp=4, fidelity="calibrated", engine="vllm").decode
    half = phase.time.high - phase.time.predicted
    assert 0 < half < sum(r.time.high - r.time.predicted for r in phase.ops)


def test_the_command_gives_both_and_says_which():
    """JSON names the fidelity, and calibrated times have both ends."""
    arguments = ["estimate", "--gpu", "h100", "--model", "llama3-70b", "--tp", "4", "--format", "json"]
    bound = json.loads(CliRunner().invoke(main, arguments).output)
    found = json.loads(CliRunner().invoke(main, [*arguments, "--fidelity", "calibrated"]).output)
    assert (bound["fidelity"], bound["tpot_high_s"]) == ("bound", None)
    assert found["fidelity"] == "calibrated"
    assert bound["tpot_s"] < found["tpot_low_s"] < found["tpot_s"] < found["tpot_high_s"]
    assert {op["source"] for op in found["ops"]} == {"calibrated"}


def test_an_engine_without_calibration_is_refused():
    """An engine changes calibrated times only; another word is no fidelity."""
    with pytest.raises(UsageError, match="add --fidelity calibrated"):
        pm.estimate("llama3-8b", "h100", engine="vllm")
    with pytest.raises(UsageError, match="bound or calibrated"):
        pm.estimate("llama3-8b", "h100", fidelity="exact")


def test_a_calibrated_sweep_is_the_analysis_over_a_grid():
    """Each row of a sweep is the time of that step alone, with its interval; a prefill row too."""
    options = {"tp": 4, "fidelity": "calibrated", "engine": "vllm"}
    frame = pm.sweep("llama3-70b", "h100", batch=[1, 64], context=[512, 2048], phase="prefill", **options)
    assert (frame.low_s <= frame.time_s).all()
    assert (frame.time_s <= frame.high_s).all()
    for row in frame.itertuples():
        a = pm.analyze("llama3-70b", "h100", batch=int(row.batch), input=int(row.context), **options)
        assert row.time_s == pytest.approx(a.prefill.time.predicted, rel=1e-12)
        assert row.high_s == pytest.approx(a.prefill.time.high, rel=1e-12)
    decode = pm.sweep("llama3-70b", "h100", batch=[8], context=[2049], **options)
    one = pm.analyze("llama3-70b", "h100", batch=8, input=2048, output=2, **options)
    assert decode.time_s[0] == pytest.approx(one.tpot_s, rel=1e-12)


@pytest.mark.parametrize("fidelity", ["bound", "calibrated"])
@pytest.mark.parametrize("output", [1, 256])
def test_a_rate_has_the_ends_of_its_times(fidelity, output):
    """In JSON the rate's high end is that of both fast ends, as in the table; the bound's ceiling stands apart."""
    found = pm.estimate("llama3-8b", "h100", batch=4, output=output, fidelity=fidelity)
    data = found.to_dict()
    fast = data["ttft_low_s"] + (output - 1) * data["tpot_low_s"]
    assert data["tokens_per_s_high"] == pytest.approx(4 * output / fast)
    assert f"{data['tokens_per_s_high']:,.4g}"[:4] in estimate_text(found, "table")
    if fidelity == "bound":
        assert data["tokens_per_s_low"] == 0
        assert data["tokens_per_s_high"] == data["tokens_ceiling_per_s"]
    else:
        slow = data["ttft_high_s"] + (output - 1) * data["tpot_high_s"]
        assert data["tokens_per_s_low"] == pytest.approx(4 * output / slow)
        assert (
            data["tokens_per_s_low"] < data["tokens_per_s"] < data["tokens_per_s_high"] < data["tokens_ceiling_per_s"]
        )
