"""The model that a table of sizes means: by name, or by llama.cpp's label and its printed parameters."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.counts import total_params
from perfmodel.modelspecs.gguf_layout import GgufTensor, architecture, layout
from perfmodel.modelspecs.load import MODELS, model
from perfmodel.modelspecs.quant_sizes import Latent
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.validate.models import Found, Models
from perfmodel.validate.rows import Printed, Skip
from perfmodel.validate.table_param_counts import count

#: llama.cpp's description of a model, ``llama 8B`` or ``qwen3moe ?B``: architecture and a size; and old files' names.
_LABEL = re.compile(
    r"(llama|qwen2|qwen3moe|qwen3|deepseek2|gemma2?|gemma3)(?: [?\d.]+[BM](?:\.A\d+B)?)?", re.IGNORECASE
)
_OLD = {"llama v2": "llama", "llama": "llama"}
UNLABELLED = "the label of an architecture and a size names no built-in model with as many parameters"
#: Names of files that are their folder's.
_FOLDERS = ("models",)
LATENTS: tuple[Latent, ...] = ("split", "whole", "both")


@dataclass(frozen=True)
class Target:
    """A model as its file stores it.

    Attributes
    ----------
    found : Found
    latent : str
        How MLA's up-projection is stored.
    head_twice : bool
        Whether a tied head is stored, or printed, a second time.
    """

    found: Found
    latent: Latent = "split"
    head_twice: bool = False


def file_model(models: Models, name: str, params: str) -> Target:
    """The model of a GGUF row.

    Parameters
    ----------
    name : str
        Of the model, of the file, or llama.cpp's label.
    params : str
        The count that the loader printed, where there is one: it tells models of a label apart, and how the file
        stores a tied head and MLA's up-projection.

    Raises
    ------
    Skip
    """
    printed = count(re.sub(r"\s*\(HF\)$", "", params.replace("30,532 B", "30.532 B")))
    short = name.partition(" (")[0]
    label = _OLD.get(short.casefold()) or ((match := _LABEL.fullmatch(short)) and match[1].casefold())
    if label or short.casefold() in _FOLDERS:
        return _labelled(label or "", printed)
    found = models.printed(
        re.sub(r"(?i)[-_ ]?instruct(?:ion)?$", "", short) if _exists(models, short) is None else short
    )
    return _stored(found, printed) or Target(found)


def _exists(models: Models, name: str) -> Found | None:
    try:
        return models.printed(name)
    except Skip:
        return None


def _labelled(label: str, printed: Printed | None) -> Target:
    if printed is None:
        raise Skip("llama.cpp's label of an architecture and a size names no single model without its parameters")
    names = _of_architecture(label) if label else _near(printed.value)
    targets = [target for name in names if (target := _stored(_builtin(name), printed)) is not None]
    if not targets:
        raise Skip(UNLABELLED)
    shapes = {tuple((t.name, t.shape) for t in layout(one.found.model, latent=one.latent)) for one in targets}
    if len(shapes) > 1:
        raise Skip("the label of an architecture and a size fits several models that are stored otherwise")
    return targets[0]


@functools.cache
def _of_architecture(label: str) -> tuple[str, ...]:
    return tuple(name for name in MODELS.names if _architecture(model(name)) == label)


def _near(count: float) -> tuple[str, ...]:
    """Built-in models of any architecture with about so many parameters: a head that is stored again may be added."""
    return tuple(name for name in MODELS.names if 0.6 * count < total_params(model(name)) < 1.1 * count)


def _architecture(spec: ModelSpec) -> str:
    try:
        return architecture(spec).name
    except UsageError:
        return ""


def _builtin(name: str) -> Found:
    return Found(model(name), f"built-in {name}")


def _stored(found: Found, printed: Printed | None) -> Target | None:
    """How a file stores a model whose printed parameters are these; ``None`` when it stores another one."""
    if printed is None or not _architecture(found.model):
        return None
    for latent in LATENTS if _architecture(found.model) == "deepseek2" else LATENTS[:1]:
        tensors = layout(found.model, latent=latent)
        total = sum(t.elements for t in tensors)
        for twice, more in ((False, 0), (True, _embedding(tensors))):
            if more == 0 and twice:
                continue
            if abs(total + more - printed.value) <= printed.half_unit * 1.01 + 2e-6 * printed.value:
                return Target(found, latent, twice)
    return None


def _embedding(tensors: tuple[GgufTensor, ...]) -> int:
    """Elements of a tied embedding; 0 where the head is a tensor of its own."""
    names = {t.name: t for t in tensors}
    return 0 if "output.weight" in names else names["token_embd.weight"].elements
