"""Further sources of `perfmodel validate`: a kernel of the user's, speculative decoding, a profiler's export."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
#: What each of them takes besides ``--format`` and ``-o``; ``None``: what belongs to none of them.
TAKES = {
    "kernel": ("op", "shapes", "dtype", "device", "threads", "budget"), "speculative": ("device", "budget", "seed"),
    "ncu": ("gpu", "dark"),
}  # fmt: skip
#: Options as people write them, where that differs.
_NAMES = {"length": "input"}
_OWN = ("op", "shapes", "dtype", "gpu", "seed")


def more_options(function: F) -> F:
    """Add the options of this module to the command, and answer for them; innermost of its decorators."""
    options = (
        click.option("--kernel", metavar="MODULE:FUNCTION", help="Time a kernel of yours (or FILE.py:FUNCTION)."),
        click.option("--op", metavar="NAME", help="Of --kernel: gemm, prefill, decode, mla, norm, swiglu or softmax."),
        click.option("--shapes", multiple=True, metavar="M=..,N=..", help="Of --kernel: sizes; several are measured."),
        click.option("--dtype", metavar="NAME", help="Of --kernel: bf16, fp16, fp32, int8 or fp8 [bf16]."),
        click.option("--speculative", is_flag=True, help="Run speculative decoding, beside the formula."),
        click.option("--seed", type=int, help="Of --speculative: that of an earlier run [a new one each time]."),
        click.option("--ncu", type=click.Path(), metavar="FILE.csv", help="Place an `ncu --csv` export on a roofline."),
        click.option("--gpu", help="Of --ncu: the GPU that was profiled."),
    )

    @functools.wraps(function)
    def answered(*args: Any, fmt: str, path: str | None, **given: Any) -> Any:
        mine = {name: given.pop(name) for name in (*TAKES, *_OWN)}
        chosen = [name for name in TAKES if mine[name]]
        if not chosen:
            _none_of(mine)
            return function(*args, fmt=fmt, path=path, **given)
        _apart(chosen, {**given, **mine}, path)
        return _run(chosen[0], {**given, **mine}, fmt, path)

    for option in reversed(options):
        answered = option(answered)
    return answered  # type: ignore[return-value]


def _given(value: Any) -> bool:
    """Whether an option was given; 0 is a value."""
    return value is not None and value is not False and value != ()


def _none_of(mine: dict[str, Any]) -> None:
    """Refuse options of a source that was not chosen."""
    from perfmodel.base.errors import UsageError

    for name in _OWN:
        if _given(mine[name]):
            owner = next(source for source, takes in TAKES.items() if name in takes)
            raise UsageError(f"--{name} belongs to --{owner}: add that, or leave --{name} out")


def _apart(chosen: list[str], given: dict[str, Any], path: str | None) -> None:
    """Refuse what does not go together."""
    from perfmodel.base.errors import UsageError

    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} are different things: give one of them")
    takes = (chosen[0], *TAKES[chosen[0]])
    if strange := next((name for name, value in given.items() if _given(value) and name not in takes), None):
        listed = ", ".join(f"--{name}" for name in TAKES[chosen[0]])
        raise UsageError(f"--{_NAMES.get(strange, strange)} does not belong to --{chosen[0]}, which takes {listed}")
    ending = Path(path).suffix.casefold() if path else ""
    if ending in (".yaml", ".yml") or (ending in (".png", ".svg") and chosen[0] != "ncu"):
        raise UsageError(f"--{chosen[0]} does not write {ending}: name a .json, .csv, .md or .txt file")


def _run(chosen: str, given: dict[str, Any], fmt: str, path: str | None) -> None:
    if chosen == "ncu":
        from perfmodel.commands import validate_ncu

        validate_ncu.run(given["ncu"], given["gpu"], given["dark"], fmt, path)
    elif chosen == "speculative":
        from perfmodel.commands import validate_speculative

        validate_speculative.run(given["device"], given["budget"], given["seed"], fmt, path)
    else:
        from perfmodel.commands import validate_kernel

        validate_kernel.run(
            given["kernel"], given["op"], given["shapes"], given["dtype"], given["device"], given["threads"],
            given["budget"], fmt, path,
        )  # fmt: skip
