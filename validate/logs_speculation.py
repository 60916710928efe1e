"""Accepted lengths as engines print them: vLLM, SGLang, TensorRT-LLM and llama.cpp logs, and plain lists.

What each prints, and what that tells of the acceptance by position:

- vLLM: ``SpecDecoding metrics: ... Drafted: N tokens, Per-position acceptance rate: a, b, ...``. The rates are shares
  of all rounds, ``N`` is rounds times positions: counts of every position.
- TensorRT-LLM: ``numDraftTokens``, ``numAcceptedTokens`` and ``numRequestsWithDraftTokens`` of each iteration: rounds
  and their mean length.
- llama.cpp: ``statistics NAME: ... #gen drafts, #acc drafts, #gen tokens, #acc tokens`` since the start: rounds, those
  with an accepted token, and the mean length; without it ``draft acceptance rate = r (A accepted / G generated)``.
- SGLang: ``accept len: L`` of the decode batches since the last line: a mean length, the target's own token included.
- A list or CSV column of accepted lengths, a round a row: counts of every position.

A mean length says nothing of single positions: it is taken as one acceptance for all of them, and said so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.base.text import printable
from perfmodel.roofline.speculative.acceptance_fit import MOST_POSITIONS, Fitted
from perfmodel.roofline.speculative.formulas import alpha_of_tokens

#: Logs above this are not read.
MOST_BYTES = 256 * 2**20
#: Decode batches of SGLang between two lines (``--decode-log-interval``).
SGLANG_INTERVAL = 40

NOTHING = "nothing about speculation in it"
_ENGINES = ("vLLM", "TensorRT-LLM", "llama.cpp", "SGLang")


class BadLine(Exception):
    """Why a line is not used."""


@dataclass
class Counts:
    """Trials and successes of each position, gathered line by line."""

    trials: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    rounds: float = 0.0

    def add(self, reached: list[float]) -> None:
        """Count rounds of one draft length: ``reached[i]`` of them accepted at least ``i`` tokens."""
        positions = len(reached) - 1
        missing = positions - len(self.trials)
        self.trials += [0.0] * missing
        self.accepted += [0.0] * missing
        for i in range(positions):
            self.trials[i] += reached[i]
            self.accepted[i] += reached[i + 1]
        self.rounds += reached[0]

    def add_mean(self, rounds: float, drafted: float, length: float) -> None:
        """Count rounds whose mean accepted length is known alone, as one acceptance for all positions."""
        gamma = max(round(drafted), 1)
        if not 0 <= length <= gamma:
            raise BadLine(f"{length:.4g} accepted of {gamma} drafted tokens a round")
        alpha = float(alpha_of_tokens(1.0 + length, float(gamma)))
        self.add([rounds * alpha**i for i in range(gamma + 1)])


@dataclass
class Asked:
    """What the log may not tell: the draft length, and what it does tell in its other lines."""

    gamma: int | None
    steps: int | None = None
    interval: int = SGLANG_INTERVAL

    @property
    def length(self) -> int:
        """The draft length that was given or found."""
        found = self.gamma or self.steps
        if found is None:
            raise BadLine("the draft length is not in the log: give --gamma")
        return found


def _number(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def _vllm(line: str, counts: Counts, asked: Asked) -> None:
    listed = re.search(r"Per-position acceptance rate: ([\d.]+(?:, ?[\d.]+)*)(?:, Avg|\s*$)", line)
    drafted = _number(r"Drafted: (\d+) tokens", line)
    if listed is None or drafted is None:
        raise BadLine("no count of drafted tokens or no rates by position")
    rates = [float(x) for x in listed[1].split(",")]
    if not 0 < len(rates) <= MOST_POSITIONS or any(not 0 <= r <= 1 for r in rates):
        raise BadLine("rates that are not between 0 and 1")
    if any(later > earlier + 5e-4 for earlier, later in pairwise(rates)):
        raise BadLine("rates that rise with the position: they are shares of all rounds")
    if not drafted:
        raise BadLine("nothing drafted")
    rounds = drafted / len(rates)
    counts.add([rounds, *(min(r * rounds, rounds) for r in rates)])


def _trtllm(line: str, counts: Counts, asked: Asked) -> None:
    names = ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
    drafted, accepted, rounds = (_number(rf'"{name}": ?(\d+)', line) for name in names)
    if drafted is None or accepted is None or rounds is None:
        raise BadLine("not all of numDraftTokens, numAcceptedTokens and numRequestsWithDraftTokens")
    if not rounds or not drafted:
        raise BadLine("nothing drafted")
    counts.add_mean(rounds, drafted / rounds, accepted / rounds)


def _sglang(line: str, counts: Counts, asked: Asked) -> None:
    length, running = _number(r"accept len: ([\d.]+)", line), _number(r"#running-req: (\d+)", line)
    if length is None:
        raise BadLine("no accept len")
    if length < 1:
        raise BadLine("nothing drafted")
    if running == 0:
        raise BadLine("no request was running")
    counts.add_mean(asked.interval * (running or 1.0), asked.steps or asked.length, length - 1.0)


def _llamacpp(line: str, counts: Counts, asked: Asked) -> None:
    found = re.search(r"\( *(\d+)(?: accepted)? */ *(\d+)(?: generated)? *\)", line)
    if found is None:
        raise BadLine("no counts of accepted and generated tokens")
    accepted, drafted = float(found[1]), float(found[2])
    if not drafted:
        raise BadLine("nothing drafted")
    if accepted > drafted:
        raise BadLine("more accepted than generated")
    rounds = drafted / asked.length
    counts.add_mean(rounds, asked.length, accepted / rounds)


#: Engine -> what its lines hold, and how a line is counted.
_LINES: dict[str, tuple[str, Callable[[str, Counts, Asked], None]]] = {
    "vLLM": ("SpecDecoding metrics", _vllm),
    "TensorRT-LLM": ("numAcceptedTokens", _trtllm),
    "llama.cpp": ("draft acceptance", _llamacpp),
    "SGLang": ("accept len:", _sglang),
}
_STATISTICS = re.compile(
    r"statistics +(\S+?):.*#gen drafts = *(\d+), *#acc drafts = *(\d+), *#gen tokens = *(\d+), *#acc tokens = *(\d+)"
)


def _text(path: Path) -> Iterator[str]:
    """The lines of a log."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SpecError(path, "", f"{path.stat().st_size:,} bytes; logs up to {MOST_BYTES:,} are read")
        with path.open(encoding="utf-8", errors="replace") as stream:
            yield from stream
    except OSError as error:
        raise SpecError(path, "", f"cannot be read: {error.strerror}") from None


