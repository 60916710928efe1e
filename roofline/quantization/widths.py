"""Bits for each tensor of a model under a byte budget, by how much each tensor minds.

The error that is minimised is ``sum of sensitivity x weights x relative rounding error``, or with measured errors their
sum, each matrix counting alike. Without measured errors the sensitivities follow an order that a textbook chapter gives
(section 4.6): the attention output first, then Q, K and V, then the FFN's up projections, its down projection and the
embedding last; early layers before late ones. An order has no numbers: here each step of it halves, and the first layer
counts twice as much as the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DoesNotFit
from perfmodel.base.units import bytes_text, engineering
from perfmodel.modelspecs.formats import Format, weight_format
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec, Moe
from perfmodel.modelspecs.sizes import NOT_LOADED
from perfmodel.modelspecs.tensors import Tensor, tensors
from perfmodel.roofline.engines.ask import as_bytes
from perfmodel.roofline.quantization.budget import SECONDS, Allocation, Choice, Option, allocate

if TYPE_CHECKING:
    import pandas as pd

#: Formats of the widths: 2, 3, 4 and 8 bits in groups of 128 with a 16-bit scale and a zero point, and 16 bits.
WIDTHS = ("gptq2_g128", "gptq3_g128", "gptq_g128", "gptq8_g128", "bf16")
#: Squared range of a group of 128 normal weights over their variance, over 12: on average it spans 5.4 deviations.
GROUP_RANGE = 5.4**2 / 12
#: Sensitivity by the chapter's order. The LM head is not in it; what shapes every logit is taken as the most sensitive.
ORDER = (
    (("o_proj", "mixer_out", "lm_head"), 8.0),
    (("ffn_up", "ffn_gate", "expert_up", "expert_gate", "shared_expert_up", "shared_expert_gate"), 2.0),
    (("ffn_down", "expert_down", "shared_expert_down", "embedding"), 1.0),
)
#: Attention's other projections, and mixers'.
MIDDLE = 4.0
#: How much more the first layer counts than the last.
FIRST_LAYER = 2.0
#: Tables that may be narrowed too; norms, routers and biases stay at 16 bits.
TABLES = ("embedding", "lm_head")


def relative_error(bits: float) -> float:
    """Squared rounding error of normal weights in groups of 128 over their power: ``(5.4 / (2^b - 1))^2 / 12``.

    Valid for asymmetric grids of 2 to 8 bits, within 5 % of real weights without outliers; 16 bits lose nothing that
    the checkpoint has.

    >>> round(relative_error(4), 4), relative_error(16)
    (0.0108, 0.0)
    """
    return 0.0 if bits >= 16 else GROUP_RANGE / (2.0**bits - 1) ** 2


def sensitivity(role: str, layer: int = 0, layers: int = 1) -> float:
    """How much an error of a tensor counts, by the chapter's order; only ratios matter.

    >>> sensitivity("o_proj", 0, 80), sensitivity("ffn_down", 79, 80)
    (16.0, 1.0)
    """
    base = next((value for roles, value in ORDER if role in roles), MIDDLE)
    depth = layer / (layers - 1) if layers > 1 else 1.0
    return base * (FIRST_LAYER - (FIRST_LAYER - 1) * depth)


@dataclass(frozen=True)
class Piece:
    """What gets one width: a matrix of a layer, or all experts' of it.

    Attributes
    ----------
    name, role : str
    layer : int or None
    shape : tuple[int, ...]
    count : int
    weight : float
        Sensitivity of all of it: times the relative error it gives the error that is minimised.
    errors : tuple[float, ...] or None
        Measured relative errors in the order of the widths, instead of the formula's.
    """

    name: str
    role: str
    layer: int | None
    shape: tuple[int, ...]
    count: int
    weight: float
    errors: tuple[float, ...] | None = None

    @property
    def elements(self) -> int:
        """Weights in it."""
        size = self.count
        for n in self.shape:
            size *= n
        return size

    def choice(self, widths: Sequence[Format]) -> Choice:
        """Its options."""
        errors = self.errors or tuple(relative_error(f.bits) for f in widths)
        return Choice(
            self.name,
            tuple(
                Option(f.name, self.count * f.tensor_bytes(self.shape), self.weight * error)
                for f, error in zip(widths, errors, strict=True)
            ),
        )


@dataclass(frozen=True, repr=False)
class Mixed:
    """Widths of all tensors under a budget.

    Attributes
    ----------
    title : str
    budget : float
        [bytes]
    pieces : tuple[Piece, ...]
    allocation : Allocation
        Of the pieces.
    kept_bytes : float
        Of what stays at 16 bits whatever the budget. [bytes]
    kept_elements : int
    basis : str
        Where the errors come from, in words.
    """

    title: str
    budget: float
    pieces: tuple[Piece, ...]
    allocation: Allocation
    kept_bytes: float
    kept_elements: int
    basis: str

    @property
    def bytes(self) -> float:
        """Of all weights. [bytes]"""
        return self.allocation.bytes + self.kept_bytes

    @property
    def bits_per_weight(self) -> float:
        """Over all weights."""
        return self.bytes * 8 / (sum(p.elements for p in self.pieces) + self.kept_elements)

    def rows(self) -> list[dict[str, Any]]:
        """One row a piece."""
        return [
            {
                "name": p.name, "role": p.role, "layer": p.layer, "shape": list(p.shape), "count": p.count,
                "format": o.label, "bits": weight_format(o.label).bits, "bytes": o.bytes, "error": o.error,
            }
            for p, o in zip(self.pieces, self.allocation.chosen, strict=True)
        ]  # fmt: skip

    def by_role(self) -> list[dict[str, Any]]:
        """One row a role: bytes, bits a weight, and the layers of each width."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows():
            found.setdefault(row["role"], []).append(row)
        return [_role_row(role, rows, self.pieces) for role, rows in found.items()]

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.title, "budget_bytes": self.budget, "total_bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight, "kept_bytes": self.kept_bytes, "error": self.allocation.error,
            "least_error": self.allocation.least_error, "proven": self.allocation.proven, "basis": self.basis,
            "tensors": self.rows(),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))


