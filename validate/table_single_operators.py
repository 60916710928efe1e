"""Tables of single operators with their inputs spelled out: what `perfmodel validate` measured and no other table has.

A row holds the operator of the graph as plain data (``inputs``: its formula's arguments as JSON), so that whatever can
be measured can be compared: norms, activations, samplers, one product of routed experts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.text import printable
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.efficiency import ENGINES, load
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Row, Skip, measured

#: Columns that are needed.
COLUMNS = ("gpu", "framework", "op_kind", "op_name", "dtype", "inputs", "latency_us")
#: Characters of the inputs at most.
LONGEST = 2000


def _compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    found = measured(row, "latency_us")
    if found is None:
        raise Skip("latency_us is missing")
    from perfmodel.validate.bench.operators import unpack

    op = unpack(row["op_kind"].strip(), _inputs(row["inputs"]))
    try:
        time: Any = _clock(row["gpu"].strip(), row["framework"].strip().lower()).time(op)
        bound, predicted = float(time.bound), float(time.predicted)
    except (TypeError, ValueError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise Skip("the inputs are outside what the forms can compute") from error
    if not 0 < predicted < float("inf"):
        raise Skip("the inputs are outside what the forms can compute")
    if found.value < bound * 1e6:
        from perfmodel.validate.table_operators import FASTER

        raise Skip(FASTER)
    text = f"{printable(row['op_name'], 80)}: bound {bound * 1e6:.5g} us, limited by {time.limiter}"
    yield Comparison(
        "latency_us", found.value, predicted * 1e6, text, time.origin, float(time.low) * 1e6, float(time.high) * 1e6,
        half_unit=found.half_unit,
    )  # fmt: skip


def _inputs(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise Skip("the inputs are too long")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Skip("the inputs are no JSON") from error
    if not isinstance(found, dict) or not all(isinstance(v, str | int | float | None) for v in found.values()):
        raise Skip("the inputs are no mapping of names to numbers and words")
    return found


@functools.lru_cache(maxsize=64)
def _clock(gpu: str, engine: str) -> Calibrated:
    """Times of a device; of an engine without a fit by the nearest one."""
    device = load_gpu(gpu)
    try:
        return Calibrated(device, load(device, engine))
    except PerfmodelError:
        if engine in ENGINES:
            raise
        return Calibrated(device, load(device))


def _prepare(rows: Sequence[Row]) -> Any:
    """A table is read with the fits that are kept now."""
    _clock.cache_clear()
    return _compare


KIND = Kind(
    "operators", "times of single operators", COLUMNS, ("latency_us",), ("gpu", "framework", "op_name", "dtype"),
    _compare, times={"latency_us": 1.0}, prepare=_prepare,
)  # fmt: skip
