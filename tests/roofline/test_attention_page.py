"""The page about attention traffic says what the code computes."""

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "attention-io.md"


def test_page_prints_what_it_says():
    """Every example on docs/attention-io.md, the tables of traffic included, gives the output printed under it."""
    results = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert results.attempted > 25
    assert results.failed == 0
