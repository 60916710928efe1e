"""``perfmodel report``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands._options import fidelity_options, numbers, plan_options, workload_options


@click.command(name="report")
@click.option("--gpu", default="h100", show_default=True, help="GPU, or several (h100,a100).")
@click.option("--model", default="llama3-70b", show_default=True, help="Model.")
@click.option("--batch", default="1", show_default=True, help="Sequences; several are overlaid.")
@workload_options()
@plan_options()
@fidelity_options()
@click.option("-o", "--output-file", "path", required=True, type=click.Path(), help="The page, such as report.html.")
def command(gpu: str, model: str, batch: str, input_tokens: int, output_tokens: int, path: str, **options: Any) -> None:
    """Write one self-contained page: summary, roofline, operators, claims and the sources of the numbers."""
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.claims import ledger
    from perfmodel.reports.html import page
    from perfmodel.reports.tables import write
    from perfmodel.roofline.analysis import analyze

    if not path.casefold().endswith((".html", ".htm")):
        raise UsageError(f"a report is a page: name a file in .html, not {path[:80]!r}")
    analyses = [
        analyze(model, g, batch=b, input=input_tokens, output=output_tokens, **options)
        for g in gpu.split(",")
        for b in numbers(batch, "batch")
    ]
    write(path, page(analyses, claims_rows=ledger()))
    click.echo(f"wrote {path}", err=True)
