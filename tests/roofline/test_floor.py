"""The floor below the bound: everything overlapped and fused."""

import pytest

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.load import model
from perfmodel.reports.summary import batch_words
from perfmodel.roofline.analysis import analyze
from perfmodel.roofline.critical import critical_batch
from perfmodel.roofline.sweep import sweep

CASES = [
    ("llama3-70b", "h100", {"tp": 4}),
    ("deepseek-v3", "mi300x", {"tp": 8, "batch": 64}),
    ("gpt-oss-120b", "b200", {"batch": 32}),
    ("qwen3-next-80b-a3b", "h200", {"tp": 2, "pp": 2, "batch": 8}),
]


@pytest.mark.parametrize(("name", "card", "options"), CASES)
def test_the_floor_is_below_the_bound_and_above_each_resource(name, card, options):
    """Floor <= bound, and no resource does its whole work in less than the floor."""
    a = analyze(name, card, **options)
    assert 0 < a.ttft_floor_s <= a.ttft_s
    assert 0 < a.tpot_floor_s <= a.tpot_s
    assert a.tokens_per_s <= a.tokens_ceiling_per_s
    weights = float(a.decode.cost.hbm["weights"]) / a.setup.gpu.bandwidth
    assert a.decode.floor >= weights * (1 - 1e-12)


def test_decode_s_floor_is_weights_and_cache_alone():
    """One H100, batch 1: (weights + KV read + KV written) / 3.35 TB/s, activations left out."""
    a = analyze("llama3-8b", "h100")
    hbm = a.decode.cost.hbm
    expected = (hbm["weights"] + hbm["kv_read"] + hbm["kv_write"]) / gpu("h100").bandwidth
    assert a.tpot_floor_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "card", "options"), CASES[:3])
def test_the_words_say_the_library_s_critical_batch(name, card, options):
    """The text and `critical_batch` are one figure, experts or not."""
    plan = {k: v for k, v in options.items() if k != "batch"}
    figure = critical_batch(name, card, 1024.0, **plan)[0].linear
    words = batch_words(analyze(name, card, **options))
    assert f"{figure:,.0f} tokens a step" in words
    assert ("experts" in words) == ("experts" in str(model(name).ffn))


def test_eight_bit_weights_multiply_in_fp16_where_there_is_no_bf16():
    """A V100 has FP16 matrix units: FP8 weights are widened to that, and prefill is as fast as with FP16 weights."""
    options = {"phase": "prefill", "hypothetical": True}
    times = {w: sweep("llama3-8b", "v100-sxm", weights=w, **options).time_s[0] for w in ("fp16", "fp8", "nvfp4")}
    assert times["fp8"] == pytest.approx(times["fp16"], rel=0.02)
    assert times["nvfp4"] == pytest.approx(times["fp16"], rel=0.02)


def test_a_sweep_says_what_fits():
    """Llama 3 70B in 16 bits: 4 GPUs hold one sequence of 1,024 tokens, not 64 of 32,768; one GPU holds none."""
    frame = sweep("llama3-70b", "h100", batch=[1, 64], context=[1024, 32768], tp=[1, 4])
    fits = {(r.tp, r.batch, r.context): r.fits for r in frame.itertuples()}
    assert fits[4, 1.0, 1024.0]
    assert not fits[4, 64.0, 32768.0]
    assert not any(value for key, value in fits.items() if key[0] == 1)


@pytest.mark.parametrize("fidelity", ["bound", "calibrated"])
def test_a_sweep_predicts_nothing_for_what_does_not_fit(fidelity):
    """Times, ends and rates are NaN where weights and cache exceed the memory, and nowhere else; on request they are
    given, and those of what fits are the same."""
    options = {"batch": [1, 64], "context": [1024, 32768], "tp": [1, 4], "fidelity": fidelity}
    frame = sweep("llama3-70b", "h100", **options)
    every = sweep("llama3-70b", "h100", hypothetical=True, **options)
    numbers = [name for name in ("time_s", "tokens_per_s", "low_s", "high_s") if name in frame]
    assert len(numbers) == (2 if fidelity == "bound" else 4)
    assert 0 < frame.fits.sum() < len(frame)
    for name in numbers:
        assert (frame[name].notna() == frame.fits).all()
        assert every[name].notna().all()
        assert (frame[name][frame.fits] == every[name][frame.fits]).all()
