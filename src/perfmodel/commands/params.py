"""``perfmodel params``."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit, output_options


@click.command(name="params")
@click.argument("model")
@output_options()
def command(model: str, fmt: str, path: str | None) -> None:
    """Count the parameters and KV-cache bytes of MODEL, which may be a .gguf or .safetensors file or folder."""
    import json

    from perfmodel.modelspecs.params import params

    found = params(model).to_dict()
    if fmt == "json":
        emit(json.dumps(found, indent=2, allow_nan=False), path)
        return
    from perfmodel.reports.listing import params_text

    emit(params_text(found, fmt), path)
