"""Find and load model specs: built-in names, Hugging Face ids of built-ins, YAML files, HF configurations."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from perfmodel.base.catalogue import Catalogue, looks_like_path
from perfmodel.base.errors import SpecError, UnknownName
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.modelspecs.schema import ModelSpec

DATA = Path(__file__).parent / "data"
MODELS = Catalogue(DATA, "model", "models")


def model(name: str | ModelSpec) -> ModelSpec:
    """Load a model.

    Parameters
    ----------
    name : str
        A built-in name or alias (``"llama3-70b"``, ``"meta-llama/Meta-Llama-3-70B"``), a YAML file, a Hugging Face
        ``config.json``, or a folder that holds one.

    Raises
    ------
    UnknownName
        With near matches.
    SpecError
        When the file is not a valid spec, naming the key.

    >>> model("llama3-70b").num_layers
    80
    """
    if isinstance(name, ModelSpec):
        return name
    path = _path(name)
    if looks_like_path(name) or (name and os.path.isfile(path / "config.json")):
        return from_file(path)
    try:
        return _builtin(MODELS.resolve(name))
    except UnknownName:
        if name and os.path.isdir(path):
            return from_file(path)
        raise


def from_file(path: Path) -> ModelSpec:
    """Load a model from a YAML spec, a Hugging Face ``config.json`` or its folder, or a GGUF file's metadata."""
    if os.path.isdir(path):
        path = path / "config.json"
        if not path.exists():
            raise SpecError(path.parent, "", "is a folder without config.json; give a folder of a Hugging Face model")
    if path.suffix == ".json":
        from perfmodel.modelspecs.hf import load as load_configuration

        return load_configuration(path)
    if path.suffix in (".yaml", ".yml"):
        return build(ModelSpec, {"name": path.stem, **load_yaml(path)}, path)
    if path.suffix == ".gguf":
        from perfmodel.modelspecs.stored.headers import describe

        return describe(path).require_model()
    raise SpecError(path, "", "is not a kind of model file that is read; give a .yaml spec, a config.json or a .gguf")


@functools.cache
def _builtin(name: str) -> ModelSpec:
    data, path = MODELS.read(name)
    return build(ModelSpec, {"name": name, **data}, path.name)


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # "~someone/x.yaml" of a user that does not exist
        raise SpecError(name, "", f"cannot be read: {error}") from error
