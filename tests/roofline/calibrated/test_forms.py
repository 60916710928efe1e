"""The physical forms: hand arithmetic of their choices, and laws that hold for every form and shape."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.chip import Chip, chip
from perfmodel.roofline.calibrated.decode import DECODE, flash_splits, split_count
from perfmodel.roofline.calibrated.experts import EXPERTS
from perfmodel.roofline.calibrated.form import Form, smax, waves
from perfmodel.roofline.calibrated.forms import FORMS
from perfmodel.roofline.calibrated.gemm import GEMM
from perfmodel.roofline.calibrated.gemm_blocked import chosen_tile
from perfmodel.roofline.calibrated.links import COLLECTIVE
from perfmodel.roofline.calibrated.simple import SIMPLE

H100 = chip(load_gpu("h100"), link=450e9)
assert H100 is not None
ROUND = Chip("round", "hopper", {"bf16": 1e15, "fp8": 2e15}, 1e12, 100.0, 5e7, 1e9, 1e11)

#: A shape of each form, and facts where it needs them.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemm": ({"m": 300.0, "n": 4096.0, "k": 4096.0, "weight_bytes": 2 * 4096.0**2, "act_bytes": 2.0, "out_bytes": 2.0,
              "math": "bf16"}, {}),
    "quantized_gemm": ({"m": 300.0, "n": 4096.0, "k": 4096.0, "weight_bytes": 4096.0**2, "act_bytes": 1.0,
                        "out_bytes": 2.0, "math": "fp8"}, {}),
    "blocked_gemm": ({"m": 300.0, "n": 4096.0, "k": 4096.0, "weight_bytes": 4096.0**2, "act_bytes": 1.0,
                      "out_bytes": 2.0, "math": "fp8"}, {"rule": "sm90"}),
    "prefill": ({"batch": 2.0, "q": 700.0, "kv": 900.0, "heads": 32.0, "kv_heads": 8.0, "dim": 128.0, "kv_bytes": 2.0,
                 "math": "bf16"}, {"packs": "always"}),
    "decode": ({"batch": 6.0, "kv": 5000.0, "heads": 32.0, "kv_heads": 8.0, "dim": 128.0, "kv_bytes": 2.0}, {}),
    "mla_context": ({"batch": 2.0, "q": 700.0, "kv": 700.0, "heads": 16.0, "qk_dim": 192.0, "v_dim": 128.0,
                     "cache": 576.0, "kv_bytes": 2.0, "math": "bf16"}, {}),
    "mla_generation": ({"batch": 4.0, "kv": 9000.0, "heads": 16.0, "latent": 512.0, "rope": 64.0, "kv_bytes": 2.0,
                        "math": "bf16"}, {}),
    "experts": ({"tokens": 500.0, "hidden": 4096.0, "inter": 1024.0, "chosen": 8.0, "experts": 128.0, "local": 16.0,
                 "gate": 2.0, "weight_width": 2.0, "act_width": 2.0, "math": "bf16"}, {}),
    "collective": ({"size": 3e6, "ranks": 4.0}, {"op": "all_reduce"}),
    "simple": ({"compute": 1e-5, "stream": 2e-5}, {}),
}  # fmt: skip
#: What a sweep does not vary.
_WHOLE = {
    "kv_bytes", "act_bytes", "out_bytes", "experts", "local", "gate", "weight_width", "act_width", "ranks", "latent",
    "rope", "qk_dim", "v_dim", "cache", "chosen",
}  # fmt: skip
#: What grows with work: more of it is never faster with the library's kernel choices aside.
WORK = {"prefill": "batch", "decode": "kv", "experts": "inter", "collective": "size", "simple": "stream"}


@pytest.mark.parametrize("name", FORMS)
def test_parts_are_seconds_that_add_up(name: str) -> None:
    """Each form's parts are non-negative, their sum is its time, and every parameter it declares is one it can be
    given."""
    shape, facts = CASES[name]
    form = FORMS[name]
    parts = form.parts(form.start, shape, H100, facts)
    assert all(float(np.min(v)) >= 0 for v in parts.values())
    assert float(form.time(form.start, shape, H100, facts)) == pytest.approx(sum(float(v) for v in parts.values()))
    assert {p.unit for p in form.params} <= {"s", "1"}
    assert all(p.start > 0 and p.meaning for p in form.params)


@pytest.mark.parametrize("name", FORMS)
def test_every_parameter_acts_on_some_shape(name: str) -> None:
    """A parameter that changed no time would be a number without meaning: each moves one of a few shapes under some
    facts."""
    form, rng = FORMS[name], np.random.default_rng(0)
    shape, facts = CASES[name]
    size = 400
    many = {
        k: v if isinstance(v, str) or k in _WHOLE else v * np.exp(rng.uniform(-4, 4, size)) for k, v in shape.items()
    }
    if "heads" in many:
        many["heads"] = rng.choice([8.0, 16.0, 32.0, 64.0, 128.0], size)
        many["kv_heads"] = np.where(rng.random(size) < 0.5, many["heads"], 8.0)
        many["dim"], many["batch"] = rng.choice([64.0, 128.0], size), rng.choice([1.0, 4.0, 64.0], size)
    if "q" in many:
        many["q"] = rng.choice([1.0, 33.0, 1000.0], size)
        many["kv"] = many["q"]
    known = [facts, {**facts, "mha": "own", "swaps": True}, {**facts, "packs": "one token", "rows": 128.0}]
    for p in form.params:
        changed = [{**form.start, p.name: p.start * factor} for factor in (3.0, 0.3)]
        pairs = [(form.time(c, many, H100, f), form.time(form.start, many, H100, f)) for c in changed for f in known]
        assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs), p.name


@pytest.mark.parametrize("name", FORMS)
def test_scalars_and_arrays_agree(name: str) -> None:
    """A shape gives the same time alone as in the middle of an array, to 1e-13."""
    shape, facts = CASES[name]
    form = FORMS[name]
    many = {k: v if isinstance(v, str) or k in _WHOLE else np.array([v * 2, v, v * 3]) for k, v in shape.items()}
    alone = float(form.time(form.start, shape, H100, facts))
    assert np.asarray(form.time(form.start, many, H100, facts))[1] == pytest.approx(alone, rel=1e-13)


@pytest.mark.parametrize("name", WORK)
@given(data=st.data())
def test_more_work_is_not_faster(name: str, data: st.DataObject) -> None:
    """Twice the work along the form's own axis takes at least as long."""
    shape, facts = CASES[name]
    factor = data.draw(st.floats(1, 1000))
    less = {
        **shape,
        WORK[name]: np.ceil(shape[WORK[name]] * factor) if shape[WORK[name]] > 1 else shape[WORK[name]] * factor,
    }
    more = {**less, WORK[name]: less[WORK[name]] * 2}
    form: Form = FORMS[name]
    first, second = (float(form.time(form.start, s, H100, facts)) for s in (less, more))
    assert second >= first * (1 - 1e-12)


