"""``quantize``: the bytes of a model in a storage format, tensor by tensor, predicted or read from a file's header."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs import gguf_size
from perfmodel.modelspecs.format import Format
from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.modelspecs.gguf_layout import GgufTensor, architecture, layout
from perfmodel.modelspecs.gguf_presets import LARGER, PRESETS, VERSIONS, WITH_MATRIX, Preset, is_preset, preset
from perfmodel.modelspecs.gguf_rules import BY_NAME, facts_of, tensor_types
from perfmodel.modelspecs.gguf_types import GgmlType
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.params import is_stored
from perfmodel.modelspecs.quantized import Quantized, Sized
from perfmodel.modelspecs.safetensors_size import all_parts, header_bytes, header_estimate, unloaded_bytes
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import NOT_LOADED, is_plain, tensor_bytes, tensor_format
from perfmodel.modelspecs.tensors import Tensor, tensors

Latent = Literal["split", "whole", "both"]
PREFIX = "gguf:"
RULES_SOURCE = "src/llama-quant.cpp and convert_hf_to_gguf.py of https://github.com/ggml-org/llama.cpp"
#: Families whose checkpoints call their tensors as the inventory does.
SAME_NAMES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Recipe:
    """What is left at 16 bits beside embedding, head, norms, routers and biases, which every recipe leaves.

    Attributes
    ----------
    keep : tuple[str, ...]
        Roles of the inventory, such as ``o_proj`` or ``kv_b_proj``.
    keep_first, keep_last : int
        Whole layers at the beginning and at the end.
    """

    keep: tuple[str, ...] = ()
    keep_first: int = 0
    keep_last: int = 0


def quantize(
    model: str | Path | ModelSpec, format: str | Format | None = None, *, keep: Sequence[str] = (),
    keep_first: int = 0, keep_last: int = 0, matrix: bool | None = None, rules: str = VERSIONS[0],
    latent: Latent = "split", output: str = "", embedding: str = "",
) -> Quantized:  # fmt: skip
    """Bytes of a model in a storage format, tensor by tensor; or of weight files as they are.

    Parameters
    ----------
    model : str, Path or ModelSpec
        As ``load.model`` takes it; or a ``.gguf`` or ``.safetensors`` file, or a folder of them, whose headers are
        read when no format is given.
    format : str or Format, optional
        A preset of llama.cpp (``Q4_K_M``; ``gguf:BF16`` where another format has the name), then the answer is a GGUF
        file; or a weight format (``int4``, ``awq_g64``, ``nf4_dq``), then a safetensors checkpoint. The checkpoint's
        own format by default.
    keep, keep_first, keep_last
        Roles, and layers at the beginning and the end, that stay at 16 bits. For weight formats.
    matrix : bool, optional
        Whether the quantizer has an importance matrix; by default it does for the presets that need one.
    rules : str
        Date of llama.cpp's rules: ``2026``, ``2024``, ``2023-12`` or ``2023-09``.
    latent : str
        How MLA's up-projection is stored: ``split``, ``whole`` or ``both``.
    output, embedding : str
        Types of llama.cpp for the output matrix and the input embedding (``--output-tensor-type``,
        ``--token-embedding-type``).

    Returns
    -------
    Quantized
        ``total_bytes`` is the sum of the tensors, exact; ``file_bytes`` adds padding and header.

    Raises
    ------
    UnknownName, SpecError, UsageError

    Examples
    --------
    llama.cpp prints 4.58 GiB and 4.8944 bits for this file:

    >>> found = quantize("llama3.1-8b", "Q4_K_M")
    >>> round(found.total_bytes / 2**30, 2), round(found.bits_per_weight, 4)
    (4.58, 4.8944)
    """
    if isinstance(model, str | Path) and format is None and is_stored(str(model)):
        if keep or keep_first or keep_last or output or embedding or matrix is not None or rules != VERSIONS[0]:
            raise UsageError(
                "files are reported as they are stored: options are of formats, so name a format or leave them out"
            )
        return of_file(model)
    spec = load_model(str(model) if isinstance(model, Path) else model)
    chosen = weight_or_preset(format if format is not None else spec.native_format)
    recipe = Recipe(tuple(keep), keep_first, keep_last)
    if isinstance(chosen, Preset):
        if recipe != Recipe():
            raise UsageError("keep, keep_first and keep_last are for weight formats; llama.cpp's presets have rules")
        chosen = replace(chosen, **_types(output, embedding, chosen))
        return as_gguf(spec, chosen, matrix, rules, latent)
    if output or embedding or matrix is not None or rules != VERSIONS[0]:
        raise UsageError(
            f"output, embedding, matrix and rules are options of llama.cpp's presets, and {chosen.name} is none"
        )
    return as_safetensors(spec, chosen, recipe)


def weight_or_preset(name: str | Format) -> Format | Preset:
    """What a name of ``--format`` means: a preset of llama.cpp, or a weight format.

    Names that both have (``bf16``, ``mxfp4``, ``nvfp4``) mean the weight format; with ``gguf:`` before it the preset.
    Types of ggml that a preset is called by (``q8_0``, ``q4_k``) mean the preset; with ``type:`` before it the type for
    every linear layer.

    >>> weight_or_preset("Q8_0").name, weight_or_preset("bf16").name, weight_or_preset("gguf:bf16").number
    ('Q8_0', 'bf16', 32)
    >>> weight_or_preset("q4_k").name, weight_or_preset("type:q4_k").name
    ('Q4_K_M', 'q4_k')

    Raises
    ------
    UnknownName
    """
    if isinstance(name, Format):
        return name
    if name.casefold().startswith(PREFIX):
        return preset(name[len(PREFIX) :])
    known = FORMATS.get(name.casefold().strip())
    if is_preset(name) and (known is None or known.block):
        return preset(name)
    try:
        return weight_format(name)
    except UnknownName as error:
        raise UnknownName(
            "format", name, [*FORMATS, *(one.casefold() for one in (*PRESETS, *LARGER))], "formats"
        ) from error


def _types(output: str, embedding: str, chosen: Preset) -> dict[str, Any]:
    """Fields of a preset that the user's types change."""
    for name in (output, embedding):
        if name and name.upper() not in BY_NAME:
            raise UnknownName("type of ggml", name, [one.casefold() for one in BY_NAME], "formats")
    words = [f"{what} {name.upper()}" for what, name in (("output", output), ("embedding", embedding)) if name]
    return {
        "output": output.upper() or chosen.output, "embedding": embedding.upper() or chosen.embedding,
        "label": ", ".join((chosen.shown, *words)) if words else chosen.label,
    }  # fmt: skip


