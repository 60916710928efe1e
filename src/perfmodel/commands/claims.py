"""``perfmodel claims``."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit, output_options


@click.command(name="claims")
@click.option("--section", help="Only one section: H, F, A, ...")
@output_options()
def command(section: str | None, fmt: str, path: str | None) -> None:
    """Compare the claims of the source document with what is computed here."""
    from perfmodel.reports.claims import claims_text

    emit(claims_text(fmt, section), path)
