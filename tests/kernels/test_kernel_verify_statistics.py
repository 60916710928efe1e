"""What sampled verification emits is distributed as the target's own samples, and faults that bend that are seen."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from verify_data import P, Q, misfit, p_value, repeated, small

from perfmodel.kernels.speculative import chain as chain_module
from perfmodel.kernels.speculative.chain import verify_chain, verify_chain_reference
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled, verify_tree_sampled_reference

LIKELY, ABSURD = 1e-3, 1e-6
"""A right sampler fails by chance once in a thousand seeds; a wrong one must be far off."""

MANY = 100_000
FEW = {"cpu": 40, "cuda": 20_000}


def test_the_reference_is_distributed_as_the_target() -> None:
    """A hundred thousand chains: every place that is reached follows its P, and alpha = sum(min(p, q)) are accepted."""
    tokens, accepted = verify_chain_reference(**repeated(MANY).arguments())
    assert misfit(tokens, accepted) > LIKELY
    alpha = sum(map(min, P[0], Q[0]))
    assert (accepted > 0).double().mean().item() == pytest.approx(alpha, abs=4 * (alpha * (1 - alpha) / MANY) ** 0.5)


def test_the_reference_with_drafts_chosen_without_chance() -> None:
    """A draft that always proposes one token is accepted with that token's probability, and bends nothing."""
    given = repeated(MANY)
    fixed = replace(given, draft_tokens=torch.ones_like(given.draft_tokens), draft_logits=None)
    tokens, accepted = verify_chain_reference(**fixed.arguments())
    assert misfit(tokens, accepted) > LIKELY
    assert (accepted > 0).double().mean().item() == pytest.approx(P[0][1], abs=0.01)


def test_rows_one_off_are_seen_in_the_reference() -> None:
    """Logits shifted by one place against the drafts give a distribution that the test refuses."""
    given = repeated(MANY)
    shifted = replace(given, target_logits=given.target_logits.roll(1, dims=1))
    assert misfit(*verify_chain_reference(**shifted.arguments())) < ABSURD


def test_the_kernel_is_distributed_as_the_target(device: str) -> None:
    """The same of the kernel, with as many chains as the interpreter has time for."""
    given = repeated(FEW[device], device, drafts=1 if device == "cpu" else 2)
    assert misfit(*verify_chain(**given.arguments(), config=small(4))) > LIKELY


def _inverted(p, q, uniform):
    return uniform * p < q


def _row_beside(rows, moments, request, target_row, draft_row, top, inverse, draft_top, draft_inverse, coefficient):
    """Sample from the other of two rows."""
    tl.store(rows + 2 * request, target_row ^ 1)
    tl.store(rows + 2 * request + 1, draft_row)
    tl.store(moments + 5 * request, top)
    tl.store(moments + 5 * request + 1, inverse)
    tl.store(moments + 5 * request + 2, draft_top)
    tl.store(moments + 5 * request + 3, draft_inverse)
    tl.store(moments + 5 * request + 4, coefficient)


@pytest.mark.interpreter
@pytest.mark.parametrize(("name", "faulty"), [("_keeps", _inverted), ("_write_plan", _row_beside)])
def test_a_planted_fault_bends_the_distribution(monkeypatch: pytest.MonkeyPatch, name: str, faulty) -> None:
    """An inverted ratio, and a recovered or bonus token from the row beside, fail the test that the kernel passes."""
    monkeypatch.setattr(chain_module, name, triton.jit(faulty))
    given = repeated(FEW["cpu"], drafts=1)
    assert misfit(*verify_chain(**given.arguments(), config=small(4))) < ABSURD


def tree(requests: int, device: str = "cpu", *, chosen: bool = False, seed: int = 2) -> dict:
    """A root with two children, drawn from Q[0] or the tokens 3 and 0; each node's row has a P of its own."""
    g = torch.Generator().manual_seed(seed)
    p, q = torch.tensor(P), torch.tensor([Q[0]] * 3)
    drawn = torch.multinomial(q[0], 2 * requests, replacement=True, generator=g).view(requests, 2)
    tokens = torch.tensor([3, 0]).expand(requests, 2) if chosen else drawn
    draft = None if chosen else q.log().expand(requests, -1, -1).contiguous().to(device)
    parents = torch.tensor([-1, 0, 0], dtype=torch.int32).expand(requests, 3).contiguous()
    return {
        "target_logits": p.log().expand(requests, -1, -1).contiguous().to(device),
        "draft_logits": draft,
        "node_tokens": torch.nn.functional.pad(tokens, (1, 0)).int().to(device),
        "parents": parents.to(device),
        "depth": 1,
        "uniforms": torch.rand(requests, 3, generator=g).to(device),
        "sample_uniforms": torch.rand(requests, generator=g).to(device),
        "temperature": torch.ones(requests, device=device),
    }


def tree_misfit(tokens: torch.Tensor, path: torch.Tensor, accepted: torch.Tensor) -> float:
    """Smallest p-value of the first token and, by the node that was accepted, of the second."""
    seconds = [p_value(tokens[path[:, 1] == node, 1], P[node]) for node in (1, 2)]
    return min(p_value(tokens[:, 0], P[0]), *seconds)


@pytest.mark.parametrize("chosen", [False, True], ids=["drawn", "chosen"])
def test_trees_of_the_reference(chosen: bool) -> None:
    """Two tries at the root, independent or of fixed tokens, leave the target's distribution as it is."""
    assert tree_misfit(*verify_tree_sampled_reference(**tree(3000, chosen=chosen))) > LIKELY


@pytest.mark.gpu
@pytest.mark.parametrize("chosen", [False, True], ids=["drawn", "chosen"])
def test_trees_of_the_kernel(chosen: bool) -> None:
    """The same of the kernel, which the interpreter is too slow for; there it equals the reference case by case."""
    given = tree(FEW["cuda"], "cuda", chosen=chosen)
    assert tree_misfit(*verify_tree_sampled(**given)) > LIKELY


def test_a_second_try_that_forgets_the_first_is_seen() -> None:
    """Accepting the second child against p and not against what the first rejection left bends the distribution."""
    given = tree(3000)
    tokens, path, _ = verify_tree_sampled_reference(**given)
    second = given["node_tokens"][:, 2].long()
    ratio = torch.tensor(P[0])[second] / torch.tensor(Q[0])[second]
    wrong = (path[:, 1] != 1) & (given["uniforms"][:, 2] < ratio)
    first = torch.where(wrong, given["node_tokens"][:, 2], tokens[:, 0])
    assert p_value(first, P[0]) < ABSURD
