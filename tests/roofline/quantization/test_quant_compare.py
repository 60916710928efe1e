"""Formats side by side: bytes, times and capacity agree with what the rest of the library says of each."""

import itertools

import pytest

import perfmodel as pm
from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.formats import FORMATS
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.roofline.engines.inverse import largest_batch
from perfmodel.roofline.quantization.compare import compare, names
from perfmodel.roofline.quantization.units import computes_in, fallback

NAMES = ["bf16", "fp8", "int8", "w8a16", "int4", "mxfp4"]


@pytest.fixture(scope="module")
def hopper():
    return {line.format.name: line for line in compare("llama3.1-8b", "h100", NAMES, batch=4).lines}


def test_lines_are_what_the_parts_say(hopper) -> None:
    """Bytes from the inventory, times from `analyze`, capacity from the engine's budget."""
    for name, line in hopper.items():
        a = pm.analyze("llama3.1-8b", "h100", batch=4, weights=name)
        assert (line.analysis.ttft_s, line.analysis.tpot_s) == (a.ttft_s, a.tpot_s)
        assert line.weights_bytes == weight_bytes(model("llama3.1-8b"), name)
        held = largest_batch("llama3.1-8b", "h100", context=2304, weights=name, kv="bf16")
        assert (line.max_batch, line.kv_tokens) == (held.value, held.memory.kv_tokens)
        full = pm.analyze("llama3.1-8b", "h100", batch=held.value, weights=name)
        assert line.full.tokens_per_s == full.tokens_per_s


def test_bits_a_weight_by_hand(hopper) -> None:
    """Llama 3.1 8B: 6.98 B of 8.03 B weights in 4.15625 bits, embedding and LM head in 16."""
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    rest = 8_030_261_248 - linear
    assert hopper["int4"].bits_per_weight == pytest.approx((linear * 4.15625 + rest * 16) / 8_030_261_248, rel=1e-9)


def test_narrower_weights_leave_more_room_and_decode_faster(hopper) -> None:
    """Fewer bytes: a larger batch and less time a token. Prefill is faster only where units multiply narrow numbers."""
    order = sorted(hopper.values(), key=lambda line: -line.weights_bytes)
    assert [line.max_batch for line in order] == sorted(line.max_batch for line in order)
    times = [line.analysis.tpot_s for line in order]  # 8-bit activations save a little beside the weights
    assert all(later < 1.001 * earlier for earlier, later in itertools.pairwise(times))
    assert times[0] > 1.7 * times[1]
    assert times[1] > 1.5 * times[-1]
    for name in ("w8a16", "int4", "mxfp4"):
        assert hopper[name].analysis.ttft_s == pytest.approx(hopper["bf16"].analysis.ttft_s, rel=0.01)
    for name in ("fp8", "int8"):
        assert hopper[name].analysis.ttft_s < 0.65 * hopper["bf16"].analysis.ttft_s


def test_a_format_without_a_unit_falls_back_and_says_so() -> None:
    """FP8 on A100: Marlin's weights only, in 16-bit math, as fast as other 8-bit weights; FP4 on H100 likewise."""
    lines = {line.format.name: line for line in compare("llama3.1-8b", "a100", ["fp8", "w8a16", "bf16"]).lines}
    assert lines["fp8"].computes_in == "bf16, unpacked"
    assert lines["fp8"].note.startswith(
        "a100-sxm has no fp8 units: engines fall back to weights only (W8A16), by Marlin in vLLM"
    )
    assert lines["fp8"].analysis.tpot_s == pytest.approx(lines["w8a16"].analysis.tpot_s, rel=0.01)
    assert lines["fp8"].analysis.ttft_s == pytest.approx(lines["bf16"].analysis.ttft_s, rel=0.01)
    assert "h100-sxm has no fp4 units" in fallback(FORMATS["mxfp4"], gpu("h100"))


@pytest.mark.parametrize(
    ("fmt", "device", "words"),
    [
        ("fp8", "h100", ""),
        ("int4", "a100", ""),
        ("mxfp4", "b200", ""),
        ("fp8", "v100-sxm", "no engine's kernel is known"),
        ("mxfp4", "mi300x", "no engine's kernel is known"),
    ],
)
def test_fallbacks(fmt, device, words) -> None:
    """Nothing is said where a unit exists or where weights are unpacked on any GPU; Marlin needs Turing or later."""
    text = fallback(FORMATS[fmt], gpu(device))
    assert (words in text) if words else text == ""


