"""108 real configurations: each gives the published total, or is refused by naming what is not understood."""

from __future__ import annotations

import csv
import gzip
import json
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.load import MODELS, model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import Tensor, tensors
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, decode, prefill

DATA = Path(__file__).parent / "data"
with gzip.open(DATA / "configs.jsonl.gz", "rt") as stream:
    CONFIGS: dict[str, dict[str, Any]] = {line["file"]: line["config"] for line in map(json.loads, stream)}
with (DATA / "config_outcomes.csv").open() as stream:
    ROWS = list(csv.DictReader(stream))
READ = [row for row in ROWS if row["compared"] != "refused"]
COUNTED = {
    "total": counts.total_params, "unscaled": counts.unscaled_params, "checkpoint": counts.checkpoint_params,
}  # fmt: skip
BUILT_IN = {alias: name for name in MODELS.names for alias in model(name).aliases}
#: Parameters that no matrix product passes: norms, biases, scales, sinks; the rest is what a token is multiplied by.
UNMULTIPLIED = 2e-3


def spec(file: str) -> ModelSpec:
    return hf.from_config(CONFIGS[file], f"{file}.json", file)


def named(rows: list[dict[str, str]]) -> list[Any]:
    return [pytest.param(row, id=row["file"]) for row in rows]


def test_every_configuration_has_an_outcome() -> None:
    """The table has one row a configuration; at least 95 of 100 whole ones are understood, 70 to the last parameter."""
    assert sorted(CONFIGS) == sorted(row["file"] for row in ROWS)
    whole = [row for row in ROWS if "REDUCED" not in row["file"]]
    assert sum(row["compared"] != "refused" for row in whole) >= 0.95 * len(whole)
    assert sum(row["compared"] == "exact" for row in whole) >= 70


@pytest.mark.parametrize("row", named(READ))
def test_total(row: dict[str, str]) -> None:
    """The importer's total is the published one, exactly or to its rounding, but for what is stored besides."""
    found = spec(row["file"])
    assert counts.total_params(found) == int(row["total"])
    if row["compared"] == "exact":
        assert COUNTED[row["counts"]](found) + int(row["besides"] or 0) == int(row["published"])
        assert row["source"]
    if row["compared"] == "rounded":
        assert rounded(int(row["total"]), row["published"])
    assert bool(row["besides"]) <= bool(row["why"])


def rounded(total: int, published: str) -> bool:
    """Whether a total is printed so: within 1 %, or rounded or cut to the digits."""
    digits = Decimal(published.rstrip("B ").strip())
    value, step = Decimal(total) / 10**9, Decimal(1).scaleb(digits.as_tuple().exponent)  # type: ignore[arg-type]
    cut = (value.quantize(step, ROUND_HALF_UP), value.quantize(step, ROUND_DOWN))
    return abs(value / digits - 1) <= Decimal("0.01") or digits in cut


@pytest.mark.parametrize("row", named([row for row in ROWS if row["compared"] == "refused"]))
def test_refused(row: dict[str, str]) -> None:
    """A file that lacks what cannot be known is refused, and the message names it."""
    with pytest.raises(SpecError) as raised:
        spec(row["file"])
    assert row["why"] in str(raised.value)


@pytest.mark.parametrize("row", named([row for row in READ if row["file"].replace("__", "/") in BUILT_IN]))
def test_built_in(row: dict[str, str]) -> None:
    """The built-in that has a configuration's id is what the importer makes of it; stored buffers are in no file."""
    found, built_in = spec(row["file"]), model(BUILT_IN[row["file"].replace("__", "/")])
    roles = {"buffer"} | ({"vision", "projector"} if not found.extra_tensors else set())
    assert plain(found, roles) == plain(built_in, roles)
    assert found.layer_classes == built_in.layer_classes
    assert (found.mtp, found.norm, found.streams) == (built_in.mtp, built_in.norm, built_in.streams)
    if built_in.native_format == found.native_format:
        assert set(found.native_16bit) == set(built_in.native_16bit)
        assert found.native_roles == built_in.native_roles


def plain(found: ModelSpec, without: set[str]) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Names, roles, shapes and counts, in the order of the inventory."""
    kept: list[Tensor] = [t for t in tensors(found) if t.role not in without]
    return [(t.name, t.role, t.shape, t.count) for t in kept]


@pytest.mark.parametrize("row", named(READ))
def test_graph(row: dict[str, str]) -> None:
    """Every layer kind runs: a decoded token is multiplied by all active matrices, and costs are finite."""
    found = spec(row["file"])
    token = sum(float(np.asarray(op.cost().matrix_flops)) for op in graph(found, decode(1.0, 1.0), Plan()))
    assert token / 2 == pytest.approx(counts.active_params(found), rel=UNMULTIPLIED)
    for step in (prefill(2.0, 3000.0), decode(8.0, np.array([4000.0, 9000.0]))):
        for op in graph(found, step, Plan()):
            cost = op.cost()
            values = [*cost.ops.values(), *cost.hbm.values(), *cost.comm.values()]
            assert all(np.all(np.isfinite(value)) and np.all(np.asarray(value) >= 0) for value in values), op.name


@pytest.mark.parametrize("row", named(READ))
def test_weights_of_the_graph(row: dict[str, str]) -> None:
    """A prompt long enough to reach every expert reads each matrix once."""
    found = spec(row["file"])
    ops = [op for op in graph(found, prefill(1.0, 1e7), Plan()) if "embedding" not in op.name]
    read = sum(float(np.asarray(op.cost().hbm.get("weights", 0.0))) for op in ops)
    apart = ("mtp", "buffer", "vision", "projector", "embedding", "position")
    held = 2 * sum(t.total for t in tensors(found) if t.role not in apart)
    held += 2 * found.vocab_size * found.hidden_size if found.tied_embeddings else 0
    assert read == pytest.approx(held, rel=UNMULTIPLIED)
