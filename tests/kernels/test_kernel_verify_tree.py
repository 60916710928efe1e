"""Verification of trees walks as the reference does, greedy and sampled."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from numeric import assert_close
from verify_data import assert_nearly_all, small

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.speculative import sampling, tree, tree_sampled
from perfmodel.kernels.speculative.greedy import _choices
from perfmodel.kernels.speculative.tree import verify_tree_greedy, verify_tree_greedy_reference
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled, verify_tree_sampled_reference

SHAPES = {
    "chain": [-1, 0, 1, 2, 3],
    "star": [-1, 0, 0, 0, 0, 0],
    "bushy": [-1, 0, 0, 1, 1, 2, 3, 3, 6],
    "unused": [-1, 0, 0, -1, 2, -1, -1],
}


def depth_of(parents: list[int]) -> int:
    """Levels below the root."""

    def level(node: int) -> int:
        return 0 if node == 0 or parents[node] < 0 else 1 + level(parents[node])

    return max(level(node) for node in range(len(parents)))


def random_parents(nodes: int, seed: int) -> list[int]:
    """Each node below a random earlier one."""
    g = torch.Generator().manual_seed(seed)
    return [-1, *(int(torch.randint(0, i, (1,), generator=g)) for i in range(1, nodes))]


def problem(
    parents: list[int], requests: int, vocabulary: int, device: str, dtype: torch.dtype = torch.float32
) -> dict:
    """Logits, a draft that resembles them and children drawn from it; the arguments of sampled verification."""
    g = torch.Generator().manual_seed(len(parents) + vocabulary)
    nodes = len(parents)
    target = (torch.randn(requests, nodes, vocabulary, generator=g) * 2).to(dtype)
    draft = (target.float() + torch.randn(requests, nodes, vocabulary, generator=g) * 0.7).to(dtype)
    temperature = torch.rand(requests, generator=g) + 0.5
    q = torch.softmax(draft.float() / temperature[:, None, None], -1)
    tokens = torch.zeros(requests, nodes, dtype=torch.int32)
    for node in range(1, nodes):
        tokens[:, node] = torch.multinomial(q[:, max(parents[node], 0)], 1, generator=g)[:, 0]
    given: dict[str, Any] = {
        "target_logits": target,
        "draft_logits": draft,
        "node_tokens": tokens,
        "parents": torch.tensor(parents, dtype=torch.int32).expand(requests, nodes).contiguous(),
        "uniforms": torch.rand(requests, nodes, generator=g),
        "sample_uniforms": torch.rand(requests, generator=g),
        "temperature": temperature,
    }
    return {name: x.to(device) for name, x in given.items()} | {"depth": depth_of(parents)}


def greedy(given: dict) -> dict:
    """The arguments of greedy verification, with children that follow the argmax three times in four."""
    g = torch.Generator().manual_seed(0)
    choice = given["target_logits"].double().argmax(-1).cpu()
    parents = given["parents"].cpu().clamp_min(0).long()
    right = choice.gather(1, parents)
    wrong = torch.rand(right.shape, generator=g) < 0.25
    tokens = torch.where(wrong, (right + 1) % given["target_logits"].shape[2], right).int()
    names = ("target_logits", "parents", "depth")
    return {name: given[name] for name in names} | {"node_tokens": tokens.to(given["parents"].device)}


def assert_exact(function, reference, given: dict) -> torch.Tensor:
    """Tokens, path and counts are those of the reference, all was written and nothing beyond; the counts."""
    with guarded_allocations():
        found = function(**given, config=small())
    for ours, right in zip(found, reference(**given), strict=True):
        assert_close(ours, right)
    return found[2]


def assert_sampled(given: dict) -> torch.Tensor:
    return assert_exact(verify_tree_sampled, verify_tree_sampled_reference, given)


def assert_greedy(given: dict) -> torch.Tensor:
    return assert_exact(verify_tree_greedy, verify_tree_greedy_reference, given)


@pytest.mark.parametrize("shape", [*SHAPES, "random"])
def test_greedy(device: str, shape: str) -> None:
    """Chains, stars, bushy and random trees, unused nodes; the walk ends at a leaf or where no child is right."""
    parents = SHAPES.get(shape) or random_parents(20, 1)
    assert_greedy(greedy(problem(parents, 4, 100, device)))


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "chosen"])
@pytest.mark.parametrize("shape", [*SHAPES, "random"])
def test_sampled(device: str, shape: str, drawn: bool) -> None:
    """The same of sampling, with children drawn from the draft (rejected ones taken off p) or chosen without chance."""
    parents = SHAPES.get(shape) or random_parents(12, 4)
    given = problem(parents, 4, 70, device, torch.bfloat16 if shape == "star" else torch.float32)
    assert_sampled(given if drawn else given | {"draft_logits": None})


def test_a_smaller_depth_ends_the_walk(device: str) -> None:
    """A walk that could go on stops after `depth` drafts and samples there; untried children take nothing off."""
    given = problem(SHAPES["chain"], 3, 40, device)
    same = given | {"draft_logits": given["target_logits"].clone(), "depth": 2}
    assert assert_sampled(same).tolist() == [2, 2, 2]
    certain = same | {"draft_logits": None, "uniforms": torch.zeros_like(given["uniforms"])}
    assert assert_sampled(certain).tolist() == [2, 2, 2]
    tokens = given["target_logits"].argmax(-1).gather(1, given["parents"].clamp_min(0).long()).int()
    exact = {name: given[name] for name in ("target_logits", "parents")} | {"node_tokens": tokens, "depth": 3}
    assert assert_greedy(exact).tolist() == [3, 3, 3]


def test_a_token_offered_twice_counts_once(device: str) -> None:
    """Siblings with one token, chosen without chance: the second is passed over and the rest keeps its probability."""
    given = problem(SHAPES["star"], 4, 6, device)
    tokens = torch.tensor([0, 3, 3, 1, 3, 1], dtype=torch.int32, device=device).expand(4, 6).contiguous()
    assert_sampled(given | {"draft_logits": None, "node_tokens": tokens})


def test_tokens_outside_the_vocabulary_are_rejected(device: str) -> None:
    """They are read nowhere, and their siblings are tried as before."""
    given = problem(SHAPES["star"], 2, 40, device)
    tokens = given["node_tokens"].clone()
    tokens[:, 1], tokens[:, 2] = -1, 2_000_000_000
    assert_sampled(given | {"node_tokens": tokens})
    assert_sampled(given | {"node_tokens": tokens, "draft_logits": None})


def test_the_largest_tree(device: str) -> None:
    """Sixty-four nodes, random, greedy and sampled."""
    given = problem(random_parents(64, 9), 1, 30, device)
    assert_greedy(greedy(given))
    assert_sampled(given | {"draft_logits": None})


def test_the_shipped_configuration(device: str) -> None:
    """Without a configuration of its own the call takes the table's."""
    given = problem(SHAPES["star"], 1, 300, device)
    with assume("sm_100"):
        found = verify_tree_sampled(**given)
    assert all(torch.equal(a, b) for a, b in zip(found, verify_tree_sampled_reference(**given), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "chosen"])
