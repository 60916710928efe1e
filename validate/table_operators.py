"""Tables of operator times: GEMMs, attention, latent attention, routed experts and collectives, one call a row.

Every row is predicted from its shape by the calibrated times; the measured column is not read for it. What stands in
the tables, and what their times include, is in ``tests/validate/data/measured/README.md``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.validate.models import Models
from perfmodel.validate.operator_rows import Operators, read, reason
from perfmodel.validate.rows import Comparison, Kind, Missing, Row, Skip, printed

if TYPE_CHECKING:
    import pandas as pd

#: A measured time below it cannot be predicted, whatever the parameters: no prediction goes below the bound.
FASTER = "measured faster than the roofline bound, which no prediction goes below"
OUT_OF_RANGE = "the sizes are outside what the forms can compute"
IN_SAMPLE = "this version"

GEMM = Operators("gemm", "GEMM times", ("m", "n", "k"), ("gpu", "framework", "dtype"))
CONTEXT = Operators(
    "prefill", "prefill attention times", ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"),
    ("gpu", "framework", "dtype", "kv_cache_dtype"),
)  # fmt: skip
GENERATION = Operators(
    "decode", "decode attention times", ("batch_size", "context_len", "num_heads", "num_key_value_heads", "head_dim"),
    ("gpu", "framework", "kv_cache_dtype"),
)  # fmt: skip
LATENT = Operators(
    "mla", "latent attention times", ("num_heads", "batch_size", "length"),
    ("gpu", "framework", "phase", "kv_cache_dtype"),
)  # fmt: skip
EXPERTS = Operators(
    "experts", "times of routed experts",
    ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
    ("gpu", "framework", "dtype"),
)  # fmt: skip
COLLECTIVES = Operators(
    "collective", "times of collectives", ("num_gpus", "message_bytes"), ("gpu", "framework", "op_name")
)


def compare_all(table: Operators, rows: Sequence[Row]) -> list[list[Comparison] | str]:
    """Each row's comparison, or the reason why it has none, all rows at once.

    Parameters
    ----------
    table : Operators
        What kind of table it is.
    rows : sequence of mappings
        Cells as text.

    Returns
    -------
    list
        In the order of the rows: a list of one ``Comparison`` [us], or a reason.
    """
    answers: list[list[Comparison] | str] = [reason(table, row) for row in rows]
    usable = [i for i, answer in enumerate(answers) if answer == ""]
    if not usable:
        return answers
    frame = read(table, [rows[i] for i in usable])
    for _, part in frame.groupby([*table.words, "version"], sort=False):
        found = _predict(part, table.kind)
        for at, one in zip(part.index, found, strict=True):
            answers[usable[at]] = one if isinstance(one, str) else [_comparison(table, rows[usable[at]], one)]
    return answers


def _predict(part: pd.DataFrame, kind: str) -> list[Mapping[str, Any] | str]:
    """Predictions of rows that share GPU, engine, formats and version, or why there are none."""
    import numpy as np

    from perfmodel.base.errors import PerfmodelError
    from perfmodel.validate.fit_predict import predict_frame

    try:
        with np.errstate(all="ignore"):  # what overflows is found below
            found = predict_frame(part, kind)
    except PerfmodelError as error:
        return [f"refused: {error}"] * len(part)
    return [_answer(row) for row in found.to_dict("records")]


def _answer(row: Mapping[Any, Any]) -> Mapping[str, Any] | str:
    if row["skipped"]:
        return str(row["skipped"])
    if not all(0 < row[name] < float("inf") for name in ("predicted_us", "physics_us", "low_us", "high_us")):
        return OUT_OF_RANGE
    return FASTER if row["latency_us"] < row["bound_us"] else row


def _comparison(table: Operators, row: Row, found: Mapping[str, Any]) -> Comparison:
    number = printed(row["latency_us"])
    half = number.half_unit if number else 0.0
    origin, version = str(found["origin"]), row.get("version", "").strip()
    same = bool(version) and origin.startswith("fitted: ") and origin.endswith(f" {version}")
    shape = ", ".join(f"{name} {int(found[name]):,}" for name in table.numbers)
    text = (
        f"{shape}: {found['physics_us']:.5g} us by the physics, x {found['predicted_us'] / found['physics_us']:.4g} "
        f"by the correction; bound {found['bound_us']:.5g} us"
    )
    return Comparison(
        "latency_us", float(found["latency_us"]), float(found["predicted_us"]), text,
        f"{origin}, {IN_SAMPLE}" if same else origin, float(found["low_us"]), float(found["high_us"]),
        float(found["physics_us"]), half,
    )  # fmt: skip


def _compare(table: Operators, row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """One row alone; the same as among others."""
    answer = compare_all(table, [row])[0]
    if isinstance(answer, str):
        raise Skip(answer)
    yield from answer


def remark(compared: Sequence[Comparison], skipped: Mapping[str, int]) -> str:
    """How far the figures are in-sample, whose parameters answered, and how many rows beat the bound."""
    parts: list[str] = []
    seen = sum(one.source.endswith(f", {IN_SAMPLE}") for one in compared)
    if seen:
        parts.append(
            f"in-sample: {seen:,} of {len(compared):,} compared rows are of a GPU, engine and version that the shipped "
            "parameters were fitted on, and may be the rows that the fit saw; docs/accuracy.md has the errors on "
            "shapes that it did not see"
        )
    others = Counter(_whose(one.source) for one in compared if not one.source.endswith(f", {IN_SAMPLE}"))
    parts += [f"{_rows(n)} {whose}" for whose, n in sorted(others.items())]
    if beaten := skipped.get(FASTER):
        parts.append(f"{_rows(beaten)} measured faster than the bound, in no figure")
    return "; ".join(parts)


def _rows(n: int) -> str:
    return f"{n:,} {'row' if n == 1 else 'rows'}"


def _whose(origin: str) -> str:
    if ", measured on this machine" in origin:
        return "by this machine's own fit, which may have seen them"
    if origin.startswith("fitted: "):
        return "of an engine that was fitted in another version"
    for why in ("another engine", "a GPU of the same architecture", "another architecture"):
        if f", {why}" in origin:
            return f"by parameters of {why}, intervals wider"
    return f"by {origin}"


def _kind(name: str, table: Operators) -> Kind:
    return Kind(
        name, table.title, (*table.words, *table.numbers, "latency_us"), ("latency_us",), table.words,
        functools.partial(_compare, table), times={"latency_us": 1.0}, bulk=functools.partial(compare_all, table),
        remark=remark,
    )  # fmt: skip


#: Name of the kind -> what it holds.
TABLES = {
    "gemm": GEMM, "context_attention": CONTEXT, "generation_attention": GENERATION, "mla_kernel": LATENT,
    "moe": EXPERTS, "nccl": COLLECTIVES,
}  # fmt: skip
KINDS = tuple(_kind(name, table) for name, table in TABLES.items())
