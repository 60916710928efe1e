"""What the headers of weight files say of a model: tensors, parameters, bytes, and the model where it is understood.

Nothing but headers is read: milliseconds for most models, a second for the hundred thousand tensors of DeepSeek V3. The
description of the model (GGUF's metadata, or the ``config.json`` beside safetensors) is held against the stored
tensors: a total that both agree on is exact, and where they disagree the tensors are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfmodelError, SpecError
from perfmodel.base.text import printable
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored import gguf, gguf_model, names, safetensors_file
from perfmodel.modelspecs.stored.compare import BUFFER, SCALE, Comparison, compare
from perfmodel.modelspecs.stored.tensor import StoredTensor, Sum, by_dtype, files_in

SUFFIXES = (".safetensors", ".gguf")


@dataclass(frozen=True)
class StoredModel:
    """A model as its files store it.

    Attributes
    ----------
    path : str
    kind : str
        ``"safetensors"`` or ``"gguf"``.
    name : str
    files : tuple[str, ...]
    tensors : tuple[StoredTensor, ...]
    metadata : Mapping[str, Any]
        Of the files.
    architecture : str
        GGUF's ``general.architecture`` or the configuration's ``model_type``; ``""`` when neither is there.
    model : ModelSpec or None
        What the metadata or the configuration describe, when it is understood.
    comparison : Comparison or None
        That description beside the stored tensors.
    problem : str
        Why there is no ``model``.
    notes : tuple[str, ...]
    """

    path: str
    kind: str
    name: str
    files: tuple[str, ...]
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, Any] = field(repr=False)
    architecture: str = ""
    model: ModelSpec | None = None
    comparison: Comparison | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Elements of all stored tensors, scales and buffers included, packed words counted as one each."""
        return sum(t.elements for t in self.tensors)

    @property
    def bytes(self) -> int:
        """Bytes of all stored tensors, padding and headers apart."""
        return sum(t.bytes for t in self.tensors)

    @property
    def by_type(self) -> dict[str, Sum]:
        """Tensors, elements and bytes of each storage type, the largest first."""
        return by_dtype(self.tensors)

    @property
    def agrees(self) -> bool:
        """Whether the model is understood and every stored tensor is one of its own."""
        return self.comparison is not None and self.comparison.equal

    @property
    def total_params(self) -> int | None:
        """Parameters, MTP layers and buffers apart; ``None`` where packed tensors of an unknown model hide them."""
        if self.model is not None and self.agrees:
            return counts.total_params(self.model)
        words = {"safetensors": ("I32", "U8"), "gguf": ()}[self.kind]
        rule = names.rule(self.kind, self.model)
        weights = [t for t in self.tensors if rule(t.name) not in (SCALE, BUFFER) and t.name not in names.TABLES]
        return None if any(t.dtype in words for t in weights) else sum(t.elements for t in weights)

    @property
    def bits_per_weight(self) -> float | None:
        """Bits a stored weight, scales, norms and embeddings included.

        GGUF: of all elements, as llama.cpp prints it. safetensors: bytes over parameters and MTP layers.
        """
        if self.kind == "gguf":
            return 8 * self.bytes / self.elements if self.elements else None
        weights = self.comparison.weights if self.comparison and self.agrees else self.total_params
        return 8 * self.bytes / weights if weights else None

    def require_model(self) -> ModelSpec:
        """The model.

        Raises
        ------
        SpecError
            When it is not understood, or not what the files store.
        """
        if self.model is None or self.comparison is None:
            raise SpecError(self.path, "", self.problem)
        if not self.comparison.equal:
            raise SpecError(self.path, "", f"stores another model than it describes: {self.comparison.text()}")
        return self.model


def describe(path: Path | str) -> StoredModel:
    """Read the headers of a weight file or of a model's folder.

    Parameters
    ----------
    path : Path
        A ``.safetensors`` or ``.gguf`` file (any shard of a GGUF model stands for all of it), or a folder that holds a
        model in one of the two formats.

    Raises
    ------
    SpecError
        When a header is wrong, a file is missing, or the folder holds no model or several. A model that is not
        understood is no error here: see ``StoredModel.problem`` and ``require_model``.
    """
    path = Path(path).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix == ".safetensors":
        tensors, metadata = safetensors_file.read(path)
        whole = path.name == safetensors_file.WHOLE  # a shard is not what the configuration describes
        config = path.with_name("config.json" if whole else f"{path.name}.config.json")
        return _safetensors(path, path.stem, tensors, metadata, [], config)
    if not path.is_dir():
        raise SpecError(
            path, "", f"is not a weight file that is read; give a {' or '.join(SUFFIXES)} file, or a folder"
        )
    found = {suffix: files_in(path, suffix) for suffix in SUFFIXES}
    if found[".safetensors"] and found[".gguf"]:
        raise SpecError(path, "", f"holds both formats; name one file, such as {found['.gguf'][0]}")
    if found[".gguf"]:
        return _gguf(_only(path, found[".gguf"]))
    read = safetensors_file.read_folder(path)
    return _safetensors(path, path.absolute().name, *read, path / "config.json")


