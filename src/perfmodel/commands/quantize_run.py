"""What ``perfmodel quantize`` does beside sizes: compare formats, keep a budget, quantize a file of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

#: Formats that a file of weights is measured in when none are named.
FORMATS = ("int4", "w8a16", "fp8")


def run_options() -> Callable[[F], F]:
    """Options of this module; ``given`` says whether any of its questions was asked, ``run`` answers it."""
    options = [
        click.option("--compare", metavar="F1,F2,...", help="Formats side by side on --gpu: bytes, times, capacity."),
        click.option("--budget", metavar="BYTES", help="Widths of 2 to 16 bits a tensor that fit, such as 24GiB."),
        click.option("--weights", metavar="FILE", type=click.Path(), help="Quantize these weights (.safetensors)."),
        click.option("--activations", metavar="FILE", type=click.Path(), help="Calibration inputs of the weights."),
        click.option("--gpu", help="GPU of --compare: name, YAML file, 'cpu' or 'local'."),
        click.option("--batch", type=int, default=1, show_default=True, help="Sequences of --compare's times."),
        click.option("--input", "input_tokens", type=int, default=2048, show_default=True, help="Prompt tokens."),
        click.option("--output", "output_tokens", type=int, default=256, show_default=True, help="Output tokens."),
        click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallelism of --compare."),
        click.option("--pp", type=int, default=1, show_default=True, help="Pipeline parallelism of --compare."),
        click.option("--ep", type=int, default=1, show_default=True, help="Expert parallelism of --compare."),
        click.option("--dp", type=int, default=1, show_default=True, help="Data parallelism of --compare."),
        click.option("--kv", default="bf16", show_default=True, help="KV-cache format of --compare."),
        click.option("--system", help="How GPUs are joined; the GPU's usual system by default."),
        click.option(
            "--dequantization", type=float, help="Instructions a weight of your kernel that unpacks narrow weights."
        ),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def given(options: Mapping[str, Any]) -> bool:
    """Whether a question of this module was asked."""
    return any(options.get(name) for name in ("compare", "budget", "weights", "activations"))


def run(model: str | None, formats: Sequence[str], options: Mapping[str, Any], form: str) -> str:
    """Answer a question of this module as text.

    Parameters
    ----------
    model : str or None
        Needed unless weights are given and nothing is to be compared.
    formats : sequence of str
        Formats that ``--weights`` is measured in; ``int4``, ``w8a16`` and ``fp8`` when none are named.
    options : mapping
        Values of ``run_options`` and, for ``--compare``, of ``_options.fidelity_options``.
    form : str
        ``table``, ``json``, ``csv`` or ``md``.

    Raises
    ------
    PerfmodelError
    """
    from perfmodel.base.errors import UsageError

    if options.get("activations") and not options.get("weights"):
        raise UsageError("--activations are inputs of --weights: give both")
    if options.get("compare") and options.get("budget"):
        raise UsageError("--compare and --budget are two questions: ask one at a time")
    if formats and (options.get("compare") or options.get("budget")):
        raise UsageError(f"--format {formats[0][:60]} is of sizes and --weights; --compare names its formats itself")
    if options.get("compare"):
        return _compare(_needed(model, "--compare"), options, form)
    if options.get("budget"):
        return _budget(model, options, form)
    return _weights(formats or FORMATS, options, form)


def _split(formats: Sequence[str]) -> list[str]:
    from perfmodel.roofline.quantization.compare import names

    return [name for text in formats for name in names(text)]


def _needed(model: str | None, option: str) -> str:
    from perfmodel.base.errors import UsageError

    if model is None:
        raise UsageError(f"{option} needs a MODEL")
    return model


def _compare(model: str, options: Mapping[str, Any], form: str) -> str:
    from perfmodel.base.errors import UsageError
    from perfmodel.reports.quantization_text import compare_text
    from perfmodel.roofline.quantization.compare import compare, names

    if not options.get("gpu"):
        raise UsageError("--compare needs a --gpu")
    wanted = names(options["compare"])
    errors = _errors(wanted, options) if options.get("weights") else None
    keys = ("tp", "pp", "ep", "dp", "kv", "system", "dequantization", "fidelity", "efficiency", "measured", "engine")
    asked = {key: options[key] for key in keys if options.get(key)}
    found = compare(
        model, options["gpu"], wanted, batch=options["batch"], input=options["input_tokens"],
        output=options["output_tokens"], errors=errors, **asked,
    )  # fmt: skip
    return compare_text(found, form)


def _errors(wanted: Any, options: Mapping[str, Any]) -> dict[str, float]:
    """Mean error of each format that has a quantizer, by its name."""
    from perfmodel.base.errors import UsageError
    from perfmodel.modelspecs.formats import weight_format

    _torch()
    from perfmodel.validate.quantizers.formats import has_quantizer

    names = list(dict.fromkeys(f.name for f in map(weight_format, wanted) if has_quantizer(f)))
    if not names:
        raise UsageError("none of the formats has a quantizer here: leave --weights out")
    found = _measured(names, options, ("round to nearest",))
    return {name: mean for name in names if (mean := found.mean(name)) is not None}


def _budget(model: str | None, options: Mapping[str, Any], form: str) -> str:
    from perfmodel.reports.quantization_text import mixed_text
    from perfmodel.roofline.engines.ask import as_bytes
    from perfmodel.roofline.quantization.widths import mixed

    size = as_bytes(options["budget"], "--budget")
    with _stdout_to_stderr():
        if options.get("weights"):
            found = _mixed_of_file(size, options)
        else:
            found = mixed(_needed(model, "--budget without --weights"), size)
    return mixed_text(found, form)


def _mixed_of_file(size: float, options: Mapping[str, Any]) -> Any:
    from perfmodel.base.errors import UsageError
    from perfmodel.modelspecs.formats import weight_format
    from perfmodel.roofline.quantization.widths import WIDTHS, from_errors

    _torch()
    from perfmodel.validate.quantizers.files import stored

    source = stored(options["weights"])
    narrow = [weight_format(name).name for name in WIDTHS if weight_format(name).bits < 16]
    found = _measured(narrow, {**options, "weights": source}, ("round to nearest",))
    by_name: dict[str, dict[str, float]] = {}
    for line in found.lines:
        by_name.setdefault(line.name, {})[line.format] = line.error if line.output is None else line.output
    whole = {
        name: [*(errors[f] for f in narrow), 0.0] for name, errors in by_name.items() if len(errors) == len(narrow)
    }
    if not whole:
        raise UsageError("no matrix can be narrowed: groups of 128 divide the inputs of none")
    shapes = {m.name: m.shape for m in source.matrices if m.name in whole}
    kept = sum(t.elements for t in source.others) + sum(m.elements for m in source.matrices if m.name not in whole)
    what = "outputs on the given inputs" if options.get("activations") else "weights"
    basis = f"measured: relative squared errors of {what} by rounding to nearest, every matrix alike"
    return from_errors(str(options["weights"]), shapes, whole, size, 2.0 * kept, kept, basis)


def _weights(formats: Sequence[str], options: Mapping[str, Any], form: str) -> str:
    from perfmodel.reports.quantization_text import errors_text

    _torch()
    from perfmodel.validate.quantizers.measure import METHODS

    found = _measured(_split(formats), options, METHODS)
    rows = [line.to_dict() for line in found.lines]
    return errors_text(rows, found.skipped, form, f"errors of {options['weights']}")


def _torch() -> None:
    """Refuse without PyTorch."""
    from importlib.util import find_spec

    from perfmodel.base.errors import UsageError

    if find_spec("torch") is None:
        raise UsageError("quantizing weights needs PyTorch: install perfmodel[gpu], or torch by itself")


def _measured(names: Any, options: Mapping[str, Any], methods: tuple[str, ...]) -> Any:
    """Errors of a file, with a bar of progress on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from perfmodel.base.text import printable
    from perfmodel.validate.quantizers.measure import measure

    with Progress(console=Console(stderr=True), transient=True, disable=not _terminal()) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=printable(name, 60))

        return measure(options["weights"], names, options.get("activations"), methods, progress)


def _terminal() -> bool:
    import sys

    return sys.stderr.isatty()


class _stdout_to_stderr:  # noqa: N801 -- used as a function
    """The solver's library prints remarks to the process's stdout; data goes there, so they go to stderr."""

    def __enter__(self) -> None:
        import os
        import sys

        sys.stdout.flush()
        self.kept = os.dup(1)
        os.dup2(2, 1)

    def __exit__(self, *error: object) -> None:
        import os
        import sys

        sys.stdout.flush()
        os.dup2(self.kept, 1)
        os.close(self.kept)
