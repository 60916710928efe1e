"""``perfmodel params``."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit, output_options


@click.command(name="params")
@click.argument("model")
@output_options()
def command(model: str, fmt: str, path: str | None) -> None:
    """Count the parameters and KV-cache bytes of MODEL."""
    import json

    from perfmodel.modelspecs.counts import summary
    from perfmodel.modelspecs.load import model as load

    found = summary(load(model))
    if fmt == "json":
        emit(json.dumps(found, indent=2, allow_nan=False), path)
        return
    from perfmodel.reports.listing import params_text

    emit(params_text(found, fmt), path)
