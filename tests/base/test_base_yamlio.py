"""Spec files are data: no code, no bombs, no duplicates, bounded in size and depth; errors are one line."""

import os
import time
from pathlib import Path

import pytest

from perfmodel.base.errors import SpecError
from perfmodel.base.yamlio import MAX_BYTES, MAX_DEPTH, load_yaml, parse_yaml, read_text


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml: ")
    assert "\n" not in message
    assert caught.value.exit_code == 3
    return message


def test_a_plain_mapping_is_read(tmp_path: Path) -> None:
    """Numbers, text, lists and mappings come through as themselves."""
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb: [x, 2.5, true]\nc: {d: null, e: 'é'}\n", encoding="utf-8")
    assert load_yaml(path) == {"a": 1, "b": ["x", 2.5, True], "c": {"d": None, "e": "é"}}


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: {b: 1, b: 1}", "'a': 1\n\"a\": 2", "a: [{b: 1, b: 2}]"])
def test_duplicate_keys_are_refused_with_their_line(text: str) -> None:
    """At any depth and however they are quoted: YAML would silently keep the last."""
    assert "duplicate key" in refused(text)
    assert "line" in refused(text)


def test_bombs_are_refused_at_once() -> None:
    """Nine levels of nine references are 387 million nodes; no anchor is expanded."""
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    start = time.perf_counter()
    assert "anchors and aliases are not allowed (line 1); write it out" in refused(bomb)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("text", ["a: &x 1", "a: &x 1\nb: *x", "base: &b {c: 1}\nd: {<<: *b}", "a: &a [*a]"])
def test_anchors_and_aliases_are_refused(text: str) -> None:
    """Even a single one, and one that contains itself."""
    assert "anchors and aliases are not allowed" in refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system",
        "a: !!python/object/new:type [x, [], {}]",
        "a: !custom 1",
    ],
)
def test_tags_make_no_objects(text: str) -> None:
    """A tag that would run code or build an object is not a valid spec."""
    assert "is not a valid spec" in refused(text)


@pytest.mark.parametrize("kind", ["flow", "block"])
def test_deep_nesting_is_refused(kind: str) -> None:
    """Deeper than a spec can be: refused before the parser recurses; just within the limit it is read."""

    def nested(n: int) -> str:
        return "a: " + "[" * n + "]" * n if kind == "flow" else "\n".join("  " * i + "a:" for i in range(n)) + " 1"

    assert f"nested deeper than {MAX_DEPTH} levels" in refused(nested(MAX_DEPTH + 5))
    assert "nest" in refused(nested(3000))  # the parser itself may stop first
    assert parse_yaml(nested(MAX_DEPTH - 2), "x.yaml")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must be a mapping of keys to values, not NoneType"),
        ("- 1\n- 2", "must be a mapping of keys to values, not list"),
        ("just words", "must be a mapping of keys to values, not str"),
        ("a: 1\n---\nb: 2", "is not a valid spec"),
        ("a: [1, 2", "is not a valid spec"),
        ("a: 'open", "is not a valid spec"),
        ("a:\n\t- 1", "is not a valid spec"),
        ("a: 2022-13-45", "is not a valid spec"),
        ("? [a, b]\n: 1", "is not a valid spec: a key that is not plain text at line 1"),
        ("? {a: 1}\n: 1", "is not a valid spec: a key that is not plain text"),
        ("a: " + "9" * 5000, "is not a valid spec"),
        ("a: \x07", "is not a valid spec"),
    ],
)
def test_what_is_no_spec_is_refused_in_one_line(text: str, what: str) -> None:
    """Empty, a list, prose, two documents, broken syntax, impossible dates, odd keys, numbers too long to read."""
    assert what in refused(text)


def test_syntax_errors_name_their_line() -> None:
    """The line where reading stopped is said."""
    assert "at line 3" in refused("a: 1\nb: 2\nc: ]\n")


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    """A 100 MB configuration: refused by its size, in no time."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 10**6)
    start = time.perf_counter()
    with pytest.raises(
        SpecError, match=r"big\.yaml: 100,000,000 bytes; a spec has at most 4,194,304: is this the right file\?"
    ):
        load_yaml(path)
    assert time.perf_counter() - start < 0.5


def test_an_endless_file_is_read_no_further_than_the_limit() -> None:
    """A device has no size; reading stops at the limit."""
    with pytest.raises(SpecError, match=f"more than {MAX_BYTES:,} bytes"):
        read_text(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bytes(range(256)), "is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\x00", "contains NUL bytes"),
        (b"\xff\xfea\x00:\x00", "is not UTF-8 text"),
        (b"\x1f\x8b\x08\x00\xff", "is not UTF-8 text"),
        (b"a: \x00", "contains NUL bytes"),
    ],
)
def test_binary_junk_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    """A program, an archive, UTF-16: not text, and said so."""
    path = tmp_path / "junk.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=f"{what}: is this the right file"):
        load_yaml(path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Missing, a folder, a name with a NUL byte, a name too long: one line each, exit code 3."""
    for path, what in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (Path("a\x00b.yaml"), "embedded null byte"),
        (Path("x" * 5000), "File name too long"),
    ):
        with pytest.raises(SpecError, match=f"cannot be read: {what}") as caught:
            load_yaml(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).isprintable()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer is refused at once."""
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match="is a pipe"):
        load_yaml(tmp_path / "pipe.yaml")


def test_files_that_fail_in_reading_are_named() -> None:
    """A file that opens and then gives an error: this process's memory at address 0."""
    with pytest.raises(SpecError, match="/proc/self/mem: cannot be read: Input/output error"):
        read_text(Path("/proc/self/mem"))


def test_a_hostile_file_name_is_escaped() -> None:
    """Control characters and line breaks of a file name do not reach the terminal."""
    with pytest.raises(SpecError) as caught:
        parse_yaml("- 1", "\x1b[31mred\nline.yaml")
    assert str(caught.value).startswith("\\x1b[31mred\\nline.yaml: must be a mapping")
