"""Accepted lengths as a list or a CSV column: a round a row."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.roofline.speculative.acceptance_fit import MOST_POSITIONS, Fitted
from perfmodel.validate.logs_speculation import Counts, finish

#: Columns of accepted drafted tokens, and of all tokens of a round (the target's own is then taken off).
ACCEPTED = ("accepted", "accepted_tokens", "num_accepted", "n_accepted", "num_accepted_tokens", "n_accept")
LENGTHS = ("accept_len", "accept_length", "acceptance_length", "accepted_length", "tokens", "num_tokens", "emitted")
#: Columns of the drafted tokens of a round.
DRAFTED = ("drafted", "drafted_tokens", "num_drafted", "n_drafted", "num_draft_tokens", "gamma")


def from_list(path: Path, lines: list[str], gamma: int | None) -> Fitted:
    """Counts from rows of accepted lengths; see ``logs_speculation.read``.

    Raises
    ------
    SpecError
        When no row is a length.
    """
    rows = list(csv.reader(line for line in lines if line.strip() and not line.lstrip().startswith("#")))
    names = [cell.strip().casefold() for cell in rows[0]] if rows else []
    headed = any(name in (*ACCEPTED, *LENGTHS) for name in names)
    column = next((i for i, name in enumerate(names) if name in (*ACCEPTED, *LENGTHS)), 0)
    own = 1 if headed and names[column] in LENGTHS else 0
    drafted = next((i for i, name in enumerate(names) if name in DRAFTED), None)
    skipped: Counter[str] = Counter()
    read = [pair for row in rows[headed:] if (pair := _row(row, column, own, drafted, skipped)) is not None]
    if not read:
        return finish(path, "list", Counts(), skipped, ())
    longest = max(accepted for accepted, _ in read)
    length = gamma or longest
    notes = [] if headed else ["each number is taken as accepted drafted tokens, the target's own not among them"]
    if gamma is None and drafted is None:
        notes.append(f"the draft length is not in the list: {longest} is the longest that was accepted (give --gamma)")
    if not length and drafted is None:
        raise SpecError(path, "", "no round accepted a token, and the draft length is not in the list: give --gamma")
    counts = Counts()
    for (accepted, own_length), many in Counter(read).items():
        positions = own_length if own_length is not None else length
        if accepted > positions:
            skipped[f"more than the {positions} drafted tokens of a round"] += many
            continue
        counts.add([float(many)] * (accepted + 1) + [0.0] * (positions - accepted))
    return finish(path, "list", counts, skipped, tuple(notes))


def _row(
    row: list[str], column: int, own: int, drafted: int | None, skipped: Counter[str]
) -> tuple[int, int | None] | None:
    """Accepted and, where it is told, drafted tokens of a round; ``None`` for what is neither, with the reason."""
    try:
        accepted = int(row[column].strip()) - own
        length = None if drafted is None else int(row[drafted].strip())
    except (ValueError, IndexError):
        skipped["not a whole number"] += 1
        return None
    if accepted < 0:
        skipped["a negative length"] += 1
        return None
    if max(accepted, length or 0) > MOST_POSITIONS:
        skipped[f"more than {MOST_POSITIONS} tokens"] += 1
        return None
    if length == 0:
        skipped["nothing drafted"] += 1
        return None
    return accepted, length