def test_math_of_formats() -> None:
    """B200 multiplies FP4 as it is; H100 unpacks it."""
    assert computes_in(FORMATS["nvfp4"], gpu("b200")) == "fp4"
    assert computes_in(FORMATS["nvfp4"], gpu("h100")) == "bf16, unpacked"


def test_what_does_not_fit_has_no_times() -> None:
    """Llama 3 70B in 16 bits on one H100: no times, no capacity, and the reason; in 4 bits it fits."""
    wide, narrow = compare("llama3-70b", "h100", ["bf16", "int4"]).lines
    assert (wide.analysis, wide.full, wide.max_batch, wide.kv_tokens) == (None, None, 0, 0)
    assert wide.note.startswith("not even one request of 2,304 tokens fits")
    assert wide.to_dict()["ttft_s"] is None
    assert narrow.max_batch > 0
    assert narrow.analysis is not None


def test_a_batch_that_is_too_large_has_no_times_of_its_own() -> None:
    """What was asked for does not fit, the largest batch does: its rate is given."""
    (line,) = compare("llama3-70b", "h100", ["int4"], batch=1000).lines
    assert line.analysis is None
    assert line.full is not None
    assert f"only {line.max_batch:,} requests" in line.note


def test_settings_reach_both_sides() -> None:
    """Tensor parallelism and the cache's format change times and capacity."""
    one = compare("llama3-70b", "h100", ["int4"]).lines[0]
    two = compare("llama3-70b", "h100", ["int4"], tp=2, kv="fp8").lines[0]
    assert two.analysis.tpot_s < one.analysis.tpot_s
    assert two.max_batch > 2 * one.max_batch
    assert two.analysis.setup.plan.kv.name == "fp8"


def test_calibrated_times_have_intervals() -> None:
    """Calibrated lines carry an 80 % interval, and are slower than the bound."""
    (bound,) = compare("llama3.1-8b", "h100", ["int4"]).lines
    (line,) = compare("llama3.1-8b", "h100", ["int4"], fidelity="calibrated", engine="vllm").lines
    row = line.to_dict()
    assert row["tpot_low_s"] < row["tpot_s"] < row["tpot_high_s"]
    assert row["tpot_s"] > bound.analysis.tpot_s
    assert bound.to_dict()["tpot_high_s"] is None


def test_a_gpu_that_vllm_does_not_run_on() -> None:
    """Its memory is counted as llama.cpp's."""
    found = compare("llama3.1-8b", "m2-ultra", ["bf16", "int4"])
    assert found.settings["memory_engine"] == "llamacpp"
    assert found.lines[1].max_batch >= found.lines[0].max_batch > 0


def test_a_format_is_listed_once() -> None:
    """Two names of one format are one line."""
    assert [line.format.name for line in compare("llama3.1-8b", "h100", ["bf16", "bfloat16"]).lines] == ["bf16"]


@pytest.mark.parametrize(
    ("formats", "options", "error", "message"),
    [
        ([], {}, UsageError, "0 formats to compare"),
        (["int5x"], {}, UnknownName, "unknown format 'int5x'"),
        (["int4"], {"batch": 0}, UsageError, "batch must be between"),
        (["int4"], {"kv": "int3"}, UnknownName, "unknown KV-cache format"),
        (["int4"], {"dequantization": -1}, UsageError, "instructions a weight"),
        (["int4"], {"engine": "nothing"}, UnknownName, "unknown engine"),
    ],
)
def test_bad_questions(formats, options, error, message) -> None:
    """Refused with the value."""
    with pytest.raises(error, match=message):
        compare("llama3.1-8b", "h100", formats, **options)


def test_names_of_a_list() -> None:
    """Commas separate, blanks do not matter, nothing is no name."""
    assert names("bf16, int4,fp8") == ["bf16", "int4", "fp8"]
    for text in ("", "bf16,,int4", ","):
        with pytest.raises(UsageError, match="--compare takes names of formats"):
            names(text)
