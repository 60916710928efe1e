"""The one place that writes result files: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from perfmodel.base.errors import OutputError
from perfmodel.reports.words import one_line


def write(path: str | Path, data: str | bytes) -> None:
    """Write a result file whole or not at all: a temporary file in its folder, then a rename.

    What is no plain file (``/dev/stdout``, a pipe) is written to directly. The mode of a file that is replaced stays.

    Raises
    ------
    OutputError
        Naming the path, what is wrong and what to do; the file is then as it was before.
    """
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as stream:
                stream.write(raw)
            return
        _replace(target, raw, mode)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise OutputError(f"cannot write {one_line(str(path))}: {_explain(Path(path), error)}") from error


def check(path: str | Path) -> None:
    """Before long work: whether ``write`` could write there now.

    Raises
    ------
    OutputError
        As ``write`` does; nothing is written.
    """
    target = Path(os.path.realpath(path))
    try:
        if _mode(target) is None or target.is_file():
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
            os.close(handle)
            os.unlink(name)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write {one_line(str(path))}: {_explain(Path(path), error)}") from error


def _mode(target: Path) -> int | None:
    """Type and permissions of what is there already; what cannot be written is refused, to root too."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise PermissionError(13, "the file is read-only")
    return mode


def _replace(target: Path, raw: bytes, mode: int | None) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.chmod(name, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _explain(path: Path, error: Exception) -> str:
    folder = one_line(str(path.parent))
    if isinstance(error, IsADirectoryError):
        return f"it is a folder; name a file in it, such as {one_line(str(path / 'report.html'))}"
    if isinstance(error, FileNotFoundError):
        missing = not path.parent.exists()
        what = "does not exist; create it (mkdir -p)" if missing else "takes no files; name one elsewhere"
        return f"the folder {folder} {what} or choose another path"
    if isinstance(error, NotADirectoryError):
        return f"{folder} is not a folder; choose another path"
    if isinstance(error, PermissionError):
        what = error.strerror if error.strerror == "the file is read-only" else f"the folder {folder} is read-only"
        return f"{what}; change its permissions or choose another path"
    return f"{getattr(error, 'strerror', None) or error}; choose another path"
