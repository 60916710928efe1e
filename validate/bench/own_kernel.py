"""A user's kernel: found by name, checked on every row of its result, then a case like any other."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.validate.bench.case import TOLERANCE, Case, Tensor, WrongResult, clone, relative_error
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import title
from perfmodel.validate.bench.own_calls import Operands
from perfmodel.validate.bench.own_ops import OPS, OwnOp

#: Engine under which a user's kernel is kept.
ENGINE = "own"
#: Largest size of a shape, and how many shapes are measured at once.
MOST, MOST_SHAPES = 1 << 24, 64
#: A single row may be off by so many times what a whole result may be.
ROW_FACTOR = 8.0


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
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_") and callable(getattr(found, n))]
            listed = ", ".join(known[:8]) or "none"
            raise UsageError(f"--kernel: {where} has no {printable(name, 80)!r}; functions in it: {listed}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--kernel: {printable(text, 80)} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


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
    except (Exception, SystemExit) as error:
        said = printable(str(error).splitlines()[0] if str(error) else "", 200)
        raise UsageError(
            f"--kernel: importing {printable(where, 120)} fails: {type(error).__name__}: {said}; "
            "it must import by itself, without arguments"
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
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in own.defaults[0] or not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MOST:
            known = ",".join(f"{key}={size}" for key, size in own.defaults[0].items())
            raise UsageError(f"--shapes: {printable(part, 60)!r}; {own.name} has {known}, each from 1 to {MOST:,}")
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
    return Case(
        f"{own.name} {fmt} " + " ".join(f"{key}={value}" for key, value in sizes.items()), op, ENGINE, name, fmt,
        lambda: own.make(sizes, fmt, device), lambda x: first(call(*x.args)), own.exact, touched,
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


def first(result: Any) -> Tensor:
    """The result of a kernel: itself, or the first of a tuple."""
    return result[0] if isinstance(result, tuple | list) and result else result


def inspect(case: Case, own: OwnOp, sizes: Mapping[str, int], device: str) -> float:
    """Call a kernel once and look at all that it did; returns the relative error of its whole result.

    Raises
    ------
    WrongResult
        When it raises, gives something else than the tensor asked for, changes what it was given, leaves out a
        number, or differs from the library by more than rounding, in all or in single rows.
    """
    torch, operands = import_torch(), case.make()
    before = clone(operands)
    with torch.inference_mode():
        try:
            result = case.run(operands)
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            said = printable(str(error).splitlines()[0] if str(error) else "", 300)
            raise WrongResult(f"{case.name}: {case.source} raises {type(error).__name__}: {said}") from error
        _is_asked_for(case, own, sizes, result)
        for number, (x, was) in enumerate(zip(operands.args, before.args, strict=True), 1):
            if not torch.equal(_bits(x), _bits(was)):
                raise WrongResult(
                    f"{case.name}: {case.source} changes its argument {number}; it must leave it as it is"
                )
        try:
            theirs = own.theirs(operands)
        except Exception:  # the library does not take this shape: a sample in float64 is compared, here and in timing
            return relative_error(*own.exact(operands, result))
        return _compared(case, result, theirs)


def _bits(x: Tensor) -> Tensor:
    torch = import_torch()
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def _is_asked_for(case: Case, own: OwnOp, sizes: Mapping[str, int], result: Any) -> None:
    torch, shape, kind = import_torch(), own.result_shape(sizes), own.result_type(case.fmt)
    wanted = f"{own.gives}: here a tensor of shape {list(shape)} and type {kind}"
    if not isinstance(result, torch.Tensor):
        raise WrongResult(f"{case.name}: {case.source} returns a {type(result).__name__}; it must return {wanted}")
    if tuple(result.shape) != shape or result.dtype != kind:
        got = f"a tensor of shape {list(result.shape)} and type {result.dtype}"
        raise WrongResult(f"{case.name}: {case.source} returns {got}; it must return {wanted}")
    if not bool(torch.isfinite(result).all()):
        raise WrongResult(
            f"{case.name}: {case.source} gives numbers that are not finite, or does not write all of them"
        )


def _compared(case: Case, result: Tensor, theirs: Tensor) -> float:
    """Compare with the library, as a whole and row by row; a row counts at least as an average one."""
    error = relative_error(result, theirs)
    rows, right = (x.reshape(-1, x.shape[-1]).float() for x in (result, theirs))
    size = right.norm(dim=1)
    off = (rows - right).norm(dim=1) / size.clamp_min(max(float(size.mean()), 1e-30))
    wrong = int((off > ROW_FACTOR * case.allowed).sum())
    if error > 2 * case.allowed or wrong:
        worst = int(off.argmax())
        raise WrongResult(
            f"{case.name}: {case.source} gives a wrong result: relative error {error:.3g} ({case.allowed:g} is the "
            f"most that rounding makes), {wrong:,} of {len(off):,} rows are wrong, the worst is row {worst:,} "
            f"({float(off[worst]):.3g}); a wrong kernel is not timed"
        )
    return error
