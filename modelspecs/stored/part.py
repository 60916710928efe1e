"""Whether tensors are a model's: names and shapes of a checkpoint, or of a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import NOT_LOADED
from perfmodel.modelspecs.stored.compare import Covers, Difference, Unit, alike, units_of
from perfmodel.modelspecs.stored.hf_names import hugging_face
from perfmodel.modelspecs.tensors import tensors


@dataclass(frozen=True)
class Part:
    """Tensors beside a model. Weights are those of its linear layers.

    Attributes
    ----------
    known, unknown : tuple[str, ...]
        Names that the model has, and has not.
    wrong : tuple[Difference, ...]
        Known names with another shape.
    linear : tuple[str, ...]
        Names of linear layers, which recipes quantize.
    stored, weights : int
        Weights of the model that are among the tensors, and all of them.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    wrong: tuple[Difference, ...]
    linear: tuple[str, ...]
    stored: int
    weights: int

    @property
    def whole(self) -> bool:
        """Whether all of the model's linear layers are there."""
        return self.stored >= self.weights


def part_of(model: ModelSpec, found: Iterable[tuple[str, tuple[int, ...]]]) -> Part:
    """Compare names and shapes of a Hugging Face checkpoint, or of some of its files, with a model.

    >>> from perfmodel.modelspecs.load import model
    >>> part = part_of(model("llama3.1-8b"), [("model.layers.0.self_attn.k_proj.weight", (1024, 4096)), ("x", (2, 2))])
    >>> part.stored, part.unknown, part.whole
    (4194304, ('x',), False)
    """
    names, units = hugging_face(model), units_of(model)
    of_layers = _linear(model)
    known, unknown, wrong, linear, stored = [], [], [], [], 0
    for name, shape in found:
        readings = names(name)
        if isinstance(readings, str):  # a scale, or a table that the model computes
            continue
        covers = next((one for one in readings if all(part in units for part in one)), None)
        if covers is None:
            unknown.append(name)
            continue
        known.append(name)
        if problem := _problem(covers, shape, units):
            wrong.append(Difference(name, problem))
        if covers[0] in of_layers:
            linear.append(name)
            stored += prod(shape)
    weights = sum(units[name].elements for name in of_layers)
    return Part(tuple(known), tuple(unknown), tuple(wrong), tuple(linear), stored, weights)


def _linear(model: ModelSpec) -> set[str]:
    """Names of the matrices that recipes quantize, as units have them."""
    classes = {layer.name: layer.indices for layer in model.layer_classes}
    return {
        t.name.replace("{layer}", str(index))
        for t in tensors(model)
        if t.quantizable and t.role not in NOT_LOADED
        for index in classes.get(t.layer, (0,))
    }


def _problem(covers: Covers, shape: tuple[int, ...], units: dict[str, Unit]) -> str:
    """What is wrong with a shape; the experts of a layer may be stacked or apart, fused matrices side by side."""
    first = units[covers[0]]
    if len(covers) == 1:
        if alike(shape, first.shape) or alike(shape, (first.count, *first.shape)):
            return ""
        return f"the shape {list(first.shape)} expected, {list(shape)} stored"
    expected, elements = sum(units[one].elements for one in covers), prod(shape)
    if elements in (expected, expected // first.count):
        return ""
    return f"{' + '.join(covers)}: {expected:,} elements expected, {elements:,} stored"
