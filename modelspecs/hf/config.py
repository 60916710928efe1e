"""Hugging Face ``config.json`` -> ``ModelSpec``, strictly: every key is read or known to be harmless, else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.base.validation import build
from perfmodel.modelspecs.hf import quant, rope
from perfmodel.modelspecs.hf.common import HARMLESS
from perfmodel.modelspecs.hf.families import FAMILIES, Family
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.missing import read_all
from perfmodel.modelspecs.hf.reading import load_json
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import tensors


def load(path: Path | str) -> ModelSpec:
    """Load the ``config.json`` of a model.

    Parameters
    ----------
    path : Path
        The file. A model is called by its folder when the file is called ``config.json``, else by the file. A
        ``hf_quant_config.json`` beside it is read too, when it has no ``quantization_config`` of its own.

    Raises
    ------
    SpecError
        When the file cannot be read, the architecture is not supported, a key is missing, out of range or not
        understood: each by its name.
    """
    path = Path(path)
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    config, beside = load_json(path), path.with_name("hf_quant_config.json")
    if path.name == "config.json" and "quantization_config" not in config and beside.exists():
        config["quantization_config"] = _modelopt(beside)
    return from_config(config, path, name or "model")


def _modelopt(path: Path) -> dict[str, Any]:
    """The section of the file that NVIDIA's quantizer leaves beside a configuration."""
    file = Keys(load_json(path), path)
    section = file.data.get("quantization")
    file.finish({"quantization", "producer"})
    if not isinstance(section, dict):
        raise SpecError(path, "quantization", "is missing or not a mapping")
    return section


def from_config(config: dict[str, Any], file: object, name: str) -> ModelSpec:
    """Build the spec of a parsed configuration.

    ``notes`` list the class defaults of the architecture that were used, and what else was assumed, a line each.
    """
    k = Keys(config, file)
    k.require("model_type")
    kind = config["model_type"]
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise SpecError(
            file,
            "model_type",
            f"{str(kind)[:80]!r} is not supported; {', '.join(sorted(FAMILIES))} are: nothing is guessed",
        )
    naming = {"name": name[:120], "title": name.replace("__", "/")[:120], "source": f"the configuration {file}"}
    return read_all(config, lambda data: _spec(data, file, kind, family, naming))


def _spec(config: dict[str, Any], file: object, kind: str, family: Family, naming: dict[str, str]) -> ModelSpec:
    k = Keys(config, file)
    spec = family.read(k)
    draft = build(ModelSpec, {**naming, "family": kind, **spec}, file)
    native = quant.native(k, draft.num_layers, role_layers(draft))
    rope.check(k)
    k.finish(HARMLESS | family.harmless)
    defaults = "; ".join(dict.fromkeys(k.notes))
    lines = [f"not in the file, from the model class: {defaults}"] if defaults else []
    notes = "\n".join([*lines, *dict.fromkeys(k.remarks)])
    return build(ModelSpec, {**naming, "family": kind, "notes": notes, **spec, **native}, file)


def role_layers(spec: ModelSpec) -> dict[str, frozenset[int]]:
    """The layers that have a tensor of a role: attention in some, a recurrent mixer or experts in others."""
    found: dict[str, set[int]] = {}
    indices = {layer.name: layer.indices for layer in spec.layer_classes}
    for t in tensors(spec):
        if t.role != "mtp":
            found.setdefault(t.role, set()).update(indices.get(t.layer, ()))
    return {role: frozenset(where) for role, where in found.items()}
