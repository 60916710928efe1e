"""Logits of NaN and +inf in verification: no token of no place, no draft accepted without probabilities."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from faulty import faulty
from numeric import assert_close
from verify_data import chain, small

from perfmodel.kernels.device import interpreted
from perfmodel.kernels.speculative import greedy
from perfmodel.kernels.speculative.chain import verify_chain, verify_chain_reference
from perfmodel.kernels.speculative.rows import logsumexp_rows
from perfmodel.kernels.speculative.tree import verify_tree_greedy, verify_tree_greedy_reference
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled, verify_tree_sampled_reference

pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
    pytest.mark.filterwarnings("ignore:All-NaN slice"),
]

NAN, INF = math.nan, math.inf
V = 150
PLACES = [(5,), (140,), (0, 70), (70, 71, 149)]
"""Tokens whose logits are spoiled: in one vocabulary block of 64 or another, in several; one of them or more."""

CASES = [(value, place, row) for value in (NAN, INF) for place in PLACES for row in range(3)]


def spoiled(logits: torch.Tensor) -> torch.Tensor:
    """A request for each case, with a row that holds what it says; the last holds nothing but NaN in all rows."""
    logits = logits.clone()
    for b, (value, place, row) in enumerate(CASES):
        logits[b, row, list(place)] = value
    logits[-1] = NAN
    return logits


REQUESTS = len(CASES) + 1


def tree(device: str) -> dict[str, Any]:
    """A chain of three nodes with a second child at the root, for every case."""
    g = torch.Generator().manual_seed(3)
    target = spoiled(torch.randn(REQUESTS, 4, V, generator=g))
    tokens = torch.randint(0, V, (REQUESTS, 4), generator=g).int()
    tokens[:, 1:3] = torch.where(target[:, :2].isnan().any(-1), -1, target[:, :2].argmax(-1)).int()
    parents = torch.tensor([[-1, 0, 1, 0]]).repeat(REQUESTS, 1).int()
    return {"target_logits": target.to(device), "node_tokens": tokens.to(device), "parents": parents.to(device),
            "depth": 2}  # fmt: skip


def drawn(device: str) -> dict[str, torch.Tensor]:
    """Chances of which nearly all accept."""
    chance = {"uniforms": torch.full((REQUESTS, 4), 0.01), "sample_uniforms": torch.rand(REQUESTS),
              "temperature": torch.ones(REQUESTS)}  # fmt: skip
    return {name: x.to(device) for name, x in chance.items()}


def same(found: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> None:
    for x, y in zip(found, right, strict=True):
        assert_close(x, y)
    assert int(found[0].max()) < V, "a token outside the vocabulary"


def greedy_is_right(module: ModuleType, device: str) -> None:
    logits = spoiled(torch.randn(REQUESTS, 3, V, generator=torch.Generator().manual_seed(1)))
    tokens = torch.where(logits.isnan().any(-1), -1, logits.argmax(-1))[:, :2].int()
    given = [x.to(device) for x in (logits, tokens, torch.full((REQUESTS,), 2, dtype=torch.int32))]
    found, accepted = module.verify_greedy(*given, config=small())
    same((found, accepted), greedy.verify_greedy_reference(*given))
    for b, (value, place, row) in enumerate(CASES):
        assert int(accepted[b]) == (row if math.isnan(value) else 2)
        assert int(found[b, row]) == (-1 if math.isnan(value) else place[0])
    assert found[-1].tolist() == [-1, -1, -1]


def test_greedy_chain(device: str) -> None:
    """A row with NaN ends the chain with -1, although the draft there is -1; the first +inf is taken."""
    greedy_is_right(greedy, device)


FAULTS = [
    ("return tl.where(broken, -1, first)", "return first"),
    ("(token == choice) & (choice >= 0)", "(token == choice)"),
]


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="the copy is made for the interpreter")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[1])
def test_rows_without_a_choice_taken_for_others_are_caught(fault: tuple[str, str], tmp_path: Path) -> None:
    """A copy that passes the token of a row with NaN on, or accepts a draft of -1 there, fails the same comparison."""
    with pytest.raises(AssertionError):
        greedy_is_right(faulty(greedy, fault, tmp_path), "cpu")


def test_greedy_tree(device: str) -> None:
    """The walk ends at a node whose row has NaN, with -1, whatever its children carry; the first +inf is taken."""
    given = tree(device)
    found = verify_tree_greedy(**given, config=small())
    same(found, verify_tree_greedy_reference(**given))
    assert found[0][-1].tolist() == [-1, -1, -1]
    for b, (value, _, row) in enumerate(CASES):
        assert int(found[2][b]) == (row if math.isnan(value) else 2)


@pytest.mark.parametrize("which", ["target_logits", "draft_logits", "no draft"])
def test_sampled_chain(device: str, which: str) -> None:
    """NaN, or +inf twice, in a row of the target or of the draft: not accepted, and -1. A single +inf is certain."""
    whole = chain(REQUESTS, 3, V)
    given = (whole.without_draft() if which == "no draft" else whole).arguments()
    name = "target_logits" if which == "no draft" else which
    given |= {name: spoiled(given[name]), "draft_lengths": torch.full((REQUESTS,), 3).int()}
    given["uniforms"] = torch.zeros(REQUESTS, 3)
    given["draft_tokens"][:, :] = torch.tensor([5, 7, 9])
    given = {name: x if x is None else x.to(device) for name, x in given.items()}
    found, accepted = verify_chain(**given, config=small())
    same((found, accepted), verify_chain_reference(**given))
    for b, (value, place, row) in enumerate(CASES):
        if math.isnan(value) or len(place) > 1:
            assert (int(accepted[b]), int(found[b, row])) == (row, -1)
        elif name == "target_logits" and 5 not in place:
            assert int(found[b, row]) == place[0]
    assert found[-1].tolist() == [-1, -1, -1, -1]


@pytest.mark.parametrize("which", ["target_logits", "draft_logits", "no draft"])
def test_sampled_tree(device: str, which: str) -> None:
    """The same in a tree: no child of a node without probabilities is accepted, and its token is -1."""
    given = tree("cpu") | drawn("cpu")
    clean = torch.randn(REQUESTS, 4, V, generator=torch.Generator().manual_seed(5))
    given["draft_logits"] = None if which == "no draft" else clean + torch.randn(REQUESTS, 4, V) / 10
    if which == "draft_logits":
        given |= {"target_logits": clean, "draft_logits": spoiled(given["draft_logits"])}
    given["uniforms"].zero_()
    given["node_tokens"][:, 1:] = torch.tensor([7, 9, 11])
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    found = verify_tree_sampled(**given, config=small())
    same(found, verify_tree_sampled_reference(**given))
    for b, (value, place, row) in enumerate(CASES):
        if (math.isnan(value) or len(place) > 1) and (row < 2 or which != "draft_logits"):
            assert (int(found[2][b]), int(found[0][b, row])) == (row, -1)
    assert found[0][-1].tolist() == [-1, -1, -1]


def test_logsumexp(device: str) -> None:
    """NaN gives NaN, +inf gives +inf however many there are, NaN beside +inf NaN; rows of -inf give -inf."""
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(2))
    logits[0, 100], logits[1, 100], logits[2, ::50], logits[3] = NAN, INF, INF, -INF
    logits[4, 3], logits[4, 100] = NAN, INF
    found = logsumexp_rows(logits.to(device), torch.ones(6, device=device), small())
    right = torch.tensor([NAN, INF, INF, -INF, NAN, float(torch.logsumexp(logits[5], 0))])
    torch.testing.assert_close(found.cpu(), right, equal_nan=True)
