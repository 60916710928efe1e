"""How big a model is, whatever the user has of it: a name, a spec, a configuration, or weight files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.base.catalogue import looks_like_path
from perfmodel.modelspecs import counts
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec


def params(model: str | ModelSpec) -> dict[str, Any]:
    """Parameters, active parameters and KV-cache bytes of a model.

    Parameters
    ----------
    model : str or ModelSpec
        As ``load.model`` takes it; also a ``.gguf`` or ``.safetensors`` file or a folder of them, whose headers are
        then read and held against the description beside them.

    Raises
    ------
    UnknownName, SpecError

    >>> params("llama3-8b")["total_params"]
    8030261248
    """
    if isinstance(model, str) and _is_stored(model):
        from perfmodel.modelspecs.headers import summary

        return summary(model)
    return counts.summary(load_model(model))


def _is_stored(name: str) -> bool:
    if name.endswith((".gguf", ".safetensors")):
        return True
    path = Path(name)
    return looks_like_path(name) and path.is_dir() and any(path.glob("*.safetensors"))
