"""Specs of devices that were measured here, kept in the user's data folder by `perfmodel validate`.

A spec is whole: what the ceilings of the machine say takes the place of what was assumed or read in a datasheet, which
stays beside it as an alternative. It is a file like any other: ``--gpu FILE`` takes it on another machine too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from perfmodel.base.errors import SpecError
from perfmodel.base.userdata import data_folder, keep
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.hwspecs.schema import Gpu, Quantity

HEADER = "# Written by perfmodel validate: what this device was measured to reach. A new run writes it again.\n"


def folder() -> Path:
    """Where they are kept."""
    return data_folder() / "devices"


def fit_folder() -> Path:
    """Where fits of these devices are kept: one file a device and engine, ``<device>-<engine>.yaml``."""
    return data_folder() / "fits"


def path_of(name: str) -> Path:
    """File of a device."""
    return folder() / f"{name}.yaml"


def _files() -> list[Path]:
    """All files, the one that was written last first."""
    try:
        return sorted(folder().glob("*.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def names() -> list[str]:
    """Names of the devices that were measured here."""
    return sorted(path.stem for path in _files())


def named(name: str) -> Gpu | None:
    """The measured device of a name; ``None`` when there is none."""
    wanted = name.strip().casefold()
    path = next((path for path in _files() if path.stem.casefold() == wanted), None)
    return _read(path) if path else None


def of_machine(machine: str) -> Gpu | None:
    """The spec of a processor or GPU as the system names it; ``None`` when there is none.

    A processor has one for each number of threads: one that was fitted goes before others, and the newest of those. A
    file that cannot be read is passed over: it is somebody's to mend who asks for it by name.
    """
    mine = [spec for spec in _specs() if spec.machine == machine]
    return max(mine, key=lambda spec: _fitted(spec.name), default=None)


def _fitted(name: str) -> float:
    """When the newest fit of a device was written; 0 where it has none. [s]"""
    try:
        return max((path.stat().st_mtime for path in fit_folder().glob(f"{name}-*.yaml")), default=0.0)
    except OSError:
        return 0.0


def _specs() -> Iterator[Gpu]:
    for path in _files():
        try:
            yield _read(path)
        except SpecError:
            continue


def _read(path: Path) -> Gpu:
    return build(Gpu, {"name": path.stem, **load_yaml(path)}, path)


def raw(value: Any) -> Any:
    """A spec as plain data that can be written and read again: quantities by their text, nothing that is empty."""
    if isinstance(value, Quantity):
        kept = {"value": value.text, "source": value.source, "note": value.note}
        kept["alternatives"] = [vars(other) for other in value.alternatives]  # type: ignore[assignment]
        return {key: one for key, one in kept.items() if one}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        made = {key: raw(one) for key, one in value.items()}
        return {key: one for key, one in made.items() if one not in (None, "", {}, [], ())}
    return [raw(one) for one in value] if isinstance(value, list | tuple) else value


def text(data: dict[str, Any]) -> str:
    """A spec as it is written."""
    return HEADER + yaml.safe_dump(data, sort_keys=False, width=118, allow_unicode=True)


def write(name: str, data: dict[str, Any]) -> Path:
    """Keep the spec of a device, after a check; raises SpecError for one that is wrong, OutputError where it cannot."""
    path = path_of(name)
    build(Gpu, {"name": name, **data}, path)
    keep(path, text(data))
    return path
