"""Attention cases: ``scaled_dot_product_attention`` in bf16 with grouped queries, causal prefill and one decode step.

Tensors lie token by token, (batch, token, head, dim), as engines keep them; the fp64 reference computes a few queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from on_gpu.cases import Case, Sizes, Tensors, normal

TOLERANCE = 8e-3  # relative Frobenius: bf16 output rounding 1.7e-3, and bf16 probabilities
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
SAMPLES = 24


def _maker(batch: int, queries: int, keys: int, sizes: Sizes) -> Callable[[torch.device], Tensors]:
    def make(device: torch.device) -> Tensors:
        def draw(tokens: int, heads: int) -> torch.Tensor:
            return normal((batch, tokens, heads, sizes.head_dim), torch.bfloat16, device).transpose(1, 2)

        return draw(queries, sizes.heads), draw(keys, sizes.kv_heads), draw(keys, sizes.kv_heads)

    return make


def _run_prefill(inputs: Tensors) -> torch.Tensor:
    q, k, v = inputs
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _run_decode(inputs: Tensors) -> torch.Tensor:
    q, k, v = inputs  # one query sees every key: is_causal would mean the upper left corner, so it is off
    return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _reference(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = inputs
    batch, heads, queries, dim = q.shape
    group, keys = heads // k.shape[1], k.shape[2]
    draws = [torch.randint(0, size, (SAMPLES,)).tolist() for size in (batch, heads, queries)]
    draws[2][:2] = 0, queries - 1
    actual, expected = [], []
    for b, h, i in zip(*draws, strict=True):
        seen = keys - queries + i + 1
        scores = k[b, h // group, :seen].double() @ q[b, h, i].double() / math.sqrt(dim)
        expected.append(torch.softmax(scores, 0) @ v[b, h // group, :seen].double())
        actual.append(output[b, h, i].double())
    return torch.stack(actual), torch.stack(expected)


def _context(backend: str) -> Callable[[], AbstractContextManager[object]]:
    return lambda: sdpa_kernel(BACKENDS[backend])


def attention(phase: str, backend: str, batch: int, length: int, sizes: Sizes) -> Case:
    """Return the case of one attention call; ``phase`` is context (``length`` queries) or generation (one)."""
    prefill = phase == "context"
    queries = length if prefill else 1
    pairs = length * (length + 1) / 2 if prefill else length
    tokens = 2 * queries * sizes.heads + 2 * length * sizes.kv_heads  # q and output, k and v
    size = 2 * batch * sizes.head_dim * tokens
    columns: dict[str, object] = {"dtype": "bfloat16"} if prefill else {}
    columns |= {"kv_cache_dtype": "bfloat16", "batch_size": batch, "isl" if prefill else "context_len": length}
    columns |= {"num_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    return Case(
        name=f"{phase} attention {backend} batch={batch} length={length}",
        table=f"{phase}_attention",
        group=f"{phase} attention {backend}",
        source=f"torch_sdpa_{backend}",
        columns=columns,
        make=_maker(batch, queries, length, sizes),
        run=_run_prefill if prefill else _run_decode,
        reference=_reference,
        tolerance=TOLERANCE,
        set_bytes=size,
        moved_bytes=size,
        flops=4.0 * batch * sizes.heads * sizes.head_dim * pairs,
        core=backend == "flash",
        cuda_only=backend == "cudnn",
        min_capability=(8, 0),
        context=_context(backend),
    )


def attention_cases(sizes: Sizes, backend: str) -> list[Case]:
    """Return the prefill and decode cases of one backend."""
    prefill = [attention("context", backend, batch, length, sizes) for batch, length in sizes.prefill]
    pairs = [(batch, length) for length in sizes.contexts for batch in sizes.batches]
    return prefill + [attention("generation", backend, batch, length, sizes) for batch, length in pairs]
