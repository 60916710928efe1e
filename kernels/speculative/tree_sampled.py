"""Sampled verification of a drafted tree: several tries at a node, and still the target's own distribution."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .chain import _at
from .rows import (
    _merge,
    _probability,
    _scale,
    _share,
    check_drawn,
    launch_blocks,
    new_ints,
    probabilities_reference,
)
from .sampling import _less, _write_plan, new_plan, sample_planned, sample_reference, scan_options
from .tree import check_tree, walked


@triton.jit
def _mass(target, draft, row, top, inverse, d_top, d_inverse, coefficient, scale, V, BLOCK_V: tl.constexpr):
    """Sum over the vocabulary of max(p - c q, 0) at a node: read anew, only when one of its children was rejected."""
    total = tl.zeros((BLOCK_V,), tl.float32)
    base = row.to(tl.int64) * V
    for start in range(0, V, BLOCK_V):
        columns = start + tl.arange(0, BLOCK_V)
        x = tl.load(target + base + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
        y = tl.load(draft + base + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
        p = _share(x, top, scale) * inverse
        total += _less(p, _share(y, d_top, scale) * d_inverse, coefficient)
    return tl.sum(total, 0)


@triton.jit
def _children(node_tokens, parents, request, NODES, BLOCK_N: tl.constexpr):
    """Node numbers, tokens and parents of a request; the root has no parent."""
    node = tl.arange(0, BLOCK_N)
    inside = node < NODES
    token = tl.load(node_tokens + request * NODES + node, mask=inside, other=-1)
    parent = tl.load(parents + request * NODES + node, mask=inside & (node > 0), other=-1)
    return node, token, parent


@triton.jit(do_not_specialize=["TARGET_ROWS"])
def _rounds_kernel(
    target, draft, tops, sums, node_tokens, parents, uniforms, temperature, tokens, path, accepted, rows, moments, V,
    NODES, DEPTH, SPLITS, TARGET_ROWS, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Children drawn from the draft's distribution: try them in turn, after each rejection take q off what is left."""
    request = tl.program_id(0)
    node, token, parent = _children(node_tokens, parents, request, NODES, BLOCK_N)
    scale = _scale(temperature, request)
    row = request * NODES + node
    top, inverse = _merge(tops, sums, row, node < NODES, scale, SPLITS, BLOCK_S)
    d_top, d_inverse = _merge(tops, sums, TARGET_ROWS + row, node < NODES, scale, SPLITS, BLOCK_S)
    uniform = tl.load(uniforms + row, mask=node < NODES, other=1.0)
    level = tl.arange(0, BLOCK_D)
    emitted = tl.full((BLOCK_D,), -1, tl.int32)
    visited = tl.where(level == 0, 0, -1)
    here = 0
    taken = 0
    last = 0  # the child rejected last
    off = 0.0  # c: how often q was taken off p, weighted
    left = 1.0  # sum of max(p - c q, 0)
    going = True
    while going:
        child = tl.min(tl.where((parent == here) & (node > last), node, BLOCK_N), 0)
        going = (child < BLOCK_N) & (taken < DEPTH)
        if going:
            at = request * NODES + here
            h_top, h_inverse = _at(top, node, here), _at(inverse, node, here)
            g_top, g_inverse = _at(d_top, node, here), _at(d_inverse, node, here)
            if last > 0:
                left = _mass(target, draft, at, h_top, h_inverse, g_top, g_inverse, off, scale, V, BLOCK_V)
            drafted = _at(token, node, child)
            p = _probability(target, at, drafted, going, h_top, h_inverse, scale, V)
            q = _probability(draft, at, drafted, going, g_top, g_inverse, scale, V)
            if _at(uniform, node, child) * q * left < _less(p, q, off):
                emitted = tl.where(level == taken, drafted, emitted)
                taken += 1
                visited = tl.where(level == taken, child, visited)
                here = child
                last = 0
                off = 0.0
                left = 1.0
            else:
                last = child
                off += left
    tl.store(tokens + request * (DEPTH + 1) + level, emitted, mask=level <= DEPTH)
    tl.store(path + request * (DEPTH + 1) + level, visited, mask=level <= DEPTH)
    tl.store(accepted + request, taken)
    at = request * NODES + here
    of_draft = (node == here) & (last > 0)
    _write_plan(
        rows, moments, request, at, tl.where(last > 0, at, -1), _at(top, node, here), _at(inverse, node, here),
        tl.sum(tl.where(of_draft, d_top, 0.0), 0), tl.sum(tl.where(of_draft, d_inverse, 0.0), 0), off,
    )  # fmt: skip


