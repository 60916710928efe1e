"""How big a model is, whatever the user has of it: a name, a spec, a configuration, or weight files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.catalogue import looks_like_path
from perfmodel.base.errors import UnknownName
from perfmodel.modelspecs import counts
from perfmodel.modelspecs.load import MODELS
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Params:
    """The counts of a model; every fact is an attribute and an item: ``p.total_params``, ``p["total_params"]``.

    Attributes
    ----------
    facts : Mapping[str, Any]
        As ``counts.summary`` documents them; of weight files, as ``headers.summary``.
    """

    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.facts:
            raise AttributeError(f"no fact {name!r}; there are {', '.join(self.facts)}")
        return self.facts[name]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return dict(self.facts)

    @property
    def frame(self) -> pd.DataFrame:
        """Parameters by role (of weight files that describe no model: by storage type)."""
        import pandas as pd

        if "by_role" in self.facts:
            rows = [{"role": role, "params": count} for role, count in self.facts["by_role"].items()]
        else:
            rows = [{"type": name, **sums} for name, sums in self.facts["by_type"].items()]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        import html

        total = self.facts["total_params"]
        heading = f"{self.facts['name']}: " + (f"{total:,} parameters" if total is not None else "packed weights")
        return f"<p>{html.escape(heading)}</p>" + str(self.frame.to_html(index=False))


def params(model: str | ModelSpec) -> Params:
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
    if isinstance(model, str) and is_stored(model):
        from perfmodel.modelspecs.stored.headers import summary

        return Params(summary(model))
    return Params(counts.summary(load_model(model)))


def is_stored(name: str) -> bool:
    """Whether a name means weight files: a .gguf or .safetensors file, or a folder of them."""
    if name.endswith((".gguf", ".safetensors")):
        return True
    path = Path(name).expanduser()
    if not name or not path.is_dir() or not any(any(path.glob(f"*{suffix}")) for suffix in (".safetensors", ".gguf")):
        return False
    return looks_like_path(name) or (path / "config.json").exists() or not _is_builtin(name)


def _is_builtin(name: str) -> bool:
    try:
        return bool(MODELS.resolve(name))
    except UnknownName:
        return False
