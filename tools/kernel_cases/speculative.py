"""Verification of speculated tokens: a case for each row of the launch tables, and for what compiles to other code."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.speculative.chain import verify_chain
from perfmodel.kernels.speculative.compact import compact_kv
from perfmodel.kernels.speculative.greedy import verify_greedy
from perfmodel.kernels.speculative.rows import logsumexp_rows
from perfmodel.kernels.speculative.tree import verify_tree_greedy
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled
from perfmodel.kernels.table import Config

BATCH, DRAFTS, NODES, DEPTH = 64, 4, 48, 7
BF16, FP32 = torch.bfloat16, torch.float32
LARGE, SMALL, ODD = 128256, 32000, 50257
"""Vocabularies of Llama 3, Llama 2 and GPT-2, whose rows are not aligned."""


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


def logsumexp(vocabulary: int, dtype: torch.dtype) -> object:
    rows = BATCH * (DRAFTS + 1)
    return logsumexp_rows(meta(rows, vocabulary, dtype=dtype), meta(rows))


def chain(vocabulary: int, dtype: torch.dtype, drafted: torch.dtype | None) -> object:
    draft = None if drafted is None else meta(BATCH, DRAFTS, vocabulary, dtype=drafted)
    target = meta(BATCH, DRAFTS + 1, vocabulary, dtype=dtype)
    return verify_chain(target, draft, ints(BATCH, DRAFTS), ints(BATCH), meta(BATCH, DRAFTS), meta(BATCH), meta(BATCH))


def greedy(vocabulary: int, dtype: torch.dtype) -> object:
    return verify_greedy(meta(BATCH, DRAFTS + 1, vocabulary, dtype=dtype), ints(BATCH, DRAFTS), ints(BATCH))


def greedy_tree(vocabulary: int, dtype: torch.dtype) -> object:
    target = meta(BATCH, NODES, vocabulary, dtype=dtype)
    return verify_tree_greedy(target, ints(BATCH, NODES), ints(BATCH, NODES), DEPTH)


def tree(vocabulary: int, dtype: torch.dtype, drafted: torch.dtype | None) -> object:
    shape = (BATCH, NODES)
    draft = None if drafted is None else meta(*shape, vocabulary, dtype=drafted)
    target = meta(*shape, vocabulary, dtype=dtype)
    return verify_tree_sampled(target, draft, ints(*shape), ints(*shape), DEPTH, meta(*shape), meta(BATCH), meta(BATCH))


def compact(depth: int, dtype: torch.dtype, *, values: bool = True) -> object:
    shape = (32, 1024, 16, 8, 128) if values else (60, 1024, 64, 576)
    cache = meta(*shape, dtype=dtype)
    other = meta(*shape, dtype=dtype) if values else None
    return compact_kv(cache, other, ints(BATCH, 512), ints(BATCH), ints(BATCH, depth + 1), ints(BATCH))


def single(vocabulary: int) -> None:
    """One request with one draft: arguments of 1 are compiled as constants."""
    rows, one = meta(1, 2, vocabulary, dtype=BF16), ints(1)
    verify_chain(rows, meta(1, 1, vocabulary, dtype=BF16), ints(1, 1), one, meta(1, 1), meta(1), meta(1))
    verify_greedy(rows, ints(1, 1), one)
    for draft in (rows, None):
        verify_tree_sampled(rows, draft, ints(1, 2), ints(1, 2), 1, meta(1, 2), meta(1), meta(1))
    verify_tree_greedy(rows, ints(1, 2), ints(1, 2), 1)
    compact_kv(meta(1, 1, 1, 1), meta(1, 1, 1, 1), ints(1, 1), one, ints(1, 2), one)


def case(kernel: str, arch: str, label: str, call: Callable[..., object], *given: object, **how: object) -> Case:
    wide = {"load_v4": ODD not in given}  # rows whose start is not known to be aligned are read a number at a time
    return Case(kernel, arch, label, lambda: call(*given, **how), {"atomics": False, **wide})


def cases(arch: str) -> list[Case]:
    return [
        case("spec_logsumexp", arch, "bf16", logsumexp, LARGE, BF16),
        case("spec_logsumexp", arch, "bf16, small vocabulary", logsumexp, SMALL, BF16),
        case("spec_logsumexp", arch, "fp32", logsumexp, LARGE, FP32),
        case("spec_chain", arch, "bf16", chain, LARGE, BF16, BF16),
        case("spec_chain", arch, "bf16, small vocabulary", chain, SMALL, BF16, BF16),
        case("spec_chain", arch, "bf16, odd vocabulary", chain, ODD, BF16, BF16),
        case("spec_chain", arch, "fp32", chain, LARGE, FP32, FP32),
        case("spec_chain", arch, "drafts without chance", chain, LARGE, BF16, None),
        case("spec_chain", arch, "one request, one draft", single, SMALL),
        case("spec_greedy", arch, "bf16", greedy, LARGE, BF16),
        case("spec_greedy", arch, "bf16, small vocabulary", greedy, SMALL, BF16),
        case("spec_greedy", arch, "tree", greedy_tree, LARGE, BF16),
        case("spec_tree", arch, "bf16", tree, LARGE, BF16, BF16),
        case("spec_tree", arch, "bf16, small vocabulary", tree, SMALL, BF16, BF16),
        case("spec_tree", arch, "fp32", tree, LARGE, FP32, FP32),
        case("spec_tree", arch, "drafts without chance", tree, LARGE, BF16, None),
        case("spec_compact", arch, "bf16", compact, DEPTH, BF16),
        case("spec_compact", arch, "8-bit codes", compact, DEPTH, torch.int8),
        case("spec_compact", arch, "latent", compact, DEPTH, BF16, values=False),
        case("spec_compact", arch, "deep", compact, 31, BF16),
    ]


def candidates(arch: str, vocabulary: int) -> Candidates:
    """Vocabulary blocks for the pass over all rows: the whole of `spec_logsumexp`, nearly all of the other kernels."""
    rows = BATCH * (DRAFTS + 1)

    def work(config: Config) -> Work:
        block = int(config.meta["BLOCK_V"])
        blocks = rows * -(-vocabulary // block)
        return Work(blocks, hbm_bytes=rows * vocabulary * 2.0, exp=float(blocks * block))

    return Candidates(
        "spec_logsumexp",
        arch,
        f"vocabulary {vocabulary}",
        {"BLOCK_V": (2048, 4096, 8192, 16384)},
        (4, 8, 16),
        (1,),
        lambda config: logsumexp_rows(meta(rows, vocabulary, dtype=BF16), meta(rows), config),
        work,
        keep=lambda config: int(config.meta["BLOCK_V"]) // config.num_warps in (512, 1024, 2048),
    )


CANDIDATES = [candidates(arch, vocabulary) for arch in SM_COUNT for vocabulary in (SMALL, LARGE)]
CASES = [one for arch in ("sm_80", "sm_90", "sm_100") for one in cases(arch)]
