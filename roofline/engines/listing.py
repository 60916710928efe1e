"""The engines that are described: versions read, and the share of the memory that each takes by default."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from perfmodel.roofline.engines.rules import ENGINES, EngineRules, engine_rules

#: Engine -> what its share is a share of.
OF = {"vllm": "device", "sglang": "free at start", "trtllm": "left after weights", "llamacpp": "takes what it needs"}


def rows() -> list[dict[str, Any]]:
    """One row an engine, ready for a table or JSON.

    >>> [(row["name"], row["share"]) for row in rows()][0]
    ('vllm', '0.92 (0.9 before 0.22.0)')
    """
    return [_row(name, engine_rules(name)) for name in ENGINES]


def _row(name: str, found: EngineRules) -> dict[str, Any]:
    shares = found.parameters.get("memory_fraction", ())
    rule = found.parameters.get("fraction_rule", ())
    if shares:
        share = f"{shares[-1].value}" + "".join(f" ({old.value} before {new.since})" for old, new in pairwise(shares))
    else:
        share = "by rule" if rule else "none"
    listed = shares or rule or found.parameters["fit_margin_bytes"]  # what llama.cpp keeps free
    return {
        "name": name, "title": found.title, "versions": f"{found.oldest} to {found.newest}", "share": share,
        "of": OF[name], "source": listed[-1].source, "aliases": list(ENGINES[name]), "notes": found.notes,
    }  # fmt: skip
