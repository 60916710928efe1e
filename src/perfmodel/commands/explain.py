"""``perfmodel explain``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands._options import emit, fidelity_options, output_options, plan_options, workload_options


@click.command(name="explain")
@click.option("--gpu", help="GPU: name, YAML file, 'cpu' or 'local'; not needed for parameters and kv_cache.")
@click.option("--model", required=True, help="Model: name, HF id, YAML file, config.json or folder.")
@click.option("--op", "name", required=True, help="Operator, as the roofline table calls it; or parameters, kv_cache.")
@click.option("--phase", type=click.Choice(["prefill", "decode", "both"]), default="both", show_default=True)
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of the whole deployment.")
@workload_options()
@plan_options()
@fidelity_options()
@output_options()
def command(
    gpu: str | None, model: str, name: str, phase: str, batch: int, input_tokens: int, output_tokens: int, fmt: str,
    path: str | None, **options: Any,
) -> None:  # fmt: skip
    """Show a formula with its numbers filled in.

    Of an operator: its FLOPs, bytes and times. Of ``parameters``: every tensor. Of ``kv_cache``: the bytes of one
    sequence of --input tokens.
    """
    import json

    from perfmodel.base.errors import UsageError
    from perfmodel.reports.explain_model import SUBJECTS, explain_model, explain_model_text

    if name in SUBJECTS:
        subject = explain_model(model, name, input_tokens, options["kv"])
        emit(json.dumps(subject, indent=2) if fmt == "json" else explain_model_text(subject, fmt), path)
        return
    if gpu is None:
        raise UsageError(f"--gpu is missing: an operator runs on one; only {' and '.join(SUBJECTS)} need none")
    from perfmodel.reports.explain import explain, explain_text

    phases = ("prefill", "decode") if phase == "both" else (phase,)
    found = explain(model, gpu, name, phases, batch=batch, input=input_tokens, output=output_tokens, **options)
    emit(json.dumps(found, indent=2, allow_nan=False) if fmt == "json" else explain_text(found, fmt), path)
