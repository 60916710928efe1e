"""Sampling one token a request from what a verification leaves: max(p - c q, 0), normalised.

The scan over a request's drafts writes a `Plan`: which row of the target to sample from, what to take off it and where
the token goes. Only that one row is read (lazily: a request whose first draft is rejected costs one row, however many
were drafted), in vocabulary blocks, twice in part: a pass sums each block, then one program a request finds the block
and in it the token at which the running sum passes uniform x total (the inverse of the distribution function).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perfmodel.kernels.table import Config

from .rows import _scale, _share


@dataclass(frozen=True)
class Plan:
    """What to sample for each of B requests; written by a scan kernel.

    rows: int32 [B, 2], the row of the target's logits and of the draft's (-1: nothing is taken off). moments: float32
    [B, 5], maximum and 1 / sum of the target's row, the same of the draft's, and c. excluded: int32 [B, K], tokens that
    may not come out, [B] `count` of them. column: int32 [B], where in the row of output tokens the sample goes.
    """

    rows: torch.Tensor
    moments: torch.Tensor
    excluded: torch.Tensor
    count: torch.Tensor
    column: torch.Tensor


def new_plan(requests: int, most_excluded: int, column: torch.Tensor) -> Plan:
    """A plan to be written."""

    def ints(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=column.device)

    moments = torch.empty((requests, 5), dtype=torch.float32, device=column.device)
    return Plan(ints(requests, 2), moments, ints(requests, most_excluded), ints(requests), column)


@triton.jit
def _write_plan(rows, moments, request, target_row, draft_row, top, inverse, draft_top, draft_inverse, coefficient):
    """Store a request's row numbers and what is known of these rows."""
    tl.store(rows + 2 * request, target_row)
    tl.store(rows + 2 * request + 1, draft_row)
    tl.store(moments + 5 * request, top)
    tl.store(moments + 5 * request + 1, inverse)
    tl.store(moments + 5 * request + 2, draft_top)
    tl.store(moments + 5 * request + 3, draft_inverse)
    tl.store(moments + 5 * request + 4, coefficient)


@triton.jit
def _less(p, q, coefficient):
    """What is left of p once c q is taken off; nothing where either is NaN."""
    left = p - coefficient * q
    return tl.where(left > 0, left, 0.0)


@triton.jit
def _weights(
    target, draft, rows, moments, excluded, count, temperature, request, columns, V, K,
    DRAFT: tl.constexpr, EXCLUDE: tl.constexpr,
):  # fmt: skip
    """The unnormalised residual and the target's own probabilities at these columns of the planned row."""
    scale = _scale(temperature, request)
    inside = columns < V
    row = tl.load(rows + 2 * request).to(tl.int64)
    x = tl.load(target + row * V + columns, mask=inside, other=-float("inf")).to(tl.float32)
    p = _share(x, tl.load(moments + 5 * request), scale) * tl.load(moments + 5 * request + 1)
    left = p
    if DRAFT:
        other = tl.load(rows + 2 * request + 1).to(tl.int64)
        y = tl.load(draft + other * V + columns, mask=inside & (other >= 0), other=-float("inf")).to(tl.float32)
        inverse = tl.load(moments + 5 * request + 3)
        q = _share(y, tl.load(moments + 5 * request + 2), scale) * inverse
        left = _less(p, q, tl.load(moments + 5 * request + 4))
        p = tl.where(inverse == inverse, p, inverse)  # a draft without probabilities leaves nothing to sample from
    if EXCLUDE:
        for i in range(0, tl.load(count + request)):
            left = tl.where(columns == tl.load(excluded + request * K + i), 0.0, left)
    return left, p


