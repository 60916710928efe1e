"""Greedy verification of a drafted chain: a draft is right where it is the target's most likely token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .rows import check_chain, new_ints
from .sampling import scan_options


@triton.jit(do_not_specialize=["STEPS"])
def _argmax_kernel(logits, tops, places, lengths, V, SPLITS, STEPS, RAGGED: tl.constexpr, BLOCK_V: tl.constexpr):
    """Largest logit of one block of one row (NaN where there is one), and its first place."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    live = True
    if RAGGED:
        live = row % STEPS <= tl.maximum(tl.load(lengths + row // STEPS), 0)
    if live:
        columns = split * BLOCK_V + tl.arange(0, BLOCK_V)
        x = tl.load(logits + row.to(tl.int64) * V + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
        top, place = tl.max(x, 0, return_indices=True)
        broken = tl.max((x != x).to(tl.int32), 0) > 0
        tl.store(tops + row.to(tl.int64) * SPLITS + split, tl.where(broken, float("nan"), top))
        tl.store(places + row.to(tl.int64) * SPLITS + split, split * BLOCK_V + place)


@triton.jit
def _choices(tops, places, row, live, SPLITS, BLOCK_S: tl.constexpr):
    """First most likely token of each of a vector of rows; -1 for a row with NaN."""
    splits = tl.arange(0, BLOCK_S)
    mask = live[:, None] & (splits < SPLITS)[None, :]
    at = row.to(tl.int64)[:, None] * SPLITS + splits[None, :]
    maxima = tl.load(tops + at, mask=mask, other=-float("inf"))
    place = tl.load(places + at, mask=mask, other=2147483647)
    broken = tl.max((maxima != maxima).to(tl.int32), 1) > 0
    maxima = tl.where(broken[:, None], -float("inf"), maxima)
    first = tl.min(tl.where(maxima == tl.max(maxima, 1)[:, None], place, 2147483647), 1)
    return tl.where(broken, -1, first)


@triton.jit(do_not_specialize=["G"])
def _match_kernel(
    tops, places, drafted, lengths, tokens, accepted, G, SPLITS, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr
):
    """Accept a request's drafts up to the first that is not the target's choice, and put that choice there."""
    request = tl.program_id(0)
    step = tl.arange(0, BLOCK_G)
    length = tl.minimum(tl.maximum(tl.load(lengths + request), 0), G)
    choice = _choices(tops, places, request * (G + 1) + step, step <= length, SPLITS, BLOCK_S)
    token = tl.load(drafted + request * G + step, mask=step < length, other=-1)
    keep = (step < length) & (token == choice) & (choice >= 0)
    taken = tl.min(tl.where(keep, BLOCK_G, step), 0)  # step `length` is never kept
    tl.store(tokens + request * (G + 1) + step, tl.where(step <= taken, choice, -1), mask=step <= G)
    tl.store(accepted + request, taken)


def launch_argmax(
    logits: torch.Tensor, lengths: torch.Tensor | None, config: Config
) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest logit of each block of each row and its place: float32 and int32 [rows, blocks].

    logits: [requests, steps, V]. lengths: int32 [requests]; rows of steps past it are left unwritten.
    """
    requests, steps, vocabulary = logits.shape
    splits = triton.cdiv(vocabulary, int(config.meta["BLOCK_V"]))
    tops = torch.empty((requests * steps, splits), dtype=torch.float32, device=logits.device)
    places = torch.empty((requests * steps, splits), dtype=torch.int32, device=logits.device)
    _argmax_kernel[(requests * steps, splits)](
        logits, tops, places, places if lengths is None else lengths, vocabulary, splits, steps,
        RAGGED=lengths is not None, **config.options(),
    )  # fmt: skip
    return tops, places


@entry
def verify_greedy(
    target_logits: torch.Tensor, draft_tokens: torch.Tensor, draft_lengths: torch.Tensor, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Verify a chain of drafted tokens a request against the target's most likely ones.

    Drafts are accepted while each is the argmax of its row (of equal logits, +inf among them, the first); then comes
    the argmax itself. A row with NaN has none: its draft is not accepted, and its token is -1.

    target_logits: [B, G + 1, V], of the place of each draft and of the one after the last; bfloat16, float16 or
    float32, contiguous. draft_tokens: int32 [B, G]. draft_lengths: int32 [B], 0 to G (taken as such beyond); values on
    the device are not checked. B up to 65536, G 1 to 64, V 2 to 2^20. config: instead of the table's.

    Returns tokens, int32 [B, G + 1]: the accepted drafts, the target's next choice, then -1; and int32 [B], the number
    of accepted drafts. Raises KernelInputError.
    """
    requests, steps, vocabulary = check_chain(target_logits, draft_tokens, draft_lengths)
    config = configured("spec_greedy", target_logits, config, vocabulary=vocabulary)
    tops, places = launch_argmax(target_logits, draft_lengths, config)
    tokens, accepted = new_ints(target_logits, (requests, steps), (requests,))
    block_g, block_s = triton.next_power_of_2(steps), triton.next_power_of_2(tops.shape[1])
    _match_kernel[(requests,)](
        tops, places, draft_tokens, draft_lengths, tokens, accepted, steps - 1, tops.shape[1],
        BLOCK_G=block_g, BLOCK_S=block_s, **scan_options(block_g, block_s),
    )  # fmt: skip
    return tokens, accepted


def verify_greedy_reference(
    target_logits: torch.Tensor, draft_tokens: torch.Tensor, draft_lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain torch."""
    steps = target_logits.shape[1]
    choice = choices_reference(target_logits)
    live = torch.arange(steps - 1, device=choice.device) < draft_lengths.clamp(0, steps - 1)[:, None]
    accepted = ((choice[:, :-1] == draft_tokens) & (choice[:, :-1] >= 0) & live).int().cumprod(dim=1).sum(dim=1)
    tokens = torch.where(torch.arange(steps, device=choice.device) <= accepted[:, None], choice, -1)
    return tokens.to(torch.int32), accepted.to(torch.int32)


def choices_reference(logits: torch.Tensor) -> torch.Tensor:
    """The first of each row's largest logits; -1 for a row with NaN."""
    return torch.where(logits.isnan().any(dim=-1), -1, logits.double().argmax(dim=-1))
