"""What every public kernel function does first: refuse arguments of a wrong kind, and make their GPU current."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch

from .checks import KernelInputError
from .device import current

P = ParamSpec("P")
R = TypeVar("R")

_NAMES = {torch.Tensor: "a torch tensor", torch.dtype: "a torch.dtype", int: "an integer", float: "a number",
          bool: "True or False", types.NoneType: "None"}  # fmt: skip


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function, whose annotations say of what kind its arguments are.

    An argument of another kind is refused with KernelInputError; so is a field of a dataclass that is passed, named as
    `argument.field`. An integer will do for a float, a bool not for an integer. Then the function runs with the GPU of
    its first tensor as the current one: Triton launches on that, and the pointers are valid on the tensor's alone.
    """

    @functools.wraps(function)
    def _entered(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _arguments(function)
        for argument, value in zip(known.values(), args, strict=False):
            argument.check(argument.name, value)
        for name, value in kwargs.items():
            if name in known:  # else it is for Python to refuse
                known[name].check(name, value)
        tensor = next(_tensors((*args, *kwargs.values())), None)
        if tensor is None:
            return function(*args, **kwargs)
        with current(tensor):
            return function(*args, **kwargs)

    return _entered


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors among some values, and in dataclasses among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif dataclasses.is_dataclass(value):
            yield from _tensors(vars(value).values())


@dataclass(frozen=True)
class _Argument:
    """An argument or a field, of what kind it is, and the types of values that were found to be of that kind."""

    name: str
    kind: Any
    types: set[type] = field(default_factory=set)

    def check(self, name: str, value: object) -> None:
        """Refuse a value of another kind; `name` says where it was found."""
        if type(value) in self.types:
            return
        if not _is(value, self.kind):
            plain = isinstance(value, int | float | str) and self.kind is not torch.Tensor
            shown = repr(value) if plain or value is None else type(value).__name__
            raise KernelInputError(f"{name} is {shown}, {_described(self.kind)} is needed")
        if dataclasses.is_dataclass(value):
            held: Any = type(value)
            for inner in _arguments(held).values():
                inner.check(f"{name}.{inner.name}", getattr(value, inner.name))
        elif not isinstance(value, tuple):
            self.types.add(type(value))


@functools.cache
def _arguments(of: Any) -> dict[str, _Argument]:
    """The annotated arguments of a function, or fields of a dataclass, in order."""
    return {name: _Argument(name, kind) for name, kind in typing.get_type_hints(of).items() if name != "return"}


def _is(value: object, kind: Any) -> bool:
    """Whether a value is of a kind: a class, a union of kinds, or a tuple of them; float and int as in `entry`."""
    if kind in (int, float):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in typing.get_args(kind))
    if origin is tuple:
        parts = typing.get_args(kind)
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_is, value, parts))
    return isinstance(value, origin or kind)


def _described(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_described(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"a tuple of {len(typing.get_args(kind))} ({', '.join(map(_described, typing.get_args(kind)))})"
    return _NAMES.get(kind, f"a {getattr(kind, '__name__', kind)}")
