"""``perfmodel validate`` without ``--against``: measure this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import emit

PICTURES = (".png", ".svg")


def measure(
    device: str | None, suite: str, tolerance: Mapping[str, float], export: str | None, dark: bool, fmt: str,
    path: str | None, **more: Any,
) -> None:  # fmt: skip
    """Measure this machine, compare, and write what was asked for.

    Parameters
    ----------
    tolerance : Mapping
        Family -> largest median error.
    more : Any
        The rest of ``runner.Options``.
    """
    from perfmodel.validate.bench import machine
    from perfmodel.validate.bench.runner import Options, run

    options = Options(machine.choose(device), suite, tolerance=tolerance, **more)
    _check(options, export, path)
    try:
        report = run(options, _say)
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(_kept(options)) from stopped
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    if picture:
        from perfmodel.reports.bench_plot import draw
        from perfmodel.reports.roofline_plot import save

        save(draw(report, "dark" if dark else "light"), picture)
    data = path if path and not picture else None
    emit(_spec_text(report, data) if data and _yaml(data) else _text(report, fmt), data)
    if picture:
        click.echo(f"wrote {picture}", err=True)
    if export:
        write_export(export, report.run)
    if report.outside:
        click.echo(f"perfmodel: outside the tolerance: {'; '.join(report.outside)}", err=True)
        click.get_current_context().exit(1)


def _check(options: Any, export: str | None, path: str | None) -> None:
    """Refuse what contradicts before anything is measured."""
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.files import check
    from perfmodel.roofline.step import check_whole

    for target in (path, export):
        if target and target != "-":
            check(target)
    if export and Path(export).suffix.casefold() != ".csv":
        raise UsageError(f"--export writes CSV: name it .csv, not {Path(export).name[:60]!r}")
    check_whole("batch", options.batch)
    check_whole("input", options.length)
    if options.budget is not None and not 0 < options.budget < 86400:
        raise UsageError(f"--budget is the time for the cases in seconds, above 0, not {options.budget:g}")
    if options.ceilings and (options.calibrate or options.model or export):
        raise UsageError("--ceilings measures no cases: leave --calibrate, --model and --export out")
    if options.model and options.calibrate:
        raise UsageError("--calibrate fits a suite: leave --model out, and give it afterwards")
    if path and Path(path).suffix.casefold() in PICTURES and options.ceilings:
        raise UsageError("--ceilings has no picture: name a .yaml, .json, .csv or .md file")
    if path and _yaml(path) and not options.ceilings:
        raise UsageError("a YAML file is the spec of the device: add --ceilings")


def _yaml(path: str) -> bool:
    return path.endswith((".yaml", ".yml"))


def _spec_text(report: Any, path: str) -> str:
    from perfmodel.hwspecs.kept import text

    return text({**report.data, "name": Path(path).stem})


def _text(report: Any, fmt: str) -> str:
    from perfmodel.reports.bench_text import text

    return text(report, fmt)


def _say(line: str) -> None:
    click.echo(f"perfmodel: {line}", err=True)


def _kept(options: Any) -> str:
    """What is kept of an interrupted run, and how to go on."""
    from perfmodel.validate.bench.session import CEILINGS
    from perfmodel.validate.bench.store import Store

    with Store() as store:
        run = next((r for r in store.runs() if r.finished is None and r.suite == options.title), None)
        count = len({r.name for r in store.results(run) if r.operator != CEILINGS}) if run else 0
        number = f"run {run.id} of " if run else ""
        return (
            f"interrupted: {count} finished cases are kept in {number}{store.path}; the same command with --resume "
            "goes on"
        )


def write_export(path: str, number: int | None = None) -> None:
    """Write the tables of a run, by default of the newest one that has cases."""
    from perfmodel.base.errors import UsageError
    from perfmodel.validate.bench.export import export, tables
    from perfmodel.validate.bench.store import Store

    with Store() as store:
        runs = [store.run(number)] if number is not None else store.runs()
        run = next((run for run in runs if tables(run, store.results(run))), None)
        if run is None:
            raise UsageError("there is no run with cases to export: `perfmodel validate` makes one")
        for written in export(run, store.results(run), path):
            click.echo(f"wrote {written}: run {run.id}, {run.suite}, of {run.started}", err=True)


def history(fmt: str, path: str | None, export: str | None, number: int | None) -> None:
    """List the runs of the store; with ``--export`` write the tables of one, by default of the newest with cases."""
    from perfmodel.reports.bench_text import history as shown
    from perfmodel.validate.bench.store import Store

    with Store() as store:
        runs = [(run, store.results(run)) for run in store.runs()]
    emit(shown(runs, fmt), path)
    if export:
        write_export(export, number)
