"""Tree attention against its float64 reference: chains, stars, random trees, masks, planted faults, bad input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import triton
import triton.language as tl
from allocations import guarded_allocations
from decode_data import BF16, FP8, FP8_TOLERANCE, Problem, blocks, problem
from hypothesis import given as given_by
from hypothesis import strategies as st
from numeric import assert_close

from perfmodel.kernels.attention import paged
from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.tree import ancestor_masks, tree_attention, tree_reference
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume, interpreted

CHAIN = (-1, 0, 1, 2, 3, 4)
STAR = (-1, 0, 0, 0, 0, 0)
FOREST = (-1, -1, 0, 1, 1, 3)
BINARY = (-1, 0, 0, 1, 1, 2)


def masks_of(device: str, *parents: Sequence[int]) -> torch.Tensor:
    return ancestor_masks(torch.tensor(parents, dtype=torch.int32, device=device))


def random_tree(nodes: int, seed: int) -> list[int]:
    """Each node after one drawn from those before it."""
    source = torch.Generator().manual_seed(seed)
    return [int(torch.randint(-1, i, (), generator=source)) if i else -1 for i in range(nodes)]


def tree_is_right(
    given: Problem, ancestors: torch.Tensor, *, tolerance: float | None = None, **options: object
) -> None:
    """Compare with the reference: output, log-sum-exp, nothing unwritten, nothing written outside."""
    with assume("sm_90", sm_count=4), guarded_allocations():
        out, lse = tree_attention(given.q, given.cache, ancestors, **options)  # type: ignore[arg-type]
    scores = {k: v for k, v in options.items() if k in ("scale", "softcap", "sinks")}
    right, mass = tree_reference(given.q, given.cache, ancestors, **scores)  # type: ignore[arg-type]
    theirs, _ = tree_reference(given.q, given.cache, ancestors, **scores, dtype=given.q.dtype)  # type: ignore[arg-type]
    assert_close(out, right, torch_result=theirs, tolerance=tolerance)
    assert_close(lse, mass)


@pytest.mark.parametrize(("page", "splits"), [(16, 3), (64, 1)])
def test_each_node_sees_the_prefix_and_its_ancestors(device: str, page: int, splits: int) -> None:
    """A different tree in each sequence, prefixes of 0, 1, 58 and 194 tokens, trees across borders of pages."""
    given = problem(device, (6, 7, 64, 200), q_len=6, page=page)
    ancestors = masks_of(device, CHAIN, STAR, FOREST, BINARY)
    tree_is_right(given, ancestors, splits=splits, config=blocks(32))


@pytest.mark.parametrize("splits", [1, 2])
def test_a_chain_is_causal_decode(device: str, splits: int) -> None:
    """For a chain the result is, bit for bit, that of decode attention with as many new tokens."""
    given = problem(device, (20, 100), q_len=6)
    ancestors = masks_of(device, CHAIN, CHAIN)
    tree = tree_attention(given.q, given.cache, ancestors, splits=splits, config=blocks(32))
    causal = paged_decode(given.q, given.cache, splits=splits, config=blocks(32))
    assert torch.equal(tree[0], causal[0])
    assert torch.equal(tree[1], causal[1])


def test_a_tree_of_64_nodes_uses_every_bit(device: str) -> None:
    """The last node's bit is the sign of its mask; 64 nodes are several row blocks and key blocks."""
    given = problem(device, (100, 64), q_len=64, group=1)
    ancestors = masks_of(device, random_tree(64, 5), list(range(-1, 63)))
    assert bool((ancestors[:, 63] < 0).all())
    tree_is_right(given, ancestors, config=blocks(32))


def test_one_node_is_one_token(device: str) -> None:
    """A tree of one node is plain decoding."""
    given = problem(device, (40,))
    tree_is_right(given, masks_of(device, [-1]), config=blocks())


def test_padding_nodes_do_not_matter(device: str) -> None:
    """Nodes that nothing descends from change no other node's result, whatever their keys hold."""
    given = problem(device, (30,), q_len=6)
    ancestors = masks_of(device, BINARY)
    out, _ = tree_attention(given.q, given.cache, ancestors, config=blocks(32))
    last = given.cache.table[0, 1].item()
    given.cache.k[last, 13] = 99.0
    given.cache.v[last, 13] = 99.0
    again, _ = tree_attention(given.q, given.cache, ancestors, config=blocks(32))
    assert torch.equal(out[:, :5], again[:, :5])
    assert not torch.equal(out[:, 5], again[:, 5])


def test_sequences_of_no_length_and_empty_masks_are_zero(device: str) -> None:
    """An empty sequence, and a node that sees nothing at all, give output 0 and lse -inf."""
    given = problem(device, (0, 6), q_len=6)
    ancestors = masks_of(device, CHAIN, CHAIN)
    ancestors[1, 2] = 0
    tree_is_right(given, ancestors, splits=2, config=blocks(32))
    out, lse = tree_attention(given.q, given.cache, ancestors, config=blocks(32))
    assert bool((out[0] == 0).all())
    assert bool(torch.isneginf(lse[0]).all())
    assert bool((out[1, 2] == 0).all())
    assert bool(torch.isneginf(lse[1, 2]).all())


def test_fp8_sinks_and_softcap(device: str) -> None:
    """What decode attention takes, trees take."""
    given = problem(device, (50,), q_len=6, kv_heads=2, group=2, kv=FP8)
    sinks = torch.tensor([0.0, 1.0, 2.0, 3.0], device=device)
    ancestors = masks_of(device, FOREST)
    tree_is_right(given, ancestors, sinks=sinks, softcap=3.0, splits=2, config=blocks(), tolerance=FP8_TOLERANCE)


