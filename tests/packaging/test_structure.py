"""The shape of the source: small files, small functions, nothing of the machine it was written on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE_LINES = 400
FUNCTION_LINES = 60

#: Names of machines and mirrors have no place in a project; each is put together here so that this file passes too.
FORBIDDEN = ["pypi." + "org", "files.python" + "hosted.org", "/wo" + "rk/", "../sha" + "red"]


@pytest.fixture(scope="module")
def sources(root: Path, project_files: list[Path]) -> dict[str, str]:
    """The text of every Python file but the tests."""
    return {
        str(path): (root / path).read_text()
        for path in project_files
        if path.suffix == ".py" and path.parts[0] != "tests"
    }


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function, its docstring aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body else 0


def test_files_are_small(sources: dict[str, str]) -> None:
    """A file past 400 lines is asking to be split."""
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES} == {}


def test_functions_are_small(sources: dict[str, str]) -> None:
    """A function past 60 lines is asking to be split; a long docstring is welcome and not counted."""
    found = [(path, name, lines) for path, text in sources.items() for name, lines in functions(ast.parse(text))]
    assert len(found) > 50
    assert [row for row in found if row[2] > FUNCTION_LINES] == []


def test_length_of_a_function_is_its_body() -> None:
    """The docstring's two lines do not count, the statements' three do."""
    source = 'def f():\n    """One.\n    """\n    if 1:\n        pass\n    return 2\n'
    assert list(functions(ast.parse(source))) == [("f", 3)]


def test_nothing_of_the_machine_is_mentioned(root: Path, project_files: list[Path]) -> None:
    """No file names a package registry's host or a folder of the machine that the project was written on."""
    words = [word.encode() for word in FORBIDDEN]
    found = [(str(path), word) for path in project_files for word in words if word in (root / path).read_bytes()]
    assert found == []
