"""Quantizing a file: rows in blocks, calibration inputs, what is left out, and files that are wrong."""

import json
import struct
import tracemalloc

import pytest
import torch
from safetensors.torch import save_file

from perfmodel.base.errors import SpecError, UnknownName, UsageError
from perfmodel.validate.quantizers import files, measure
from perfmodel.validate.quantizers.files import stored
from perfmodel.validate.quantizers.formats import round_to
from perfmodel.validate.quantizers.gptq import gptq, hessian
from perfmodel.validate.quantizers.grid import Grid
from perfmodel.validate.quantizers.theory import output_error


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def weights(tmp_path):
    """Two matrices in two types, a stack of experts, and what is no matrix."""
    tensors = {
        "layers.0.up.weight": draw(0, 384, 256),
        "layers.0.down.weight": draw(1, 256, 384, dtype=torch.bfloat16),
        "layers.0.experts": draw(2, 4, 64, 128, dtype=torch.float16),
        "layers.0.norm.weight": draw(3, 256),
        "embed_tokens.weight": draw(4, 100, 256),
        "packed.qweight": torch.ones(8, 8, dtype=torch.int32),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return path, tensors


def test_matrices_are_found_and_read(weights) -> None:
    """Every matrix comes back bit by bit; vectors, tables and packed integers are counted with the reason."""
    path, tensors = weights
    found = stored(path)
    assert {m.name for m in found.matrices} == {"layers.0.up.weight", "layers.0.down.weight", "layers.0.experts"}
    for m in found.matrices:
        assert torch.equal(m.read(0, m.rows), tensors[m.name].to(torch.float32).reshape(m.rows, m.columns))
        assert torch.equal(m.read(3, 9), m.read(0, m.rows)[3:9])
    assert sum(found.skipped.values()) == 3
    assert any("I32" in reason for reason in found.skipped)
    folder = stored(path.parent)
    assert [m.name for m in folder.matrices] == [m.name for m in found.matrices]


@pytest.mark.parametrize("fmt", ["int4", "w8a16", "fp8", "fp8_tensor", "nvfp4", "mxfp4", "nf4"])
def test_blocks_of_rows_give_what_the_whole_gives(weights, monkeypatch, fmt) -> None:
    """The error of a matrix does not depend on how many rows are worked on at a time."""
    path, tensors = weights
    monkeypatch.setattr(files, "BLOCK_BYTES", 1)  # 128 rows
    line = next(m for m in measure.measure(path, [fmt]).lines if m.name == "layers.0.up.weight")
    w = tensors["layers.0.up.weight"]
    r = round_to(w, fmt)
    noise = float(((w - r.values) ** 2).sum())
    assert line.error == pytest.approx(noise / float((w**2).sum()), rel=1e-5)
    assert line.plain == pytest.approx(float(r.variance.expand_as(w).sum()) / noise, rel=1e-5)
    assert line.expected == pytest.approx(float(r.expected.expand_as(w).sum()) / noise, rel=1e-5)


def test_memory_is_bounded(tmp_path, monkeypatch) -> None:
    """A matrix of 32 MB is read in blocks of 256 kB: Python never holds more than a few of them."""
    path = tmp_path / "big.safetensors"
    save_file({"w.weight": torch.ones(16384, 512)}, path)
    monkeypatch.setattr(files, "BLOCK_BYTES", 256 * 1024)
    tracemalloc.start()
    measure.measure(path, ["int4"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_progress_is_told(weights) -> None:
    """Weights done, of how many, and which matrix comes next; at the end all are done."""
    path, _ = weights
    told = []
    measure.measure(path, ["int4"], progress=lambda *args: told.append(args))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (told[0][1], told[0][1], "")
    assert {name for _, _, name in told[:-1]} == {m.name for m in stored(path).matrices}


@pytest.fixture
def activations(tmp_path):
    """Inputs of one matrix, under its name without .weight, in three dimensions."""
    x = draw(7, 4, 100, 256) @ draw(8, 256, 256)
    path = tmp_path / "inputs.safetensors"
    save_file({"layers.0.up": x}, path)
    return path, x.reshape(400, 256)


def test_inputs_give_output_errors_and_methods(weights, activations) -> None:
    """Rounding, GPTQ and AWQ on the same calibration inputs, each judged on the quarter that was held out too."""
    path, tensors = weights
    inputs, x = activations
    found = measure.measure(path, ["gptq3_g128", "fp8"], inputs)
    lines = {(m.format, m.method): m for m in found.lines if m.name == "layers.0.up.weight"}
    assert set(lines) == {("gptq3_g128", m) for m in measure.METHODS} | {("fp8", "round to nearest")}
    w = tensors["layers.0.up.weight"]
    q = gptq(w, hessian(x[:300]), Grid(3, False, 128)).values()
    line = lines["gptq3_g128", "GPTQ"]
    assert line.output == pytest.approx(output_error(w, q, x[:300]), rel=1e-4)
    assert line.held_out == pytest.approx(output_error(w, q, x[300:]), rel=1e-4)
    assert line.output < lines["gptq3_g128", "round to nearest"].output
    assert 0.01 < line.salience < 1
    assert found.skipped["matrices without calibration inputs: rounded only"] == 2
    assert all(m.output is None for m in found.lines if m.name != "layers.0.up.weight")


def test_groups_that_do_not_divide_are_left_out(tmp_path) -> None:
    """A matrix whose inputs no whole groups cover is counted, and the others are measured."""
    path = tmp_path / "odd.safetensors"
    save_file({"a.weight": draw(0, 16, 100), "b.weight": draw(1, 16, 256)}, path)
    found = measure.measure(path, ["int4"])
    assert [m.name for m in found.lines] == ["b.weight"]
    assert found.skipped == {"int4: a group of 128 does not divide 100 inputs; choose a divisor": 1}


def test_a_matrix_of_zeros_has_no_error(tmp_path) -> None:
    """Nothing is divided by 0, and JSON has no infinity."""
    path = tmp_path / "zero.safetensors"
    save_file({"a.weight": torch.zeros(128, 128)}, path)
    line = measure.measure(path, ["int4"]).lines[0]
    assert (line.error, line.plain, line.to_dict()["sqnr_db"]) == (0.0, None, None)


def test_mean_of_a_format(weights) -> None:
    """The mean error over the matrices; none for a format that was not measured."""
    path, _ = weights
    found = measure.measure(path, ["int4"])
    assert found.mean("int4") == pytest.approx(sum(m.error for m in found.lines) / 3)
    assert found.mean("fp8") is None


def test_bad_formats(weights) -> None:
    """None, too many, unknown ones and those without a quantizer are refused before the file is read."""
    path, _ = weights
    for formats, error, message in (
        ([], UsageError, "0 formats"),
        (["int4"] * 17, UsageError, "17 formats"),
        (["int5x"], UnknownName, "unknown weight format 'int5x'"),
        (["q4_k"], UsageError, "q4_k has no quantizer here"),
    ):
        with pytest.raises(error, match=message):
            measure.measure(path, formats)


def header(tensors: dict, data: bytes = b"") -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (struct.pack("<Q", 2**62) + b"{}", "a header of"),
        (struct.pack("<Q", 50) + b"{}", "cut off"),
        (header({"w": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}), "larger than any file"),
        (header({"w": {"dtype": "F32", "shape": [256, 256], "data_offsets": [0, 2**18]}}, bytes(100)), "cut off"),
        (header({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 60]}}, bytes(60)), "needs 64"),
    ],
    ids=["empty", "huge header", "cut header", "huge shape", "cut data", "wrong size"],
)
def test_hostile_files_are_refused_by_their_headers(tmp_path, content, message) -> None:
    """Truncated or lying files are refused, and nothing of the size that they claim is read."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(SpecError, match=message):
        measure.measure(path, ["int4"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_values_that_are_not_numbers_are_refused(tmp_path) -> None:
    """A NaN in the weights is named, not averaged."""
    w = draw(0, 128, 128)
    w[5, 5] = float("nan")
    path = tmp_path / "nan.safetensors"
    save_file({"a.weight": w}, path)
    with pytest.raises(SpecError, match=r"a\.weight: has values that are not finite"):
        measure.measure(path, ["int4"])


def test_inputs_must_fit_the_matrix(weights, tmp_path) -> None:
    """Inputs of another width, or too few of them, are refused with the numbers."""
    path, _ = weights
    for x, message in (
        (draw(0, 50, 100), "rows of 100; layers.0.up.weight takes 256"),
        (draw(0, 3, 256), "has 3 rows"),
    ):
        inputs = tmp_path / "x.safetensors"
        save_file({"layers.0.up.weight": x}, inputs)
        with pytest.raises(SpecError, match=message):
            measure.measure(path, ["int4"], inputs)


def test_a_file_without_matrices(tmp_path) -> None:
    """It says what the file has instead."""
    path = tmp_path / "norms.safetensors"
    save_file({"norm.weight": draw(0, 64)}, path)
    with pytest.raises(UsageError, match="no matrix to quantize was found: 1 vectors"):
        measure.measure(path, ["int4"])
