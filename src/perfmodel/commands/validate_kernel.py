"""``perfmodel validate --kernel``: a user's kernel in the harness."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit


def run(
    kernel: str, op: str | None, shapes: tuple[str, ...], dtype: str | None, device: str | None,
    threads: int | None, budget: float | None, fmt: str, path: str | None,
) -> None:  # fmt: skip
    """Check a kernel and time it beside the library, our kernel and the prediction; each row is kept in the store.

    The exit code is 1 when a shape was not measured, 130 after an interrupt.

    Parameters
    ----------
    kernel : str
        ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``.
    budget : float, optional
        Time for each shape. [s]
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.own_text import notes, text
    from perfmodel.validate.bench import own_kernel, own_run

    own = own_kernel.operation(op)
    sizes = own_kernel.shapes(own, shapes)
    if budget is not None and not 0 < budget <= 3600:
        raise UsageError(f"--budget is the seconds for each shape, above 0 and at most 3600, not {budget:g}")
    call = own_kernel.load(kernel)
    report = own_run.run(
        call, kernel, own, sizes, fmt=dtype, device=device, threads=threads, budget=2.0 if budget is None else budget,
        say=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    if report.outcomes:
        emit(text(report, fmt), path)
        for note in notes(report) if fmt == "csv" else ():
            click.echo(f"perfmodel: note: {note}", err=True)
    for reason in report.left:
        click.echo(f"perfmodel: not measured: {reason}", err=True)
    if report.left:
        click.get_current_context().exit(1)
