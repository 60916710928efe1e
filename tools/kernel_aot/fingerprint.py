"""What a compiled kernel depends on, as one hash: the code without comments, the specialisation, the compiler."""

from __future__ import annotations

import ast
import hashlib
import textwrap
from types import ModuleType
from typing import Any

import triton
from triton.language.core import constexpr
from triton.runtime.jit import JITFunction

from kernel_aot.driver import Launch

SCHEMA = 2
"""Raised when figures are read in another way, so that all are read anew."""

#: Options that name places of this machine, or that do not change the code.
LOCAL_OPTIONS = {"extern_libs", "debug", "backend_name"}


def _plain(source: str) -> ast.Module:
    """The syntax tree of a function without its docstring; comments and layout are gone with it."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _named(tree: ast.Module, names: dict[str, Any]) -> list[tuple[str, Any]]:
    """The globals that a function mentions, and the attributes of modules that it takes, by name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            found.append((node.id, names[node.id]))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = names.get(node.value.id)
            if isinstance(owner, ModuleType):
                found.append((f"{node.value.id}.{node.attr}", getattr(owner, node.attr, None)))
    return found


def sources(function: JITFunction[Any], seen: dict[str, str] | None = None) -> dict[str, str]:
    """Code of a kernel and of all that it calls outside Triton, and the constants they read, by where they stand."""
    seen = {} if seen is None else seen
    name = f"{function.fn.__module__}.{function.fn.__qualname__}"
    if name in seen:
        return seen
    tree = _plain(function.src)
    seen[name] = ast.unparse(tree)
    for called, value in _named(tree, function.fn.__globals__):
        if isinstance(value, JITFunction):
            if not value.fn.__module__.startswith("triton."):
                sources(value, seen)
        elif isinstance(value, constexpr | int | float | str | bool):
            seen[f"{name}:{called}"] = f"{called} = {value}"
    return seen


def _of_launch(launch: Launch) -> list[str]:
    code = sources(launch.function)
    for value in launch.constants.values():
        if isinstance(value, JITFunction):
            code |= sources(value)
    options = {name: value for name, value in launch.options.items() if name not in LOCAL_OPTIONS}
    parts: list[Any] = [sorted(code.values()), launch.signature, launch.constants, launch.attributes]
    return [str(part) for part in [*parts, sorted(options.items(), key=lambda item: item[0])]]


def fingerprint(launches: list[Launch], loop_weights: int) -> str:
    """The hash of a case: equal as long as the compiler is given the same."""
    whole = [str(SCHEMA), triton.__version__, str(loop_weights)]
    for launch in launches:
        whole += _of_launch(launch)
    return hashlib.sha256("\0".join(whole).encode()).hexdigest()[:20]
