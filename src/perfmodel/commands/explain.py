"""``perfmodel explain``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands._options import emit, output_options, plan_options, target_options, workload_options


@click.command(name="explain")
@target_options()
@click.option("--op", "name", required=True, help="Operator, as the roofline table calls it.")
@click.option("--phase", type=click.Choice(["prefill", "decode", "both"]), default="both", show_default=True)
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of the whole deployment.")
@workload_options()
@plan_options()
@output_options()
def command(
    gpu: str, model: str, name: str, phase: str, batch: int, input_tokens: int, output_tokens: int, fmt: str,
    path: str | None, **plan: Any,
) -> None:  # fmt: skip
    """Show the formula of an operator with its numbers filled in."""
    import json

    from perfmodel.reports.explain import explain, explain_text

    phases = ("prefill", "decode") if phase == "both" else (phase,)
    found = explain(model, gpu, name, phases, batch=batch, input=input_tokens, output=output_tokens, **plan)
    emit(json.dumps(found, indent=2, allow_nan=False) if fmt == "json" else explain_text(found, fmt), path)
