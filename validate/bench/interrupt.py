"""Ctrl-C in the middle of a run: what was finished is kept, and said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perfmodel.validate.bench.session import Session


@contextmanager
def keeping(s: Session, what: str) -> Iterator[None]:
    """Say how much of a run is kept when it is interrupted.

    Parameters
    ----------
    what : str
        What a row of it is: ``shape``.

    Raises
    ------
    KeyboardInterrupt
        The message says it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        count = len({result.name for result in s.results})
        finished = f"{count} finished {what} is" if count == 1 else f"{count} finished {what}s are"
        raise KeyboardInterrupt(f"interrupted: {finished} kept in run {s.run.id} of {s.store.path}") from error
