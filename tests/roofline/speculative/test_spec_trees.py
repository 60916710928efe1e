"""Trees of drafted tokens: masks, expected length, and the best tree against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative import formulas, sampling, trees
from perfmodel.roofline.speculative.trees import Tree


@st.composite
def any_tree(draw: st.DrawFn, most: int = 12) -> Tree:
    return Tree(tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, most)))))


@given(tree=any_tree())
def test_mask_is_the_ancestors(tree: Tree) -> None:
    """A node sees itself and what following its parents reaches, nothing else."""
    mask = tree.mask()
    for node in range(len(tree)):
        path, at = set(), node
        while at >= 0:
            path.add(at)
            at = tree.parents[at]
        assert set(np.flatnonzero(mask[node])) == path
        assert len(path) == tree.depths[node]


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 20))
def test_chain_is_the_chain_formula(alpha: float, gamma: int) -> None:
    """A tree that is one path yields what the formula of chains says."""
    assert trees.chain(gamma).expected_tokens([alpha] * gamma) == pytest.approx(formulas.expected_tokens(alpha, gamma))


def brute_force(ranks: list[float], nodes: int, depth: int) -> float:
    """Best expected length over every tree: each is a choice of parents, ranks by order of appearance."""
    best = 1.0
    for parents in itertools.product(*(range(-1, n) for n in range(nodes))):
        tree = Tree(parents)
        if tree.depth > depth or (len(tree) and tree.ranks.max() >= len(ranks)):
            continue
        best = max(best, tree.expected_tokens(tree.acceptances_by_rank(ranks)))
    return best


@settings(max_examples=40)
@given(
    ranks=st.lists(st.floats(0.01, 1), min_size=1, max_size=4).map(lambda p: [x / max(1.0, sum(p)) for x in p]),
    nodes=st.integers(0, 6),
    depth=st.integers(1, 8),
)
def test_dynamic_programme_equals_brute_force(ranks: list[float], nodes: int, depth: int) -> None:
    """No tree of up to six nodes is better than the one found, for any acceptances, sorted or not."""
    found = trees.best_tree(ranks, nodes, depth)
    value = found.expected_tokens(found.acceptances_by_rank(ranks))
    assert value == pytest.approx(brute_force(ranks, len(found), depth), abs=1e-12)
    assert found.depth <= depth


@pytest.mark.parametrize("nodes", [7, 8])
@pytest.mark.parametrize("ranks", [[0.6, 0.2, 0.1], [0.3, 0.5], [0.9, 0.05]])
def test_dynamic_programme_equals_brute_force_at_eight(ranks: list[float], nodes: int) -> None:
    """The same at seven and eight nodes, with acceptances that fall, rise and concentrate."""
    found = trees.best_tree(ranks, nodes)
    assert len(found) == nodes
    assert found.expected_tokens(found.acceptances_by_rank(ranks)) == pytest.approx(brute_force(ranks, nodes, nodes))


def test_best_tree_is_greedy_where_ranks_fall() -> None:
    """With falling acceptances the best tree holds the nodes of highest path value: 0.6, 0.36, 0.3, 0.216."""
    tree = trees.best_tree([0.6, 0.3], 4)
    values = tree.path_values(tree.acceptances_by_rank([0.6, 0.3]))
    assert sorted(values, reverse=True) == pytest.approx([0.6, 0.36, 0.3, 0.216])


def test_expected_length_against_monte_carlo() -> None:
    """The expected length of a tree is within 0.5 % of a million sampled rounds."""
    rng = np.random.default_rng(7)
    tree = trees.branching((3, 2, 2))
    p, q = rng.dirichlet(np.ones(16), 4), rng.dirichlet(np.ones(16), 3)
    ranks = np.zeros((3, 3))
    for depth, width in enumerate((3, 2, 2)):
        ranks[depth, :width] = sampling.sibling_acceptances(p[depth], q[depth], width)
    expected = tree.expected_tokens(tree.acceptances_by_rank(ranks))
    _, accepted = sampling.tree_rounds(tree, p, q, 10**6, rng)
    assert expected == pytest.approx(1 + accepted.mean(), rel=0.005)


def test_dynamic_tree() -> None:
    """By confidence: the surest nodes are kept, parents before children, and a sure path grows deep."""
    tree, given_parent = trees.dynamic_tree(lambda path: [0.9, 0.05] if not any(path) else [0.3, 0.3], 2, 4, 5)
    values = tree.path_values(given_parent)
    assert tree.depth == 4
    assert len(tree) == 5
    assert values.sum() == pytest.approx(0.9 + 0.81 + 0.729 + 0.6561 + 0.05)


@given(ranks=st.lists(st.floats(0.0, 0.25), min_size=4, max_size=4), nodes=st.integers(1, 24))
def test_a_node_more_never_hurts(ranks: list[float], nodes: int) -> None:
    """The best expected length grows with the budget."""
    one, two = (trees.best_tree(ranks, n) for n in (nodes, nodes + 1))
    assert (
        two.expected_tokens(two.acceptances_by_rank(ranks))
        >= one.expected_tokens(one.acceptances_by_rank(ranks)) - 1e-12
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tree((0,)), "node 0 has parent 0"),
        (lambda: Tree((-1, -2)), "node 1 has parent -2"),
        (lambda: Tree((-1, -1)).expected_tokens([0.7, 0.7]), "siblings sum to 1.4"),
        (lambda: Tree((-1,)).expected_tokens([0.7, 0.7]), "2 acceptances for a tree of 1 nodes"),
        (lambda: trees.best_tree([0.5], 5000), "0 to 1024"),
        (lambda: Tree((-1, -1)).acceptances_by_rank([0.5]), "acceptances are given for 1"),
    ],
)
def test_bad_trees(call: object, message: str) -> None:
    """What is no tree, or does not belong to it, is refused."""
    with pytest.raises(UsageError, match=message):
        call()  # type: ignore[operator]
