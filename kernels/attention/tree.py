"""Tree attention: the nodes of a speculated token tree against the sequence before it and their ancestors in it."""

from __future__ import annotations

import torch

from perfmodel.kernels.checks import check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .paged_launch import Paged, attend_paged
from .paged_reference import descendants, paged_reference
from .scores import Scores

MOST_NODES = 64
"""Nodes of a tree: the bits of an int64 ancestor mask."""

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of parents."""


@entry
def tree_attention(
    q: torch.Tensor,
    cache: Paged,
    ancestors: torch.Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    max_length: int | None = None,
    splits: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the nodes of a token tree, to verify all of a draft model's guesses in one pass.

    Parameters
    ----------
    q : [sequences, nodes, heads, head_dim], float16 or bfloat16, contiguous; 1 to 64 nodes, the same number in each
        sequence (pad with nodes that nothing descends from). Otherwise as in `paged_decode`.
    cache : as in `paged_decode`. The nodes' own keys and values are the last `nodes` tokens of each sequence, in the
        order of q: they are written at the end of the pages before the call, and compacted after it to those accepted.
        Lengths count them; a length is either 0 or at least `nodes`.
    ancestors : [sequences, nodes] int64, bit j of a node's mask set where it sees node j: itself and its ancestors
        (`ancestor_masks`). Every node sees all tokens before the tree.
    scale, softcap, sinks, max_length, splits, out, config : as in `paged_decode`.

    Returns
    -------
    Output, shaped and typed like q, and lse [sequences, nodes, heads] in float32, as of `paged_decode`. A node that
    sees nothing (an empty mask and nothing before the tree) has output 0 and lse -inf; one that sees a score of NaN or
    inf has NaN in both.

    Raises
    ------
    KernelInputError
        Naming the argument that does not fit.

    Notes
    -----
    The formula is that of `paged_decode`, and for a chain (each node's parent is the one before it) so is the result.
    Masks are looked at in the last blocks of keys only, those that hold tree nodes; before them no score is masked.
    A node's rotary position is that of its depth, which is the caller's business.
    """
    require(q.dim() == 4, f"q has shape {tuple(q.shape)}, (sequences, nodes, heads, head_dim) is needed")
    require(1 <= q.shape[1] <= MOST_NODES, f"q has {q.shape[1]} nodes, 1 to {MOST_NODES} are supported")
    check_tensor("ancestors", ancestors, q.shape[:2], [torch.int64], like=q, align=8)
    return attend_paged(
        "attention_tree", q, cache, Scores(scale, None, softcap, sinks), ancestors=ancestors, max_length=max_length,
        splits=splits, out=out, config=config,
    )  # fmt: skip


@entry
def ancestor_masks(parents: torch.Tensor) -> torch.Tensor:
    """Bit masks [sequences, nodes] int64 from each node's parent, [sequences, nodes] integers.

    A parent comes before its children; -1 marks a node whose parent is the last token before the tree. Bit j of node
    i's mask is set for i itself and for each of its ancestors. 1 to 64 nodes. Plain torch on the device of `parents`,
    one step a node. On a GPU nothing is read on the host, and a parent that does not come before its child counts as
    -1; on the CPU it is refused. Raises KernelInputError.
    """
    require(parents.dim() == 2, f"parents has shape {tuple(parents.shape)}, (sequences, nodes) is needed")
    require(parents.dtype in INTEGERS, f"parents is {str(parents.dtype).removeprefix('torch.')}, integers are needed")
    sequences, nodes = parents.shape
    require(1 <= nodes <= MOST_NODES, f"parents has {nodes} nodes, 1 to {MOST_NODES} are supported")
    before = (parents >= -1) & (parents < torch.arange(nodes, device=parents.device))
    if parents.device.type == "cpu" and not bool(before.all()):
        sequence, node = (~before).nonzero()[0].tolist()
        found = int(parents[sequence, node])
        require(False, f"parents[{sequence}, {node}] is {found}, a node before {node} or -1 is needed")
    parents = torch.where(before & (parents >= 0), parents, nodes).long()
    masks = torch.zeros(sequences, nodes + 1, dtype=torch.int64, device=parents.device)
    for i in range(nodes):
        own = torch.full((sequences,), 1 << i if i < 63 else -(1 << 63), dtype=torch.int64, device=parents.device)
        above = masks.gather(1, parents[:, i : i + 1])[:, 0]
        masks[:, i] = own | above
    return masks[:, :nodes].contiguous()


def tree_reference(
    q: torch.Tensor,
    cache: Paged,
    ancestors: torch.Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `tree_attention` returns, computed by plain torch in `dtype` from the whole score matrix."""
    scores = Scores(scale, None, softcap, sinks)
    return paged_reference(q, cache, scores, descendants(ancestors, cache.lengths), dtype)
