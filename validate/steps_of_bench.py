"""Steps of an engine as a client saw them, as rows that can be predicted.

With one entry a request (``--save-detailed``) every pause between two tokens in which no other request waited for its
first one is a decode step, of as many sequences as were being answered; a prompt that was alone from when it was sent
to its first token is a prefill. Of a result with medians alone, the median pause between tokens is a decode step of
``max_concurrency`` sequences at the mean context, as long as few steps hold a prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.batch import Batch
from perfmodel.validate.logs_vllm_bench import BenchResult, Requests
from perfmodel.validate.step_rows import StepRows, make

Array = NDArray[np.float64]
Row = tuple[Batch, float, bool]

#: Share of the steps that may hold another request's prompt for a median pause to be a decode step.
STALLED = 0.25
#: Largest ratio of the median pause to the median time per token: above it, tokens came in bundles.
BUNDLED = 1.2
#: Pauses of one number of sequences and similar context make one row, their median: as many at least.
LEAST = 5
#: Stamps nearer than this are one moment. [s]
SAME = 1e-6
#: Width of a class of contexts, as a logarithm.
SIMILAR = 0.05

MEASURED = "a client's time between tokens"


def rows_of(results: Sequence[BenchResult]) -> StepRows:
    """Rows of results; of those with requests by request, of the others from the medians."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for result in results:
        if result.speculative:
            skipped["results of speculative decoding: what drafts cost is not in them"] += 1
        elif result.requests is not None:
            rows += _of_requests(result.requests, skipped)
        else:
            rows += _of_medians(result, skipped)
    notes = [f"a step's time is {MEASURED}, the median of like ones"]
    return make(rows, measured=MEASURED, skipped=skipped, notes=notes)


def _of_medians(result: BenchResult, skipped: Counter[str]) -> list[Row]:
    """A decode row, and a prefill row of a client that sent one request at a time."""
    n, rows = result.concurrency, list[Row]()
    if n is None or np.isfinite(result.request_rate):
        skipped["results without --max-concurrency, or at a request rate: how many ran at once is not known"] += 1
        return []
    n = min(n, result.completed)
    pause, per_token = result.medians.get("itl"), result.medians.get("tpot")
    if result.output < 2 or (n - 1) / result.output > STALLED:
        skipped["results in which many steps hold another request's prompt: use --save-detailed"] += 1
    elif pause and per_token and pause > BUNDLED * per_token:
        skipped["results whose tokens came in bundles"] += 1
    elif value := pause or per_token:
        rows.append((Batch(n, result.input + (result.output + 1) / 2), value, False))
    if n == 1 and (first := result.medians.get("ttft")):
        rows.append((Batch(chunks=1, tokens=result.input, reach=result.input), first, True))
    return rows


def _of_requests(r: Requests, skipped: Counter[str]) -> list[Row]:
    first = r.start + r.ttft
    times = [at + np.concatenate([[0.0], np.cumsum(one)]) for at, one in zip(first, r.itl, strict=True)]
    ends = np.array([one[-1] for one in times])
    whole = np.array([len(one) + 1 for one in r.itl]) == r.output
    if not whole.all():
        skipped["requests whose tokens came in bundles: their pauses are no steps"] += int((~whole).sum())
    return _prefills(r, first, ends) + _decodes(r, times, ends, whole, skipped)


def _prefills(r: Requests, first: Array, ends: Array) -> list[Row]:
    """Prompts that were alone: nothing else was on its way between when they were sent and their first token."""
    starts, done = np.sort(r.start), np.sort(ends)
    begun = np.searchsorted(starts, first, side="left") - np.searchsorted(done, r.start + SAME, side="right")
    at = np.flatnonzero(begun == 1)
    return [(Batch(chunks=1, tokens=r.input[i], reach=r.input[i]), float(r.ttft[i]), True) for i in at]


def _decodes(
    r: Requests, times: list[Array], ends: Array, whole: NDArray[Any], skipped: Counter[str]
) -> list[Row]:  # fmt: skip
    """Medians of pauses without a prompt in them, by sequences and context: as they are in the middle of a pause, when
    all tokens of the step before have come."""
    chosen = np.flatnonzero(whole & (r.output > 1))
    if not len(chosen):
        return []
    first = np.array([one[0] for one in times])
    begin = np.concatenate([times[i][:-1] for i in chosen])
    end = np.concatenate([times[i][1:] for i in chosen])
    middle = (begin + end) / 2
    waiting = _count(r.start, end - SAME) - _count(first, begin + SAME)
    sequences = _count(first, middle) - _count(ends, middle)
    seen = _sum(first, r.input, middle) + _count(np.concatenate(times), middle)
    gone = _sum(ends, r.input + np.array([len(one) for one in times]), middle)
    clean = (waiting <= 0) & (sequences > 0) & (end > begin)
    skipped["pauses in which another request waited for its first token"] += int((waiting > 0).sum())
    context = np.maximum((seen - gone) / np.maximum(sequences, 1), 1.0)
    classes = np.stack([sequences, np.round(np.log(context) / SIMILAR)], 1)[clean]
    pauses, contexts = (end - begin)[clean], context[clean]
    kinds, member, count = np.unique(classes, axis=0, return_inverse=True, return_counts=True)
    skipped["pauses of which there are too few alike"] += int(count[count < LEAST].sum())
    alike = np.split(np.argsort(member.ravel(), kind="stable"), np.cumsum(count)[:-1])
    return [
        (Batch(int(kind[0]), float(contexts[rows].mean())), float(np.median(pauses[rows])), False)
        for kind, rows in zip(kinds, alike, strict=True)
        if len(rows) >= LEAST
    ]


def _count(events: Array, at: Array) -> NDArray[np.int64]:
    """How many events are not after each time."""
    return np.searchsorted(np.sort(events), at, side="right")


def _sum(events: Array, weights: Array, at: Array) -> Array:
    """Sum of the weights of the events that are not after each time."""
    order = np.argsort(events)
    summed = np.concatenate([[0.0], np.cumsum(weights[order])])
    return summed[np.searchsorted(events[order], at, side="right")]