@triton.jit
def _exclusive_kernel(
    target, tops, sums, node_tokens, parents, uniforms, temperature, tokens, path, accepted, rows, moments, excluded,
    count, V, NODES, DEPTH, SPLITS, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Children chosen without chance: child j stands for its own probability, what is left goes to the other tokens."""
    request = tl.program_id(0)
    node, token, parent = _children(node_tokens, parents, request, NODES, BLOCK_N)
    scale = _scale(temperature, request)
    row = request * NODES + node
    top, inverse = _merge(tops, sums, row, node < NODES, scale, SPLITS, BLOCK_S)
    uniform = tl.load(uniforms + row, mask=node < NODES, other=1.0)
    twin = (parent[:, None] == parent[None, :]) & (token[:, None] == token[None, :]) & (node[None, :] < node[:, None])
    fresh = tl.sum(twin.to(tl.int32), 1) == 0  # a token offered twice counts once
    level = tl.arange(0, BLOCK_D)
    emitted = tl.full((BLOCK_D,), -1, tl.int32)
    visited = tl.where(level == 0, 0, -1)
    here = 0
    taken = 0
    going = True
    tried = node < 0
    while going:
        tried = (parent == here) & fresh & (taken < DEPTH)
        at = request * NODES + here + node * 0
        p = _probability(target, at, token, tried, _at(top, node, here), _at(inverse, node, here), scale, V)
        keep = tried & (uniform * (1.0 - (tl.cumsum(p, 0) - p)) < p)
        child = tl.min(tl.where(keep, node, BLOCK_N), 0)
        going = child < BLOCK_N
        if going:
            emitted = tl.where(level == taken, _at(token, node, child), emitted)
            taken += 1
            visited = tl.where(level == taken, child, visited)
            here = child
    tl.store(tokens + request * (DEPTH + 1) + level, emitted, mask=level <= DEPTH)
    tl.store(path + request * (DEPTH + 1) + level, visited, mask=level <= DEPTH)
    tl.store(accepted + request, taken)
    place = tl.cumsum(tried.to(tl.int32), 0) - 1
    tl.store(excluded + request * NODES + place, token, mask=tried)
    tl.store(count + request, tl.sum(tried.to(tl.int32), 0))
    _write_plan(
        rows,
        moments,
        request,
        request * NODES + here,
        -1,
        _at(top, node, here),
        _at(inverse, node, here),
        0.0,
        0.0,
        0.0,
    )


@entry
def verify_tree_sampled(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    node_tokens: torch.Tensor,
    parents: torch.Tensor,
    depth: int,
    uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    temperature: torch.Tensor,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Verify a tree of drafted tokens a request by rejection sampling in several rounds a node (SpecInfer, Miao et al.
    2024, algorithm 2).

    Node 0 is the root, the token that is certain already. At a node, p = softmax(target / T) of its row. Its children
    are tried in the order of their numbers: x is accepted when uniform * q(x) < p(x), and the walk goes on there; when
    it is rejected, p becomes max(p - q, 0), normalised. When no child is left the next token is sampled from p. Each
    token is distributed as the target's own sample, if the children were drawn as follows.

    draft_logits: [B, N, V], the children of node i were drawn independently from softmax(row i / T); each rejection
    that is followed by another child reads that node's two rows once more. None: the children were chosen without
    chance (the most likely tokens); child x is then accepted when uniform * (1 - p(rejected before)) < p(x), and a
    token that a sibling offered before is passed over.
    target_logits: [B, N, V], row i of what follows node i; bfloat16, float16 or float32, contiguous, -inf for what may
    not be sampled. node_tokens: int32 [B, N]; the root's is not looked at. parents: int32 [B, N], the node each was
    drafted after; -1 for the root and for unused nodes. depth: most drafts that may be accepted. uniforms: float32
    [B, N] in [0, 1), by node; sample_uniforms: float32 [B]. temperature: T, float32 [B]; below 1e-5 taken as 1e-5.
    Values on the device are not checked. B up to 65536, N 2 to 64, depth 1 to N - 1, V 2 to 2^20. config: instead of
    the table's.

    Returns tokens, int32 [B, depth + 1]: the accepted drafts, the sampled token, then -1; path, int32 [B, depth + 1]:
    the nodes walked through, from 0, then -1; and int32 [B], the number of accepted drafts. Logits of NaN and +inf
    as in `verify_chain`: at a node whose row has no probabilities no child is accepted, and its token is -1; a row of
    the draft counts where a child was tried. Raises KernelInputError.
    """
    requests, nodes, vocabulary = check_tree(target_logits, node_tokens, parents, depth)
    check_drawn(target_logits, draft_logits, nodes, uniforms, sample_uniforms, temperature)
    config = configured("spec_tree", target_logits, config, vocabulary=vocabulary)
    tops, sums = launch_blocks(target_logits, draft_logits, temperature, None, config)
    tokens, path, accepted = new_ints(target_logits, (requests, depth + 1), (requests, depth + 1), (requests,))
    plan = new_plan(requests, nodes, accepted)
    splits = tops.shape[1]
    block_n, block_s = triton.next_power_of_2(nodes), triton.next_power_of_2(splits)
    blocks = {"BLOCK_N": block_n, "BLOCK_D": triton.next_power_of_2(depth + 1), "BLOCK_S": block_s}
    walk = (node_tokens, parents, uniforms, temperature, tokens, path, accepted, plan.rows, plan.moments)
    if draft_logits is None:
        _exclusive_kernel[(requests,)](
            target_logits, tops, sums, *walk, plan.excluded, plan.count, vocabulary, nodes, depth, splits, **blocks,
            **scan_options(block_n, max(block_n, block_s)),
        )  # fmt: skip
    else:
        _rounds_kernel[(requests,)](
            target_logits, draft_logits, tops, sums, *walk, vocabulary, nodes, depth, splits, requests * nodes,
            **blocks, **config.options(),
        )  # fmt: skip
    exclude = draft_logits is None
    sample_planned(target_logits, draft_logits, plan, temperature, sample_uniforms, tokens, exclude, config)
    return tokens, path, accepted


def verify_tree_sampled_reference(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    node_tokens: torch.Tensor,
    parents: torch.Tensor,
    depth: int,
    uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in float64 torch, a request at a time and literally: p is renormalised after every rejection."""
    p_rows, broken = probabilities_reference(target_logits, temperature)
    q_rows, unknown = (None, broken) if draft_logits is None else probabilities_reference(draft_logits, temperature)
    all_tokens, all_paths, lasts, firsts = [], [], [], []
    for b, (token, parent) in enumerate(zip(node_tokens.tolist(), parents.tolist(), strict=True)):
        path, p = [0], p_rows[b, 0]
        child = 1
        while child < len(token) and len(path) <= depth:
            if parent[child] != path[-1]:
                child += 1
                continue
            q = _one_hot(token[child], p) if q_rows is None else q_rows[b, path[-1]]
            x = token[child] if 0 <= token[child] < len(p) else None
            if unknown[b, path[-1]]:  # nothing is left of p
                p, child, p_rows[b, path[-1]] = torch.zeros_like(p), child + 1, 0.0
            elif x is not None and uniforms[b, child].double() * q[x] < p[x]:
                path.append(child)
                p, child = p_rows[b, child], 1
            else:
                p = (p - q).clamp_min(0)
                p, child = p / p.sum().clamp_min(1e-300), child + 1
        all_paths.append(path)
        all_tokens.append([token[i] for i in path[1:]])
        lasts.append(p)
        firsts.append(p_rows[b, path[-1]])
    sampled = sample_reference(torch.stack(lasts), torch.stack(firsts), sample_uniforms).tolist()
    return walked([[*t, s] for t, s in zip(all_tokens, sampled, strict=True)], all_paths, depth, target_logits.device)


def _one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    """All probability on one token; none where it is outside the vocabulary."""
    q = torch.zeros_like(like)
    if 0 <= token < len(like):
        q[token] = 1
    return q
