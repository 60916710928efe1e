"""Errors that name the value, the limit and the remedy. Each knows its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from perfmodel.base.text import printable

#: Exit code of an interrupted command, as of a shell's: 128 + SIGINT.
INTERRUPTED = 130


def _line(text: str, limit: int = 2000) -> str:
    """Printable, and on one line."""
    return printable(text, limit).replace("\n", "\\n")


class PerfmodelError(Exception):
    """Base of all errors that a user can cause and mend; ``exit_code`` is the command line's."""

    exit_code = 2


class UsageError(PerfmodelError):
    """An argument is outside its range or contradicts another one."""


class SpecError(PerfmodelError):
    """A spec file is wrong.

    Parameters
    ----------
    file : str
        The file, or the name of a built-in.
    key : str
        Dotted path of the key, or ``""`` for the whole file.
    problem : str
        The value, the limit and what to do.
    """

    exit_code = 3

    def __init__(self, file: object, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        where = f"{_line(str(file))}: {_line(key)}" if key else _line(str(file))
        super().__init__(f"{where}: {_line(problem)}")


class UnknownName(PerfmodelError):
    """A name that nothing has, with the nearest ones.

    >>> print(UnknownName("GPU", "h10", ["h100", "a100"]))
    unknown GPU 'h10'; did you mean h100, a100? `perfmodel list gpus` shows all
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], listing: str | None = None) -> None:
        self.name = name
        self.suggestions = get_close_matches(name.casefold(), list(known), n=3, cutoff=0.5)
        near = f"did you mean {', '.join(self.suggestions)}? " if self.suggestions else ""
        listing = listing or f"{kind.lower()}s"
        super().__init__(f"unknown {kind} '{_line(name, limit=80)}'; {near}`perfmodel list {listing}` shows all")


class DoesNotFit(PerfmodelError):
    """The model does not fit the memory it is given; ``need`` and ``have`` are in bytes."""

    exit_code = 4

    def __init__(self, message: str, need: float, have: float) -> None:
        self.need, self.have = need, have
        super().__init__(message)


class NoGpu(PerfmodelError):
    """A command needs a GPU and there is none."""

    exit_code = 5


class OutputError(PerfmodelError):
    """A result could not be written; nothing was left half-written."""
