"""Verification of a drafted chain by rejection sampling: what comes out is distributed as the target's own samples."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .rows import (
    _merge,
    _probability,
    _scale,
    check_chain,
    check_drawn,
    launch_blocks,
    new_ints,
    probabilities_reference,
)
from .sampling import _write_plan, new_plan, sample_planned, sample_reference, scan_options


@triton.jit
def _keeps(p, q, uniform):
    """Accept with probability min(1, p / q); never what the target gives no probability."""
    return uniform * q < p


@triton.jit
def _at(values, steps, step):
    """The element of a vector at a run-time position."""
    return tl.sum(tl.where(steps == step, values, 0), 0)


@triton.jit(do_not_specialize=["G", "TARGET_ROWS"])
def _scan_kernel(
    target, draft, tops, sums, drafted, lengths, uniforms, temperature, tokens, accepted, rows, moments, excluded,
    count, V, G, SPLITS, TARGET_ROWS, DRAFT: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """All drafts of a request at once: accept up to the first that is rejected, and plan the token after."""
    request = tl.program_id(0)
    step = tl.arange(0, BLOCK_G)
    length = tl.minimum(tl.maximum(tl.load(lengths + request), 0), G)
    live = step < length
    scale = _scale(temperature, request)
    token = tl.load(drafted + request * G + step, mask=live, other=-1)
    row = request * (G + 1) + step
    top, inverse = _merge(tops, sums, row, step <= length, scale, SPLITS, BLOCK_S)
    p = _probability(target, row, token, live, top, inverse, scale, V)
    if DRAFT:
        other = request * G + step
        d_top, d_inverse = _merge(tops, sums, TARGET_ROWS + other, live, scale, SPLITS, BLOCK_S)
        q = _probability(draft, other, token, live, d_top, d_inverse, scale, V)
    else:  # a deterministic draft: all its probability is on its token
        d_top = tl.zeros((BLOCK_G,), tl.float32)
        d_inverse = d_top
        q = d_top + 1.0
    uniform = tl.load(uniforms + request * G + step, mask=live, other=1.0)
    keep = live & _keeps(p, q, uniform)
    taken = tl.min(tl.where(keep, BLOCK_G, step), 0)  # step `length` is never kept
    tl.store(tokens + request * (G + 1) + step, tl.where(step < taken, token, -1), mask=step <= G)
    tl.store(accepted + request, taken)
    rejected = taken < length
    draft_row = -1
    if DRAFT:
        draft_row = tl.where(rejected, request * G + taken, -1)
    _write_plan(
        rows, moments, request, request * (G + 1) + taken, draft_row, _at(top, step, taken), _at(inverse, step, taken),
        _at(d_top, step, taken), _at(d_inverse, step, taken), tl.where(rejected, 1.0, 0.0),
    )  # fmt: skip
    if not DRAFT:
        tl.store(excluded + request, _at(token, step, taken))
        tl.store(count + request, rejected.to(tl.int32))


@entry
def verify_chain(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_tokens: torch.Tensor,
    draft_lengths: torch.Tensor,
    uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    temperature: torch.Tensor,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Verify a chain of drafted tokens a request by rejection sampling (Leviathan et al. 2023, Chen et al. 2023).

    With p = softmax(target / T) and q = softmax(draft / T), draft x_i is accepted when uniform * q(x_i) < p(x_i), until
    the first that is not. Its place is sampled from max(p - q, 0), normalised; after a chain accepted whole, one more
    token from p. The result is distributed as if the target had been sampled token by token.

    target_logits: [B, G + 1, V], of the place of each draft and of the one after the last. draft_logits: [B, G, V], or
    None where drafts are chosen without chance (n-gram look-up, argmax): q is then 1 at the draft. Both bfloat16,
    float16 or float32, contiguous, -inf for what may not be sampled. draft_tokens: int32 [B, G]; one outside the
    vocabulary is rejected. draft_lengths: int32 [B], drafts of each request, 0 to G (taken as such beyond).
    uniforms: float32 [B, G] in [0, 1), for acceptance; sample_uniforms: float32 [B], for the token sampled, by the
    inverse of the distribution function in vocabulary order. temperature: T, float32 [B]; below 1e-5 taken as 1e-5.
    Values on the device are not checked. B up to 65536, G 1 to 64, V 2 to 2^20. config: instead of the table's.

    Returns tokens, int32 [B, G + 1]: the accepted drafts, the sampled token, then -1; and int32 [B], the number of
    accepted drafts. The sampled token is -1 where all of the target's logits are -inf. A single +inf in a
    row has probability 1. A row of the target or the draft with NaN or with several +inf has no probabilities: its
    draft is not accepted, and its token is -1. Raises KernelInputError.

    Four launches, none of which waits for the host.
    """
    requests, steps, vocabulary = check_chain(target_logits, draft_tokens, draft_lengths)
    most = steps - 1
    check_drawn(target_logits, draft_logits, most, uniforms, sample_uniforms, temperature)
    config = configured("spec_chain", target_logits, config, vocabulary=vocabulary)
    tops, sums = launch_blocks(target_logits, draft_logits, temperature, draft_lengths, config)
    tokens, accepted = new_ints(target_logits, (requests, steps), (requests,))
    plan = new_plan(requests, 1, accepted)
    splits = tops.shape[1]
    block_g, block_s = triton.next_power_of_2(steps), triton.next_power_of_2(splits)
    _scan_kernel[(requests,)](
        target_logits, target_logits if draft_logits is None else draft_logits, tops, sums, draft_tokens, draft_lengths,
        uniforms, temperature, tokens, accepted, plan.rows, plan.moments, plan.excluded, plan.count, vocabulary, most,
        splits, requests * steps, DRAFT=draft_logits is not None, BLOCK_G=block_g, BLOCK_S=block_s,
        **scan_options(block_g, block_s),
    )  # fmt: skip
    exclude = draft_logits is None
    sample_planned(target_logits, draft_logits, plan, temperature, sample_uniforms, tokens, exclude, config)
    return tokens, accepted


