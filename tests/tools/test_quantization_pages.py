"""The pages on quantization are what their tools write, and the recorded errors are what the quantizers still lose."""

import importlib.util
from pathlib import Path

import pytest

from perfmodel.base.yamlio import load_yaml
from perfmodel.validate.quantizer_record import FILE, gptq_ratio, record

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_speeds_is_up_to_date(monkeypatch) -> None:
    """docs/quantization-speed.md is what the tool writes now."""
    page = (ROOT / "docs/quantization-speed.md").read_text(encoding="utf-8")
    assert tool("quantization_speed", monkeypatch).page() == page


def test_the_page_of_errors_has_the_recorded_figures(monkeypatch) -> None:
    """docs/quantization-error.md shows the recorded measurement."""
    pytest.importorskip("torch")
    page = (ROOT / "docs/quantization-error.md").read_text(encoding="utf-8")
    assert tool("quantizers", monkeypatch).filled(page, load_yaml(FILE)) == page


def test_the_record_is_whole() -> None:
    """Twelve layers in 4 and in 3 bits, all better than rounding by GPTQ; theory within 5 % with the spread."""
    found = record()
    assert len(found.of(4)) == len(found.of(3)) == 12
    for bits in (4, 3):
        assert gptq_ratio(bits, worst=True) < 1
        assert gptq_ratio(bits, held_out=True) < 0.6
    assert all(abs(row.corrected - 1) < 0.02 for row in found.noise)
    assert all(abs(row.plain - 1) < 0.06 for row in found.noise if "group" in row.grid)
