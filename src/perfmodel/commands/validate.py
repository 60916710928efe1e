"""``perfmodel validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands._options import emit, output_options
from perfmodel.commands._validate_more import more_options

PICTURES = (".png", ".svg")
#: Options of measuring, and those of a table: the two are not mixed.
MEASURING = (
    "device", "suite", "model", "batch", "length", "ceilings", "calibrate", "history", "resume", "export", "budget",
    "threads", "run",
)  # fmt: skip
TABLE = ("configs", "rows", "groups")
#: Options as people write them, where that differs.
_NAMES = {"length": "input"}


@click.command(name="validate")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Measure this; the GPU where there is one.")
@click.option("--suite", type=click.Choice(["quick", "full"]), help="Shapes to measure: under a minute, or minutes.")
@click.option("--model", help="Measure the shapes of this model's prefill and decode, and the whole steps.")
@click.option("--batch", type=int, help="Sequences of the model's steps [1].")
@click.option("--input", "length", type=int, help="Prompt tokens of the model's steps [512].")
@click.option("--ceilings", is_flag=True, help="Ceilings alone; -o x.yaml writes the device's spec.")
@click.option("--calibrate", is_flag=True, help="Fit this device, judge it on fresh shapes, keep the fit.")
@click.option("--budget", type=float, metavar="SECONDS", help="Time for the cases [45, full 420].")
@click.option("--threads", type=int, help="Threads of a processor [as many as cores are free].")
@click.option("--resume", is_flag=True, help="Go on with the run that was interrupted.")
@click.option("--export", type=click.Path(), metavar="FILE.csv", help="Write the cases as tables that --against reads.")
@click.option("--history", is_flag=True, help="List earlier runs; with --export write the tables of one.")
@click.option("--run", type=int, metavar="NUMBER", help="Of --history --export: the run [the newest with cases].")
@click.option("--against", type=click.Path(), help="A CSV table of measurements; measures nothing.")
@click.option("--configs", type=click.Path(), help="Folder of Hugging Face configurations, <org>__<name>.json.")
@click.option(
    "--tolerance", multiple=True, metavar="[NAME=]X", help="Largest error, 0.02 or 2%; of one family or column."
)
@click.option("--rows", is_flag=True, help="Of --against: row by row, with interval and explanation.")
@click.option("--groups", is_flag=True, help="Of --against: figures of each group too (JSON always has them).")
@click.option("--dark", is_flag=True, help="Dark picture.")
@output_options("the picture (.png, .svg), the data, or with --ceilings the spec (.yaml)", (*PICTURES, ".yaml", ".yml"))
@more_options
def command(
    against: str | None, tolerance: tuple[str, ...], dark: bool, fmt: str, path: str | None, **options: Any
) -> None:  # fmt: skip
    """Measure this machine beside what is predicted, or compare a table of measurements.

    Measures the ceilings of the GPU, or of this processor, then kernels one by one; each is checked first, and kept at
    once. --calibrate fits the device: estimate --fidelity calibrated --gpu local (or cpu) uses the fit. The exit code
    is 1 when a kernel's result is wrong or a median error is above --tolerance, 130 after an interrupt.

    With --against nothing is measured: each row of the table is predicted. Its header tells what kind of table it is,
    rows that cannot be predicted are counted with the reason, and the exit code is 1 when a mean error is above
    --tolerance.

    --kernel checks and times a kernel of yours beside the library and the prediction; --speculative runs a pair of
    models; --ncu places what NVIDIA Nsight Compute measured on a roofline.
    """
    limits = dict(_limit(text) for text in tolerance)
    _apart(against, options)
    if against is not None:
        _against(against, limits, dark, fmt, path, options)
        return
    from perfmodel.commands import _bench

    _together(options)
    if options["history"]:
        _bench.history(fmt, path, options["export"], options["run"])
        return
    chosen = {name: options[name] for name in ("model", "ceilings", "calibrate", "resume", "budget", "threads")}
    chosen |= {name: options[name] for name in ("batch", "length") if options[name] is not None}
    suite = options["suite"] or "quick"
    _bench.measure(options["device"], suite, _families(limits), options["export"], dark, fmt, path, **chosen)


def _apart(against: str | None, options: dict[str, Any]) -> None:
    """Refuse options of the other sort."""
    from perfmodel.base.errors import UsageError

    strange = [name for name in (MEASURING if against is not None else TABLE) if options[name]]
    if strange:
        why = "--against measures nothing" if against is not None else "it belongs to --against TABLE.csv"
        raise UsageError(f"--{_NAMES.get(strange[0], strange[0])}: {why}; leave it out")


def _together(options: dict[str, Any]) -> None:
    """Refuse options of measuring that would change nothing."""
    from perfmodel.base.errors import UsageError

    listing = ("history", "export", "run")
    if options["history"] and (strange := [name for name in MEASURING if options[name] and name not in listing]):
        raise UsageError(f"--{_NAMES.get(strange[0], strange[0])}: --history measures nothing; leave it out")
    if options["run"] is not None and not (options["history"] and options["export"]):
        raise UsageError("--run: it belongs to --history --export FILE.csv")
    for name in ("batch", "length"):
        if options[name] is not None and options["model"] is None:
            raise UsageError(f"--{_NAMES.get(name, name)}: it belongs to --model; a suite has its own shapes")


def _families(limits: dict[str, float]) -> dict[str, float]:
    """Tolerances by family of operators; an unknown one is refused before anything is measured."""
    from perfmodel.base.errors import UsageError

    known = ("gemm", "prefill", "decode", "experts", "norm", "activation", "rope", "softmax", "rejection")
    if strange := next((name for name in limits if name and name not in known), ""):
        raise UsageError(f"--tolerance: no family {strange[:60]!r}; there are {', '.join(known)}")
    return limits


def _against(
    against: str, limits: dict[str, float], dark: bool, fmt: str, path: str | None, options: dict[str, Any]
) -> None:
    """Compare a table with what is predicted for its rows."""
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.check_text import check_text
    from perfmodel.validate.check import check

    if path and Path(path).suffix.casefold() in (".yaml", ".yml"):
        raise UsageError("a YAML file is the spec of a measured device: --against writes a picture or data")
    found = check(against, configs=options["configs"])
    if unknown := [name for name in limits if name and name not in found.kind.metrics]:
        known = ", ".join(found.kind.metrics)
        raise UsageError(f"--tolerance: {found.kind.name} has no measured column {unknown[0][:60]!r}; it has {known}")
    picture = path if path and Path(path).suffix.casefold() in PICTURES else None
    if picture:
        _draw(found, picture, "dark" if dark else "light")
    emit(check_text(found, fmt, options["groups"], options["rows"]), None if picture else path)
    if picture:
        click.echo(f"wrote {picture}", err=True)
    if limits and (outside := found.outside(limits)):
        click.echo(f"perfmodel: outside the tolerance: {'; '.join(outside)}", err=True)
        click.get_current_context().exit(1)


def _draw(found: Any, path: str, theme: str) -> None:
    from perfmodel.reports.scatter_plot import draw, save

    save(draw(found, theme), path)


def _limit(text: str) -> tuple[str, float]:
    """``0.02``, ``2%`` or ``kv_tokens=0.02`` as a name and a fraction."""
    import math

    from perfmodel.base.errors import UsageError

    name, equals, number = text.rpartition("=")
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (equals and not name.strip()):
        raise UsageError(f"--tolerance takes a fraction such as 0.02, 2% or kv_tokens=0.02, not {text[:60]!r}")
    return name.strip(), value