def test_the_table_has_a_configuration(device: str) -> None:
    """Without `config` and `splits`, on a GPU of 4 multiprocessors."""
    tree_is_right(problem(device, (300,), q_len=6, page=64), masks_of(device, BINARY))


@given_by(st.integers(1, 64).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n)))))
def test_masks_hold_a_node_and_its_ancestors(parents: tuple[int, ...]) -> None:
    """For any tree, bit j of node i's mask is set where walking up from i meets j."""
    (masks,) = ancestor_masks(torch.tensor([parents])).tolist()
    for i, mask in enumerate(masks):
        met, at = set(), i
        while at >= 0:
            met.add(at)
            at = parents[at]
        assert {j for j in range(64) if mask >> j & 1} == met


def transposed(ancestors: torch.Tensor) -> torch.Tensor:
    """Masks in which each node sees its descendants."""
    nodes = ancestors.shape[1]
    bits = (ancestors[:, :, None] >> torch.arange(nodes)) & 1
    return (bits.transpose(1, 2) << torch.arange(nodes)).sum(2)


@triton.jit
def one_slot_late(columns, first, nodes_of_tree, bits):
    node = columns - first - 1
    shift = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)
    return (node < 0)[None, :] | (((bits[:, None] >> shift[None, :]) & 1) == 1)


@triton.jit
def prefix_forgotten(columns, first, nodes_of_tree, bits):
    node = columns - first
    shift = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)
    return (node >= 0)[None, :] & (((bits[:, None] >> shift[None, :]) & 1) == 1)


@triton.jit
def in_32_bits(columns, first, nodes_of_tree, bits):
    node = columns - first
    shift = tl.minimum(tl.maximum(node, 0), 31)
    return (node < 0)[None, :] | (((bits[:, None].to(tl.int32) >> shift[None, :]) & 1) == 1)


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
class TestFaults:
    """Faults put in on purpose: the comparison must catch each."""

    def test_transposed_masks_are_caught(self) -> None:
        """Nodes that see their descendants instead of their ancestors fail."""
        given, ancestors = problem("cpu", (40,), q_len=6), masks_of("cpu", BINARY)
        out, _ = tree_attention(given.q, given.cache, transposed(ancestors), config=blocks(32))
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(out, tree_reference(given.q, given.cache, ancestors)[0])

    def test_causal_masks_are_caught(self) -> None:
        """Treating a tree as a chain fails."""
        given, ancestors = problem("cpu", (40,), q_len=6), masks_of("cpu", BINARY)
        out, _ = paged_decode(given.q, given.cache, config=blocks(32))
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(out, tree_reference(given.q, given.cache, ancestors)[0])

    @pytest.mark.parametrize("fault", [one_slot_late, prefix_forgotten, in_32_bits], ids=lambda f: f.fn.__name__)
    def test_wrong_masks_are_caught(self, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bits that belong to the next slot, a prefix that is not seen, and masks cut to 32 bits fail."""
        given, ancestors = problem("cpu", (80,), q_len=40, group=1), masks_of("cpu", random_tree(40, 1))
        tree_is_right(given, ancestors, config=blocks(64))
        monkeypatch.setattr(paged, "ancestors", fault)
        with pytest.raises(AssertionError, match=r"relative error|largest error|infinities|finite"):
            tree_is_right(given, ancestors, config=blocks(64))


BAD = [
    (lambda q, m: (q[0], m), r"q has shape \(6, 4, 64\), \(sequences, nodes, heads, head_dim\) is needed"),
    (lambda q, m: (q.repeat(1, 11, 1, 1), m), "q has 66 nodes, 1 to 64 are supported"),
    (lambda q, m: (q, m[:, :5]), r"ancestors has shape \(1, 5\), \(1, 6\) is needed"),
    (lambda q, m: (q, m.int()), "ancestors is int32, int64 is needed"),
    (lambda q, m: (q.float(), m), "q is float32"),
]


@pytest.mark.skipif(not interpreted(), reason="the tensors are on the CPU")
@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_named(change, message: str) -> None:  # type: ignore[no-untyped-def]
    """What does not fit is refused with its name, its value and what is needed."""
    given = problem("cpu", (20,), q_len=6)
    q, ancestors = change(given.q, masks_of("cpu", CHAIN))
    with pytest.raises(KernelInputError, match=message):
        tree_attention(q, given.cache, ancestors)


def test_too_many_parents_are_named() -> None:
    """A mask has 64 bits."""
    with pytest.raises(KernelInputError, match="parents has 65 nodes, 1 to 64 are supported"):
        ancestor_masks(torch.zeros(1, 65, dtype=torch.int64))


@pytest.mark.gpu
@pytest.mark.skipif(interpreted(), reason="production shapes are for a GPU")
@pytest.mark.parametrize(("sequences", "nodes", "length"), [(16, 16, 4096), (4, 64, 8192), (1, 48, 32768)])
def test_tree_at_production_size(sequences: int, nodes: int, length: int) -> None:
    """An 8B model's heads with the trees of EAGLE and Medusa, by the table's configuration and number of pieces."""
    lengths = [length - 17 * i for i in range(sequences)]
    given = problem("cuda", lengths, kv_heads=8, group=4, head_dim=128, q_len=nodes, dtype=BF16)
    tree_is_right(given, masks_of("cuda", *(random_tree(nodes, i) for i in range(sequences))))
