"""``perfmodel validate --speculative``: speculative decoding, run for real."""

from __future__ import annotations

import click

from perfmodel.commands._options import emit


def run(device: str | None, budget: float | None, seed: int | None, fmt: str, path: str | None) -> None:
    """Run a pair of transformers on the device and put what was seen beside the formula.

    The exit code is 1 when the tokens a round, or the distribution of the output, contradict the formula; 130 after an
    interrupt.

    Parameters
    ----------
    budget : float, optional
        Time for all draft lengths together. [s]
    seed : int, optional
        Of an earlier run, to repeat it.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.speculated_text import text
    from perfmodel.validate.bench import machine

    machine.import_torch()  # says what to install
    from perfmodel.validate.bench import speculative_run

    if budget is not None and not 0 < budget <= 3600:
        raise UsageError(f"--budget is the seconds for all of it, above 0 and at most 3600, not {budget:g}")
    found = speculative_run.run(
        device=device, seconds=20.0 if budget is None else budget, seed=seed,
        say=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    emit(text(found, fmt), path)
    if found.refuted:
        listed = "; ".join(said for o in found.refuted for said in found.contradictions(o))
        click.echo(f"perfmodel: the rounds contradict the formula: {listed}", err=True)
        click.get_current_context().exit(1)
