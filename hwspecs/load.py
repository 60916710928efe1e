"""Find and load hardware specs: built-in names and aliases, files, and the local machine."""

from __future__ import annotations

import functools
from pathlib import Path

from perfmodel.base.catalogue import Catalogue, looks_like_path
from perfmodel.base.errors import SpecError, UnknownName
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.hwspecs.schema import Gpu, System

DATA = Path(__file__).parent / "data"
GPUS = Catalogue(DATA / "gpus", "GPU", "gpus")
SYSTEMS = Catalogue(DATA / "systems", "system", "systems")


def gpu(name: str | Gpu) -> Gpu:
    """Load an accelerator.

    Parameters
    ----------
    name : str
        A built-in name or alias (``"h100"``, ``"NVIDIA H100 80GB HBM3"``), a YAML file, ``"cpu"`` (this machine's
        processor), ``"local"`` (this machine's GPU), or the name of a device that `perfmodel validate` measured here.

    Raises
    ------
    UnknownName
        With near matches.
    SpecError
        When the file is not a valid spec.
    NoGpu
        For ``"local"`` without a GPU.

    >>> gpu("h100").memory.hbm.bandwidth.text
    '3.35 TB/s'
    """
    if isinstance(name, Gpu):
        return name
    if name.casefold() in ("cpu", "local"):
        from perfmodel.hwspecs import detect

        return detect.cpu() if name.casefold() == "cpu" else detect.local_gpu()
    if looks_like_path(name):
        path = _path(name)
        return build(Gpu, {"name": path.stem, **load_yaml(path)}, path)
    try:
        return _builtin_gpu(GPUS.resolve(name))
    except UnknownName:
        from perfmodel.hwspecs import kept

        if (measured := kept.named(name)) is None:
            raise
        return measured


@functools.cache
def _builtin_gpu(name: str) -> Gpu:
    data, path = GPUS.read(name)
    return build(Gpu, {"name": name, **data}, path.name)


def system(name: str | System) -> System:
    """Load a system (node or rack): a built-in name, alias or YAML file.

    >>> system("dgx-h100").gpus_per_node.value
    8.0
    """
    if isinstance(name, System):
        return name
    if looks_like_path(name):
        path = _path(name)
        return build(System, {"name": path.stem, **load_yaml(path)}, path)
    return _builtin_system(SYSTEMS.resolve(name))


@functools.cache
def _builtin_system(name: str) -> System:
    data, path = SYSTEMS.read(name)
    return build(System, {"name": name, **data}, path.name)


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # "~someone/x.yaml" of a user that does not exist
        raise SpecError(name, "", f"cannot be read: {error}") from error
