"""Tables of operator times with predictions beside them: every row answered or skipped with a reason."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.validate.fit_data import TABLES
from perfmodel.validate.fit_predict import predict_frame, table_kind

FOLDER = Path(__file__).parent / "data" / "measured"
FRAMES = {kind: pd.read_csv(FOLDER / f"{name}.gz") for kind, name in TABLES.items()}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_row_of_a_table_is_predicted(kind: str) -> None:
    """The kind is told by the header; predictions keep the order and lie between bound and interval's end."""
    frame = FRAMES[kind].sample(500, random_state=1, replace=len(FRAMES[kind]) < 500)
    assert table_kind(frame.columns) == kind
    found = predict_frame(frame)
    assert (found["latency_us"].to_numpy() == frame["latency_us"].to_numpy()).all()
    assert (found["skipped"] == "").all()
    assert (found["predicted_us"] >= found["bound_us"] * (1 - 1e-12)).all()
    assert (found["low_us"] <= found["predicted_us"]).all()
    assert (found["high_us"] >= found["predicted_us"]).all()
    ratio = found["predicted_us"] / found["latency_us"]
    assert abs(np.log(ratio)).median() < 0.12


def test_the_order_of_rows_does_not_matter() -> None:
    """A shuffled table has the same predictions, row by row."""
    frame = FRAMES["decode"].iloc[:400]
    order = np.random.default_rng(0).permutation(400)
    first, second = predict_frame(frame), predict_frame(frame.iloc[order])
    np.testing.assert_allclose(second["predicted_us"], first["predicted_us"].to_numpy()[order], rtol=1e-12)


def test_rows_that_cannot_be_predicted_say_why() -> None:
    """An unknown GPU, an unknown format, a hole and a format that the GPU lacks are skipped, each with its reason."""
    frame = FRAMES["gemm"].iloc[:5].copy().astype({"m": object})
    frame.loc[0, "gpu"] = "tea_kettle"
    frame.loc[1, "dtype"] = "int3"
    frame.loc[2, "m"] = "many"
    found = predict_frame(frame)
    assert found["skipped"].tolist() == [
        "the GPU tea_kettle is not known", "the number format int3 is not known",
        "a number is missing or not above zero", "", "",
    ]  # fmt: skip
    assert found["predicted_us"].isna().tolist() == [True, True, True, False, False]
    a100 = FRAMES["gemm"][FRAMES["gemm"]["gpu"] == "a100_sxm"].iloc[:2].assign(dtype="nvfp4")
    assert set(predict_frame(a100)["skipped"]) == {"a100-sxm does not compute in fp4"}


def test_another_header_is_refused() -> None:
    """Columns of no operator table raise, and are named."""
    with pytest.raises(UsageError, match="the columns a, b are those of no table"):
        predict_frame(pd.DataFrame({"a": [1], "b": [2]}))


def test_an_engine_that_was_not_measured_is_answered_by_the_nearest() -> None:
    """Rows of an unknown engine take another engine's parameters on the same GPU."""
    found = predict_frame(FRAMES["decode"].iloc[:20].assign(framework="LMDEPLOY", gpu="h200_sxm"))
    assert (found["skipped"] == "").all()
    assert found["origin"].str.contains("same architecture").all()
