"""Errors: one family, an exit code each, and messages that name value, limit and remedy."""

import pytest

from perfmodel.base.errors import (
    DoesNotFit,
    NoGpu,
    OutputError,
    PerfmodelError,
    SpecError,
    UnknownName,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (UnknownName("GPU", "x", []), 2),
        (OutputError("x"), 2),
        (SpecError("f", "k", "p"), 3),
        (DoesNotFit("x", 2.0, 1.0), 4),
        (NoGpu("x"), 5),
    ],
)
def test_exit_codes(error: PerfmodelError, code: int) -> None:
    """2 usage, 3 a bad spec, 4 does not fit, 5 no GPU."""
    assert error.exit_code == code
    assert isinstance(error, PerfmodelError)


def test_a_spec_error_says_where_and_what() -> None:
    """File, dotted key, problem; without a key just the file. The parts stay readable by a program."""
    error = SpecError("a.yaml", "memory.hbm", "is missing; add it")
    assert str(error) == "a.yaml: memory.hbm: is missing; add it"
    assert (error.file, error.key, error.problem) == ("a.yaml", "memory.hbm", "is missing; add it")
    assert str(SpecError("a.yaml", "", "is empty")) == "a.yaml: is empty"


def test_an_unknown_name_suggests_near_ones_and_the_list() -> None:
    """At most three, whatever the case of the letters; a far name gets none; the listing command is named."""
    known = ["h100", "h200", "h20", "a100", "mi300x"]
    error = UnknownName("GPU", "H10", known)
    assert 0 < len(error.suggestions) <= 3
    assert error.suggestions[0] == "h100"
    assert str(error).startswith("unknown GPU 'H10'; did you mean h100")
    assert str(error).endswith("`perfmodel list gpus` shows all")
    assert str(UnknownName("GPU", "potato", known)) == "unknown GPU 'potato'; `perfmodel list gpus` shows all"
    assert str(UnknownName("KV-cache format", "x", [], "formats")).endswith("`perfmodel list formats` shows all")


def test_need_and_have_are_numbers() -> None:
    """What does not fit says by how much, in bytes."""
    error = DoesNotFit("too large", 141e9, 85e9)
    assert (str(error), error.need, error.have) == ("too large", 141e9, 85e9)


@pytest.mark.parametrize("error", [SpecError("a\nb", "k\x1b", "p\r\nq"), UnknownName("model", "a\nb\x1b[2J", ["ab"])])
def test_messages_are_one_printable_line(error: PerfmodelError) -> None:
    """Line breaks and control characters from outside are escaped, so one error is one line."""
    assert str(error).isprintable()


def test_long_names_are_cut() -> None:
    """A name of a megabyte does not fill the terminal."""
    assert len(str(UnknownName("model", "x" * 10**6, []))) < 200
    assert len(str(SpecError("f", "k" * 10**6, "p"))) < 2200
