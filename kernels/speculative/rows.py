"""What verification needs of a row of logits: its maximum and its sum of exponentials, found in vocabulary blocks.

A row of V logits is split into cdiv(V, BLOCK_V) blocks, one program each, so that few rows still fill the GPU and every
logit is read once. A block leaves its maximum and its sum of exp((x - maximum) / temperature); whoever needs the row
merges them. Keeping maximum and sum apart (not their logarithm) keeps x - maximum exact for 16-bit logits at any
temperature.

A logit of +inf, if it is the only one of its row, has probability 1. A row with several of them or with NaN has no
probabilities: its 1 / sum is NaN, and so are they.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_range, check_tensor
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

LOGITS = (torch.bfloat16, torch.float16, torch.float32)
"""Types of logits that the kernels read; they compute in float32."""

COLDEST = 1e-5
"""Lower temperatures are taken as this one, at which sampling is greedy but for ties."""


@triton.jit
def _scale(temperature, request):
    """log2(e) / temperature: exp(x / T) = exp2(x * scale)."""
    return 1.4426950408889634 / tl.maximum(tl.load(temperature + request), 1e-5)  # COLDEST


@triton.jit
def _share(x, top, scale):
    """exp((x - top) / T); 1 at the top, be it +inf."""
    return tl.where(x == top, 1.0, tl.exp2((x - top) * scale))


@triton.jit(do_not_specialize=["TARGET_ROWS", "T_STEPS", "D_STEPS"])
def _block_kernel(
    target, draft, tops, sums, temperature, lengths, V, SPLITS, TARGET_ROWS, T_STEPS, D_STEPS,
    RAGGED: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of one block of one row; rows of the target come first, then the draft's."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    of_target = row < TARGET_ROWS
    inner = tl.where(of_target, row, row - TARGET_ROWS)
    steps = tl.where(of_target, T_STEPS, D_STEPS)
    request = inner // steps
    live = True
    if RAGGED:  # a request drafts fewer tokens than there is room for: its last rows are not looked at
        length = tl.load(lengths + request)
        live = inner % steps < tl.maximum(length, 0) + of_target.to(tl.int32)
    if live:
        columns = split * BLOCK_V + tl.arange(0, BLOCK_V)
        at = inner.to(tl.int64) * V + columns
        if of_target:
            x = tl.load(target + at, mask=columns < V, other=-float("inf")).to(tl.float32)
        else:
            x = tl.load(draft + at, mask=columns < V, other=-float("inf")).to(tl.float32)
        top = tl.max(x, 0)
        anchor = tl.where(top == -float("inf"), 0.0, top)
        total = tl.sum(_share(x, anchor, _scale(temperature, request)), 0)
        place = row.to(tl.int64) * SPLITS + split
        tl.store(tops + place, top)
        tl.store(sums + place, total)


@triton.jit
def _total(tops, sums, row, live, scale, SPLITS, BLOCK_S: tl.constexpr):
    """Maximum and sum of exponentials of a vector of rows; 0 and 0 for a row of -inf, NaN as sum for one with NaN."""
    splits = tl.arange(0, BLOCK_S)
    mask = live[:, None] & (splits < SPLITS)[None, :]
    at = row.to(tl.int64)[:, None] * SPLITS + splits[None, :]
    maxima = tl.load(tops + at, mask=mask, other=-float("inf"))
    shares = tl.load(sums + at, mask=mask, other=0.0)
    top = tl.max(maxima, 1)
    anchor = tl.where(top == -float("inf"), 0.0, top)
    return anchor, tl.sum(shares * _share(maxima, anchor[:, None], scale), 1)


@triton.jit
def _merge(tops, sums, row, live, scale, SPLITS, BLOCK_S: tl.constexpr):
    """Maximum and 1 / sum of exponentials of a vector of rows; 0 and 0 for a row of -inf.

    NaN as 1 / sum for a row with NaN or with several +inf.
    """
    top, total = _total(tops, sums, row, live, scale, SPLITS, BLOCK_S)
    total = tl.where((top == float("inf")) & (total > 1.0), float("nan"), total)
    return top, tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit
def _probability(logits, row, token, live, top, inverse, scale, V):
    """Probability of one token of each of a vector of rows; 0 for a token outside the vocabulary."""
    known = live & (token >= 0) & (token < V)
    x = tl.load(logits + row.to(tl.int64) * V + token, mask=known, other=-float("inf")).to(tl.float32)
    return _share(x, top, scale) * inverse


@triton.jit
def _logsumexp_kernel(tops, sums, out, temperature, SPLITS, BLOCK_S: tl.constexpr):
    """Merge the blocks of one row."""
    row = tl.program_id(0) + tl.zeros((1,), tl.int32)
    scale = _scale(temperature, tl.program_id(0))
    top, total = _total(tops, sums, row, row >= 0, scale, SPLITS, BLOCK_S)
    value = (top * scale + tl.log2(tl.where(total == 0.0, 1.0, total))) * 0.6931471805599453
    tl.store(out + row, tl.where(total == 0.0, -float("inf"), value))


def launch_blocks(
    target: torch.Tensor,
    draft: torch.Tensor | None,
    temperature: torch.Tensor,
    lengths: torch.Tensor | None,
    config: Config,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima and sums of the blocks of all rows: each float32 [rows of target, then of draft, blocks].

    target, draft: logits [requests, steps, V]. lengths: int32 [requests], drafted tokens; rows of later steps are left
    unwritten.
    """
    requests, steps, vocabulary = target.shape
    d_steps = draft.shape[1] if draft is not None else 1
    target_rows = requests * steps
    rows = target_rows + (requests * d_steps if draft is not None else 0)
    block = int(config.meta["BLOCK_V"])
    splits = triton.cdiv(vocabulary, block)
    tops = torch.empty((rows, splits), dtype=torch.float32, device=target.device)
    sums = torch.empty_like(tops)
    _block_kernel[(rows, splits)](
        target, target if draft is None else draft, tops, sums, temperature,
        temperature if lengths is None else lengths, vocabulary, splits, target_rows, steps, d_steps,
        RAGGED=lengths is not None, **config.options(),
    )  # fmt: skip
    return tops, sums