def _role_row(role: str, rows: list[dict[str, Any]], pieces: Sequence[Piece]) -> dict[str, Any]:
    elements = sum(p.elements for p in pieces if p.role == role)
    size = sum(row["bytes"] for row in rows)
    layers: dict[float, list[int]] = {}
    for row in rows:
        layers.setdefault(row["bits"], []).extend([] if row["layer"] is None else [row["layer"]])
    words = [f"{bits:g} bits{': ' + spans(where) if where else ''}" for bits, where in sorted(layers.items())]
    return {
        "role": role, "tensors": sum(row["count"] for row in rows), "bytes": size,
        "bits_per_weight": size * 8 / elements, "widths": "; ".join(reversed(words)),
    }  # fmt: skip


def spans(numbers: Iterable[int]) -> str:
    """Layer numbers as spans.

    >>> spans([3, 0, 1, 2, 7, 9, 8])
    '0-3, 7-9'
    """
    listed = sorted(set(numbers))
    found: list[list[int]] = []
    for n in listed:
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in found)


def pieces(model: ModelSpec) -> tuple[list[Piece], float, int]:
    """What may be narrowed, and the bytes and elements of what stays at 16 bits.

    The experts of a layer get one width; an error of theirs counts as often as they are chosen. An embedding that is
    the LM head too is as sensitive as one.
    """
    found: list[Piece] = []
    kept_bytes, kept_elements = 0.0, 0
    for t in tensors(model):
        if t.role in NOT_LOADED:
            continue
        if not (t.quantizable or t.role in TABLES) or len(t.shape) != 2:
            kept_bytes, kept_elements = kept_bytes + 2.0 * t.total, kept_elements + t.total
        elif not t.layer:
            role = "lm_head" if t.role == "embedding" and model.tied_embeddings else t.role
            found.append(Piece(t.name, t.role, None, t.shape, t.count, _weight(t, t.count, 1.0, sensitivity(role))))
        else:
            found += _layered(model, t)
    order = {p.name: i for i, p in enumerate(found)}
    return sorted(found, key=lambda p: (-1 if p.layer is None else p.layer, order[p.name])), kept_bytes, kept_elements