@triton.jit
def _mass_kernel(
    target, draft, rows, moments, excluded, count, temperature, masses, V, K, SPLITS,
    DRAFT: tl.constexpr, EXCLUDE: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Sums over one vocabulary block of a request's planned row: of the residual, and of the target's probabilities."""
    request = tl.program_id(0)
    split = tl.program_id(1)
    columns = split * BLOCK_V + tl.arange(0, BLOCK_V)
    left, p = _weights(
        target, draft, rows, moments, excluded, count, temperature, request, columns, V, K, DRAFT, EXCLUDE
    )
    tl.store(masses + (request * 2) * SPLITS + split, tl.sum(left, 0))
    tl.store(masses + (request * 2 + 1) * SPLITS + split, tl.sum(p, 0))


@triton.jit
def _pick(weights, goal, BLOCK: tl.constexpr):
    """First index of positive weight at which the running sum passes `goal` (else the last one; -1 without any), and
    the sum before it."""
    index = tl.arange(0, BLOCK)
    passed = (tl.cumsum(weights, 0) > goal) & (weights > 0)
    first = tl.min(tl.where(passed, index, BLOCK), 0)
    last = tl.max(tl.where(weights > 0, index, -1), 0)
    chosen = tl.where(first < BLOCK, first, last)
    return chosen, tl.sum(tl.where(index < chosen, weights, 0.0), 0)


@triton.jit(do_not_specialize=["WIDTH"])
def _select_kernel(
    target, draft, rows, moments, excluded, count, temperature, masses, uniforms, column, tokens, V, K, SPLITS, WIDTH,
    DRAFT: tl.constexpr, EXCLUDE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Find a request's token: the block by the blocks' sums, then the token within it."""
    request = tl.program_id(0)
    splits = tl.arange(0, BLOCK_S)
    mask = splits < SPLITS
    residual = tl.load(masses + (request * 2) * SPLITS + splits, mask=mask, other=0.0)
    whole = tl.load(masses + (request * 2 + 1) * SPLITS + splits, mask=mask, other=0.0)
    exhausted = tl.sum(residual, 0) <= 0  # p = q to the last bit: what is left is p itself
    mass = tl.where(exhausted, whole, residual)
    goal = tl.load(uniforms + request) * tl.sum(mass, 0)
    split, before = _pick(mass, goal, BLOCK_S)
    columns = tl.maximum(split, 0) * BLOCK_V + tl.arange(0, BLOCK_V)
    left, p = _weights(
        target, draft, rows, moments, excluded, count, temperature, request, columns, V, K, DRAFT, EXCLUDE
    )
    inner, _ = _pick(tl.where(exhausted, p, left), goal - before, BLOCK_V)
    token = tl.where(inner < 0, -1, tl.maximum(split, 0) * BLOCK_V + inner)
    tl.store(tokens + request * WIDTH + tl.load(column + request), token)


def sample_planned(
    target: torch.Tensor,
    draft: torch.Tensor | None,
    plan: Plan,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    tokens: torch.Tensor,
    exclude: bool,
    config: Config,
) -> None:
    """Sample each request's token as planned and write it into `tokens`, int32 [B, width].

    target, draft: logits [..., V], rows counted over all leading dimensions. uniforms: float32 [B] in [0, 1).
    exclude: whether plan.excluded is to be looked at.
    """
    requests, vocabulary = tokens.shape[0], target.shape[-1]
    block = int(config.meta["BLOCK_V"])
    splits = triton.cdiv(vocabulary, block)
    masses = torch.empty((requests, 2, splits), dtype=torch.float32, device=target.device)
    planned = (
        target, target if draft is None else draft, plan.rows, plan.moments, plan.excluded, plan.count, temperature,
        masses,
    )  # fmt: skip
    most = plan.excluded.shape[1]
    _mass_kernel[(requests, splits)](
        *planned, vocabulary, most, splits, DRAFT=draft is not None, EXCLUDE=exclude, **config.options()
    )
    _select_kernel[(requests,)](
        *planned, uniforms, plan.column, tokens, vocabulary, most, splits, tokens.shape[1],
        DRAFT=draft is not None, EXCLUDE=exclude, BLOCK_S=triton.next_power_of_2(splits), **config.options(),
    )  # fmt: skip


def scan_options(*widths: int) -> dict[str, int]:
    """Warps of a scan kernel whose largest tile has these sides: one up to 32 elements a thread, at most eight."""
    size = 1
    for width in widths:
        size *= width
    return {"num_warps": min(8, max(1, triton.next_power_of_2(size) // 1024))}


def sample_reference(weights: torch.Tensor, fallback: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The token at which each row's running sum of `weights` passes uniform x total, in float64; int32 [B].

    weights, fallback: [B, V]; a row without weight takes the fallback's, one without that gives -1.
    """
    empty = weights.sum(1, keepdim=True) <= 0
    mass = torch.where(empty, fallback.double(), weights.double())
    running = mass.cumsum(1)
    passed = (running > uniforms.double()[:, None] * mass.sum(1, keepdim=True)) & (mass > 0)
    index = torch.arange(mass.shape[1], device=mass.device).expand_as(mass)
    last = torch.where(mass > 0, index, -1).amax(1)
    return torch.where(passed.any(1), passed.int().argmax(1), last).to(torch.int32)
