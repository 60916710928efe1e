"""Result files are written whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from perfmodel.base.errors import OutputError
from perfmodel.reports.files import write


def test_text_and_bytes_arrive(tmp_path: Path) -> None:
    """Text is written as UTF-8, bytes as they are, and an earlier file is replaced."""
    path = tmp_path / "x.txt"
    write(path, "2³⁰\n")
    assert path.read_bytes() == "2³⁰\n".encode()
    write(str(path), b"\x89PNG")
    assert path.read_bytes() == b"\x89PNG"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_mode_is_kept_or_usual(tmp_path: Path) -> None:
    """A new file gets the usual permissions, a replaced one keeps its own."""
    path = tmp_path / "x.txt"
    mask = os.umask(0o022)
    try:
        write(path, "a")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    write(path, "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/x.png", "the folder .*missing does not exist; create it"),
        ("folder", "is a folder; name a file in it"),
        ("file/x.png", "file is not a folder"),
        ("readonly.txt", "the file is read-only; change its permissions"),
        ("n\x00l.txt", "n.x00l"),
        ("x" * 300, "too long"),
    ],
)
def test_errors_name_path_and_remedy(name: str, words: str, tmp_path: Path) -> None:
    """What cannot be written is one clear line with the path and what to do; nothing else appears or changes."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "readonly.txt").write_text("kept")
    (tmp_path / "readonly.txt").chmod(0o444)
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(OutputError, match=words) as caught:
        write(tmp_path / name, "new")
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == (tmp_path / "readonly.txt").read_text() == "kept"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    """A folder without write permission is named."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="read-only"):
            write(tmp_path / "x.txt", "new")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_takes_no_file_is_refused() -> None:
    """A folder in which nothing can be made, to root either, gives an error and no traceback."""
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(OutputError, match=r"cannot write /proc/x\.txt"):
        write("/proc/x.txt", "new")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full half-way, the old file is untouched and no temporary file stays."""
    path = tmp_path / "x.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Writing through a symbolic link changes what it points to and keeps the link."""
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`-o /dev/null`, or a pipe, is written to in place: it is still what it was."""
    write("/dev/null", "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
