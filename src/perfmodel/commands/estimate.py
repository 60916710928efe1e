"""``perfmodel estimate``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands._options import (
    emit,
    fidelity_options,
    output_options,
    plan_options,
    target_options,
    workload_options,
)


@click.command(name="estimate")
@target_options()
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of the whole deployment.")
@workload_options()
@plan_options()
@fidelity_options()
@output_options()
def command(
    gpu: str, model: str, batch: int, input_tokens: int, output_tokens: int, fmt: str, path: str | None, **options: Any
) -> None:  # fmt: skip
    """Estimate TTFT, TPOT and throughput of MODEL on GPU.

    Times are roofline bounds, or calibrated with an interval. What does not fit gets no times (exit code 4).
    """
    import json

    from perfmodel.reports.roofline_table import estimate_text
    from perfmodel.roofline.analysis import estimate

    found = estimate(model, gpu, batch=batch, input=input_tokens, output=output_tokens, **options)
    if fmt == "json":
        emit(json.dumps(found.to_dict(), indent=2, allow_nan=False), path)
    else:
        emit(estimate_text(found, fmt), path)
