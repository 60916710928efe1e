"""Tables of speculative decoding: acceptance, draft cost, published and measured speedups.

``measured_speedup`` is predicted from models, GPU and the acceptance that the row states; with the row's own plain
speed beside it. Where a row states no acceptance the catalogue's stands in under a metric of its own. A published
expectation is compared with the formula alone, an accepted length with those at other draft lengths of its series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from perfmodel.base.errors import PerfmodelError
from perfmodel.roofline.speculative.formulas import speedup
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Row, Skip, measured
from perfmodel.validate.spec_decode_predict import Predicted, assume, predict
from perfmodel.validate.spec_decode_rows import NO_ACCEPTANCE, Stated, stated
from perfmodel.validate.spec_decode_series import tau_from_others

SPEEDUP, GIVEN, ASSUMED = "measured_speedup", "measured_speedup_given_baseline", "measured_speedup_assumed_acceptance"
EXPECTED, TAU = "expected_speedup_published", "tau_mean_accepted_len"
NOTHING = "no speedup is given, nor a published expectation, nor a draft length with its accepted length"


def prepare(rows: Sequence[Row]) -> Callable[[Row, Models], Iterator[Comparison | Missing]]:
    """A comparison of one row that knows the others: series of draft lengths, and lengths behind a ratio."""
    everything: list[Stated] = []
    for row in rows:
        try:
            everything.append(stated(row))
        except Skip:
            continue
    lengths: dict[tuple[str, ...], dict[int, float]] = {}
    for one in sorted(everything, key=lambda one: one.tau or 0.0):  # of rows that differ in nothing else, the largest
        if one.tau is not None and one.gamma is not None and one.tau <= one.gamma + 1.005:
            lengths.setdefault(one.series, {})[one.gamma] = one.tau

    def compare_one(row: Row, models: Models) -> Iterator[Comparison | Missing]:
        one = stated(row)
        found = [
            *_expected(row, one),
            *_length(row, one, lengths.get(one.series, {})),
            *_speedup(row, one, models, everything),
        ]
        if not found:
            raise Skip(NOTHING)
        yield from found

    return compare_one


def compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """One row alone."""
    return prepare([row])(row, models)


def _expected(row: Row, one: Stated) -> Iterator[Comparison | Missing]:
    """The published expectation, by the formula."""
    published = measured(row, EXPECTED)
    if published is None:
        return
    if one.alpha is None or one.gamma is None or one.cost is None:
        yield Missing(EXPECTED, "acceptance, draft length and draft cost are not all given")
        return
    predicted = float(speedup(one.alpha, float(one.gamma), one.cost))
    words = f"(1 - {one.alpha:g}^{one.gamma + 1}) / ((1 - {one.alpha:g}) ({one.gamma} x {one.cost:g} + 1))"
    yield Comparison(EXPECTED, published.value, predicted, words, "formula", half_unit=published.half_unit)


def _length(row: Row, one: Stated, series: Mapping[int, float]) -> Iterator[Comparison | Missing]:
    """The accepted length, from those at other draft lengths."""
    published = measured(row, TAU)
    if published is None or one.gamma is None or one.tau is None:
        return
    others = sorted((k, tau) for k, tau in series.items() if k != one.gamma)
    if not others:
        yield Missing(TAU, "no other draft length of the same series is in the table")
        return
    predicted, words = tau_from_others(one.gamma, others)
    extra = one.tau - published.value  # the target's own token, where the table leaves it out
    group = {"length": "chain", "acceptance": "of other lengths"}
    yield Comparison(
        TAU, published.value, predicted - extra, words, "other lengths", half_unit=published.half_unit, group=group
    )


def _speedup(row: Row, one: Stated, models: Models, everything: Sequence[Stated]) -> Iterator[Comparison | Missing]:
    """The measured speedup, and with the row's own plain speed."""
    number = measured(row, SPEEDUP)
    if number is None:
        return
    try:
        found = predict(one, models, everything)
    except Skip as skip:
        yield from _assumed(number.value, number.half_unit, one, models, str(skip))
        return
    except PerfmodelError as error:
        yield Missing(SPEEDUP, f"refused: {error}")
        return
    yield _compared(SPEEDUP, number.value, number.half_unit, found, found.speedup)
    if found.given is not None:
        yield _compared(GIVEN, number.value, number.half_unit, found, found.given)


def _assumed(value: float, half: float, one: Stated, models: Models, reason: str) -> Iterator[Comparison | Missing]:
    """With an acceptance of the catalogue where the row has none; else the reason."""
    if reason == NO_ACCEPTANCE:
        try:
            found = assume(one, models)
        except PerfmodelError:
            pass
        except Skip as skip:
            reason = str(skip)
        else:
            yield _compared(ASSUMED, value, half, found, found.speedup)
            yield Missing(SPEEDUP, reason)
            return
    yield Missing(SPEEDUP, reason)


def _compared(metric: str, value: float, half: float, found: Predicted, predicted: float) -> Comparison:
    group = {"length": found.length, "acceptance": "assumed" if metric == ASSUMED else "given"}
    same = metric == SPEEDUP
    low, high = (found.low, found.high) if same else (None, None)
    return Comparison(metric, value, predicted, found.words, found.source, low, high, half_unit=half, group=group)


def remark(compared: Sequence[Comparison], skipped: Mapping[str, int]) -> str:
    """What was chosen on such rows, and how often the side of 1 is right."""
    parts = []
    adaptive = sum(c.metric == SPEEDUP and c.group.get("length") == "adaptive" for c in compared)
    if adaptive:
        parts.append(
            f"{adaptive:,} rows of adaptive length: the two numbers of the confidence model were chosen on such rows, "
            "with pairs of sizes left out in turn, and llama.cpp's plain speeds on the same machine (docs/validate.md)"
        )
    speeds = [c for c in compared if c.metric in (SPEEDUP, ASSUMED)]
    slow = [c for c in speeds if c.measured < 1]
    if slow:
        right = sum(c.predicted < 1 for c in slow)
        parts.append(f"{right} of {len(slow)} measured slowdowns are predicted as slowdowns")
    return "; ".join(parts)


KIND = Kind(
    "spec_decode", "speculative decoding",
    ("source_repo", "target", "draft_or_method", "draft_kind", "hardware", "engine", "dataset_task", "gamma_or_K",
     "alpha_acceptance", "tau_mean_accepted_len", "measured_speedup"),
    (SPEEDUP, GIVEN, ASSUMED, EXPECTED, TAU), ("source_repo", "draft_kind", "hardware", "engine"), compare,
    remark=remark, prepare=prepare,
)  # fmt: skip
