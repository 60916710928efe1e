"""The shipped fits against the measured tables: figures that reproduce, bounds that hold, aims that stay reached."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from perfmodel.roofline.efficiency import FOLDER
from perfmodel.roofline.efficiency_file import read_fit
from perfmodel.validate.fit import figures
from perfmodel.validate.fit_data import Cell, cells
from perfmodel.validate.fit_kernel import check, scores
from perfmodel.validate.fit_predict import predict
from perfmodel.validate.fit_report import reference

ROOT = Path(__file__).resolve().parents[2]
TABLES = Path(__file__).parent / "data" / "measured"

#: By how much an error may rise before it counts as worse, as a fraction of the measured time.
MARGIN = 0.005

SPECS = {
    (k["kind"], data["gpu"], data["engine"], k["format"]): k
    for path in FOLDER.glob("*-*.yaml")
    for data in [yaml.safe_load(path.read_text())]
    for k in data["kernels"]
}


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str, str, str], Cell]:
    """All cells of the tables."""
    return {(c.kind, c.gpu, c.engine, c.fmt): c for c in cells(TABLES)}


def test_every_measured_cell_is_fitted(measured: dict[tuple[str, str, str, str], Cell]) -> None:
    """Tables and fits hold the same GPUs, engines, kinds and formats."""
    assert set(measured) == set(SPECS)


def test_shipped_parameters_predict_the_tables(measured: dict[tuple[str, str, str, str], Cell]) -> None:
    """With the parameters as written, each cell's error is at most its cross-validated one and the margin."""
    for key, cell in measured.items():
        kernel = read_fit(FOLDER / f"{cell.gpu}-{cell.engine}.yaml").kernels[cell.kind, cell.fmt]
        used = cell.take(np.flatnonzero(cell.bound <= cell.measured))
        predicted = np.asarray(kernel.time(used.shape, used.chip, used.bound))
        assert np.all(predicted >= used.bound), key
        assert figures(predicted, used.measured)["mape_10us"] <= SPECS[key]["scores"]["mape_10us"] + MARGIN, key


def test_no_row_is_predicted_below_its_bound(measured: dict[tuple[str, str, str, str], Cell]) -> None:
    """Rows that were measured faster than the bound included: 35 of them, all in the table of experts."""
    faster = 0
    for cell in measured.values():
        kernel = read_fit(FOLDER / f"{cell.gpu}-{cell.engine}.yaml").kernels[cell.kind, cell.fmt]
        predicted = np.asarray(kernel.time(cell.shape, cell.chip, cell.bound))
        low, high = (np.asarray(x) for x in kernel.interval(predicted, cell.bound))
        assert np.all(predicted >= cell.bound)
        assert np.all((low >= cell.bound) & (low <= predicted) & (predicted <= high))
        some = int((cell.bound > cell.measured).sum())
        assert some == 0 or cell.kind == "experts"
        faster += some
    assert faster == 35


@pytest.mark.parametrize(
    "key",
    [
        ("decode", "a100-sxm", "vllm", "bf16"),
        ("prefill", "h100-sxm", "vllm", "bf16"),
        ("mla_context", "b200", "trtllm", "fp8"),
        ("experts", "h100-sxm", "trtllm", "fp8_block"),
        ("collective", "h100-sxm", "trtllm", "all_reduce"),
    ],
    ids=lambda k: "-".join(k),
)
def test_cross_validation_reproduces(
    key: tuple[str, str, str, str], measured: dict[tuple[str, str, str, str], Cell]
) -> None:
    """Fitting anew, folds and all, gives the figures of the shipped file: none is worse by more than the margin."""
    found, written = scores(check(measured[key])), SPECS[key]["scores"]
    for name in ("mape", "mape_10us", "physics_mape_10us"):
        assert found[name] <= written[name] + MARGIN, name
        assert found[name] == pytest.approx(written[name], abs=MARGIN), name
    assert found["coverage80"] == pytest.approx(written["coverage80"], abs=0.03)


@pytest.mark.parametrize("key", SPECS, ids="-".join)
def test_aims(key: tuple[str, str, str, str]) -> None:
    """Each cell is far better than the naive roofline and no worse than the first forms; bias and coverage hold."""
    s = SPECS[key]["scores"]
    first, _ = reference(TABLES / "reference.csv")[key]
    assert s["mape_10us"] < 0.35 * s["naive_mape_10us"]
    assert 100 * s["mape_10us"] <= float(first) + 0.05
    if s["n"] >= 200:
        assert 0.72 <= s["coverage80"] <= 0.88
        assert abs(s["bias"]) < 0.02


def test_the_page_says_what_the_files_say() -> None:
    """Every figure of docs/accuracy.md's tables is that of the shipped fits, to the printed digit."""
    text = (ROOT / "docs" / "accuracy.md").read_text()
    rows = re.findall(r"^\| (\S+) \| (\w+) \| (\w+) \| \d+ \| \*\*([\d.]+)\*\* \| [\d.]* \| ([\d.]+) \|", text, re.M)
    assert len(rows) == len(SPECS)
    for (kind, gpu, engine, fmt), spec in SPECS.items():
        same = [r for r in rows if r[:3] == (gpu, engine, fmt)]
        pair = (f"{100 * spec['scores']['mape_10us']:.1f}", f"{100 * spec['scores']['physics_mape_10us']:.1f}")
        assert pair in [r[3:] for r in same], (kind, gpu, engine, fmt)


def test_rows_of_a_gpu_without_a_fit_are_predicted(measured: dict[tuple[str, str, str, str], Cell]) -> None:
    """H100 rows as if of an H200 take the H100's parameters and a wider interval; of an MI300X, those of a transfer."""
    cell = measured["decode", "h100-sxm", "vllm", "bf16"]
    own = predict(cell)
    sister, far = (predict(replace(cell, gpu=name)) for name in ("h200", "mi300x"))
    np.testing.assert_array_equal(own.predicted, sister.predicted)
    assert np.all(sister.high >= own.high)
    assert np.all(far.predicted >= cell.bound)
    assert ("fitted" in own.origin, "same architecture" in sister.origin, "another" in far.origin) == (True,) * 3


def test_every_cell_can_be_predicted_as_another_gpu(measured: dict[tuple[str, str, str, str], Cell]) -> None:
    """No kind and format is without an answer on a GPU of an architecture that was never measured."""
    for cell in measured.values():
        found = predict(replace(cell, gpu="rtx-5090"))
        assert np.all(np.isfinite(found.predicted)), cell.name
        assert np.all(found.low <= found.predicted), cell.name
