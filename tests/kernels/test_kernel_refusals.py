"""Every public function refuses what it cannot take with KernelInputError: no other exception, and no launch."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from public_calls import Call, calls

from perfmodel.kernels import attention, speculative, support
from perfmodel.kernels.attention.tree import ancestor_masks
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume

pytestmark = pytest.mark.interpreter

WRONG_TENSORS: dict[str, Callable[[torch.Tensor], object]] = {
    "a list": lambda x: [1.0],
    "a string": lambda x: "tensor",
    "a number": lambda x: 1,
    "no dimension": lambda x: x.flatten()[0].clone(),
    "complex128": lambda x: x.to(torch.complex128),
    "bool": lambda x: x.to(torch.bool),
    "one dimension more": lambda x: x[None],
    "on the meta device": lambda x: x.to("meta"),
}
"""What no function takes for a tensor."""

WRONG_NUMBERS: dict[type, list[object]] = {
    int: [2.5, "2", True, -(10**12), 10**12, math.nan],
    float: ["2", True, torch.zeros(1)],
    bool: [1, "no"],
}
"""What no function takes for a number of a type."""


def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(inspect.unwrap(function))


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The kinds of a union, or the one."""
    return typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)


def places(arguments: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where tensors stand in the arguments of a call: the name of an argument, and of a field or position within it."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield (name,)
        elif isinstance(value, tuple):
            yield from ((name, str(i)) for i in range(len(value)))
        elif dataclasses.is_dataclass(value):
            held = dataclasses.fields(value)
            yield from ((name, field.name) for field in held if isinstance(getattr(value, field.name), torch.Tensor))


def at(arguments: dict[str, Any], place: tuple[str, ...]) -> Any:
    value = arguments[place[0]]
    if len(place) == 1:
        return value
    return value[int(place[1])] if isinstance(value, tuple) else getattr(value, place[1])


def put(arguments: dict[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    """The arguments with another value at a place."""
    if len(place) == 2:
        whole = arguments[place[0]]
        if isinstance(whole, tuple):
            value = tuple(value if str(i) == place[1] else x for i, x in enumerate(whole))
        else:
            value = dataclasses.replace(whole, **{place[1]: value})
    return {**arguments, place[0]: value}


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """`refused` with KernelInputError, `taken`, or what else was raised."""
    try:
        with assume("sm_90", sm_count=2):
            function(**arguments)
    except KernelInputError as error:
        return "refused" if str(error) else "refused without a word"
    except Exception as error:  # whatever else it raises is a finding
        return f"{type(error).__name__}: {error}"
    return "taken"


CALLS = [pytest.param(call, id=f"{call[0].__name__}-{i}") for i, call in enumerate(calls())]


@pytest.mark.parametrize("call", CALLS)
def test_what_is_right_is_taken(call: Call) -> None:
    """The calls that are spoiled below are taken as they stand."""
    function, arguments = call
    assert outcome(function, arguments) == "taken"


@pytest.mark.parametrize("call", CALLS)
def test_wrong_tensors_are_refused(call: Call) -> None:
    """Something else than a tensor, one of another number of dimensions or type, and one without data are refused."""
    function, arguments = call
    for place in places(arguments):
        for what, spoil in WRONG_TENSORS.items():
            if function is ancestor_masks and what == "on the meta device":
                continue  # it launches nothing
            if place == ("like",) and what in ("no dimension", "complex128", "bool", "one dimension more"):
                continue  # any tensor will do
            result = outcome(function, put(arguments, place, spoil(at(arguments, place))))
            assert result == "refused", f"{'.'.join(place)}, {what}: {result}"


@pytest.mark.parametrize("call", CALLS)
def test_lengths_of_zero_are_refused_or_no_work(call: Call) -> None:
    """An empty dimension of any tensor is refused, or there is nothing to do; never another exception."""
    function, arguments = call
    for place in places(arguments):
        tensor = at(arguments, place)
        for i in range(tensor.dim()):
            empty = tensor.narrow(i, 0, 0)
            result = outcome(function, put(arguments, place, empty))
            assert result in ("refused", "taken"), f"{'.'.join(place)}, axis {i}: {result}"


@pytest.mark.parametrize("call", CALLS)
def test_wrong_numbers_are_refused(call: Call) -> None:
    """Numbers of another type, and integers beyond any limit, are refused."""
    function, arguments = call
    for name, kind in kinds(function).items():
        number = next((one for one in alternatives(kind) if one in WRONG_NUMBERS), None)
        if number is None or name == "return" or arguments.get(name) is None:
            continue
        for value in [*WRONG_NUMBERS[number], *([] if type(None) in alternatives(kind) else [None])]:
            result = outcome(function, {**arguments, name: value})
            assert result == "refused", f"{name}={value!r}: {result}"


@pytest.mark.parametrize("call", CALLS)
def test_other_objects_are_refused(call: Call) -> None:
    """What is neither tensor nor number (caches, pairs, types, configurations) is refused where it is not what it is.

    A pair of tensors that share memory, or that has one member or three, is not one to write results to.
    """
    function, arguments = call
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor | int | float | str | None):
            continue
        for wrong in (5, "x", (), [], (1, 2, 3), object()):
            assert outcome(function, {**arguments, name: wrong}) == "refused", f"{name}={wrong!r}"
        if name == "out":
            assert outcome(function, {**arguments, name: value[:1]}) == "refused"
            same = torch.empty(4096, dtype=torch.float32)
            shared = tuple(same.view(x.dtype).flatten()[: x.numel()].view(x.shape) for x in value)
            assert outcome(function, {**arguments, name: shared}) == "refused"


def expanded(x: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """The first of a tensor's rows in the place of all."""
    return x.narrow(axis, 0, 1).expand(x.shape)


MESSAGES: list[tuple[str, dict[str, Callable[[Any], object]], str]] = [
    # the function, how arguments are spoiled, what is said
    ("paged_decode", {"cache.k": lambda x: x[:0], "cache.v": lambda x: x[:0]},
     r"cache.k has 0 pages, at least 1 is needed; one that no sequence uses will do"),
    ("tree_attention", {"cache.k": lambda x: x[:0], "cache.v": lambda x: x[:0]}, "cache.k has 0 pages, at least 1"),
    ("mla_decode", {"latents.cache": lambda x: x[:0]}, "latents.cache has 0 pages, at least 1 is needed"),
    ("rope_and_cache", {"key_cache": lambda x: x[:0], "value_cache": lambda x: x[:0]},
     "the number of pages of key_cache is 0, 1 to 2147483647 is supported"),
    ("quantize_kv", {"key_cache": lambda x: x[:0], "value_cache": lambda x: x[:0], "key_scales": lambda x: x[:0]},
     "the number of pages of key_cache is 0, 1 to 2147483647 is supported"),
    ("quantize_kv", {"key_cache": lambda x: x[:, :0], "value_cache": lambda x: x[:, :0]},
     "the slots of a page of key_cache is 0, 1 to 2147483647 is supported"),
    ("compact_kv", {"key_cache": lambda x: x[:, :0], "value_cache": lambda x: x[:, :0]},
     "the number of pages is 0, 1 to 2147483647 is supported"),
    ("compact_kv", {"block_table": lambda x: x[:, :0]}, r"the pages of a request \(columns of block_table\) is 0, 1"),
    ("compact_kv", {"key_cache": lambda x: x.to(torch.complex128)},
     "key_cache is torch.complex128, of 16 bytes; types of 1, 2, 4 or 8 bytes are supported"),
    ("compact_kv", {"value_cache": lambda x: CALLED["compact_kv"]["key_cache"]},
     "key_cache shares memory with value_cache; pass another tensor, or a .clone()"),
    ("paged_decode", {"q": lambda x: x[..., :0].contiguous()}, "head_dim is 0, 64, 128, 256 are supported"),
    ("paged_decode", {"q": lambda x: x[0]}, r"q has shape \(1, 4, 64\), \(any, any, any, any\) is needed"),
    ("paged_decode", {"q": lambda x: None}, "q is None, a torch tensor is needed"),
    ("paged_decode", {"cache": lambda x: None}, "cache is None, a Paged is needed"),
    ("paged_decode", {"cache.table": lambda x: [0]}, "cache.table is list, a torch tensor is needed"),
    ("paged_decode", {"window": lambda x: 2.5}, "window is 2.5, an integer or None is needed"),
    ("paged_decode", {"window": lambda x: 2**31}, r"window is 2147483648, up to 2\^30 is supported; pass None"),
    ("paged_decode", {"cache.table": lambda x: torch.empty(2, 2**26 + 1, dtype=torch.int32)},
     "the tokens that cache.table has room for is 1073741840, 1 to 1073741824 is supported"),
    ("paged_decode", {"out": lambda x: (CALLED["paged_decode"]["q"], x[1])},
     r"out\[0\] shares memory with q; pass another tensor, or a .clone\(\)"),
    ("paged_decode", {"out": lambda x: x[:1]}, "out is tuple, a tuple of 2 .a torch tensor, a torch tensor. or None"),
    ("paged_decode", {"q": lambda x: x.to("meta")}, "q is on meta; the interpreter takes CPU tensors"),
    ("prefill_attention", {"k": expanded, "v": expanded}, "k has strides .*; an expanded tensor is not supported"),
    ("prefill_attention", {"v": lambda x: expanded(x, 1)}, "v has strides .*; an expanded tensor is not supported"),
    ("prefill_attention", {"window": lambda x: 2**31}, r"window is 2147483648, up to 2\^30 is supported"),
    ("ancestor_masks", {"parents": lambda x: x[0]}, r"parents has shape \(4,\), \(sequences, nodes\) is needed"),
    ("ancestor_masks", {"parents": lambda x: x.float()}, "parents is float32, integers are needed"),
    ("ancestor_masks", {"parents": lambda x: x + 2}, r"parents\[0, 0\] is 1, a node before 0 or -1 is needed"),
    ("ancestor_masks", {"parents": lambda x: x - 1}, r"parents\[0, 0\] is -2, a node before 0 or -1 is needed"),
    ("verify_tree_greedy", {"depth": lambda x: 2.0}, "depth is 2.0, an integer is needed"),
    ("rope_and_cache", {"q": expanded}, r"q has strides .*: elements that are written overlap; call .contiguous\(\)"),
    ("rope_and_cache", {"k": expanded}, r"k has strides .*: elements that are written overlap; call .contiguous\(\)"),
    ("rope_and_cache", {"k": lambda x: CALLED["rope_and_cache"]["q"][:, :2]}, "q shares memory with k; pass another"),
    ("rope_and_cache", {"key_cache": expanded}, "key_cache is not contiguous"),
    ("rope_and_cache", {"table": lambda x: x[:0]}, r"the positions in table \(rows\) is 0, 1 to 2147483647"),
    ("rotary_table", {"turned": lambda x: 7}, "turned is 7, a positive multiple of 2 is needed"),
    ("rotary_table", {"base": lambda x: 0}, "base is 0, a number above 0 is needed"),
    ("quantize_kv", {"value_scales": lambda x: CALLED["quantize_kv"]["key_scales"]},
     "key_scales shares memory with value_scales; pass another"),
    ("copy", {"out": lambda x: CALLED["copy"]["x"]}, "out shares memory with x; pass another tensor, or a .clone()"),
    ("copy", {"out": expanded}, "out is not contiguous"),
    ("triad", {"out": lambda x: CALLED["triad"]["y"]}, "out shares memory with x; pass another tensor"),
    ("gather_sum", {"pool": lambda x: x[:0]}, "the number of rows of pool is 0, 1 to 2147483647 is supported"),
    ("merge_attention", {"out": lambda x: (CALLED["merge_attention"]["partial"][:, 0].contiguous(), x[0][:, 0])},
     r"out\[1\] is not contiguous"),
]  # fmt: skip
CALLED = {function.__name__: arguments for function, arguments in reversed(calls())}


@pytest.mark.parametrize(("name", "spoils", "message"), MESSAGES)
def test_the_message_says_what_is_wrong(name: str, spoils: dict[str, Callable[[Any], object]], message: str) -> None:
    """The argument is named, with its value, what is supported, and what to do where it is not plain."""
    function = next(function for function, _ in calls() if function.__name__ == name)
    arguments = CALLED[name]
    for argument, spoil in spoils.items():
        place = tuple(argument.split("."))
        arguments = put(arguments, place, spoil(at(arguments, place)))
    with pytest.raises(KernelInputError, match=message):
        function(**arguments)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the three folders that say they refuse arguments."""
    for folder in (attention, speculative, support):
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            for name, value in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
                own = value.__module__ == module.name and not name.startswith("_")
                if own and "KernelInputError" in (value.__doc__ or ""):
                    yield name, value


def test_no_public_function_is_left_out() -> None:
    """Each function that says it refuses arguments is among the calls, and checks kinds and device as all do."""
    named = dict(public())
    assert set(named) == {function.__name__ for function, _ in calls()}
    assert [name for name, value in named.items() if not hasattr(value, "__wrapped__")] == []
