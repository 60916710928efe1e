"""What ``perfmodel quantize`` does beside sizes: compare formats, keep a budget, quantize a file of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

#: Formats that a file of weights is measured in when none are named.
FORMATS = ("int4", "w8a16", "fp8")


def run_options() -> Callable[[F], F]:
    """Options of this module; ``question`` says which one was asked, ``run`` answers it."""
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


#: Questions of this module -> options of ``perfmodel quantize`` that change their answer.
_WORKLOAD = ("gpu", "batch", "input_tokens", "output_tokens", "tp", "pp", "ep", "dp", "kv", "system", "dequantization")
_TIMES = ("fidelity", "engine", "efficiency", "measured")
_FILE = ("weights", "activations")
USED: dict[str, tuple[str, ...]] = {
    "sizes": ("keep", "keep_first", "keep_last", "matrix", "rules", "output", "embedding", "tensors"),
    "compare": ("compare", *_WORKLOAD, *_TIMES, *_FILE),
    "budget": ("budget", *_FILE),
    "weights": _FILE,
}
_ALWAYS = ("model", "formats", "path")


def question(options: Mapping[str, Any]) -> str:
    """Which question is asked: ``compare``, ``budget``, ``weights`` or ``sizes``.

    Raises
    ------
    UsageError
        For two of them.
    """
    from perfmodel.base.errors import UsageError

    if options.get("compare") is not None and options.get("budget") is not None:
        raise UsageError("--compare and --budget are two questions: ask one at a time")
    if options.get("activations") is not None and options.get("weights") is None:
        raise UsageError("--activations are inputs of --weights: give both")
    return next((name for name in ("compare", "budget", "weights") if options.get(name) is not None), "sizes")


def check_used(asked: str) -> None:
    """Refuse options that were given and belong to another question, rather than leave them aside.

    Raises
    ------
    UsageError
    """
    from perfmodel.base.errors import UsageError

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _ALWAYS or name in USED[asked]:
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            other = next((of for of, names in USED.items() if name in names), "")
            if not other:  # --help and the like
                continue
            belongs = "of sizes (--format alone)" if other == "sizes" else f"of --{other}"
            here = "sizes" if asked == "sizes" else f"--{asked}"
            raise UsageError(f"{parameter.opts[0]} is {belongs} and changes nothing about {here}: leave it out")


def run(model: str | None, formats: Sequence[str], options: Mapping[str, Any], form: str) -> str:
    """Answer a question of this module as text.

    Parameters
    ----------
    model : str or None
        Needed unless weights are given and nothing is to be compared. With weights: they have to be this model's.
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
    from perfmodel.base.text import printable

    asked = question(options)
    if formats and asked in ("compare", "budget"):
        raise UsageError(
            f"--format {printable(formats[0], 60)} is of sizes and --weights; --compare names its formats itself"
        )
    if asked == "compare":
        return _compare(_needed(model, "--compare"), options, form)
    if asked == "budget":
        return _budget(model, options, form)
    from perfmodel.commands.quantize_weights import measured_text

    return measured_text(formats or FORMATS, model, options, form)


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
    measured: dict[str, Any] = {}
    if options.get("weights") is not None:
        from perfmodel.commands.quantize_weights import errors

        measured["errors"], measured["errors_of"] = errors(wanted, model, options)
    keys = ("tp", "pp", "ep", "dp", "kv", "system", "dequantization", "fidelity", "efficiency", "measured", "engine")
    asked = {key: options[key] for key in keys if options.get(key)}
    found = compare(
        model, options["gpu"], wanted, batch=options["batch"], input=options["input_tokens"],
        output=options["output_tokens"], **measured, **asked,
    )  # fmt: skip
    return compare_text(found, form)


def _budget(model: str | None, options: Mapping[str, Any], form: str) -> str:
    from perfmodel.reports.quantization_text import mixed_text
    from perfmodel.roofline.engines.ask import as_bytes
    from perfmodel.roofline.quantization.widths import mixed

    size = as_bytes(options["budget"], "--budget")
    with _stdout_to_stderr():
        if options.get("weights") is not None:
            from perfmodel.commands.quantize_weights import widths

            found = widths(size, model, options)
        else:
            found = mixed(_needed(model, "--budget without --weights"), size)
    return mixed_text(found, form)


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
