"""What ``perfmodel quantize`` does with a file of weights: errors of its matrices, and widths from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Opened:
    """A file of weights.

    Attributes
    ----------
    source, linear : Stored
        Its matrices, with a model those that the model has; and of these the ones that recipes quantize.
    words : str
        How much of the model it holds; ``""`` without a model.
    whole : bool
        Whether it holds all of the model's linear layers.
    """

    source: Any
    linear: Any
    words: str = ""
    whole: bool = True


def opened(model: str | None, path: str) -> Opened:
    """The matrices of a file; beside a model they have to be that model's.

    Raises
    ------
    UsageError
        Without PyTorch; when the file holds nothing of the model.
    SpecError
        For a file that cannot be read, or a tensor whose shape is not the model's.
    """
    from perfmodel.base.errors import UsageError

    if not path:
        raise UsageError("--weights takes a .safetensors file or a folder of them, not an empty name")
    _torch()
    from perfmodel.validate.quantizers.files import stored

    source = stored(path)
    return Opened(source, source) if model is None else _of_model(model, path, source)


def _of_model(model: str, path: str, source: Any) -> Opened:
    from perfmodel.base.errors import SpecError, UsageError
    from perfmodel.base.text import printable
    from perfmodel.modelspecs.load import model as load
    from perfmodel.modelspecs.stored.part import part_of
    from perfmodel.validate.quantizers.files import DTYPES

    spec, shown = load(model), printable(path, 200)
    floats = [t for t in source.others if t.dtype in DTYPES]  # packed integers have other shapes
    part = part_of(spec, [(t.name, t.shape) for t in (*source.matrices, *floats)])
    if part.wrong:
        first, many = part.wrong[0], len(part.wrong)
        raise SpecError(
            path, printable(first.name, 120),
            f"{first.problem}: {many:,} of {len(part.known):,} tensors have another shape than those of {spec.name}; "
            "give its checkpoint, or leave the model out",
        )  # fmt: skip
    known = source.only(part.known, f"tensors that {spec.name} does not have")
    if not known.matrices:
        some = f", but {printable(part.unknown[0], 60)} and others" if part.unknown else ""
        raise UsageError(f"{shown} holds no matrix of {spec.name}{some}: give its checkpoint, or leave the model out")
    share = "all" if part.whole else f"{100 * part.stored / part.weights:.3g} % of"
    linear = known.only(part.linear, "matrices that recipes leave at 16 bits")
    return Opened(known, linear, f"{shown} holds {share} the weights of {spec.name}'s linear layers", part.whole)


def errors(wanted: Sequence[str], model: str, options: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """Mean error of each format that has a quantizer, by its name, and what it is of, in words."""
    from perfmodel.base.errors import UsageError
    from perfmodel.modelspecs.formats import Format
    from perfmodel.modelspecs.quant_sizes import weight_or_preset

    given = opened(model, options["weights"])
    from perfmodel.validate.quantizers.formats import has_quantizer

    formats = [f for f in map(weight_or_preset, wanted) if isinstance(f, Format) and has_quantizer(f)]
    if not formats:
        raise UsageError("none of the formats has a quantizer here: leave --weights out")
    names = list(dict.fromkeys(f.name for f in formats))
    found = _measured(names, {**options, "weights": given.linear}, ("round to nearest",))
    return {name: mean for name in names if (mean := found.mean(name)) is not None}, given.words


def widths(size: float, model: str | None, options: Mapping[str, Any]) -> Any:
    """Widths under a budget from measured errors.

    Raises
    ------
    UsageError
        For a part of a model: the budget is of all its weights.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.modelspecs.formats import weight_format
    from perfmodel.modelspecs.load import model as load
    from perfmodel.roofline.quantization.widths import WIDTHS, from_errors

    given = opened(model, options["weights"])
    if not given.whole:
        raise UsageError(f"{given.words}, and the budget is of all: give the whole checkpoint, or leave the model out")
    source = given.source
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
    basis += f"; {given.words}" if given.words else ""
    title = load(model).title if model is not None else str(options["weights"])
    return from_errors(
        title, shapes, whole, size, 2.0 * kept, kept, f"{basis}; {given.words}" if given.words else basis
    )


def measured_text(formats: Sequence[str], model: str | None, options: Mapping[str, Any], form: str) -> str:
    """Errors of every matrix of a file by every method, as text."""
    from perfmodel.reports.quantization_text import errors_text
    from perfmodel.roofline.quantization.compare import names

    listed = [name for text in formats for name in names(text, "--format")]
    given = opened(model, options["weights"])
    from perfmodel.validate.quantizers.measure import METHODS

    found = _measured(listed, {**options, "weights": given.source}, METHODS)
    rows = [line.to_dict() for line in found.lines]
    title = f"errors of {options['weights']}"
    return errors_text(rows, found.skipped, form, title, [*filter(None, [given.words]), *found.warnings()])


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
