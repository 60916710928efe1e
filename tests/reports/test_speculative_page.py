"""docs/speculative.md says what the model computes."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "speculative.md"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/speculation_page.py as a module."""
    spec = importlib.util.spec_from_file_location("speculation_page", ROOT / "tools" / "speculation_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_computed(tool: ModuleType) -> None:
    """Every table between markers is what the tool writes now: the best draft lengths, the trend, MagicDec's times."""
    text = PAGE.read_text(encoding="utf-8")
    assert tool.filled(text) == text


def test_a_stale_table_is_found(tool: ModuleType) -> None:
    """A changed figure is put right, and a page without a table's place is refused."""
    text = PAGE.read_text(encoding="utf-8")
    figure = re.search(r"<!-- begin gamma -->.*?(\d\.\d\dx)", text, re.DOTALL)
    assert figure is not None
    stale = text[: figure.start(1)] + "9.99x" + text[figure.end(1) :]
    assert tool.filled(stale) == text
    with pytest.raises(ValueError, match="no place for the table gamma"):
        tool.filled(text.replace("begin gamma", "begin delta"))


def test_the_pictures_are_there() -> None:
    """Each picture that the page shows is a PNG beside it."""
    names = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(names) == 3
    for name in names:
        assert (PAGE.parent / name).read_bytes().startswith(b"\x89PNG")


def test_figures_in_the_prose() -> None:
    """What the prose says of EAGLE-3's tree: the gain of the 70B ends between batches of 16 and 32."""
    from perfmodel.roofline.speculative.evaluate import speculate

    gains = speculate("llama3-70b", "h100", tp=8, method="eagle-3", batch=[16, 32]).speedup[:, 0]
    assert gains[0] > 1 > gains[1]
