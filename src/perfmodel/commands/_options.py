"""Options that several commands share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = click.Choice(["table", "json", "csv", "md"])


def _stack(options: list[Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def output_options(what: str = "the result", others: tuple[str, ...] = ()) -> Callable[[F], F]:
    """``--format`` and ``-o``; the command is given the form that they settle on together.

    Parameters
    ----------
    others : tuple[str, ...]
        Endings, such as ``.png``, that the command writes besides data.
    """
    options = _stack(
        [
            click.option("--format", "fmt", type=FORMATS, help="Form of the data: a table, or what -o's ending says."),
            click.option("-o", "--output-file", "path", type=click.Path(), help=f"Write {what} to a file."),
        ]
    )

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def settled(*args: Any, fmt: str | None, path: str | None, **kwargs: Any) -> Any:
            return function(*args, fmt=data_format(fmt, path, others), path=path, **kwargs)

        return options(settled)  # type: ignore[return-value]

    return decorate


def target_options() -> Callable[[F], F]:
    """``--gpu`` and ``--model``."""
    return _stack(
        [
            click.option("--gpu", required=True, help="GPU: name, YAML file, 'cpu' or 'local'."),
            click.option("--model", required=True, help="Model: name, HF id, YAML file, config.json or folder."),
        ]
    )


def plan_options() -> Callable[[F], F]:
    """Parallelism and formats."""
    return _stack(
        [
            click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallelism."),
            click.option("--pp", type=int, default=1, show_default=True, help="Pipeline parallelism."),
            click.option("--ep", type=int, default=1, show_default=True, help="Expert parallelism."),
            click.option("--dp", type=int, default=1, show_default=True, help="Data parallelism (of attention)."),
            click.option("--weights", help="Weight format; the checkpoint's own by default."),
            click.option("--kv", default="bf16", show_default=True, help="KV-cache format."),
            click.option("--system", help="How GPUs are joined; the GPU's usual system by default."),
        ]
    )


def fidelity_options(default: str = "bound") -> Callable[[F], F]:
    """Which kind of times, and whose; the command is given ``measured`` as tables that were read."""
    options = _stack(
        [
            click.option(
                "--fidelity", type=click.Choice(["bound", "calibrated", "measured"]), default=default,
                show_default=True, help="Roofline bounds, times fitted to measurements, or a recorded table's times.",
            ),
            click.option("--engine", help="Whose kernels the times are of: vllm, trtllm or sglang."),
            click.option("--efficiency", multiple=True, type=click.Path(), help="A fit of your own (YAML)."),
            click.option("--measured", multiple=True, type=click.Path(), help="Operator times of this GPU (CSV)."),
        ]
    )  # fmt: skip

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def given(*args: Any, measured: tuple[str, ...], **kwargs: Any) -> Any:
            tables = _tables(measured) if measured else _own_tables(kwargs)
            return function(*args, measured=tables, **kwargs)

        return options(given)  # type: ignore[return-value]

    return decorate


def _tables(paths: tuple[str, ...]) -> tuple[Any, ...]:
    """Recorded tables; what of their rows cannot be used is said on stderr."""
    from perfmodel.validate.measured_tables import measured

    return _told(tuple(measured(path) for path in paths))


def _own_tables(options: dict[str, Any]) -> tuple[Any, ...]:
    """What `perfmodel validate` measured on this machine, where its times are asked for and no table is given."""
    gpu = options.get("gpu")
    if options.get("fidelity") != "measured" or not isinstance(gpu, str) or gpu.casefold() not in ("cpu", "local"):
        return ()
    from perfmodel.hwspecs.load import gpu as load
    from perfmodel.validate.bench.export import recorded

    return _told(recorded(load(gpu)))


def _told(tables: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, after what cannot be used of them was said."""
    for table in tables:
        for reason, count in table.skipped.items():
            click.echo(f"{table.name}: {count:,} rows not used: {reason}", err=True)
        for note in table.notes:
            click.echo(f"{table.name}: {note}", err=True)
    return tables


def workload_options() -> Callable[[F], F]:
    """Input and output lengths."""
    return _stack(
        [
            click.option("--input", "input_tokens", type=int, default=2048, show_default=True, help="Prompt tokens."),
            click.option("--output", "output_tokens", type=int, default=256, show_default=True, help="Output tokens."),
        ]
    )


def numbers(text: str, name: str) -> list[int]:
    """Comma-separated whole numbers, as ``--batch 1,8,32``."""
    from perfmodel.base.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--{name} takes whole numbers such as 1,8,32, not {text[:80]!r}") from None


#: File endings that say the form of the data.
_ENDINGS = {".json": "json", ".csv": "csv", ".md": "md", ".txt": "table"}


def data_format(fmt: str | None, path: str | None, others: tuple[str, ...] = ()) -> str:
    """Form of the data: ``--format``, else what the file's ending says, else a table.

    Parameters
    ----------
    others : tuple[str, ...]
        Endings, such as ``.png``, of what the command writes besides data; the data then goes to stdout.

    Raises
    ------
    UsageError
        For an ending that the command cannot write, or that contradicts ``--format``.
    """
    from pathlib import Path

    from perfmodel.base.errors import UsageError
    from perfmodel.base.text import printable

    ending = Path(path).suffix.casefold() if path and path != "-" else ""
    if not ending or ending in others:
        return fmt or "table"
    if ending not in _ENDINGS:
        known = ", ".join((*others, *_ENDINGS))
        raise UsageError(f"cannot write {printable(ending, 20)} ({printable(path or '', 80)}); name a file in {known}")
    if fmt and fmt != _ENDINGS[ending]:
        raise UsageError(f"--format {fmt} contradicts the ending {ending}; leave one of them out")
    return _ENDINGS[ending]


def _to_stdout(text: str) -> None:
    """Data to stdout.

    Raises
    ------
    OutputError
        When it is closed, or the disk behind it is full; a reader that has gone (`| head`) is no error.
    """
    import os

    from perfmodel.base.errors import OutputError

    if sys.stdout is None:
        raise OutputError("stdout is closed: name a file with -o")
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  what is buffered would fail again at exit
        raise OutputError(f"cannot write to stdout: {error.strerror or error}; name a file with -o") from error


def emit(text: str, path: str | None) -> None:
    """Data to stdout, or to a file, whole or not at all; ``-`` is stdout."""
    if path is None or path == "-":
        _to_stdout(text.rstrip("\n"))
        return
    from perfmodel.reports.tables import write

    write(path, text.rstrip("\n") + "\n")
    click.echo(f"wrote {path}", err=True)
