"""What cannot be computed is refused in one line: the value, the limit, the remedy, and the exit code of its kind."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.base.errors import DoesNotFit, PerfmodelError, SpecError, UnknownName, UsageError
from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.analysis import analyze, estimate
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import Plan, choose_math, decode, make_plan, prefill, verify

NUMBERS = ["batch", "input", "output", "tp", "pp", "ep", "dp"]
BAD = {
    "zero": 0,
    "negative": -1,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "absurd": 1e30,
    "huge": 10**400,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    """Zero, negative, NaN, infinite and absurd numbers: the message names the option and the limits; exit code 2."""
    with pytest.raises(UsageError, match=f"^{name} must be ") as caught:
        analyze("llama3-70b", "h100", **{name: value})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [2.5, "many", [1, 2], None])
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    """Half a GPU, a word, a list or nothing where a whole number belongs."""
    with pytest.raises(UsageError, match=f"^{name} must be a (whole )?number|^{name} must be between"):
        analyze("llama3-70b", "h100", **{name: value})


@pytest.mark.parametrize(
    ("model", "degrees", "message"),
    [
        (
            "llama3-70b",
            {"tp": 3},
            "tp 3 does not divide the 64 attention heads of llama3-70b; tp can be 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            "llama3-70b",
            {"tp": 128},
            "tp 128 does not divide the 64 attention heads .*; tp can be 1, 2, 4, 8, 16, 32, 64",
        ),
        ("llama3-70b", {"ep": 2}, "ep 2: llama3-70b has no experts; leave ep at 1"),
        ("llama3-70b", {"pp": 81}, "pp 81 is above the 80 layers of llama3-70b; use at most that"),
        ("deepseek-v3", {"ep": 4, "tp": 2}, "ep 4 must divide tp x dp = 2; ep can be 1, 2"),
        ("deepseek-v3", {"ep": 3, "dp": 3}, "ep 3 does not divide the 256 experts of deepseek-v3; ep can be 1"),
        (
            "deepseek-v3",
            {"tp": 7},
            "tp 7 does not divide the 128 attention heads .*; tp can be 1, 2, 4, 8, 16, 32, 64, 128",
        ),
    ],
)
def test_degrees_that_do_not_divide_are_refused_with_those_that_do(
    model: str, degrees: dict[str, int], message: str
) -> None:
    """Heads, layers and experts are cut evenly or not at all; the message lists the degrees that would do."""
    with pytest.raises(UsageError, match=message) as caught:
        setup(model, "h100", **degrees)
    assert caught.value.exit_code == 2


def test_every_degree_that_is_offered_works(structures: dict[str, ModelSpec], toy_gpu: Gpu) -> None:
    """The degrees in the message are exactly those that are accepted, for every structure."""
    for model in structures.values():
        accepted = []
        for tp in range(1, 129):
            try:
                make_plan(model, toy_gpu, tp)
                accepted.append(tp)
            except UsageError:
                pass
        with pytest.raises(UsageError) as caught:
            make_plan(model, toy_gpu, 127)
        assert str(caught.value).endswith("tp can be " + ", ".join(map(str, accepted)))


def test_kv_heads_are_replicated_evenly_or_refused(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """12 heads over 4 KV heads: TP 12 puts each KV head on 3 ranks; TP 6 would put 4 heads on 6 ranks unevenly."""
    model = build_model(
        attention={"a": {"kind": "gqa", "heads": 12, "kv_heads": 4, "head_dim": 16}},
        ffn={"f": {"kind": "dense", "intermediate_size": 192}}, layers=[[2, ["a/f"]]],
    )  # fmt: skip
    plan = make_plan(model, toy_gpu, 12)
    op = next(op for op in graph(model, decode(1.0, 10.0), plan) if op.name == "attention")
    assert (op.inputs["heads"], op.inputs["kv_heads"]) == (1.0, 1.0)
    with pytest.raises(UsageError, match="tp 6 is not a multiple of the 4 KV heads of toy; tp can be 1, 2, 4, 12"):
        make_plan(model, toy_gpu, 6)


def test_experts_cut_into_parts_must_divide(build_model: Callable[..., ModelSpec], toy_gpu: Gpu) -> None:
    """EP 2 of 8 ranks cuts each expert of 6 features in four: refused; EP 4 cuts it in two."""
    model = build_model(
        attention={"a": {"kind": "gqa", "heads": 8, "kv_heads": 8, "head_dim": 16}},
        ffn={"m": {"kind": "moe", "experts": 4, "experts_per_token": 2, "intermediate_size": 6}},
        layers=[[2, ["a/m"]]],
    )  # fmt: skip
    with pytest.raises(UsageError, match="tp x dp / ep = 4 does not divide the 6 features of an expert of toy"):
        make_plan(model, toy_gpu, 8, ep=2)
    assert make_plan(model, toy_gpu, 8, ep=4).expert_tp == 2


@pytest.mark.parametrize(
    ("options", "kind", "near"),
    [
        ({"gpu": "h10"}, "unknown GPU 'h10'; did you mean", "h100"),
        ({"model": "lama3-70b"}, "unknown model 'lama3-70b'; did you mean", "llama3-70b"),
        ({"weights": "fp7"}, "unknown weight format 'fp7'; did you mean", "fp8"),
        ({"kv": "int9"}, "unknown KV-cache format 'int9'; did you mean", "int8"),
        ({"system": "dgx-h10"}, "unknown system 'dgx-h10'; did you mean", "dgx-h100"),
    ],
)
def test_unknown_names_get_near_ones(options: dict[str, Any], kind: str, near: str) -> None:
    """A slip in the name of a model, GPU, format or system is refused with the nearest names; exit code 2."""
    arguments = {"model": "llama3-70b", "gpu": "h100"} | options
    with pytest.raises(UnknownName, match=kind) as caught:
        setup(**arguments)
    assert near in caught.value.suggestions
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("option", "value"), [("model", "no/such.yaml"), ("gpu", "/no/such.yaml")])
def test_missing_files_are_named(option: str, value: str) -> None:
    """A file that is not there is a bad spec, exit code 3, by its name."""
    with pytest.raises(SpecError, match=r"no/such\.yaml: cannot be read: No such file") as caught:
        setup(**({"model": "llama3-70b", "gpu": "h100"} | {option: value}))
    assert caught.value.exit_code == 3


def test_a_hostile_name_is_shown_harmlessly() -> None:
    """Control characters and a megabyte of text in a name do not reach the terminal."""
    with pytest.raises(UnknownName) as caught:
        setup("\x1b]0;gotcha\x07\x1b[31m" + "x" * 10**6, "h100")
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 300


def test_a_format_no_unit_can_compute_is_refused(toy_gpu: Gpu) -> None:
    """A device with FP64 alone cannot run a model: refused with what was looked for."""
    from perfmodel.modelspecs.formats import weight_format

    compute = toy_gpu.compute.model_copy(update={"tensor": {}, "vector": {"fp64": toy_gpu.compute.vector["fp32"]}})
    bare = toy_gpu.model_copy(update={"compute": compute})
    with pytest.raises(UsageError, match="toy computes in none of bf16, fp16, fp32, which bf16 needs"):
        choose_math(weight_format("bf16"), bare)


@pytest.mark.parametrize(
    ("gpu", "weights", "math"),
    [("h100", "fp8", "fp8"), ("a100", "fp8", "bf16"), ("a100", "int8", "int8"), ("h100", "w8a16", "bf16"),
     ("h100", "int4", "bf16"), ("h100", "mxfp4", "bf16"), ("b200", "nvfp4", "fp4"), ("v100-sxm", "bf16", "fp16"),
     ("h100", "fp32", "tf32")],
)  # fmt: skip
def test_arithmetic_follows_the_format_and_the_gpu(gpu: str, weights: str, math: str) -> None:
    """Stored formats compute in the best format of the GPU; what it lacks is converted to 16 bits."""
    plan = setup("llama3-8b", gpu, weights=weights).plan
    assert plan.linear_math == math
    assert plan.activation_bytes == {"fp8": 1.0, "int8": 1.0, "fp4": 0.5, "tf32": 4.0}.get(math, 2.0)


def test_estimate_gives_no_time_for_what_does_not_fit_and_says_what_would() -> None:
    """Llama-3 70B at BF16 on one H100: exit code 4, need and have in bytes, a TP and a format that fit."""
    with pytest.raises(DoesNotFit) as caught:
        estimate("llama3-70b", "h100")
    error = caught.value
    assert error.exit_code == 4
    assert error.need > 141e9 > error.have
    assert "does not fit" in str(error)
    assert "--tp 2 or --weights" in str(error)
    for name in str(error).split("--")[1:]:
        option, value = name.split()[:2]
        assert estimate("llama3-70b", "h100", **{option: int(value) if option == "tp" else value}).ttft_s > 0


def test_analyze_answers_for_what_does_not_fit_and_labels_it() -> None:
    """The roofline is drawn all the same: times are called hypothetical."""
    found = analyze("llama3-70b", "h100")
    assert not found.fits
    assert "hypothetical" in found.notice
    assert found.decode.time.bound > 0.04


def test_no_json_value_is_infinite_or_a_python_object() -> None:
    """Everything in to_dict() is plain JSON: at bound fidelity the upper limits are null."""
    for found in (analyze("llama3-70b", "h100"), estimate("deepseek-v3", "h200", tp=8)):
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert json.loads(text)["fidelity"] == "bound"


def test_errors_are_of_one_family() -> None:
    """All refusals derive from PerfmodelError, so a command catches one class."""
    assert all(issubclass(kind, PerfmodelError) for kind in (UsageError, UnknownName, SpecError, DoesNotFit))


def test_replicas_may_fill_more_than_a_domain(
    structures: dict[str, ModelSpec], toy_gpu: Gpu, toy_system: System
) -> None:
    """Data parallelism alone never talks, so it needs no network even beyond the domain."""
    lonely = toy_system.model_copy(update={"scale_out": None})
    assert setup(structures["gqa"], toy_gpu, dp=64, system=lonely).plan.gpus == 64


def test_steps_say_what_they_are() -> None:
    """MLA runs on latents in decode and verification and on expanded heads in prefill, as engines do."""
    assert [step.absorbed for step in (prefill(1.0, 8.0), decode(1.0, 8.0), verify(1.0, 3.0, 8.0))] == [
        False,
        True,
        True,
    ]
    assert verify(2.0, 3.0, 8.0).logits == 4.0
    assert Plan(tp=2, pp=3, dp=4).gpus == 24
    assert Plan(tp=4, dp=4, ep=8).expert_tp == 2
