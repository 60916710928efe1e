"""What a model should store, compared with what its files do store, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import tensor_format
from perfmodel.modelspecs.stored.tensor import StoredTensor
from perfmodel.modelspecs.tensors import Tensor, tensors

#: What a stored tensor may be instead of a tensor of the model: scales of a format, or a table that the model computes
#: and a file may keep.
SCALE, BUFFER = "a scale", "a buffer"
Covers = tuple[str, ...]
#: From the name of a stored tensor to names of the inventory: readings in order of preference, each the tensors that it
#: covers side by side.
Names = Callable[[str], Iterable[Covers] | str]

VISION = {"vision": "the vision tower", "projector": "the projector"}


@dataclass(frozen=True)
class Difference:
    """A tensor of which model and file disagree.

    Attributes
    ----------
    name : str
    problem : str
        What was expected and what is stored.
    """

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


@dataclass(frozen=True)
class Comparison:
    """A model beside its files. Counts are elements.

    Attributes
    ----------
    expected : int
        Of the model's tensors, MTP layers and listed buffers included.
    weights : int
        Stored, packed ones unpacked; ``scales`` and ``buffers`` are counted apart.
    differences : tuple[Difference, ...]
    """

    expected: int
    weights: int
    scales: int
    buffers: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether every tensor of the model is stored, and nothing else."""
        return not self.differences

    def text(self, most: int = 6) -> str:
        """The differences in one line."""
        shown = "; ".join(str(one) for one in self.differences[:most])
        more = len(self.differences) - most
        return shown + (f"; and {more} more" if more > 0 else "")


@dataclass
class Unit:
    """Tensors of one name in one layer (the experts of a layer are one unit); ``bits`` of the native format."""

    shape: tuple[int, ...]
    count: int
    bits: float

    @property
    def elements(self) -> int:
        """Of all of them."""
        return prod(self.shape) * self.count


def compare(model: ModelSpec, stored: Iterable[StoredTensor], names: Names) -> Comparison:
    """Compare the model's inventory with stored tensors.

    Parameters
    ----------
    names : Callable
        From the name of a stored tensor to ``SCALE``, ``BUFFER``, or readings in names of the inventory (``{layer}``
        filled in, ``{expert}`` not). The first reading that the inventory knows is taken; a name without is reported.
    """
    units = units_of(model)
    found: dict[Covers, list[StoredTensor]] = {}
    apart = {SCALE: 0, BUFFER: 0}
    for t in stored:
        readings = names(t.name)
        if isinstance(readings, str):
            if t.name not in units:
                apart[readings] += t.elements
                continue
            readings = ()  # a table that the model lists
        covers = next((one for one in readings if all(part in units for part in one)), (t.name,))
        found.setdefault(covers, []).append(t)
    differences: list[Difference] = []
    weights, seen = 0, set[str]()
    for covers, parts in found.items():
        bits = units[covers[0]].bits if covers[0] in units else 16
        weights += sum(unpacked(t, bits) for t in parts)
        differences += _disagree(covers, parts, units, seen, bits)
        seen.update(covers)
    missing = ((name, unit) for name, unit in units.items() if name not in seen)
    differences += [Difference(name, f"{unit.elements:,} elements expected, none stored") for name, unit in missing]
    expected = sum(unit.elements for unit in units.values())
    return Comparison(expected, weights, apart[SCALE], apart[BUFFER], tuple(differences))


def _disagree(covers: Covers, stored: list[StoredTensor], units: dict[str, Unit], seen: set[str], bits: float
) -> Iterator[Difference]:  # fmt: skip
    name, elements = stored[0].name, sum(unpacked(t, bits) for t in stored)
    if covers[0] not in units:
        yield Difference(name, f"{elements:,} elements stored, and the model has no such tensor")
        return
    if twice := [one for one in covers if one in seen]:
        yield Difference(name, f"stores {twice[0]} a second time")
        return
    expected = sum(units[one].elements for one in covers)
    if elements != expected:
        many = f" in {len(stored)} tensors" if len(stored) > 1 else ""
        yield Difference(" + ".join(covers), f"{expected:,} elements expected, {elements:,} stored{many}")
        return
    if len(covers) == 1 and len(stored) in (1, units[covers[0]].count):
        unit = units[covers[0]]
        for t in stored:
            if not packed(t, bits) and not alike(t.shape, unit.shape) and not alike(t.shape, (unit.count, *unit.shape)):
                yield Difference(t.name, f"the shape {list(unit.shape)} expected, {list(t.shape)} stored")


def alike(stored: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether shapes agree but for the order of dimensions, dimensions of 1, and vectors stored by head."""
    left, right = sorted(n for n in stored if n != 1), sorted(n for n in expected if n != 1)
    return left == right or (min(len(left), len(right)) <= 1 and prod(left) == prod(right))


def units_of(model: ModelSpec) -> dict[str, Unit]:
    """The model's tensors by name, layers apart."""
    classes = {layer.name: layer.indices for layer in model.layer_classes}
    found: dict[str, Unit] = {}
    for t in tensors(model):
        bits = tensor_format(t, model.native_format).bits
        if t.role in VISION:  # one unit: the names of vision towers are many
            name = VISION[t.role]
            before = found[name].elements if name in found else 0
            found[name] = Unit((before + t.total,), 1, 16)
        elif "{layer}" not in t.name:
            found[t.name] = Unit(t.shape, t.count, bits)
        else:
            for index in (layers := _layers(model, t, classes)):
                found[t.name.replace("{layer}", str(index))] = Unit(t.shape, t.count // len(layers), bits)
    return found


def _layers(model: ModelSpec, t: Tensor, classes: dict[str, tuple[int, ...]]) -> Sequence[int]:
    """The layers that a repeated tensor is in."""
    if t.role == "mtp" and model.mtp is not None:
        return range(model.mtp.layers)
    return classes.get(t.layer) or range(t.count)


def packed(t: StoredTensor, bits: float) -> float:
    """Elements in one stored word of a packed format, 0 for an element stored as it is.

    GPTQ, AWQ and compressed-tensors pack elements of 8 and fewer bits into 32-bit words, MXFP4 and NVFP4 checkpoints
    two elements into a byte.
    """
    if t.dtype == "I32" and bits <= 8:
        return 32 / bits
    return 8 / bits if t.dtype == "U8" and bits < 8 else 0


def unpacked(t: StoredTensor, bits: float) -> int:
    """Elements of a stored tensor, the words of packed formats unpacked."""
    return int(t.elements * (packed(t, bits) or 1))