@given(a=st.floats(1e-9, 1e3), b=st.floats(1e-9, 1e3), q=st.floats(1, 20))
def test_smooth_maximum_lies_between_maximum_and_sum(a: float, b: float, q: float) -> None:
    """No overlap exponent gives less than the longer time or more than both."""
    found = float(smax(a, b, q))
    assert max(a, b) * (1 - 1e-12) <= found <= (a + b) * (1 + 1e-12)


@given(blocks=st.floats(1, 1e6), whole=st.floats(0.01, 100))
def test_waves_lie_between_share_and_ceiling(blocks: float, whole: float) -> None:
    """Blocks on 100 places take at least their share and at most whole rounds."""
    found = float(waves(blocks, 100.0, whole))
    assert max(1.0, blocks / 100) * (1 - 1e-12) <= found <= np.ceil(blocks / 100)


def test_simple_form_by_hand() -> None:
    """10 us of compute at half the peak and 20 us of traffic at full rate are 20 and 20 us; exponent 1 adds them."""
    p = {"launch": 5e-6, "matrix": 0.5, "memory": 1.0, "overlap": 1.0}
    assert float(SIMPLE.time(p, {"compute": 1e-5, "stream": 2e-5}, ROUND, {})) == pytest.approx(45e-6)


def test_gemm_of_one_full_wave_by_hand() -> None:
    """100 tiles of 128 x 128 on 100 SMs at 10 TFLOP/s each: 2 x 128 x 128 x 1280 / 1e13 = 4.19 us, and nothing else."""
    huge = 1e6
    p = {
        "launch": 1e-6, "matrix": 1.0, "memory": huge, "overlap": 50.0, "tile": 1e-12, "l2": huge, "draw": huge,
        "split": 1.0, "wave": 1e6, "kstep": 1e-15, "output": 1e9, "droop": 1e-9, "droop_time": 1.0,
    }  # fmt: skip
    shape = {
        "m": 1280.0,
        "n": 1280.0,
        "k": 1280.0,
        "weight_bytes": 1.0,
        "act_bytes": 1e-9,
        "out_bytes": 1e-9,
        "math": "bf16",
    }
    found = float(GEMM.time(p, shape, ROUND, {"tiles": [[128, 128]]}))
    assert found == pytest.approx(1e-6 + 2 * 128 * 128 * 1280 / 1e13, rel=1e-4)


