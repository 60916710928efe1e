"""``perfmodel speculate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import (
    emit,
    fidelity_options,
    numbers,
    output_options,
    plan_options,
    target_options,
)

PICTURES = (".png", ".svg")


@click.command(name="speculate")
@target_options()
@click.option("--method", help="Method, YAML file or 'all'; EAGLE-3, or Speculative Sampling with --draft.")
@click.option("--draft", help="The smaller model of a method with an independent draft; one of the family by default.")
@click.option("--draft-tp", type=int, help="Tensor parallelism of that model; the target's where it divides.")
@click.option("--draft-weights", help="Weight format of that model.")
@click.option("--alpha", metavar="A[,A2,...]", help="Acceptance by position; the method's published one by default.")
@click.option("--acceptance-log", "log", type=click.Path(), help="Fit the acceptance to an engine's log or a list.")
@click.option("--gamma", type=int, help="Drafted tokens a round, or depth of the tree; the method's by default.")
@click.option("--batch", default="1", show_default=True, help="Sequences of the deployment; several (1,8,32).")
@click.option("--context", default="2048", show_default=True, help="Tokens in the cache of each; several.")
@click.option("--host", metavar="TIME", help="The engine's own time a plain step and a round, such as 1ms.")
@click.option("--padded", is_flag=True, help="A batch advances by what its slowest sequence accepted.")
@click.option("--map", "axes", metavar="X,Y", help="Speedup over batch,context, alpha,gamma or batch,gamma.")
@plan_options()
@fidelity_options("calibrated")
@click.option("--dark", is_flag=True, help="Dark picture.")
@output_options("the picture (.png, .svg) or the data", PICTURES)
def command(
    gpu: str, model: str, method: str | None, alpha: str | None, log: str | None, gamma: int | None, batch: str,
    context: str, axes: str | None, host: str | None, dark: bool, fmt: str, path: str | None, **options: Any,
) -> None:  # fmt: skip
    """Say whether speculative decoding pays for MODEL on GPU, from which batch it stops, and why.

    Draft and verification are costed from their real architectures at this batch, context and format. The data goes to
    stdout; -o x.png or x.svg writes the picture beside it. What does not fit gets no times, and its speedup is
    hypothetical; exit code 4 when nothing of what was asked fits.
    """
    options |= {"batch": numbers(batch, "batch"), "context": numbers(context, "context"), "gamma": gamma}
    _check_log(method, log)
    _check_map(axes, options, alpha, log)
    options |= {"alpha": None if alpha is None else _fractions(alpha), "log": _log(log, gamma), "host": _host(host)}
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    theme = "dark" if dark else "light"
    if method == "all":
        shown, fits, figure = _all(model, gpu, axes, fmt, picture, theme, options)
    else:
        shown, fits, figure = _one(model, gpu, method, axes, fmt, picture, theme, options)
    if figure is not None:
        from perfmodel.reports.roofline_plot import save

        save(figure, picture)  # type: ignore[arg-type]
    emit(shown, None if picture else path)
    if picture:
        click.echo(f"wrote {picture}", err=True)
    if fits is not None:
        from perfmodel.base.errors import DoesNotFit

        raise DoesNotFit(*fits)


def _one(
    model: str, gpu: str, method: str | None, axes: str | None, fmt: str, picture: str | None, theme: str,
    options: dict[str, Any],
) -> tuple[str, tuple[str, float, float] | None, Any]:  # fmt: skip
    """Text of one method or its map, what does not fit, and the picture."""
    from perfmodel.reports.speculation_text import text
    from perfmodel.roofline.speculative.evaluate import speculate

    found = speculate(model, gpu, method=method, **_given(options))
    if axes is None:
        figure = None
        if picture:
            from perfmodel.reports.speculation_plot import draw

            figure = draw([found], theme)
        return text(found, fmt), _unfit([found]), figure
    from perfmodel.reports.speculation_tables import map_text
    from perfmodel.roofline.speculative.crossover import crossover

    drawn = crossover(found, axes, asked=options["gamma"] is not None)
    figure = None
    if picture:
        from perfmodel.reports.speculation_map import draw as draw_map

        figure = draw_map(drawn, theme)
    return map_text(drawn, fmt), None if drawn.fits.any() else _unfit([found]), figure


def _all(
    model: str, gpu: str, axes: str | None, fmt: str, picture: str | None, theme: str, options: dict[str, Any]
) -> tuple[str, tuple[str, float, float] | None, Any]:
    """Text of every method, what does not fit, and the picture."""
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.speculation_tables import comparison_text
    from perfmodel.roofline.speculative.compare import compare

    if axes is not None:
        raise UsageError("--map shows one method: name it with --method")
    found = compare(model, gpu, **_given(options))
    figure = None
    if picture:
        from perfmodel.reports.speculation_plot import draw

        figure = draw(found.found, theme)
    return comparison_text(found, fmt), _unfit(found.found), figure


def _check_log(method: str | None, log: str | None) -> None:
    """Refuse one drafter's log for all methods."""
    from perfmodel.base.errors import UsageError

    if method == "all" and log is not None:
        raise UsageError(
            "--acceptance-log tells the acceptance of the drafter that ran, not of others: name its method "
            "(such as --method eagle-3) instead of all"
        )


def _check_map(axes: str | None, options: dict[str, Any], alpha: str | None, log: str | None) -> None:
    """Refuse what a map would leave out: its own axes given otherwise, or several values of what it fixes."""
    from perfmodel.base.errors import UsageError

    unused = []
    if axes == "alpha,gamma":
        unused += [name for name, value in (("--alpha", alpha), ("--acceptance-log", log)) if value is not None]
        unused += ["several batches"] if len(options["batch"]) > 1 else []
    if axes in ("alpha,gamma", "batch,gamma"):
        unused += ["--gamma"] if options["gamma"] is not None and log is None else []
        unused += ["several contexts"] if len(options["context"]) > 1 else []
    if unused:
        raise UsageError(f"--map {axes} has no use for {' and '.join(unused)}: leave out what it does not show")


def _host(text: str | None) -> Any:
    """The engine's own time, the same a step and a round."""
    if text is None:
        return None
    from perfmodel.base.errors import UsageError
    from perfmodel.base.units import parse
    from perfmodel.roofline.speculative.rounds import Host

    try:
        time = parse(text, "s")
    except ValueError as error:
        raise UsageError(f"--host: {error}") from None
    return Host(step=time, round=time)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _unfit(found: Any) -> tuple[str, float, float] | None:
    """The words of an error when no point of any method fits."""
    if any(one.fits.any() for one in found):
        return None
    from perfmodel.roofline.memory import remedies

    one = found[0]
    target, batch, length = one.draft.target, float(one.batch[0]), float(one.context[0])
    hints = list(remedies(target, batch, length, batch))
    would = f"; {' or '.join(hints)} would fit the target" if hints else "; no option tried would fit"
    words = f"{target.model.title} on {target.words()} {one.room.words()}: the speedups are hypothetical{would}"
    return words, float(one.room.needed[0, 0]), one.room.target.usable


def _log(path: str | None, gamma: int | None) -> Any:
    if path is None:
        return None
    from perfmodel.validate.logs_speculation import read

    return read(path, gamma)


def _fractions(text: str) -> list[float]:
    """Comma-separated fractions, as ``--alpha 0.8,0.7``."""
    from perfmodel.base.errors import UsageError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--alpha takes fractions such as 0.8 or 0.8,0.7, not {text[:80]!r}") from None
