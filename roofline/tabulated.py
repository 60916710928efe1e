"""A model's step times as tables, for a simulator that asks a million times.

    seconds = tokens[t] + rows[r] + decode[n](context) + chunk[m, q](reach) + host[s]

The parts that depend on a count are exact at every whole number; contexts are interpolated linearly between nodes that
are 1/32 of a doubling apart, lengths of chunks likewise. A row of a table is computed when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, frexp, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.batch import Batch, StepTime
from perfmodel.roofline.op import Op
from perfmodel.roofline.time_source import ModelSource

#: Time, and the distances of the ends of its interval. [s]
Entry = tuple[float, float, float]
Array = NDArray[np.float64]

#: Nodes a doubling of a length; counts are tabulated so many at a time.
NODES, BLOCK = 32, 256
ZERO: Entry = (0.0, 0.0, 0.0)


def nodes(longest: int) -> Array:
    """Lengths at which tables have entries, rising: each whole number up to 64, then 32 a doubling.

    >>> nodes(100)[61:66].tolist()
    [62.0, 63.0, 64.0, 66.0, 68.0]
    """
    octaves = range(max(frexp(longest / NODES)[1], 1) + 1)
    later = [(NODES + i) * 2.0**k for k in octaves for i in range(NODES)]
    return np.array([*range(1, NODES), *later])


def place(length: float) -> tuple[int, float]:
    """Number of the node at or below a length, and how far on to the next one it is.

    >>> place(1.0), place(17.5), place(64.0), place(67.0)
    ((0, 0.0), (16, 0.5), (63, 0.0), (64, 0.5))
    """
    if length < NODES:
        whole = int(length)
        return whole - 1, length - whole
    mantissa, power = frexp(length)
    at = mantissa * 2 * NODES - NODES
    whole = int(at)
    return NODES - 1 + (power - 6) * NODES + whole, at - whole


@dataclass(frozen=True)
class TableError:
    """Relative errors of a table against the model behind it.

    Attributes
    ----------
    steps : int
        Random steps that were compared.
    mean, p99, most : float
        Of the time.
    ends : float
        Mean error of the ends of the interval.
    """

    steps: int
    mean: float
    p99: float
    most: float
    ends: float


class TabulatedSource:
    """Times of steps from tables of a ``ModelSource``; what the tables do not hold is asked of it.

    Parameters
    ----------
    model : ModelSource
    longest : int
        Tokens of the longest sequence.
    most_tokens, most_sequences : int
        New tokens and sequences of a step; steps with more, and steps of verified drafts, are the model's.
    """

    def __init__(
        self, model: ModelSource, longest: int = 1 << 17, most_tokens: int = 1 << 15, most_sequences: int = 1 << 11
    ) -> None:
        self.model, self.longest = model, longest
        self.most_tokens, self.most_sequences, self.missed = most_tokens, most_sequences, 0
        self._exact = ModelSource(model.ready, model.clock, resolution=0)
        self._ranks, self._nodes = model.parts.ranks, nodes(longest)
        self._tokens: list[Entry | None] = [None] * (most_tokens + BLOCK + 1)
        self._rows: list[Entry | None] = [None] * (most_sequences + BLOCK + 1)
        self._decode: list[list[Entry] | None] = [None] * (most_sequences + 1)
        self._chunk: dict[tuple[int, int], list[Entry]] = {}
        self._host: dict[tuple[float, bool], tuple[Entry, Any]] = {}

    def step_time(self, batch: Batch) -> StepTime:
        """Time of one step."""
        decodes, context, chunks, tokens, reach, queries = batch
        if self._ranks == 1:
            n, m = decodes, chunks
        else:
            n, m = ceil(decodes / self._ranks), ceil(chunks / self._ranks)
        t, r = n + round(m * tokens), n + m
        longest = context if context > reach else reach
        if not r or t > self.most_tokens or r > self.most_sequences or queries != 1 or longest > self.longest:
            self.missed += 1
            return self.model.step_time(batch)
        a = self._tokens[t] or self._fill(self._tokens, t, self.model.parts.tokens)
        b = self._rows[r] or self._fill(self._rows, r, self.model.parts.rows)
        c = _between(self._decode[n] or self._decode_row(n), context) if n else ZERO
        d = self._chunked(m, tokens, reach) if m else ZERO
        host, whole = self._host.get((decodes + chunks, m > 0)) or self._hosted(decodes + chunks, m > 0)
        seconds = a[0] + b[0] + c[0] + d[0] + host[0]
        if whole is not None:
            return StepTime(seconds, seconds * whole[0], seconds * whole[1])
        down = a[1] + b[1], a[2] + b[2]
        low = sqrt(down[0] * down[0] + c[1] * c[1] + d[1] * d[1] + host[1] * host[1])
        high = sqrt(down[1] * down[1] + c[2] * c[2] + d[2] * d[2] + host[2] * host[2])
        return StepTime(seconds, seconds - low, seconds + high)

    def _entries(self, ops: list[Op], count: int) -> list[Entry]:
        """Sums of operators over arrays of so many sizes."""
        if not ops:
            return [ZERO] * count
        total = self.model.clock.total([self.model.clock.time(op) for op in ops])
        seconds, low, high = (np.broadcast_to(v, (count,)) for v in (total.predicted, total.low, total.high))
        up = np.where(np.isinf(high), inf, high - seconds)
        return list(zip(seconds.tolist(), (seconds - low).tolist(), up.tolist(), strict=True))

    def _fill(self, table: list[Entry | None], at: int, make: Callable[[Array], list[Op]]) -> Entry:
        """The entry of a count, with those around it."""
        first = max(at // BLOCK * BLOCK, 1)
        counts = np.arange(first, at // BLOCK * BLOCK + BLOCK, dtype=np.float64)
        table[first : first + len(counts)] = self._entries(make(counts), len(counts))
        found = table[at]
        assert found is not None
        return found

    def _decode_row(self, n: int) -> list[Entry]:
        ops = self.model.parts.decode(float(n), 1, self._nodes)
        found = self._decode[n] = self._entries(ops, len(self._nodes))
        return found

    def _chunked(self, m: int, tokens: float, reach: float) -> Entry:
        """Between the lengths of chunks at the nodes around one; of each at the part of its reach that is cached."""
        at, part = place(tokens)
        cached = reach - tokens + 1
        first = _between(self._chunk.get((m, at)) or self._chunk_row(m, at), cached)
        if not part:
            return first
        return _mixed(first, _between(self._chunk.get((m, at + 1)) or self._chunk_row(m, at + 1), cached), part)

    def _chunk_row(self, m: int, at: int) -> list[Entry]:
        """Of one length of chunks, by what is cached before them: the node less one."""
        q = self._nodes[at]
        ops = self.model.parts.chunk(float(m), q, self._nodes - 1 + q)
        found = self._chunk[m, at] = self._entries(ops, len(self._nodes))
        return found

    def _hosted(self, sequences: float, mixed: bool) -> tuple[Entry, Any]:
        """The host's time, and the interval of whole steps where that is known."""
        times = self.model.host(sequences, "prefill" if mixed else "decode")
        entry = self._entries_of(times)
        whole = next((t.whole for t in times if getattr(t, "whole", None) is not None), None)  # type: ignore[attr-defined]
        found = entry, (min(whole.low, 1.0), max(whole.high, 1.0)) if whole is not None else None
        self._host[sequences, mixed] = found
        return found

    @staticmethod
    def _entries_of(times: list[Any]) -> Entry:
        seconds = sum(float(t.predicted) for t in times)
        return seconds, seconds - sum(float(t.low) for t in times), sum(float(t.high) for t in times) - seconds

    def error(self, steps: int = 500, seed: int = 0) -> TableError:
        """Compare random steps with the model: decodes alone, chunks alone, and both; lengths are log-uniform."""
        rng = np.random.default_rng(seed)
        most = max(1, min(self.most_sequences // 2, 256))
        n, m = rng.integers(0, most, steps) * self._ranks, rng.integers(0, 5, steps) * self._ranks
        n = np.where((n == 0) & (m == 0), 1, n)
        n = np.where((m > 0) & (rng.random(steps) < 0.2), 0, n)
        context = np.exp(rng.uniform(0, np.log(self.longest), steps)).round()
        tokens = np.exp(rng.uniform(0, np.log(min(self.longest / 2, self.most_tokens / 8)), steps)).round()
        cached = np.where(rng.random(steps) < 0.5, 0, np.exp(rng.uniform(0, np.log(self.longest / 2), steps)).round())
        off: list[float] = []
        ends: list[float] = []
        for row in zip(
            n.tolist(), context.tolist(), m.tolist(), tokens.tolist(), (tokens + cached).tolist(), strict=True
        ):
            batch = Batch(*row)
            mine, true = self.step_time(batch), self._exact.step_time(batch)
            off.append(abs(mine.seconds / true.seconds - 1))
            if true.high < inf:
                ends += [abs(mine.low / true.low - 1), abs(mine.high / true.high - 1)]
        return TableError(
            steps, float(np.mean(off)), float(np.quantile(off, 0.99)), max(off), float(np.mean(ends)) if ends else 0.0
        )


def _between(row: list[Entry], length: float) -> Entry:
    """Linear between the nodes around a length."""
    at, part = place(length)
    return _mixed(row[at], row[at + 1], part) if part else row[at]


def _mixed(first: Entry, second: Entry, part: float) -> Entry:
    x, y, z = first
    return x + part * (second[0] - x), y + part * (second[1] - y), z + part * (second[2] - z) if z != inf else inf
