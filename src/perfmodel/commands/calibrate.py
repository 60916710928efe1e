"""``perfmodel calibrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfmodel.validate.calibrate import Calibration
    from perfmodel.validate.calibrate_steps import StepCalibration


@click.command(name="calibrate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--gpu", help="Which GPU of the tables to fit; the one that a log comes from.")
@click.option("--engine", help="Which engine of the tables to fit; of a benchmark's results, vllm by default.")
@click.option("--model", help="Model of a log: name, HF id, YAML file, config.json or folder.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallelism of a log.")
@click.option("--ep", type=int, default=1, show_default=True, help="Expert parallelism of a log.")
@click.option("--weights", help="Weight format of a log; the checkpoint's own by default.")
@click.option("--kv", default="bf16", show_default=True, help="KV-cache format of a log.")
@click.option("--system", help="How the GPUs of a log are joined; the GPU's usual system by default.")
@click.option("--input", "prompt", type=int, help="Prompt tokens of every request, where the log does not tell.")
@click.option("--output", "answer", type=int, help="Output tokens of every request, likewise.")
@click.option("--efficiency", multiple=True, type=click.Path(), help="Operator times to fit a log's steps on (YAML).")
@click.option("-o", "--output-file", "path", required=True, type=click.Path(), help="The fit, such as mine.yaml.")
def command(
    files: tuple[str, ...], gpu: str | None, engine: str | None, model: str | None, prompt: int | None,
    answer: int | None, efficiency: tuple[str, ...], path: str, **plan: Any,
) -> None:  # fmt: skip
    """Fit operator times or steps to your own FILES; other commands take the fit by --efficiency.

    FILES are tables with the headers that `validate --against` reads, `aiconfigurator:SYSTEM` for those of an installed
    aiconfigurator-core, logs of vLLM with --enable-logging-iteration-details, or results of `vllm bench serve
    --save-result`. Logs and results need --model and --gpu, and give what the host adds to a step. The errors shown are
    those on shapes, or steps, left out of the fit.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.tables import write
    from perfmodel.roofline.step import check_whole
    from perfmodel.validate.calibrate_files import Ran, calibrate_files
    from perfmodel.validate.fit_store import text

    if not path.endswith((".yaml", ".yml")):
        raise UsageError(f"a fit is a YAML file: name it .yaml, not {path[:80]!r}")
    if (prompt is None) != (answer is None):
        raise UsageError("--input and --output belong together: give both, or neither")
    for name, value in (("input", prompt), ("output", answer)):
        if value is not None:
            check_whole(name, value)
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise UsageError("fitting needs scipy: install perfmodel[plan]") from error
    lengths = (prompt, answer) if prompt is not None and answer is not None else None
    found = calibrate_files(files, gpu, engine, Ran(model, lengths, efficiency, plan))
    write(path, text(found.content(), "perfmodel calibrate"))
    if found.kernels is not None:
        click.echo(_kernels(found.kernels))
    if found.steps is not None:
        click.echo(_steps(found.steps))
    click.echo(f"wrote {path}", err=True)


def _kernels(found: Calibration) -> str:
    from perfmodel.reports.tables import Column, render
    from perfmodel.reports.words import percent

    columns = [Column("kind", "kind"), Column("format", "format"), Column("rows", "rows")]
    columns += [
        Column(key, name, "", percent)
        for key, name in (
            ("mape_10us", "error from 10 us"), ("mape", "error"), ("coverage80", "in 80 % interval"),
        )
    ]  # fmt: skip
    return render(found.lines, columns, "table", f"{found.gpu} under {found.engine}", found.skipped).rstrip()


def _steps(found: StepCalibration) -> str:
    from perfmodel.reports.tables import Column, render
    from perfmodel.reports.words import percent, seconds
    from perfmodel.validate.calibrate_files import notes
    from perfmodel.validate.calibrate_steps import NAMES

    def shown(row: dict[str, Any]) -> dict[str, Any]:
        time = row["name"] != NAMES["factor"]
        return {**row, **{k: seconds(row[k]) if time else f"{row[k]:.4g}" for k in ("low", "value", "high")}}

    columns = [Column(key, key) for key in ("name", "low", "value", "high")]
    title = f"steps of {found.ready.model.title} on {found.ready.words()} under {found.engine}"
    one = render(
        [shown(row) for row in found.lines()], [*columns, Column("fixed", "fixed by the rows")], "table", title
    )
    errors = [Column("phase", "phase"), Column("rows", "rows")]
    errors += [
        Column(key, name, "", percent)
        for key, name in (("mape", "error"), ("bias", "bias"), ("plain", "error of operators alone"))
    ]
    errors += [Column(key, f"80 % {key}", "", lambda x: "" if x is None else f"{x:.3f}") for key in ("low", "high")]
    two = render(found.errors(), errors, "table", "", notes(found))
    return f"{one.rstrip()}\n\n{two.rstrip()}"
