"""``perfmodel calibrate``."""

from __future__ import annotations

import click


@click.command(name="calibrate")
@click.argument("tables", nargs=-1, required=True, type=click.Path())
@click.option("--gpu", help="Which GPU of the tables to fit.")
@click.option("--engine", help="Which engine of the tables to fit.")
@click.option("-o", "--output-file", "path", required=True, type=click.Path(), help="The fit, such as mine.yaml.")
def command(tables: tuple[str, ...], gpu: str | None, engine: str | None, path: str) -> None:
    """Fit operator times to your own TABLES; other commands take the file by --efficiency.

    TABLES are CSV files with the headers that `validate --against` reads. The errors shown are those on shapes left out
    of the fit.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.tables import Column, render, write
    from perfmodel.reports.words import percent
    from perfmodel.validate.calibrate import calibrate
    from perfmodel.validate.fit_store import text

    if not path.endswith((".yaml", ".yml")):
        raise UsageError(f"a fit is a YAML file: name it .yaml, not {path[:80]!r}")
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise UsageError("fitting needs scipy: install perfmodel[plan]") from error
    found = calibrate(tables, gpu, engine)
    write(path, text(found.content(", ".join(tables)), "perfmodel calibrate"))
    columns = [Column("kind", "kind"), Column("format", "format"), Column("rows", "rows")]
    columns += [
        Column(key, name, "", percent)
        for key, name in (
            ("mape_10us", "error from 10 us"), ("mape", "error"), ("coverage80", "in 80 % interval"),
        )
    ]  # fmt: skip
    click.echo(render(found.lines, columns, "table", f"{found.gpu} under {found.engine}", found.skipped).rstrip())
    click.echo(f"wrote {path}", err=True)
