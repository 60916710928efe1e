"""A user's kernel: found by name, and made a case like any other."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.validate.bench.case import TOLERANCE, Case, Tensor
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import title
from perfmodel.validate.bench.own_calls import Operands
from perfmodel.validate.bench.own_check import asked_for, guarded, line_of
from perfmodel.validate.bench.own_ops import OPS, OwnOp

#: Engine under which a user's kernel is kept.
ENGINE = "own"
#: Largest size of a shape, and how many shapes are measured at once.
MOST, MOST_SHAPES = 1 << 24, 64


def load(text: str) -> Callable[..., Any]:
    """The function that ``module:function`` or ``path/to/file.py:function`` names.

    Modules are also looked for in the current folder. Importing runs the module: name your own code only.

    Raises
    ------
    UsageError
        When there is no such module, file or function, or importing it fails; with the remedy.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise UsageError(f"--kernel is MODULE:FUNCTION or FILE.py:FUNCTION, not {printable(text, 80)!r}")
    found: Any = _module(where)
    for part in name.split("."):
        if not _has(found, part, text):
            known = [n for n in dir(found) if not n.startswith("_") and callable(getattr(found, n))]
            near = get_close_matches(part, known, n=3)
            listed = ", ".join([*near, *(n for n in known if n not in near)][:8]) or "none"
            raise UsageError(f"--kernel: {where} has no {printable(name, 80)!r}; functions in it: {listed}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--kernel: {printable(text, 80)} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _has(found: Any, part: str, text: str) -> bool:
    """Whether something has a name; looking it up may run the user's code."""
    try:
        return hasattr(found, part)
    except Exception as error:
        raise UsageError(f"--kernel: looking up {printable(text, 80)} fails: {line_of(error)}") from error


def _module(where: str) -> ModuleType:
    path = Path(where) if where.endswith(".py") else None
    if path is not None and not path.is_file():
        raise UsageError(f"--kernel: there is no file {printable(where, 120)}; give its path, or the module's name")
    folder = str(path.parent.resolve() if path is not None else Path.cwd())
    sys.path.insert(0, folder)
    try:
        return _from_file(path) if path is not None else importlib.import_module(where)
    except ModuleNotFoundError as error:
        remedy = f"it is neither installed nor in {folder}: set PYTHONPATH, or give FILE.py:FUNCTION"
        if error.name is not None and not (where == error.name or where.startswith(error.name + ".")):
            remedy = f"it imports {error.name!r}, which is not installed here"
        raise UsageError(f"--kernel: cannot import {printable(where, 120)}: {remedy}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a module raises, SystemExit included
        raise UsageError(
            f"--kernel: importing {printable(where, 120)} fails: {line_of(error)}; it must import by itself, without "
            "arguments"
        ) from error
    finally:
        sys.path.remove(folder)


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--kernel: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # what Triton and dataclasses look a module up by
    spec.loader.exec_module(module)
    return module


def operation(name: str | None) -> OwnOp:
    """The operation of ``--op``; raises UsageError that lists them."""
    if name is None or name not in OPS:
        given = "is needed" if name is None else f"is not {printable(name, 40)!r}"
        raise UsageError(f"--op {given}: one of {', '.join(OPS)}; it says what the kernel is called with")
    return OPS[name]


def shapes(own: OwnOp, texts: Sequence[str]) -> list[dict[str, int]]:
    """Sizes of ``--shapes``, each ``m=16,n=4096,k=4096`` (several by spaces or semicolons); the defaults without any.

    What a shape leaves out is as in the first default.

    >>> shapes(OPS["norm"], ["rows=1,columns=64 rows=2"])
    [{'rows': 1, 'columns': 64}, {'rows': 2, 'columns': 4096}]
    """
    listed = [part for text in texts for part in text.replace(";", " ").split()]
    if not listed:
        return [dict(one) for one in own.defaults]
    if len(listed) > MOST_SHAPES:
        raise UsageError(f"--shapes: {len(listed)} shapes; at most {MOST_SHAPES} are measured at once")
    return [_checked(own, {**own.defaults[0], **_shape(own, text)}) for text in listed]


def _shape(own: OwnOp, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        given, _, value = part.partition("=")
        name = given.casefold()
        whole = value.isascii() and value.isdigit() and len(value) < 12
        if name not in own.defaults[0] or not whole or not 1 <= int(value) <= MOST:
            known = ",".join(f"{key}={size}" for key, size in own.defaults[0].items())
            raise UsageError(
                f"--shapes: {printable(part, 60)!r}; the sizes of {own.name} are {', '.join(own.defaults[0])}, each "
                f"from 1 to {MOST:,}, such as {known}"
            )
        if name in found:
            raise UsageError(f"--shapes: {printable(text, 80)!r} has {name} twice")
        found[name] = int(value)
    return found


def _checked(own: OwnOp, sizes: dict[str, int]) -> dict[str, int]:
    if "kv_heads" in sizes and sizes["heads"] % sizes["kv_heads"]:
        raise UsageError(f"--shapes: heads={sizes['heads']} is no multiple of kv_heads={sizes['kv_heads']}")
    return sizes


def kernel_case(
    call: Callable[..., Any], name: str, own: OwnOp, sizes: Mapping[str, int], fmt: str, device: str
) -> Case:
    """A user's kernel as a case, with the library and, on a GPU, our kernel beside it.

    Parameters
    ----------
    name : str
        Of the kernel, as the user gave it.

    Raises
    ------
    UsageError
        For a format that the operation does not have.
    """
    if fmt not in own.formats:
        raise UsageError(f"--dtype: {own.name} has {', '.join(own.formats)}, not {printable(fmt, 20)!r}")
    op = own.op(sizes, fmt)
    beside: dict[str, Callable[[Operands], Tensor]] = {own.library_name(fmt): own.theirs}
    if device == "cuda" and own.ours is not None and fmt != "fp32":
        ours = own.ours(fmt)
        beside[f"ours: {_named(ours, own)}"] = lambda x: ours(*x.args)
    touched = _touched(own, sizes, fmt)
    whole = f"{own.name} {fmt} " + " ".join(f"{key}={value}" for key, value in sizes.items())

    def exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        asked_for(whole, name, own, sizes, fmt, result)
        return own.exact(x, result)

    return Case(
        whole, op, ENGINE, name, fmt, lambda: own.make(sizes, fmt, device), guarded(call, whole, name), exact, touched,
        own.least.get(fmt, TOLERANCE[fmt]), beside, {"sizes": dict(sizes), "title": title(op, fmt)},
    )  # fmt: skip


def _named(ours: Callable[..., Any], own: OwnOp) -> str:
    return ours.__name__ if ours.__name__ != "<lambda>" else own.name


def _touched(own: OwnOp, sizes: Mapping[str, int], fmt: str) -> float:
    """Bytes of the tensors of a call: their shapes alone are made."""
    torch = import_torch()
    with torch.device("meta"):
        operands = own.make(sizes, fmt, "meta")
    result = torch.empty(own.result_shape(sizes), dtype=own.result_type(fmt), device="meta")
    return float(sum(x.numel() * x.element_size() for x in (*operands.args, result)))
