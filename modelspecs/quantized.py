"""The answer of ``quantize``: every tensor with its type and bytes, their sum, and the size of the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import gb, gib

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sized:
    """``count`` tensors of one name, shape and type.

    Attributes
    ----------
    name : str
        As the container calls it; ``{layer}`` and ``{expert}`` stand for numbers.
    role : str
        Of the inventory; ``""`` in files whose model is not asked for.
    shape : tuple[int, ...]
        Outermost dimension first.
    type : str
        Storage format, or the container's own word for it.
    bytes : float
        Of all ``count`` tensors, with scales and what else belongs to them.
    why : str
        Why it has another type than most; ``""`` for what has the format asked for.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    type: str
    bytes: float
    count: int = 1
    why: str = ""

    @property
    def elements(self) -> int:
        """Of all ``count`` tensors."""
        return prod(self.shape) * self.count

    @property
    def bits(self) -> float:
        """Bits an element."""
        return 8 * self.bytes / self.elements if self.elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name, "role": self.role, "shape": list(self.shape), "type": self.type, "count": self.count,
            "elements": self.elements, "bytes": self.bytes, "bits": self.bits, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class Quantized:
    """A model in a storage format, tensor by tensor.

    Attributes
    ----------
    model, title : str
    format : str
        As asked for, or ``as stored``.
    container : str
        ``gguf`` or ``safetensors``.
    tensors : tuple[Sized, ...]
    header_bytes : float
        Everything in the file but the tensors' data and its padding.
    padding_bytes : float
    unloaded_bytes : float
        Tensors of the file that engines do not keep, and that ``total_bytes`` leaves out.
    header_exact : bool
        Whether ``header_bytes`` follows from rules, or is estimated.
    weights : int or None
        Elements that count as weights; all of them by default. ``None``: packed elements of an unknown model.
    notes : tuple[str, ...]
    source : str
        What the rules were read in.
    """

    model: str
    title: str
    format: str
    container: str
    tensors: tuple[Sized, ...] = field(repr=False)
    header_bytes: float = 0.0
    padding_bytes: float = 0.0
    header_exact: bool = True
    weights: int | None = -1
    notes: tuple[str, ...] = ()
    source: str = ""
    unloaded_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Sum over the tensors: what an engine loads."""
        return sum(t.bytes for t in self.tensors)

    @property
    def file_bytes(self) -> float:
        """The tensors, what engines do not keep of them, their padding and the header; of several files together."""
        return self.total_bytes + self.unloaded_bytes + self.padding_bytes + self.header_bytes

    @property
    def elements(self) -> int | None:
        """Elements of the weights, scales apart."""
        return sum(t.elements for t in self.tensors) if self.weights == -1 else self.weights

    @property
    def bits_per_weight(self) -> float | None:
        """``8 x total_bytes / elements``."""
        return 8 * self.total_bytes / self.elements if self.elements else None

    @property
    def by_type(self) -> dict[str, dict[str, float]]:
        """Tensors, elements and bytes of each type, the largest first."""
        found: dict[str, dict[str, float]] = {}
        for t in self.tensors:
            old = found.setdefault(t.type, {"tensors": 0, "elements": 0, "bytes": 0.0})
            old["tensors"] += t.count
            old["elements"] += t.elements
            old["bytes"] += t.bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))

    @property
    def sentence(self) -> str:
        """The sizes in words."""
        bits = f", {self.bits_per_weight:.4f} bits a weight" if self.bits_per_weight else ""
        exact = "" if self.header_exact else " (header estimated)"
        stored = self.format if self.format == "as stored" else f"as {self.format}"
        return (
            f"{self.title} {stored}: weights {gb(self.total_bytes)} = {gib(self.total_bytes)}{bits}; "
            f"{self.container} file {gb(self.file_bytes)} = {gib(self.file_bytes)}{exact}"
        )

    @property
    def frame(self) -> pd.DataFrame:
        """One row a tensor: name, role, shape, type, count, elements, bytes, bits, why."""
        import pandas as pd

        return pd.DataFrame([t.to_dict() for t in self.tensors])

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; ``total_bytes``, ``bits_per_weight`` and ``tensors`` are a contract."""
        return {
            "model": self.model, "title": self.title, "format": self.format, "container": self.container,
            "total_bytes": self.total_bytes, "bits_per_weight": self.bits_per_weight, "elements": self.elements,
            "file_bytes": self.file_bytes, "header_bytes": self.header_bytes, "header_exact": self.header_exact,
            "padding_bytes": self.padding_bytes, "unloaded_bytes": self.unloaded_bytes, "by_type": self.by_type,
            "tensors": [t.to_dict() for t in self.tensors], "notes": list(self.notes), "source": self.source,
        }  # fmt: skip

    def _repr_html_(self) -> str:
        import html

        import pandas as pd

        table = pd.DataFrame(self.by_type).T
        return f"<p>{html.escape(self.sentence)}</p>{table.to_html()}"


def merged(tensors: Iterable[Sized]) -> list[Sized]:
    """Tensors that differ in the number of their layer only, as one row each, in order of first appearance."""
    import re

    found: dict[tuple[str, tuple[int, ...], str], Sized] = {}
    for t in tensors:
        name = re.sub(r"(?<=\.)\d+(?=\.)", "*", t.name)
        key = (name, t.shape, t.type)
        old = found.get(key)
        count, size = (old.count, old.bytes) if old else (0, 0.0)
        found[key] = Sized(name, t.role, t.shape, t.type, size + t.bytes, count + t.count, t.why)
    return list(found.values())
