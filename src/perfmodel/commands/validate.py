"""``perfmodel validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import emit, output_options

PICTURES = (".png", ".svg")


@click.command(name="validate")
@click.option("--against", required=True, type=click.Path(), help="A CSV table of measurements.")
@click.option("--configs", type=click.Path(), help="Folder of Hugging Face configurations, <org>__<name>.json.")
@click.option("--tolerance", multiple=True, metavar="[NAME=]X", help="Largest mean error, 0.02 or 2%; of one column.")
@click.option("--rows", is_flag=True, help="Row by row: measured, predicted, ratio, interval, explanation.")
@click.option("--groups", is_flag=True, help="Figures of each group too (JSON always has them).")
@click.option("--dark", is_flag=True, help="Dark picture.")
@output_options("the picture (.png, .svg) or the data", PICTURES)
def command(
    against: str, configs: str | None, tolerance: tuple[str, ...], rows: bool, groups: bool, dark: bool, fmt: str,
    path: str | None,
) -> None:  # fmt: skip
    """Compare a table of measurements with what is predicted for its rows.

    The header tells what kind of table it is. Rows that cannot be predicted are counted with the reason. The figures go
    to stdout; -o x.png or x.svg writes the picture beside them, any other name the figures. The exit code is 1 when a
    mean error is above --tolerance.
    """
    from perfmodel.reports.check_text import check_text
    from perfmodel.validate.check import check

    limits = dict(_limit(text) for text in tolerance)
    found = check(against, configs=configs)
    if unknown := [name for name in limits if name and name not in found.kind.metrics]:
        from perfmodel.base.errors import UsageError

        known = ", ".join(found.kind.metrics)
        raise UsageError(f"--tolerance: {found.kind.name} has no measured column {unknown[0][:60]!r}; it has {known}")
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    if picture:
        _draw(found, picture, "dark" if dark else "light")
    emit(check_text(found, fmt, groups, rows), None if picture else path)
    if picture:
        click.echo(f"wrote {picture}", err=True)
    if limits and (outside := found.outside(limits)):
        click.echo(f"perfmodel: outside the tolerance: {'; '.join(outside)}", err=True)
        click.get_current_context().exit(1)


def _draw(found: Any, path: str, theme: str) -> None:
    from perfmodel.reports.scatter_plot import draw, save

    save(draw(found, theme), path)


def _limit(text: str) -> tuple[str, float]:
    """``0.02``, ``2%`` or ``kv_tokens=0.02`` as a name and a fraction."""
    import math

    from perfmodel.base.errors import UsageError

    name, _, number = text.rpartition("=")
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--tolerance takes a fraction such as 0.02, 2% or kv_tokens=0.02, not {text[:60]!r}")
    return name.strip(), value
