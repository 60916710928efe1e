"""Every public function of the products with every wrong kind of argument: refused by KernelInputError, or right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gemm_operands import E4M3, small
from numeric import random
from w4_data import quantized

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.gemm.dense import gemm_dense
from perfmodel.kernels.gemm.fp8 import gemm_fp8
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block
from perfmodel.kernels.gemm.int8 import gemm_w8a8
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4
from perfmodel.kernels.gemm.w4_formats import pack_awq, pack_gptq, unpack_awq, unpack_gptq
from perfmodel.kernels.gemm.w4_packing import W4Weight, from_awq, from_gptq, from_integers, to_integers
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16

pytestmark = pytest.mark.interpreter

Arguments = dict[str, Any]


def scaled(dtype: torch.dtype, scale_a: tuple[int, ...], scale_b: tuple[int, ...]) -> Arguments:
    a, b = random(4, 144, dtype=dtype), random(136, 144, dtype=dtype, seed=1)
    out = torch.empty(4, 136, dtype=torch.bfloat16)
    return {"a": a, "b": b, "scale_a": torch.ones(scale_a), "scale_b": torch.ones(scale_b), "out": out, "config": None}


def dense() -> Arguments:
    given = scaled(torch.bfloat16, (), ())
    return {name: given[name] for name in ("a", "b", "out", "config")} | {"warp_specialized": False}


def packed(pack: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Arguments:
    data = quantized(64, 8, 32)
    return dict(zip(("qweight", "qzeros"), pack(data.q, data.zeros), strict=True))


def loaded(pack: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Arguments:
    return packed(pack) | {"scales": quantized(64, 8, 32).scales, "group": 32}


def integers() -> Arguments:
    data = quantized(64, 8, 32)
    return {"q": data.q, "zeros": data.zeros}


def w4() -> Arguments:
    x = random(4, 64, dtype=torch.float16)
    weight = quantized(64, 8, 32, act_order=True).weight()
    return {"x": x, "weight": weight, "out": torch.empty(4, 8, dtype=torch.float16), "config": None}


def copied() -> Arguments:
    return {"weight": w4()["weight"], "dtype": torch.float16, "out": torch.empty(8, 64).half(), "config": None}


FUNCTIONS: dict[Callable[..., Any], Arguments] = {
    gemm_dense: dense(),
    gemm_fp8: scaled(E4M3, (4,), (136,)) | {"fast_accumulation": True},
    gemm_fp8_block: scaled(E4M3, (4, 2), (2, 2)),
    gemm_w8a8: scaled(torch.int8, (4,), ()),
    gemm_w4a16: w4(),
    dequantize_w4: copied(),
    to_integers: {"weight": w4()["weight"]},
    pack_gptq: integers() | {"version": 1},
    pack_awq: integers(),
    unpack_gptq: packed(pack_gptq) | {"version": 2},
    unpack_awq: packed(pack_awq),
    from_gptq: loaded(pack_gptq) | {"g_idx": (torch.arange(64) // 32).flip(0), "version": 1},
    from_awq: loaded(pack_awq),
    from_integers: integers() | {"scales": quantized(64, 8, 32).scales, "g_idx": torch.arange(64) // 32, "group": 32},
}

NOTHING = [[[1.0]], 3, 2.5, "x", object(), np.ones((4, 4)), ()]
"""What is neither a tensor nor anything else that a function takes."""

CONFIGS = [{}, small(), "fast", replace(small(), meta={}), replace(small(tma=True), num_warps=3), small(48, 64, 64)]
PLAIN: Arguments = {
    "group": [0, -2, 16, 33, 64, 256, 32.0, True, None, "32", torch.tensor([32, 32])],
    "version": [0, 3, 1.0, True, None, "1"],
    "dtype": [torch.float32, torch.int8, "float16", None, 16],
    "config": [*NOTHING[1:4], *CONFIGS],
    "warp_specialized": [1, None, "yes"],
    "fast_accumulation": [0, None, "no"],
}
"""Wrong values of the arguments that are no tensors; some of the configurations do."""


def equal_tensors(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same numbers in another memory layout or type."""
    yield torch.stack([x, x], -1)[..., 0]
    if x.dim() == 2:
        yield x.T.contiguous().T
    room = torch.empty(x.numel() + 1, dtype=x.dtype)
    shifted = room[1:].view(x.shape)
    shifted.copy_(x)
    yield shifted
    for dtype in (torch.float64, torch.float16, torch.int64, torch.uint8, torch.int32):
        yield x.to(torch.float64).to(dtype)