def test_collective_picks_the_fastest_protocol_by_hand() -> None:
    """All-reduce of S on 2 ranks sends S: at 1e11 B/s, 1 kB goes by the first protocol and 1 GB by the bulk one, of
    which two ranks of eight reach (1/4)^(1/4) = 0.707."""
    p = {
        "launch": 5e-6, "hop": 1e-6, "ll": 0.1, "pack": 4e-6, "ll128": 0.5, "simple": 20e-6, "simple_hop": 1e-12,
        "bus": 0.8, "channels": 0.25,
    }  # fmt: skip
    facts = {"op": "all_reduce"}  # steps: 1.5 x (2 - 1)
    small = float(COLLECTIVE.time(p, {"size": 1e3, "ranks": 2.0}, ROUND, facts))
    large = float(COLLECTIVE.time(p, {"size": 1e9, "ranks": 2.0}, ROUND, facts))
    assert small == pytest.approx(5e-6 + 1.5e-6 + 1e3 / 1e10)
    assert large == pytest.approx(5e-6 + 1.5e-6 + 20e-6 + 1e9 / (0.8e11 * 0.5**0.5), rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "kv", "kv_heads", "facts", "splits"),
    [
        (1.0, 65536.0, 8.0, {}, 16),  # floor(132 / 8) places
        (1.0, 256.0, 8.0, {}, 2),  # two blocks of 128
        (64.0, 65536.0, 8.0, {}, 1),  # more CTAs than SMs
        (1.0, 16384.0, 1.0, {"splits": "xqa"}, 32),  # 128 blocks: sqrt(8 x 128) = 32
        (1.0, 512.0, 1.0, {"splits": "xqa"}, 4),  # four blocks: sqrt(32) = 5.7 of them at most
        (64.0, 65536.0, 8.0, {"splits": "xqa"}, 2),  # 8 x 132 / 512 = 2.06 by the limit of eight waves
        (1.0, 2048.0, 1.0, {"shortest": 512.0}, 4),
    ],
)
def test_splits_of_a_sequence(batch: float, kv: float, kv_heads: float, facts: dict[str, Any], splits: float) -> None:
    """How engines cut a cached sequence over SMs, by the rules they publish."""
    shape = {"batch": batch, "kv": kv, "heads": kv_heads * 4, "kv_heads": kv_heads, "dim": 128.0}
    assert float(split_count(shape, H100, facts)) == splits


def _flash_rule(heads: int, slots: int, blocks: int) -> int:
    """FlashAttention-2's loop as published: fewest splits within 85 % of the best efficiency."""
    if heads >= 0.8 * slots:
        return 1
    efficiency = []
    for s in range(1, min(128, slots, blocks) + 1):
        eligible = s == 1 or -(-blocks // s) != -(-blocks // (s - 1))
        waves_ = heads * s / slots
        efficiency.append(waves_ / np.ceil(waves_) if eligible else 0.0)
    return next(i + 1 for i, e in enumerate(efficiency) if e >= 0.85 * max(efficiency))


@given(heads=st.integers(1, 300), blocks=st.integers(1, 1024))
def test_closed_form_of_flash_splits(heads: int, blocks: int) -> None:
    """Whole splits, at most the blocks and 128, and none once the heads fill 80 % of the places, as in the loop."""
    found, loop = float(flash_splits(float(heads), float(blocks), 216.0)), _flash_rule(heads, 216, blocks)
    assert found == int(found)
    assert 1 <= found <= min(blocks, 128)
    assert found == 1 or heads < 0.8 * 216
    assert (loop == 1) <= (found <= 3)


def test_closed_form_of_flash_splits_is_mostly_exact() -> None:
    """Over shapes as they are measured (powers of two of tokens and heads) it differs in under a quarter of cases."""
    cases = [(h, b) for h in (1, 2, 4, 8, 16, 32, 64) for b in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]
    wrong = [c for c in cases if float(flash_splits(float(c[0]), float(c[1]), 216.0)) != _flash_rule(c[0], 216, c[1])]
    assert len(wrong) < 0.25 * len(cases)


def test_transposes_only_of_grouped_batches() -> None:
    """FlashAttention-2 transposes queries when there are groups, several KV heads and several sequences; else it is a
    view."""
    facts, p = {"swaps": True}, DECODE.start
    shape = CASES["decode"][0]
    cost = [
        float(np.max(DECODE.parts(p, {**shape, **change}, H100, facts)["transpose"]))
        for change in ({}, {"batch": 1.0}, {"kv_heads": 1.0}, {"kv_heads": 32.0})
    ]
    assert cost[0] > p["swap"]
    assert cost[1:] == [0.0, 0.0, 0.0]


def test_tile_of_the_published_rule() -> None:
    """One row and 24 tiles' worth of columns on 132 SMs: the narrowest tile that still is one wave."""
    rows, cols = chosen_tile(np.array([1.0, 8192.0]), np.array([2112.0, 8192.0]), 132.0, "sm90")
    assert (rows[0], cols[0]) == (64.0, 16.0)  # 2112 / 16 = 132 tiles: one full wave
    assert rows[1] * cols[1] == 256 * 128


def test_experts_pay_for_active_weights_only() -> None:
    """One token of eight chosen experts reads eight experts' weights, not those of all 128: a sixteenth of the time
    in them."""
    shape = {**CASES["experts"][0], "tokens": 1.0, "local": 128.0}
    p = {**EXPERTS.start, "memory": 1e-4}  # so slow a memory that nothing else counts
    one = EXPERTS.parts(p, shape, H100, {})["up"]
    all_ = EXPERTS.parts(p, {**shape, "tokens": 4096.0}, H100, {})["up"]
    assert float(all_) / float(one) == pytest.approx(16, rel=1e-3)


def test_a_chip_says_what_it_does_not_compute_in() -> None:
    """Asking for a format that the GPU lacks names those it has."""
    with pytest.raises(UsageError, match="h100-sxm does not compute in fp4; it does in"):
        H100.peak("fp4")