def verify_chain_reference(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_tokens: torch.Tensor,
    draft_lengths: torch.Tensor,
    uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 torch, all requests at once."""
    requests, steps, vocabulary = target_logits.shape
    p, broken = probabilities_reference(target_logits, temperature)
    broken = broken[:, :-1]
    known = (draft_tokens >= 0) & (draft_tokens < vocabulary)
    token = torch.where(known, draft_tokens, 0).long()[..., None]
    if draft_logits is None:
        q = torch.zeros_like(p[:, :-1]).scatter_(2, token, known.double()[..., None])
    else:
        q, unknown = probabilities_reference(draft_logits, temperature)
        broken = broken | unknown
    live = torch.arange(steps - 1, device=p.device) < draft_lengths.clamp(0, steps - 1)[:, None]
    keep = uniforms.double() * q.gather(2, token)[..., 0] < p[:, :-1].gather(2, token)[..., 0]
    accepted = (keep & live & known & ~broken).int().cumprod(dim=1).sum(dim=1)
    each = torch.arange(requests, device=p.device)
    last, rejected = p[each, accepted], accepted < draft_lengths.clamp(0, steps - 1)
    last = torch.where((rejected & broken[each, accepted.clamp_max(steps - 2)])[:, None], 0.0, last)
    taken_off = torch.where(rejected[:, None], q[each, accepted.clamp_max(steps - 2)], 0.0)
    sampled = sample_reference((last - taken_off).clamp_min(0), last, sample_uniforms)
    step = torch.arange(steps, device=p.device)
    padded = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    tokens = torch.where(step < accepted[:, None], padded, -1)
    tokens[each, accepted] = sampled
    return tokens.to(torch.int32), accepted.to(torch.int32)