def as_gguf(
    model: ModelSpec, chosen: Preset, matrix: bool | None = None, rules: str = VERSIONS[0], latent: Latent = "split"
) -> Quantized:  # fmt: skip
    """A model as llama.cpp's quantizer writes it under a preset."""
    if rules not in VERSIONS:
        raise UsageError(f"rules {rules[:40]!r} are not known; there are {', '.join(VERSIONS)}")
    with_matrix = chosen.name in WITH_MATRIX if matrix is None else matrix
    if matrix is False and chosen.name in WITH_MATRIX:
        raise UsageError(f"llama.cpp makes no {chosen.name} without an importance matrix")
    found = layout(model, experts_apart=rules.startswith("2023"), latent=latent)
    types = tensor_types(found, chosen, facts_of(model, with_matrix, rules, latent))
    metadata = gguf_size.metadata_estimate(model)
    size = gguf_size.file_bytes(found, types, metadata)
    rows = tuple(_gguf_row(t, kind, chosen) for t, kind in zip(found, types, strict=True))
    total = sum(row.bytes for row in rows)
    padding = sum(gguf_size.padded(row.bytes) for row in rows) - total
    notes = [
        f"header: {gguf_size.info_bytes(found):,} bytes of tensor infos, and about {metadata:,.0f} of metadata (the "
        f"tokenizer, within a factor of {gguf_size.ENTRY_FACTOR:g})",
        *_left_out(model), *([] if rules == VERSIONS[0] else [f"rules of {rules}"]),
    ]  # fmt: skip
    if with_matrix:
        notes.append("quantized with an importance matrix")
    return Quantized(
        model.name, model.title, chosen.shown, "gguf", rows, size - total - padding, padding, False,
        notes=tuple(notes), source=RULES_SOURCE,
    )  # fmt: skip


def _gguf_row(t: GgufTensor, kind: GgmlType, chosen: Preset) -> Sized:
    why = "" if kind.name == chosen.base else "vectors, norms and routers stay" if t.f32 else "the preset's rules"
    return Sized(t.name, t.role, t.shape, kind.name, float(gguf_size.tensor_bytes(t, kind)), why=why)


def _left_out(model: ModelSpec) -> Iterator[str]:
    roles = {t.role for t in tensors(model)}
    if roles & {"vision", "projector"}:
        yield "vision parts are in a file of their own (mmproj) and not counted"
    if "mtp" in roles and not architecture(model).mtp:
        more = sum(t.total for t in tensors(model) if t.role == "mtp")
        yield f"prediction layers are not stored; a converter that keeps them adds {more:,} elements"


