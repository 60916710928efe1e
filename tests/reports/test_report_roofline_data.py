"""What the picture shows, in numbers: points lie where their bound puts them, ridges where roof and slope meet."""

import math

import pytest

from perfmodel.hwspecs.load import GPUS, gpu
from perfmodel.reports.roofline_data import (
    MINOR,
    Point,
    basis,
    detected,
    device_noun,
    group_lines,
    groups,
    names,
    points,
    roofs,
    slopes,
    undrawn,
    unlabelled,
    used_formats,
)
from perfmodel.reports.words import intensity, percent
from perfmodel.roofline.analysis import Analysis, analyze


def test_every_operator_is_a_point_or_named_as_none(deepseek: Analysis) -> None:
    """Operators with FLOPs are points, the others are listed; together they are all operators and all of the time."""
    listed = undrawn(deepseek)
    for phase in (deepseek.prefill, deepseek.decode):
        mine = [p for p in points(deepseek) if p.phase == phase.name]
        with_flops = {(r.op.name, r.op.layer) for r in phase.ops if float(r.cost.flops) > 0}
        assert {(p.op, layer) for p in mine for layer in p.layers} == with_flops
        assert set(listed[phase.name]) == {r.op.name for r in phase.ops if float(r.cost.flops) == 0}
        assert sum(p.share for p in mine) + sum(listed[phase.name].values()) == pytest.approx(1.0)


def test_layer_classes_that_coincide_are_one_point(deepseek: Analysis) -> None:
    """DeepSeek-V3's attention is the same in its dense and its MoE layers: one point with both shares."""
    (point,) = [p for p in points(deepseek) if (p.phase, p.op) == ("decode", "attention")]
    assert len(point.layers) == 2
    assert point.share == pytest.approx(sum(r.share for r in deepseek.decode.ops if r.op.name == "attention"))


def test_layer_classes_that_differ_are_told_apart() -> None:
    """Sliding and full attention of gpt-oss differ in intensity: two points, each with its layer class in the name."""
    found = points(analyze("gpt-oss-120b", "h100", batch=16))
    called = names(found)
    attention = [called[p] for p in found if (p.phase, p.op) == ("decode", "attention")]
    assert len(attention) == 2
    assert all("(" in name for name in attention)


@pytest.mark.parametrize("name", ["llama3-70b", "deepseek-v3", "gpt-oss-120b", "gemma3-27b"])
def test_points_are_on_the_roof_and_never_above(name: str) -> None:
    """A point is at min(bandwidth x intensity, peak) where memory or matrix units limit it, and below elsewhere."""
    analysis = analyze(name, "h100", tp=8, batch=4)
    device = analysis.setup.gpu
    top = max(roof.peak for roof in roofs(device, used_formats(analysis)) if roof.used)
    for p in points(analysis):
        assert p.y <= min(device.bandwidth * p.x, top) * (1 + 1e-9)
        if p.resource == "memory":
            assert p.y == pytest.approx(device.bandwidth * p.x)
        if p.resource == "matrix":
            assert any(p.y == pytest.approx(device.peak(f)) for f in used_formats(analysis))


@pytest.mark.parametrize("name", GPUS.names)
def test_roofs_and_slopes_are_the_spec(name: str) -> None:
    """Every matrix format and every level with a bandwidth is drawn once; used formats are those asked for."""
    device = gpu(name)
    used = {device.half} if device.supports(device.half) else set()
    found = roofs(device, used)
    assert {f for roof in found for f in roof.used} == used
    assert [roof.peak for roof in found] == sorted((roof.peak for roof in found), reverse=True)
    for math_, rate in device.compute.tensor.items():
        matrix = [roof for roof in found if not roof.name.startswith("vector")]
        (roof,) = [roof for roof in matrix if math_.upper() in roof.name.replace(",", "").split()]
        assert roof.peak == rate.value
    levels = slopes(device)
    assert [s.main for s in levels] == [True] + [False] * (len(levels) - 1)
    assert levels[0].bandwidth == device.bandwidth


def test_vector_units_stand_in_for_matrix_units() -> None:
    """A chip without matrix units has one strong roof, of its vector units."""
    (roof,) = roofs(gpu("m2-ultra"), {"fp16"})
    assert roof.used == ("fp16",)
    assert roof.name == "vector FP16, FP32"


def test_groups_hold_each_point_once(deepseek: Analysis) -> None:
    """Labels divide the points among them; those of one are near the largest, of its phase and limited by the same."""
    found = points(deepseek)

    def near(a: Point, b: Point) -> bool:
        return abs(math.log10(a.x / b.x)) <= 0.1

    split = groups(found, near)
    assert sorted((p.phase, p.op, p.layers) for g in split for p in g.points) == sorted(
        (p.phase, p.op, p.layers) for p in found
    )
    assert len(split) < len(found)
    for group in split:
        assert len({(p.phase, p.limiter) for p in group.points}) == 1
        assert all(near(group.anchor, p) for p in group.points)
        assert group.anchor.share == max(p.share for p in group.points)
    assert [g.share for g in split] == sorted((g.share for g in split), reverse=True)


def test_two_roofs_never_share_a_label() -> None:
    """In gpt-oss on B200 the experts multiply in FP4 and the projections in BF16: told apart wherever they are."""
    found = points(analyze("gpt-oss-120b", "b200", batch=32))
    labels = [{p.op for p in g.points} for g in groups(found, lambda a, b: True) if g.anchor.phase == "prefill"]
    (experts,) = [ops for ops in labels if "experts_gate_up" in ops]
    assert "experts_down" in experts
    assert experts.isdisjoint({"qkv_proj", "o_proj"})


def test_labels_and_notes_name_every_point_with_its_share(deepseek: Analysis) -> None:
    """The lines of the labels name every operator from 0.5 % on, with a share; the note names the others."""
    found = points(deepseek)
    called, notes = names(found), unlabelled(found)
    large = [p for p in found if p.share >= MINOR]
    text = "\n".join(line for g in groups(large, lambda a, b: False) for line in group_lines(g, called))
    assert list(notes) == ["prefill", "decode"]
    for p in found:
        if p.share >= MINOR:
            assert f"{called[p]} {percent(p.share)}".replace(" %", "\u00a0%") in text
        else:
            assert f"{called[p]} {intensity(p.x)}" in notes[p.phase].split(", ")


@pytest.mark.parametrize(("name", "noun"), [("h100", "GPU"), ("cpu", "CPU"), ("a18-pro", "device")])
def test_devices_are_called_what_they_are(name: str, noun: str) -> None:
    """A GPU, a CPU, or a device where it is part of a phone's chip; of several kinds, devices."""
    analysis = (
        analyze("qwen3-0.6b", name, weights="fp16", kv="fp16") if noun == "device" else analyze("qwen3-0.6b", name)
    )
    assert device_noun([analysis]) == noun
    assert device_noun([analysis, analyze("qwen3-0.6b", "h100")]) == ("GPU" if noun == "GPU" else "device")


def test_only_detected_numbers_are_called_measured() -> None:
    """The peaks of this machine's processor are derived and its bandwidth measured; other specs are documents."""
    (here,) = detected([analyze("qwen3-0.6b", "cpu"), analyze("qwen3-0.6b", "h100")])
    assert here in basis([analyze("qwen3-0.6b", "cpu")])
    assert "measured here" in basis([analyze("qwen3-0.6b", "cpu")])
    assert basis([analyze("qwen3-0.6b", "h100")]) == ""
