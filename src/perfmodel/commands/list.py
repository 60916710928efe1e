"""``perfmodel list``."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit, output_options


@click.command(name="list")
@click.argument("what", type=click.Choice(["gpus", "systems", "models", "formats", "engines", "methods"]))
@click.option("--sources", is_flag=True, help="Show where each number of the GPUs or systems comes from.")
@output_options()
def command(what: str, sources: bool, fmt: str, path: str | None) -> None:
    """List what is built in."""
    from perfmodel.reports.listing import listing_text

    emit(listing_text(what, fmt, sources), path)
