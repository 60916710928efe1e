"""Rows for tables, and the sources of a spec's numbers."""

import json
import re

import pytest

from perfmodel.base.yamlio import read_text
from perfmodel.hwspecs.listing import rows, sources, system_rows
from perfmodel.hwspecs.load import GPUS, SYSTEMS, gpu, system


def test_one_row_for_each_gpu() -> None:
    """Rows hold raw SI numbers that JSON can carry, and the ridge is their quotient."""
    found = rows()
    assert [row["name"] for row in found] == GPUS.names
    assert json.loads(json.dumps(found)) == found
    for row in found:
        assert row["ridge"] == pytest.approx(row["peak_flops"] / row["bandwidth"])
    h100 = next(row for row in found if row["name"] == "h100-sxm")
    assert (h100["peak_flops"], h100["bandwidth"], h100["tdp"]) == (989.4e12, 3.35e12, 700.0)
    assert h100["usable"] / 2**30 == pytest.approx(79.19, abs=0.005)


def test_one_row_for_each_system() -> None:
    """A link that a system does not have is None, not left out."""
    found = system_rows()
    assert [row["name"] for row in found] == SYSTEMS.names
    assert len({tuple(row) for row in found}) == 1
    assert json.loads(json.dumps(found)) == found
    assert next(row for row in found if row["name"] == "pcie-gen4-8")["scale_out_bandwidth"] is None


@pytest.mark.parametrize("name", [*GPUS.names, *SYSTEMS.names])
def test_sources_lists_every_number(name: str) -> None:
    """As many numbers as the file writes, alternatives aside; each with the text it was written as."""
    catalogue, spec = (GPUS, gpu(name)) if name in GPUS.names else (SYSTEMS, system(name))
    text = read_text(catalogue.folder / f"{name}.yaml")
    found = sources(spec)
    others = sum(len(number.alternatives) for number in found)
    assert len(found) + others == len(re.findall(r"\bvalue: ", text))
    for number in found:
        assert re.search(rf"value: {re.escape(number.text)}\b|value: {re.escape(number.text)}[,}}\n]", text), number
    assert len({number.path for number in found}) == len(found)
