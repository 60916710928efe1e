"""``perfmodel roofline``."""

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
    workload_options,
)

PICTURES = (".png", ".svg", ".html")


@click.command(name="roofline")
@target_options()
@click.option("--batch", default="1", show_default=True, help="Sequences; several (1,8,64) are overlaid.")
@workload_options()
@plan_options()
@fidelity_options()
@click.option("--dark", is_flag=True, help="Dark picture.")
@output_options("the picture (.png, .svg), the page (.html) or the table", PICTURES)
def command(
    gpu: str, model: str, batch: str, input_tokens: int, output_tokens: int, dark: bool, fmt: str, path: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Put every operator of MODEL on the roofline of GPU.

    --gpu takes several names (h100,a100): they are overlaid. The table goes to stdout; -o x.png, x.svg or x.html
    writes the picture or the page beside it, any other name the table itself.
    """
    from perfmodel.roofline.analysis import analyze

    analyses = [
        analyze(model, g, batch=b, input=input_tokens, output=output_tokens, **options)
        for g in gpu.split(",")
        for b in numbers(batch, "batch")
    ]
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    if picture:
        _write_picture(analyses, picture, "dark" if dark else "light")
    emit(_table(analyses, fmt), None if picture else path)
    if picture:
        click.echo(f"wrote {picture}", err=True)


def _table(analyses: list[Any], fmt: str) -> str:
    import json

    from perfmodel.reports.roofline_table import text

    if fmt == "json":
        found = [a.to_dict() for a in analyses]
        return json.dumps(found[0] if len(found) == 1 else found, indent=2, allow_nan=False)
    return text(analyses, fmt)


def _write_picture(analyses: list[Any], path: str, theme: str) -> None:
    if path.casefold().endswith(".html"):
        from perfmodel.reports.html import page
        from perfmodel.reports.tables import write

        write(path, page(analyses))
        return
    from perfmodel.reports.roofline_plot import draw, save

    save(draw(analyses, theme=theme), path)