def _weight(t: Tensor, count: int, share: float, factor: float) -> float:
    return factor * share * count * t.numel


def _layered(model: ModelSpec, t: Tensor) -> Iterable[Piece]:
    layer = next(found for found in model.layer_classes if found.name == t.layer)
    share = 1.0
    if t.role.startswith("expert_") and isinstance(layer.ffn, Moe):
        share = layer.ffn.experts_per_token / layer.ffn.experts
    each = t.count // layer.count
    for index in layer.indices:
        name = t.name.replace("{layer}", str(index))
        factor = sensitivity(t.role, index, model.num_layers)
        yield Piece(name, t.role, index, t.shape, each, _weight(t, each, share, factor))


def mixed(
    model: str | ModelSpec, budget: float | str, widths: Sequence[str] = WIDTHS, seconds: float = SECONDS
) -> Mixed:  # fmt: skip
    """Widths of a model's tensors for the least sensitivity-weighted error within a budget.

    Parameters
    ----------
    model : str or ModelSpec
    budget : float or str
        Of all weights, those that stay at 16 bits too: bytes, or text such as ``24 GiB``.
    widths : sequence of str
        Formats to choose from.

    Raises
    ------
    UsageError
        For a budget that is no size.
    DoesNotFit
        When the narrowest widths are above the budget.

    Examples
    --------
    >>> found = mixed("llama3.1-8b", "4 GB")
    >>> found.bytes <= 4e9, found.allocation.proven
    (True, True)
    """
    spec = load_model(model)
    listed, kept_bytes, kept_elements = pieces(spec)
    basis = (
        "no weights were given: rounding errors of normal weights, sensitivities by the order of the chapter's section "
        "4.6 (attention output, then Q, K, V, then FFN up, then FFN down and embedding; early layers first)"
    )
    size = as_bytes(budget, "budget")
    return assign(spec.title, listed, size, kept_bytes, kept_elements, basis, widths, seconds)


def assign(
    title: str, listed: Sequence[Piece], budget: float, kept_bytes: float, kept_elements: int, basis: str,
    widths: Sequence[str] = WIDTHS, seconds: float = SECONDS,
) -> Mixed:  # fmt: skip
    """Widths of given pieces; see ``mixed``."""
    formats = [weight_format(name) for name in widths]
    choices = [piece.choice(formats) for piece in listed]
    least = kept_bytes + sum(min(o.bytes for o in choice.options) for choice in choices)
    if least > budget:
        kept = engineering(kept_bytes, "B")
        raise DoesNotFit(
            f"{title} takes {bytes_text(least)} at the narrowest widths ({kept} of it stay at 16 bits); the budget is "
            f"{bytes_text(budget)}",
            least, budget,
        )  # fmt: skip
    allocation = allocate(choices, budget - kept_bytes, seconds)
    return Mixed(title, budget, tuple(listed), allocation, kept_bytes, kept_elements, basis)


def from_errors(
    title: str, shapes: Mapping[str, tuple[int, ...]], errors: Mapping[str, Sequence[float]], budget: float,
    kept_bytes: float, kept_elements: int, basis: str, widths: Sequence[str] = WIDTHS,
) -> Mixed:  # fmt: skip
    """Widths from measured relative errors, each matrix counting alike.

    Parameters
    ----------
    shapes : mapping
        Name -> shape.
    errors : mapping
        Name -> error in each of the widths.
    """
    listed = [
        Piece(name, _role_of(name), _layer_of(name), shape, 1, 1.0, tuple(errors[name]))
        for name, shape in shapes.items()
    ]
    return assign(title, listed, budget, kept_bytes, kept_elements, basis, widths)


def _layer_of(name: str) -> int | None:
    """The first number in a tensor's name."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _role_of(name: str) -> str:
    """A tensor's name without numbers and what all share: ``attention.output.dense``."""
    parts = [part for part in name.removesuffix(".weight").split(".") if not part.isdigit()]
    return ".".join(parts[-3:])