def check_chain(target_logits: torch.Tensor, draft_tokens: torch.Tensor, draft_lengths: torch.Tensor) -> torch.Size:
    """Check what greedy and sampled verification of a chain have in common; requests, drafts + 1, vocabulary."""
    shape = check_logits(target_logits)
    check_range("the number of drafts (rows of target_logits less one)", shape[1] - 1, 1, 64)
    check_ints(target_logits, (shape[0], shape[1] - 1), draft_tokens=draft_tokens)
    check_ints(target_logits, (shape[0],), draft_lengths=draft_lengths)
    return shape


def check_logits(target_logits: torch.Tensor) -> torch.Size:
    """Check the target's logits, [requests, rows, vocabulary] with any number of rows; their shape."""
    check_tensor("target_logits", target_logits, (None, None, None), LOGITS)
    check_range("the number of requests", target_logits.shape[0], 1, 65536)
    check_range("the vocabulary", target_logits.shape[2], 2, 2**20)
    return target_logits.shape


def check_drawn(
    like: torch.Tensor,
    draft_logits: torch.Tensor | None,
    steps: int,
    uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    temperature: torch.Tensor,
) -> None:
    """Check what sampled verification of `steps` drafts a request has beside the target's logits, `like`."""
    requests, _, vocabulary = like.shape
    if draft_logits is not None:
        check_tensor("draft_logits", draft_logits, (requests, steps, vocabulary), LOGITS, like=like)
    check_tensor("uniforms", uniforms, (requests, steps), (torch.float32,), like=like, align=4)
    check_tensor("sample_uniforms", sample_uniforms, (requests,), (torch.float32,), like=like, align=4)
    check_temperature(temperature, requests, like)


def check_ints(like: torch.Tensor, shape: tuple[int, ...], **tensors: torch.Tensor) -> None:
    """Check int32 tensors of one shape, by name, on the device of `like`."""
    for name, tensor in tensors.items():
        check_tensor(name, tensor, shape, (torch.int32,), like=like, align=4)


def check_temperature(temperature: torch.Tensor, requests: int, like: torch.Tensor) -> None:
    """Check the temperatures, float32 [requests]; their values are not looked at."""
    check_tensor("temperature", temperature, (requests,), (torch.float32,), like=like, align=4)


def new_ints(like: torch.Tensor, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Int32 tensors to be written, on the device of `like`."""
    return [torch.empty(shape, dtype=torch.int32, device=like.device) for shape in shapes]


@entry
def logsumexp_rows(logits: torch.Tensor, temperature: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """log(sum(exp(x / T))) of each row of logits, float32 [rows]: the pass over the vocabulary that verification makes.

    logits: [rows, V], bfloat16, float16 or float32, contiguous; V from 2 to 2^20; -inf for what may not be sampled.
    temperature: T, float32 [rows]; below 1e-5 it is taken as 1e-5. A row of -inf gives -inf, one with
    +inf gives +inf, one with NaN gives NaN. Reads every logit once. config: instead of the table's. Raises
    KernelInputError.
    """
    check_tensor("logits", logits, (None, None), LOGITS)
    rows, vocabulary = logits.shape
    check_range("the number of rows", rows, 1, 2**24)
    check_range("the vocabulary", vocabulary, 2, 2**20)
    check_temperature(temperature, rows, logits)
    config = configured("spec_logsumexp", logits, config, vocabulary=vocabulary)
    tops, sums = launch_blocks(logits[:, None], None, temperature, None, config)
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    splits = tops.shape[1]
    width = triton.next_power_of_2(splits)
    _logsumexp_kernel[(rows,)](tops, sums, out, temperature, splits, BLOCK_S=width, num_warps=1)
    return out


def logsumexp_rows_reference(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """The same in float64 torch."""
    return torch.logsumexp(logits.double() / temperature.double().clamp_min(COLDEST)[:, None], dim=-1)


def probabilities_reference(logits: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(logits / T) in float64, [B, rows, V], and which rows [B, rows] have none: NaN in them, or several +inf.

    temperature: [B]. The probabilities of these rows are 0, and so are those of a row of -inf.
    """
    cold = temperature.double().clamp_min(COLDEST)[:, None, None]
    p = torch.softmax(logits.double() / cold, dim=-1).nan_to_num(0.0)
    certain = logits.isposinf()
    infinite, none = certain.sum(dim=-1), logits.isnan().any(dim=-1)
    p = torch.where((infinite == 1)[..., None], certain.double(), p)
    broken = none | (infinite > 1)
    return torch.where(broken[..., None], 0.0, p), broken