def as_safetensors(model: ModelSpec, fmt: Format, recipe: Recipe | None = None) -> Quantized:
    """A model as a checkpoint in a weight format: what engines load, scales and all.

    Raises
    ------
    UsageError
        For a role that the model does not have, or more layers than it has.
    """
    recipe = recipe or Recipe()
    _check(model, recipe)
    rows, stored = [], []
    for t in _split(model, recipe):
        if t.role in NOT_LOADED:
            continue
        kept = t.role in recipe.keep or t.kept_in == "*"
        found = FORMATS["bf16"] if kept and not is_plain(fmt) else tensor_format(t, fmt)
        stored.append((t, found))
        why = "" if found is fmt else "left alone on request" if kept else "every recipe leaves it"
        if t.quantizable and not kept and found is not fmt:
            why = "the checkpoint's makers left it"
        rows.append(Sized(t.name, t.role, t.shape, found.name, t.count * found.tensor_bytes(t.shape), t.count, why))
    exact = model.family in SAME_NAMES and not fmt.name.startswith(("nf4", "mxfp")) and not fmt.block
    layers = {layer.name: layer.indices for layer in model.layer_classes}
    header = header_bytes(all_parts(stored, layers), {"format": "pt"}) if exact else header_estimate(stored)
    alone = float(unloaded_bytes(stored))
    return Quantized(
        model.name, model.title, fmt.name, "safetensors", tuple(rows), float(header), 0.0, exact,
        notes=tuple(_checkpoint_notes(model, fmt, exact, alone)), source=fmt.source, unloaded_bytes=alone,
    )  # fmt: skip


def _check(model: ModelSpec, recipe: Recipe) -> None:
    roles = sorted({t.role for t in tensors(model) if t.quantizable})
    for role in recipe.keep:
        if role not in roles:
            raise UsageError(
                f"{model.name} has no matrices of the role {printable(role, 40)!r}; it has {', '.join(roles)}"
            )
    if recipe.keep_first < 0 or recipe.keep_last < 0 or recipe.keep_first + recipe.keep_last > model.num_layers:
        raise UsageError(
            f"keep_first {recipe.keep_first} and keep_last {recipe.keep_last}: {model.name} has "
            f"{model.num_layers} layers"
        )


def _split(model: ModelSpec, recipe: Recipe) -> Iterator[Tensor]:
    """The inventory; tensors of layers of which some are left alone come twice, the second time marked."""
    classes = {layer.name: layer for layer in model.layer_classes}
    last = model.num_layers - recipe.keep_last
    for t in tensors(model):
        layer = classes.get(t.layer)
        if layer is None or not t.quantizable or t.role == "mtp":
            yield t
            continue
        kept = sum(index < recipe.keep_first or index >= last for index in layer.indices)
        each = t.count // layer.count
        if kept < layer.count:
            yield replace(t, count=each * (layer.count - kept))
        if kept:
            yield replace(t, count=each * kept, kept_in="*")


def _checkpoint_notes(model: ModelSpec, fmt: Format, exact: bool, alone: float) -> Iterator[str]:
    apart = [t for t in tensors(model) if t.role in NOT_LOADED]
    if apart:
        size = sum(t.count * tensor_bytes(t, fmt) for t in apart)
        yield f"MTP layers and stored buffers are not loaded and not counted: {size:,.0f} bytes of a checkpoint"
    if not exact:
        yield "header estimated: the checkpoint's own names of tensors are others"
    if alone:
        what = {"gptq": "group indices and zero points that say nothing", "int4": "shapes", "nvfp4": "input scales"}
        words = next((text for start, text in what.items() if fmt.name.startswith(start)), "shapes")
        yield f"the file holds {alone:,.0f} bytes that engines do not keep: {words}"
    if fmt.block:
        yield f"linear layers in {fmt.name}, embedding and head in 16 bits; llama.cpp's files mix types: name a preset"


def of_file(path: str | Path) -> Quantized:
    """What weight files store, from their headers alone.

    Raises
    ------
    SpecError
        When a header is wrong or a file is missing.
    """
    from perfmodel.modelspecs.stored.headers import describe

    found = describe(path)
    rows = tuple(Sized(printable(t.name, 200), "", t.shape, t.dtype, float(t.bytes)) for t in found.tensors)
    base = Path(found.path)
    folder = base if base.is_dir() else base.parent
    sizes = sum((folder / name).stat().st_size for name in found.files)
    alignment = found.metadata.get("general.alignment", gguf_size.ALIGNMENT) if found.kind == "gguf" else 1
    padding = sum(gguf_size.padded(row.bytes, alignment) - row.bytes for row in rows)
    bits = found.bits_per_weight
    weights = round(8 * found.bytes / bits) if bits else None
    return Quantized(
        printable(found.name, 120), printable(found.name, 120), "as stored", found.kind, rows,
        sizes - found.bytes - padding, padding, True, weights,
        notes=tuple(note for note in (printable(found.problem, 400), *found.notes) if note),
        source=f"headers of {found.path}",
    )  # fmt: skip
