"""GPUs that take the rows of sm_80 for want of wgmma and tensor memory, as far as their 99 KiB of shared memory reach.

A case for each row that is there for them, and for the main kernels: on sm_89 (L40S, RTX 4090) and sm_120 (RTX PRO 6000
Blackwell, RTX 5090), and on sm_86 (A40, RTX 3090), which has no FP8, for what differs there.
"""

from __future__ import annotations

from functools import partial

import torch

from kernel_cases import (
    attention_decode,
    attention_mla,
    attention_prefill,
    attention_tree,
    gemm,
    gemm_w4a16,
    speculative,
    support,
)
from kernel_cases.case import Case

BF16, FP8, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8
PRODUCT = {"mma_sync": True, "cp_async16": True}
"""Tensor cores by mma.sync, operands by asynchronous copies."""


def attention(arch: str) -> list[Case]:
    """The rows of head dimension 256 and of MLA that are smaller here, and the most usual ones."""
    decode, tree, prefill = attention_decode.decode, attention_tree.attend, attention_prefill.prefill
    calls = {
        ("attention_decode", "D128 rows 16"): partial(decode, 16, 128, 64, BF16),
        ("attention_decode", "D128 rows 16 fp8"): partial(decode, 16, 128, 64, FP8),
        ("attention_decode", "D256 rows 32"): partial(decode, 32, 256, 64, BF16),
        ("attention_decode", "D256 rows 64"): partial(decode, 64, 256, 64, BF16),
        ("attention_decode", "D256 rows 64 page 16"): partial(decode, 64, 256, 16, BF16),
        ("attention_tree", "D128 rows 64"): partial(tree, 64, 128, 64, BF16),
        ("attention_tree", "D256 rows 32"): partial(tree, 32, 256, 64, BF16),
        ("attention_tree", "D256 rows 64"): partial(tree, 64, 256, 64, BF16),
        ("attention_mla", "heads 16"): partial(attention_mla.decode, 16, 64, BF16, 512),
        ("attention_mla", "heads 128"): partial(attention_mla.decode, 128, 64, BF16, 256),
        ("attention_mla", "heads 128 page 16 fp8"): partial(attention_mla.decode, 128, 16, FP8, 256),
        ("attention_prefill", "D64, 4096 tokens"): partial(prefill, 64, 4096, 4096),
        ("attention_prefill", "D128, 4096 tokens"): partial(prefill, 128, 4096, 4096),
        ("attention_prefill", "D256, 4096 tokens"): partial(prefill, 256, 4096, 4096),
        ("attention_prefill", "D256, 4096 tokens, packed, window, sinks, softcap"): partial(
            prefill, 256, 4096, 4096, packed=True, window=1024, sinks=True, softcap=30.0
        ),
    }
    scores = partial(attention_prefill.scores, 256, 4096, BF16)
    return [
        *(Case(kernel, arch, label, call, PRODUCT) for (kernel, label), call in calls.items()),
        Case("attention_standard_scores", arch, "D256, 4096 queries", scores, {"mma_sync": True}),
    ]


def products(arch: str) -> list[Case]:
    return [
        Case("gemm_dense", arch, "m<=16", partial(gemm.dense, 16, 4096, 4096), PRODUCT),
        Case("gemm_dense", arch, "128x128", partial(gemm.dense, *gemm.SQUARE), PRODUCT),
        Case("gemm_w8a8", arch, "128x128", partial(gemm.int8, *gemm.SQUARE), PRODUCT),
        Case("gemm_w4a16", arch, "m<=16", partial(gemm_w4a16.product, 16, 4096, 4096, 128, BF16), PRODUCT),
        Case("gemm_w4a16", arch, "m<=32", partial(gemm_w4a16.product, 32, 4096, 4096, 128, BF16), PRODUCT),
    ]


def passes(arch: str) -> list[Case]:
    """Verification and layers, and FP8 where mma.sync and conversions have it."""
    calls = {
        ("spec_chain", "bf16"): partial(speculative.chain, speculative.LARGE, BF16, BF16),
        ("spec_tree", "bf16"): partial(speculative.tree, speculative.LARGE, BF16, BF16),
        ("spec_compact", "bf16"): partial(speculative.compact, speculative.DEPTH, BF16),
        ("support_rms_norm", "4096, residual"): support.norm(4096, True),
        ("support_rope", "neox"): support.rope(128, 128),
        ("support_kv_quantize", "fp8, by token"): support.kv(128, FP8, True),
        ("support_mma", "fp8"): support.mma(FP8),
        ("support_mma", "int8"): support.mma(INT8),
    }
    return [Case(kernel, arch, label, call) for (kernel, label), call in calls.items()]


ALL = [one for arch in ("sm_89", "sm_120") for one in (*attention(arch), *products(arch), *passes(arch))]
OLD = [one for one in attention("sm_86") if "D128 rows 16 fp8" in one.name or "heads 128 page 16 fp8" in one.name]
CASES = [*ALL, *OLD]
