"""The folder in which a user's own measurements are kept, and how a file gets into it: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from perfmodel.base.errors import OutputError


def data_folder() -> Path:
    """Where results are kept: ``PERFMODEL_DATA``, else the user's data folder (XDG) under ``perfmodel``."""
    if chosen := os.environ.get("PERFMODEL_DATA"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "perfmodel"


def keep(path: Path, text: str) -> None:
    """Write a file of the data folder, whole or not at all; its folder is made.

    Raises
    ------
    OutputError
        When the folder cannot be made or written to, or the disk is full; the file is then as it was before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise OutputError(
            f"cannot keep {path}: {error.strerror or error}; set PERFMODEL_DATA to another folder"
        ) from error
