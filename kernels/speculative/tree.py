"""Greedy verification of a drafted tree: walk from the root along the target's most likely tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_range
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .greedy import _choices, choices_reference, launch_argmax
from .rows import check_ints, check_logits, new_ints
from .sampling import scan_options

MOST_NODES = 64
"""Nodes of a tree, the root among them: what the ancestor bit masks of tree attention hold."""


@triton.jit
def _walk_kernel(
    tops, places, node_tokens, parents, tokens, path, accepted, NODES, DEPTH, SPLITS,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Follow a request's tree while the target's choice after a node is one of its children."""
    request = tl.program_id(0)
    node = tl.arange(0, BLOCK_N)
    inside = node < NODES
    choice = _choices(tops, places, request * NODES + node, inside, SPLITS, BLOCK_S)
    token = tl.load(node_tokens + request * NODES + node, mask=inside, other=-1)
    parent = tl.load(parents + request * NODES + node, mask=inside & (node > 0), other=-1)
    level = tl.arange(0, BLOCK_D)
    emitted = tl.full((BLOCK_D,), -1, tl.int32)
    visited = tl.full((BLOCK_D,), -1, tl.int32)
    here = request * 0
    taken = here
    going = here == 0
    for depth in range(0, DEPTH + 1):
        chosen = tl.sum(tl.where(node == here, choice, 0), 0)
        now = (level == depth) & going
        emitted = tl.where(now, chosen, emitted)
        visited = tl.where(now, here, visited)
        child = tl.min(tl.where((parent == here) & (token == chosen) & (chosen >= 0), node, BLOCK_N), 0)
        going = going & (child < BLOCK_N) & (depth < DEPTH)
        here = tl.where(going, child, here)
        taken += going.to(tl.int32)
    tl.store(tokens + request * (DEPTH + 1) + level, emitted, mask=level <= DEPTH)
    tl.store(path + request * (DEPTH + 1) + level, visited, mask=level <= DEPTH)
    tl.store(accepted + request, taken)


@entry
def verify_tree_greedy(
    target_logits: torch.Tensor,
    node_tokens: torch.Tensor,
    parents: torch.Tensor,
    depth: int,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Verify a tree of drafted tokens a request against the target's most likely ones.

    Node 0 is the root: the token that is certain already. From it the walk goes to the child that carries the argmax of
    the node's logits (of equal logits, +inf among them, the first token, of equal children the first node), until there
    is none. A row with NaN has no argmax: the walk ends there, and its token is -1.

    target_logits: [B, N, V], row i of what follows node i; bfloat16, float16 or float32, contiguous. node_tokens: int32
    [B, N]; the root's is not looked at. parents: int32 [B, N], the node each was drafted after; -1 for the root and for
    unused nodes. depth: most drafts that may be accepted, as many as the tree has levels below the root. Values on the
    device are not checked. B up to 65536, N 2 to 64, depth 1 to N - 1, V 2 to 2^20. config: instead of the table's.

    Returns tokens, int32 [B, depth + 1]: the accepted drafts, the target's next choice, then -1; path, int32
    [B, depth + 1]: the nodes walked through, from 0, then -1; and int32 [B], the number of accepted drafts.
    Raises KernelInputError.
    """
    requests, nodes, vocabulary = check_tree(target_logits, node_tokens, parents, depth)
    config = configured("spec_greedy", target_logits, config, vocabulary=vocabulary)
    tops, places = launch_argmax(target_logits, None, config)
    tokens, path, accepted = new_ints(target_logits, (requests, depth + 1), (requests, depth + 1), (requests,))
    block_n, block_s = triton.next_power_of_2(nodes), triton.next_power_of_2(tops.shape[1])
    _walk_kernel[(requests,)](
        tops, places, node_tokens, parents, tokens, path, accepted, nodes, depth, tops.shape[1],
        BLOCK_N=block_n, BLOCK_D=triton.next_power_of_2(depth + 1), BLOCK_S=block_s, **scan_options(block_n, block_s),
    )  # fmt: skip
    return tokens, path, accepted


def check_tree(
    target_logits: torch.Tensor, node_tokens: torch.Tensor, parents: torch.Tensor, depth: int
) -> tuple[int, int, int]:
    """Check what greedy and sampled verification of a tree have in common; requests, nodes and vocabulary."""
    requests, nodes, vocabulary = check_logits(target_logits)
    check_range("the number of nodes", nodes, 2, MOST_NODES)
    check_range("depth", depth, 1, nodes - 1)
    check_ints(target_logits, (requests, nodes), node_tokens=node_tokens, parents=parents)
    return requests, nodes, vocabulary


def verify_tree_greedy_reference(
    target_logits: torch.Tensor, node_tokens: torch.Tensor, parents: torch.Tensor, depth: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in plain torch and Python, a request at a time."""
    choices = choices_reference(target_logits).tolist()
    all_tokens, all_paths = [], []
    for choice, token, parent in zip(choices, node_tokens.tolist(), parents.tolist(), strict=True):
        path = [0]
        while len(path) <= depth:
            here = path[-1]
            same = [i for i in range(1, len(token)) if parent[i] == here and token[i] == choice[here]]
            children = same if choice[here] >= 0 else []
            if not children:
                break
            path.append(children[0])
        all_tokens.append([choice[i] for i in path])
        all_paths.append(path)
    return walked(all_tokens, all_paths, depth, target_logits.device)


def walked(
    tokens: list[list[int]], paths: list[list[int]], depth: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens and paths of a reference as the kernels return them."""

    def padded(lists: list[list[int]]) -> torch.Tensor:
        return torch.tensor([x + [-1] * (depth + 1 - len(x)) for x in lists], dtype=torch.int32, device=device)

    accepted = torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32, device=device)
    return padded(tokens), padded(paths), accepted
