"""``perfmodel validate --ncu``: what a profiler measured, on the roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfmodel.commands._options import emit

if TYPE_CHECKING:
    from perfmodel.validate.ncu_work import Profile

PICTURES = (".png", ".svg")


def run(export: str, gpu: str | None, dark: bool, fmt: str, path: str | None) -> None:
    """Place the kernels of an ``ncu --csv`` export on the roofline of a GPU.

    Parameters
    ----------
    gpu : str, optional
        The GPU that was profiled.
    path : str, optional
        ``.png`` or ``.svg`` writes the picture beside the table; any other name the table itself.

    Raises
    ------
    UsageError
        Without ``gpu``; after the table, when a picture was asked for and no kernel has a place on it.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.hwspecs.load import gpu as load
    from perfmodel.reports.ncu_text import text
    from perfmodel.validate.ncu_work import profile

    if gpu is None:
        raise UsageError("--ncu needs --gpu: the name of the GPU that was profiled, such as h100")
    found = profile(export, load(gpu))
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    emit(text(found, fmt), None if picture else path)
    for note in found.notes if fmt == "csv" else ():
        click.echo(f"perfmodel: note: {note}", err=True)
    if picture:
        _draw(found, picture, "dark" if dark else "light")


def _draw(found: Profile, picture: str, theme: str) -> None:
    """Write the picture; raises UsageError where no kernel has a place on it."""
    from perfmodel.reports.ncu_plot import draw, undrawn
    from perfmodel.reports.roofline_plot import save

    save(draw(found, theme), picture)
    click.echo(f"wrote {picture}", err=True)
    if count := undrawn(found):
        kernels = "1 kernel" if count == 1 else f"{count} kernels"
        click.echo(f"perfmodel: note: {kernels} without FLOPs or bytes: in the table alone", err=True)
