"""How long the parts of speculative decoding take: in turns with plain steps, on a processor that others use too.

A turn times a block of plain steps, of drafts, of verifications and of whole rounds, each long against the clock. What
counts is each block over the plain one of its turn, so that a drift of the machine meets both; the medians of these
ratios over the turns, and how far they spread, are the result. On a processor a block that others disturbed is repeated
and the wait for the processor taken off what remains (see ``watch``); on a GPU each pass ends with a token on the host.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.validate.bench.speculation import PROMPT, Decoder
from perfmodel.validate.bench.timing import BATCH, FEWEST, Stopwatch, WallClock, median_precision, quiet
from perfmodel.validate.bench.watch import TRIES, CpuWatch

#: Turns at most, those that warm up, and the precision of the median at which they end.
MOST, WARM, PRECISE = 200, 2, 0.02


@dataclass(frozen=True)
class Passes:
    """Times of the parts.

    Attributes
    ----------
    plain : float
        A plain step, the median. [s]
    draft, verify, whole : float
        A draft step, a verification with its acceptance, and a whole round, each over a plain step; medians of turns.
    fast, slow : float
        20th and 80th percentile of ``whole``.
    turns : int
    disturbed : float
        Share of the blocks that other processes disturbed.
    """

    plain: float
    draft: float
    verify: float
    whole: float
    fast: float
    slow: float
    turns: int
    disturbed: float


def stopwatch(device: str) -> Stopwatch:
    """For work that waits for the device by itself: on a processor one that sees other processes."""
    return CpuWatch(1) if device == "cpu" else WallClock()


class Blocks:
    """Blocks of each kind of pass over one sequence, which starts again where the caches are full."""

    def __init__(self, decoder: Decoder, gamma: int, watch: Stopwatch) -> None:
        self.decoder, self.gamma, self.watch, self.repeats = decoder, gamma, watch, 1
        self._plain, self._draft, self._verify = [decoder.plain_step], [self._drafted], [self._verified]
        self._whole = [functools.partial(decoder.round, gamma)]
        self._start = len(decoder.text)
        step = min(self._seconds(self._plain) for _ in range(3))
        most = (decoder.model.sizes.positions - PROMPT - gamma - 2) // (TRIES * (gamma + 1))
        self.repeats = max(1, min(most, math.ceil(BATCH / step)))

    def turn(self) -> tuple[float, float, float, float]:
        """Seconds of a plain step, a draft step, a verification and a whole round."""
        plain, whole = self._seconds(self._plain), self._seconds(self._whole)
        self._room()
        self.decoder.catch_up()
        self._start = len(self.decoder.text)
        draft = self.watch.seconds(self._draft, self.repeats)
        return plain, draft / self.gamma, self.watch.seconds(self._verify, self.repeats), whole

    def _seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Of a call that makes the text longer. [s]"""
        self._room()
        return self.watch.seconds(calls, self.repeats)

    def _room(self) -> None:
        """See that the caches take a block, and its repetitions."""
        if self.decoder.room < TRIES * self.repeats * (self.gamma + 1) + self.gamma + 2:
            self.decoder.restart()

    def _drafted(self) -> None:
        """Draft after the same text each time."""
        self.decoder.draft_cache.length = self._start - 1
        self._proposed = self.decoder.propose(self.gamma)

    def _verified(self) -> None:
        """Verify the same draft each time."""
        del self.decoder.text[self._start :]
        self.decoder.cache.length = self._start - 1
        self.decoder.conclude(*self._proposed)


def passes(decoder: Decoder, gamma: int, seconds: float) -> Passes:
    """Time the parts until the median of a round over a plain step is known within 2 %, or the time is spent.

    Parameters
    ----------
    seconds : float
        At least nine turns are taken. [s]
    """
    end, watch = time.perf_counter() + seconds, stopwatch(decoder.model.device)
    found: list[tuple[float, float, float, float]] = []
    with quiet():
        blocks = Blocks(decoder, gamma, watch)
        for _ in range(WARM):
            blocks.turn()
        while len(found) < MOST:
            found.append(blocks.turn())
            enough = median_precision([whole / plain for plain, _, _, whole in found]) <= PRECISE
            if len(found) >= FEWEST and (enough or time.perf_counter() > end):
                break
    plain, draft, verify, whole = np.array(found).T
    fast, middle, slow = (float(x) for x in np.percentile(whole / plain, [20, 50, 80]))
    c, v = (float(np.median(part / plain)) for part in (draft, verify))
    disturbed = float(getattr(watch, "disturbed_share", 0.0))
    return Passes(float(np.median(plain)), c, v, middle, fast, slow, len(found), disturbed)