def read(path: str | Path, gamma: int | None = None) -> Fitted:
    """Fit the acceptance by position to a log.

    Parameters
    ----------
    path : str or Path
        A log of vLLM, SGLang, TensorRT-LLM or llama.cpp, a list of accepted lengths (one a line, the target's own
        token not counted), or a CSV with a column of them.
    gamma : int, optional
        Drafted tokens of a round, where the file does not tell.

    Raises
    ------
    SpecError
        When nothing of it can be used, with the reasons of its lines.
    """
    if gamma is not None and not 1 <= gamma <= MOST_POSITIONS:
        raise UsageError(f"gamma is {gamma}; 1 to {MOST_POSITIONS} are possible")
    path = Path(path)
    lines = list(_text(path))
    engine = next((e for e in _ENGINES if any(_LINES[e][0] in line for line in lines)), None)
    if engine is None and not any(_STATISTICS.search(line) for line in lines):
        from perfmodel.validate.logs_accepted import from_list

        return from_list(path, lines, gamma)
    counts, skipped = Counts(), Counter[str]()
    notes = _statistics(lines, counts, skipped)
    if engine is not None and not counts.rounds:
        notes = _engine(engine, lines, counts, skipped, Asked(gamma))
    return finish(path, f"{engine or 'llama.cpp'} log", counts, skipped, notes)


def _statistics(lines: list[str], counts: Counts, skipped: Counter[str]) -> tuple[str, ...]:
    """llama.cpp's totals, the last of each drafter: they count from the start."""
    last = {found[1]: found for line in lines if (found := _STATISTICS.search(line))}
    for found in last.values():
        drafts, some, drafted, accepted = (float(found[i]) for i in range(2, 6))
        if not drafts or not drafted:
            skipped["nothing drafted"] += 1
            continue
        if not some <= drafts or not some <= accepted <= drafted:
            skipped["totals that contradict each other"] += 1
            continue
        counts.add([drafts, *_two_acceptances(drafts, some, accepted, round(drafted / drafts))])
    note = (
        "lengths vary in llama.cpp: its mean draft length is taken for all rounds, and one acceptance after the first"
    )
    return (note,) if counts.rounds else ()


def _two_acceptances(drafts: float, some: float, accepted: float, length: int) -> list[float]:
    """Rounds that accepted 1, 2, ... tokens: the first as counted, the rest with one acceptance to give the total."""
    rest = max(length, 1) - 1
    if not some or not rest:
        return [some] + [0.0] * rest
    mean = min(accepted / some, 1.0 + rest)
    alpha = float(alpha_of_tokens(mean, float(rest)))
    return [some * alpha**i for i in range(rest + 1)]


def _engine(engine: str, lines: list[str], counts: Counts, skipped: Counter[str], asked: Asked) -> tuple[str, ...]:
    """Every line that an engine prints about speculation."""
    key, count = _LINES[engine]
    for line in lines:
        _settings(line, asked)
        if key not in line:
            skipped[NOTHING] += 1
            continue
        try:
            count(line, counts, asked)
        except BadLine as reason:
            skipped[str(reason)] += 1
    if engine == "vLLM" or not counts.rounds:
        return ()
    note = f"{engine} prints mean lengths: one acceptance is taken for all positions"
    if engine == "SGLang":
        note += f"; each line stands for {asked.interval} batches"
    if engine == "llama.cpp":
        note += f"; every draft is taken to have {asked.length} tokens"
    return (note,)


def _settings(line: str, asked: Asked) -> None:
    """What a server's own arguments in the log tell."""
    if steps := _number(r"speculative_num_steps=(\d+)", line) or _number(r"--draft-max[ =](\d+)", line):
        asked.steps = int(steps)
    if interval := _number(r"decode_log_interval=(\d+)", line):
        asked.interval = int(interval)


def finish(path: Path, what: str, counts: Counts, skipped: Counter[str], notes: tuple[str, ...]) -> Fitted:
    """What was counted, or an error with the reasons why nothing was."""
    used = [(t, a) for t, a in zip(counts.trials, counts.accepted, strict=True) if t > 0]
    if not used:
        reasons = "; ".join(f"{n:,} x {reason}" for reason, n in skipped.most_common(4))
        raise SpecError(path, "", f"no round of speculation can be read from it ({reasons or 'it is empty'})")
    return Fitted(
        tuple(t for t, _ in used), tuple(min(a, t) for t, a in used), counts.rounds,
        f"{what} {printable(path.name, 80)}", dict(skipped), notes,
    )  # fmt: skip