def _only(folder: Path, names: list[str]) -> Path:
    """The GGUF model of a folder, which must be one: a file, or the shards of one."""
    stems = {gguf.stem(name) for name in names}
    if len(stems) > 1:
        raise SpecError(folder, "", f"holds {len(stems)} GGUF models; name one of {', '.join(names[:4])}")
    return folder / names[0]


def _gguf(path: Path) -> StoredModel:
    header = gguf.read(path)
    stem, architecture = gguf.stem(path.name), header.metadata.get("general.architecture")
    found = _described(header.tensors, "gguf", lambda: gguf_model.spec(header, path.name, stem))
    kind = printable(architecture, 80) if isinstance(architecture, str) else ""
    return StoredModel(str(path), "gguf", stem, header.files, header.tensors, header.metadata, kind, *found)


def _safetensors(path: Path, name: str, tensors: tuple[StoredTensor, ...], metadata: Mapping[str, Any],
                 notes: list[str], config: Path) -> StoredModel:  # fmt: skip
    def load() -> ModelSpec:
        if not config.exists():
            raise SpecError(path, "", "has no config.json beside it that would describe the model")
        return hf.load(config)

    model, comparison, problem, more = _described(tensors, "safetensors", load)
    files = tuple(dict.fromkeys(t.file for t in tensors))
    kind = model.family if model else ""
    return StoredModel(
        str(path), "safetensors", name, files, tensors, metadata, kind, model, comparison, problem, (*notes, *more)
    )


def _described(tensors: tuple[StoredTensor, ...], kind: str, load: Callable[[], ModelSpec]
) -> tuple[ModelSpec | None, Comparison | None, str, tuple[str, ...]]:  # fmt: skip
    """The model, its comparison with the files, or why there is none, and notes."""
    try:
        model = load()
    except PerfmodelError as error:
        return None, None, str(error), ()
    notes = tuple(counts.notes(model))
    comparison = compare(model, tensors, names.rule(kind, model))
    if model.mtp is not None and not comparison.equal:
        bare = model.model_copy(update={"mtp": None})
        without = compare(bare, tensors, names.rule(kind, bare))
        if without.equal:
            return bare, without, "", (*notes, f"the files do not store the {model.mtp.layers} MTP layers")
    return model, comparison, "", notes


def summary(path: Path | str) -> dict[str, Any]:
    """The facts about a model's files, for ``perfmodel params``; keys are a contract.

    Returns
    -------
    dict
        Everything that ``counts.summary`` says of the model when the files hold just what it describes; and
        ``total_params`` (elements, ``None`` when packed weights hide it), ``stored_elements``, ``bytes``,
        ``bits_per_weight``, ``by_type`` (type -> tensors, elements, bytes, bits_per_weight), ``tensors`` (how many),
        ``files``, ``format``, ``architecture``, ``metadata`` (the architecture's keys), ``agrees``, ``differences`` and
        ``problem`` (why the model itself is not described).
    """
    found = describe(path)
    known = (
        counts.summary(found.model)
        if found.model is not None and found.agrees
        else {"name": printable(found.name, 120)}
    )
    problem = found.problem
    if found.comparison is not None and not found.agrees:
        problem = "the files store another model than the description"
    return {
        **known,
        "format": found.kind,
        "architecture": found.architecture,
        "files": len(found.files),
        "tensors": len(found.tensors),
        "total_params": found.total_params,
        "stored_elements": found.elements,
        "bytes": found.bytes,
        "bits_per_weight": found.bits_per_weight,
        "by_type": {
            name: {
                "tensors": total.tensors,
                "elements": total.elements,
                "bytes": total.bytes,
                "bits_per_weight": 8 * total.bytes / total.elements if total.elements else None,
            }
            for name, total in found.by_type.items()
        },
        "metadata": _shown(found),
        "agrees": found.agrees,
        "differences": [printable(str(one)) for one in found.comparison.differences] if found.comparison else [],
        "problem": problem,
        "notes": list(found.notes),
    }


def _shown(found: StoredModel) -> dict[str, Any]:
    """Metadata that describe the model, safe to print; vocabularies, templates and the like are left out."""
    prefixes = ("general.", "split.", f"{found.architecture}.") if found.kind == "gguf" else ("",)
    kept = {key: value for key, value in found.metadata.items() if key.startswith(prefixes)}
    return {printable(key, 200): _plain(value) for key, value in kept.items() if not isinstance(value, gguf.Skipped)}


def _plain(value: Any) -> Any:
    """Text without control characters, and no number that JSON lacks."""
    if isinstance(value, list):
        return [_plain(one) for one in value if not isinstance(one, gguf.Skipped)]
    if isinstance(value, str):
        return printable(value)
    return str(value) if isinstance(value, float) and not isfinite(value) else value