def test_large_vocabularies(drawn: bool) -> None:
    """Trees of 48 nodes over 128256 tokens, with the shipped configuration."""
    given = problem(random_parents(48, 2), 16, 128256, "cuda", torch.bfloat16)
    walked = greedy(given)
    exact = zip(verify_tree_greedy(**walked), verify_tree_greedy_reference(**walked), strict=True)
    assert all(torch.equal(a, b) for a, b in exact)
    given = given if drawn else given | {"draft_logits": None}
    tokens, path, accepted = verify_tree_sampled(**given)
    right, nodes, count = verify_tree_sampled_reference(**given)
    assert torch.equal(path, nodes)
    assert_nearly_all(tokens, right, accepted, count)


def _forgets(p, q, coefficient):
    return p


def _twice(p, q, coefficient):
    return tl.maximum(p - 2 * coefficient * q, 0.0)


def _half_mass(target, draft, row, top, inverse, d_top, d_inverse, coefficient, scale, V, BLOCK_V: tl.constexpr):
    return 0.5 + 0 * coefficient


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("where", "name", "faulty"),
    [(tree_sampled, "_less", _forgets), (sampling, "_less", _twice), (tree_sampled, "_mass", _half_mass)],
    ids=["first rejection forgotten", "q taken off twice", "not normalised"],
)
def test_a_planted_fault_in_sampling_is_caught(monkeypatch: pytest.MonkeyPatch, where, name: str, faulty) -> None:
    """The comparison that the kernel passes fails once a step of it is wrong."""
    given = problem(SHAPES["star"], 12, 20, "cpu")
    given["uniforms"] = given["uniforms"] * 0.5 + 0.5  # many rejections
    monkeypatch.setattr(where, name, triton.jit(faulty))
    with pytest.raises(AssertionError, match="integers differ"):
        assert_sampled(given)


def _one_node_off(tops, places, row, live, SPLITS, BLOCK_S: tl.constexpr):
    return _choices(tops, places, row - 1, live & (row > 0), SPLITS, BLOCK_S)


@pytest.mark.interpreter
def test_a_wrong_parent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over choices one node off fails the comparison."""
    monkeypatch.setattr(tree, "_choices", triton.jit(_one_node_off))
    with pytest.raises(AssertionError, match="integers differ"):
        assert_greedy(greedy(problem(SHAPES["bushy"], 4, 30, "cpu")))


BAD = [
    ("target_logits", lambda x: x[0], r"target_logits has shape \(6, 20\), \(any, any, any\) is needed"),
    ("target_logits", lambda x: x.repeat(1, 20, 1), "the number of nodes is 120, 2 to 64 is supported"),
    ("node_tokens", lambda x: x.long(), "node_tokens is int64, int32 is needed"),
    ("parents", lambda x: x[:, :2], r"parents has shape \(2, 2\), \(2, 6\) is needed"),
    ("depth", lambda x: 6, "depth is 6, 1 to 5 is supported"),
    ("depth", lambda x: 0, "depth is 0, 1 to 5 is supported"),
    ("draft_logits", lambda x: x[:, 1:], r"draft_logits has shape \(2, 5, 20\), \(2, 6, 20\) is needed"),
    ("uniforms", lambda x: x.half(), "uniforms is float16, float32 is needed"),
    ("sample_uniforms", lambda x: x[:1], r"sample_uniforms has shape \(1,\), \(2\) is needed"),
    ("temperature", lambda x: x[None], r"temperature has shape \(1, 2\), \(2\) is needed"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD)
def test_bad_input_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = problem(SHAPES["star"], 2, 20, device)
    given[name] = spoil(given[name])
    with pytest.raises(KernelInputError, match=message):
        verify_tree_sampled(**given)