def other_tensors(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tensors of another rank or shape, without elements, or of a type that no function takes."""
    yield x.flatten()[0].clone()
    yield x[None]
    yield x.flatten()[:-1].clone()
    yield torch.cat([x.flatten()] * 2)
    if x.dim():
        yield x[:0]
        yield x[..., :0].clone()
        yield x[..., :-1].clone()
        yield torch.cat([x, x])
    for dtype in (torch.complex64, torch.bool):
        yield x.to(torch.float32).to(dtype)
    yield x.to("meta")
    yield x.to(torch.float32).to_sparse()


def wrong_weights(weight: W4Weight) -> Iterator[W4Weight]:
    """Weights with a field that is wrong."""
    for name in ("words", "meta", "order"):
        tensor = getattr(weight, name)
        for bad in (*other_tensors(tensor), tensor.int() if name == "words" else tensor.short(), *NOTHING):
            yield replace(weight, **{name: bad})
    for name in ("words", "meta"):
        yield replace(weight, **{name: None})
    for name, values in {"k": [0, 60, -8, 128, 64.0, None], "n": [-1, 129, 8.0, None]}.items():
        for value in values:
            yield replace(weight, **{name: value})
    for group in (0, 64, -1, 32.0, None):
        yield replace(weight, group=group)
    for scale_dtype in (torch.float32, None, "float16"):
        yield replace(weight, scale_dtype=scale_dtype)


def flat(result: Any) -> list[Any]:
    """The tensors, copied, and the sizes of a result."""
    if isinstance(result, W4Weight):
        return [*to_integers(result), result.k, result.n, result.group]
    return [one.clone() for one in (result if isinstance(result, tuple) else [result])]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(one, other, strict=True))


def attempt(function: Callable[..., Any], given: Arguments) -> list[Any] | None:
    """The result, or None where the arguments are refused with a message that says something."""
    try:
        return flat(function(**given))
    except KernelInputError as refusal:
        if len(str(refusal)) < 15:
            raise AssertionError("the refusal says nothing") from refusal
        return None


TENSORS = [
    (function, name)
    for function, given in FUNCTIONS.items()
    for name, value in given.items()
    if isinstance(value, torch.Tensor)
]
ANY_ROWS = {pack_gptq, pack_awq, unpack_gptq, unpack_awq}
"""What takes any number of groups, and of inputs."""
OPTIONAL = {"out", "g_idx", (from_integers, "zeros")}


def named(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("function", "name"), TENSORS, ids=named)
def test_tensors(function: Callable[..., Any], name: str) -> None:
    """What is no such tensor is refused; equal numbers in another layout or type are refused or make no difference."""
    given = FUNCTIONS[function]
    right = flat(function(**given))
    for bad in NOTHING:
        assert attempt(function, given | {name: bad}) is None, f"{name} = {bad!r} was taken"
    result = attempt(function, given | {name: None})
    optional = name in OPTIONAL or (function, name) in OPTIONAL
    assert (result is not None) == optional, f"{name} = None"
    for bad in other_tensors(given[name]):
        result = attempt(function, given | {name: bad})
        one_scale = name in ("scale_a", "scale_b") and bad.numel() == 1
        more_rows = function in ANY_ROWS and bad.dtype == given[name].dtype and bad.dim() == 2
        fits = one_scale or more_rows
        assert result is None or fits, f"{name} {bad.dtype} {tuple(bad.shape)} on {bad.device} was taken"
    for x in equal_tensors(given[name]):
        result = attempt(function, given | {name: x})
        assert result is None or same(result, right), f"{name} {x.dtype}, strides {x.stride()}, gives another result"


VALUES = [(function, name) for function, given in FUNCTIONS.items() for name in given if name in PLAIN]


@pytest.mark.parametrize(("function", "name"), VALUES, ids=named)
def test_values(function: Callable[..., Any], name: str) -> None:
    """A number, type or configuration that does not fit is refused, unless it makes no difference."""
    given = FUNCTIONS[function]
    right = flat(function(**given))
    for bad in PLAIN[name]:
        result = attempt(function, given | {name: bad})
        if result is not None:
            assert name == "config", f"{name} = {bad!r} was taken"
            assert torch.allclose(result[0].float(), right[0].float(), rtol=1e-2, atol=1e-2), bad


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("function", [gemm_w4a16, dequantize_w4, to_integers], ids=named)
def test_weights(function: Callable[..., Any]) -> None:
    """A 4-bit weight with any field wrong is refused, and so is anything else in its place."""
    given = FUNCTIONS[function]
    for bad in (*wrong_weights(given["weight"]), *NOTHING, None, given["weight"].words):
        assert attempt(function, given | {"weight": bad}) is None, bad


PRODUCTS = [gemm_dense, gemm_fp8, gemm_fp8_block, gemm_w8a8]


@pytest.mark.parametrize("function", PRODUCTS, ids=named)
def test_nothing_to_multiply(function: Callable[..., Any]) -> None:
    """Without rows or columns the result is empty; without anything to sum over the product is refused."""
    given = {name: x for name, x in FUNCTIONS[function].items() if name in ("a", "b", "scale_a", "scale_b")}
    a, b = given["a"], given["b"]
    cut: Arguments = {name: x[:0] if x.dim() else x for name, x in given.items()}
    none_a = {name: cut[name] for name in given if name in ("a", "scale_a")}
    none_b = {name: cut[name] for name in given if name in ("b", "scale_b")}
    assert function(**given | none_a).shape == (0, len(b))
    assert function(**given | none_b).shape == (len(a), 0)
    assert function(**given | none_a | none_b).shape == (0, 0)
    with pytest.raises(KernelInputError, match="K is 0, 1 to"):
        function(**given | {"a": a[:, :0], "b": b[:, :0]})


def test_nothing_to_multiply_by_4_bits() -> None:
    """A weight without inputs is refused wherever it would be made or used, and one without outputs is allowed."""
    weight: W4Weight = w4()["weight"]
    no_inputs = replace(weight, k=0, words=weight.words[:0], meta=weight.meta[:0], order=None)
    for function, given in ((gemm_w4a16, {"x": torch.empty(4, 0).half()}), (dequantize_w4, {}), (to_integers, {})):
        with pytest.raises(KernelInputError, match="K is 0, a positive multiple of 8 is needed"):
            function(**given, weight=no_inputs)
    empty = from_integers(torch.empty(64, 0, dtype=torch.uint8), torch.empty(2, 0).half(), group=32)
    assert gemm_w4a16(w4()["x"], empty).shape == (4, 0)
    assert [x.shape for x in to_integers(empty)] == [(64, 0), (2, 0), (2, 0)]


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_groups_that_do_not_divide(group: int) -> None:
    """The last group may be short: 72 inputs are two groups of 32 and 8 more, and so on."""
    data = quantized(72, 8, group)
    assert same(flat(data.weight())[:3], [data.q, data.scales, data.zeros])


@pytest.mark.parametrize("function", [*PRODUCTS, gemm_w4a16], ids=named)
def test_a_result_in_the_place_of_an_operand(function: Callable[..., Any]) -> None:
    """A result that lies upon an operand is refused: it would change what is still to be read."""
    given = FUNCTIONS[function]
    name = "x" if function is gemm_w4a16 else "a"
    memory = torch.zeros(2**16, dtype=torch.uint8)
    kind, shape = given["out"].dtype, given["out"].shape
    out = memory[: given["out"].nbytes].view(kind).view(shape)
    x = memory[: given[name].nbytes].view(given[name].dtype).view(given[name].shape)
    with pytest.raises(KernelInputError, match=f"out shares memory with {name}"):
        function(**given | {"out": out, name: x})
