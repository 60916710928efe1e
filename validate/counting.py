"""Ways in which a model's elements are counted, each as a sum over the tensor inventory.

A published count rarely says what it counts. The ways are few: with or without MTP layers, stored buffers, the scales
of the format, vision parts, a tied head a second time. A count is compared with the first way in its own list that
gives the printed number, or with the first of all when none does; the comparison names the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.counts import (
    active_params,
    active_params_with_embedding,
    by_role,
    checkpoint_params,
    total_params,
    unscaled_params,
)
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import tensors
from perfmodel.validate.rows import Printed, Skip


@dataclass(frozen=True)
class Way:
    """A way of counting.

    Attributes
    ----------
    name : str
        In a few words.
    value : int
        Elements.
    formula : str
        The sum with its numbers.
    """

    name: str
    value: int
    formula: str

    def agrees(self, count: Printed) -> bool:
        """Whether this way gives the printed number."""
        return abs(self.value - count.value) <= count.half_unit * (1 + 1e-9)


class Parts:
    """What a model's inventory is made of. All counts are elements.

    Attributes
    ----------
    total : int
        Parameters, vision parts included, MTP layers and stored buffers not.
    vision, mtp, buffers, scales : int
    tied_head : int
        Elements of the LM head where it is the embedding's matrix, else 0.
    masks : int
        Causal masks of 1 x context x context that early checkpoints (GPT-2, GPT-NeoX) store in every layer.
    embedding : int
        Of the input.
    latent : int
        Elements of all ``kv_b_proj``, which some GGUF files store a second time as two halves.
    """

    def __init__(self, model: ModelSpec) -> None:
        roles = by_role(model)
        self.model = model
        self.total = total_params(model)
        self.vision = roles.get("vision", 0) + roles.get("projector", 0)
        self.mtp, self.buffers = roles.get("mtp", 0), roles.get("buffer", 0)
        self.scales = checkpoint_params(model) - unscaled_params(model)
        self.tied_head = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
        self.masks = model.num_layers * model.max_context**2 if model.family in ("gpt2", "gpt_neox") else 0
        self.embedding = roles.get("embedding", 0)
        self.latent = roles.get("kv_b_proj", 0)

    def way(self, name: str, *added: str, without: str = "") -> Way:
        """``total`` and some parts, less one, as a way of counting."""
        value, text = self.total, f"{self.total:,} parameters"
        for part in added:
            value += getattr(self, part)
            text += f" + {getattr(self, part):,} {_WORDS[part]}" if getattr(self, part) else ""
        if without and getattr(self, without):
            value -= getattr(self, without)
            text += f" - {getattr(self, without):,} {_WORDS[without]}"
        return Way(name, value, text if value == self.total else f"{text} = {value:,}")


_WORDS = {
    "vision": "of vision parts", "mtp": "in MTP layers", "buffers": "in stored buffers", "scales": "scales",
    "tied_head": "of the tied head again", "masks": "of causal masks",
    "embedding": "of the input embedding", "latent": "of kv_b_proj again",
}  # fmt: skip
_STORED = {"mtp": "MTP layers", "buffers": "stored buffers", "scales": "scales"}


def stored(parts: Parts) -> Iterator[Way]:
    """What a hub counts in a checkpoint: all that is stored; or all but scales, buffers or MTP layers; or more.

    More is what some checkpoints store beside the model: a tied head a second time, causal masks.

    Raises
    ------
    Skip
        For formats that pack several elements into a stored word, which hubs count differently.
    """
    if parts.model.native_format in ("int4", "nvfp4"):
        raise Skip(
            f"the checkpoint packs elements ({parts.model.native_format}): its stored words are not its parameters"
        )
    optional = [part for part in _STORED if getattr(parts, part)]
    for left_out in (out for count in range(len(optional) + 1) for out in combinations(optional, count)):
        kept = [part for part in optional if part not in left_out]
        words = " and ".join(_STORED[part] for part in left_out)
        yield parts.way(f"all that is stored but {words}" if words else "all that is stored", *kept)
    if parts.tied_head:
        yield parts.way("all that is stored, tied head twice", *optional, "tied_head")
    if parts.masks:
        yield parts.way("all that is stored and causal masks", *optional, "masks")


def published(parts: Parts) -> Iterator[Way]:
    """What makers print: the model's parameters; or with its MTP layers; or the text model; or all that is stored."""
    yield parts.way("parameters")
    if parts.mtp:
        yield parts.way("parameters and MTP layers", "mtp")
    if parts.vision:
        yield parts.way("text model", without="vision")
    if parts.scales or parts.buffers:
        yield parts.way("all that is stored", "mtp", "buffers", "scales")


def modules(parts: Parts) -> Iterator[Way]:
    """What a sum over a module's parameters gives: no buffers; vision parts or not, input embedding or not."""
    yield parts.way("parameters")
    if parts.vision:
        yield parts.way("text model", without="vision")
    if not parts.model.tied_embeddings:
        yield parts.way("parameters but the input embedding", without="embedding")


def gguf(parts: Parts) -> Iterator[Way]:
    """What llama.cpp prints for a file: the text model, with what the conversion stores beside it or twice."""
    yield parts.way("text model", without="vision")
    if parts.mtp:
        yield parts.way("text model and MTP layers", "mtp", without="vision")
    if parts.latent:
        yield parts.way("text model, kv_b_proj stored twice", "latent", without="vision")
    if parts.tied_head:
        yield parts.way("text model, tied head stored twice", "tied_head", without="vision")


def presets(parts: Parts) -> Iterator[Way]:
    """What Keras Hub lists for a preset: parameters, or the text model's; a tied head may be counted twice.

    Its INT8 presets store a scale a row of each linear layer and embedding.
    """
    yield from modules(parts)
    if parts.tied_head:
        yield parts.way("parameters, tied head stored twice", "tied_head")
    rows = sum(
        t.count * t.shape[0] for t in tensors(parts.model) if t.quantizable or t.role in ("embedding", "lm_head")
    )
    yield Way(
        "parameters and a scale a row (INT8)", parts.total + rows,
        f"{parts.total:,} parameters + {rows:,} scales = {parts.total + rows:,}",
    )  # fmt: skip


def text_presets(parts: Parts) -> Iterator[Way]:
    """The ways of ``presets`` for a preset of the text model alone."""
    yield parts.way("text model", without="vision")
    yield from presets(parts)


def active(parts: Parts) -> Iterator[Way]:
    """What makers print as active: all a token passes; with the input embedding; or, of a dense model, everything."""
    without, with_embedding = active_params(parts.model), active_params_with_embedding(parts.model)
    yield Way("active", without, f"{without:,} parameters that a text token passes, the input embedding aside")
    yield Way("active with embedding", with_embedding, f"{without:,} active + input embedding = {with_embedding:,}")
    if by_role(parts.model).keys().isdisjoint(("expert_up", "expert_down")):
        yield parts.way("parameters (dense)")


def choose(ways: Iterator[Way], count: Printed) -> tuple[Way, Way]:
    """The first way that gives the printed number, else the first of all; and the first of all."""
    try:
        listed = list(ways)
    except SpecError as error:  # an inventory that a hostile configuration makes impossible
        raise Skip(f"configuration refused: {error.problem}") from error
    return next((way for way in listed if way.agrees(count)), listed[0]), listed[0]
