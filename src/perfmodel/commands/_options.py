"""Options that several commands share."""

from __future__ import annotations

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


def output_options(what: str = "the result") -> Callable[[F], F]:
    """``--format`` and ``-o``."""
    return _stack(
        [
            click.option("--format", "fmt", type=FORMATS, default="table", show_default=True, help="Form of the data."),
            click.option("-o", "--output-file", "path", type=click.Path(), help=f"Write {what} to a file."),
        ]
    )


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


def emit(text: str, path: str | None) -> None:
    """Data to stdout, or to a file, whole or not at all."""
    if path is None:
        click.echo(text.rstrip("\n"))
        return
    from perfmodel.reports.tables import write

    write(path, text.rstrip("\n") + "\n")
    click.echo(f"wrote {path}", err=True)
