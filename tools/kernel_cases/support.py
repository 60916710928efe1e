"""Norms, rotation, activations, quantization and ceilings: a case for each row of the launch tables."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.support import ceilings
from perfmodel.kernels.support.kv_quantize import quantize_kv
from perfmodel.kernels.support.mma import mma_loop, mma_tile
from perfmodel.kernels.support.norm import rms_norm
from perfmodel.kernels.support.quantize import quantize_blocks, quantize_rows
from perfmodel.kernels.support.rope import rope_and_cache
from perfmodel.kernels.support.swiglu import swiglu
from perfmodel.kernels.table import Config

TOKENS, PAGES, PAGE = 512, 1024, 16
BF16, FP32, INT8, FP8 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn
WIDE = {"load_v4": True}
AT_ONCE = Config({"BLOCK": 4096, "per_sm": 4}, num_warps=8, num_stages=1)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def case(
    kernel: str, arch: str, label: str, call: Callable[[], object], expects: dict[str, bool | int | float | str]
) -> Case:
    return Case(kernel, arch, label, call, expects)


def norm(hidden: int, residual: bool) -> Callable[[], object]:
    def call() -> object:
        x = meta(TOKENS, hidden, dtype=BF16)
        return rms_norm(x, meta(hidden, dtype=BF16), residual=x if residual else None)

    return call


def rope(
    dim: int, turned: int, *, interleaved: bool = False, kept: bool = True, v_dim: int = 0
) -> Callable[[], object]:
    def call() -> object:
        both = meta(TOKENS, 48, dim, dtype=BF16)
        q, k = both[:, :32], both[:, 32:40]
        v = meta(TOKENS, 8, v_dim, dtype=BF16) if v_dim else both[:, 40:]
        caches = [meta(PAGES, PAGE, *x.shape[1:], dtype=BF16) for x in (k, v)]
        more = (v, meta(TOKENS, dtype=torch.int64), *caches)
        table, positions = meta(8192, turned), meta(TOKENS, dtype=torch.int64)
        if not kept:
            rope_and_cache(q, k, None, table, positions, interleaved=interleaved)
        else:
            rope_and_cache(q, k, more[0], table, positions, *more[1:], interleaved=interleaved)
        return None

    return call


def kv(dim: int, dtype: torch.dtype, by_token: bool) -> Callable[[], object]:
    def call() -> object:
        x = meta(TOKENS, 8, dim, dtype=BF16)
        cache = meta(PAGES, PAGE, 8, dim, dtype=dtype)
        scales = meta(PAGES, PAGE, 8) if by_token else meta(8)
        quantize_kv(x, x, meta(TOKENS, dtype=torch.int64), cache, cache, scales, scales)
        return None

    return call


def mma(dtype: torch.dtype) -> Callable[[], object]:
    def call() -> object:
        m, n, k = mma_tile(dtype, meta(1))
        return mma_loop(meta(m, k, dtype=dtype), meta(n, k, dtype=dtype), 1000)

    return call


def layers(arch: str) -> list[Case]:
    cases = [
        case("support_rms_norm", arch, f"{hidden}{', residual' if residual else ''}", norm(hidden, residual), WIDE)
        for hidden in (1024, 2048, 4096, 8192, 16384)
        for residual in (False, True)
    ]
    pairs = {"load_v4": False}
    return [
        *cases,
        case("support_swiglu", arch, "14336", lambda: swiglu(meta(TOKENS, 2 * 14336, dtype=BF16)), WIDE),
        case("support_rope", arch, "neox", rope(128, 128), WIDE),
        case("support_rope", arch, "neox, not kept", rope(128, 128, kept=False), WIDE),
        case("support_rope", arch, "interleaved, part of the head", rope(192, 64, interleaved=True, v_dim=128), {}),
        case("support_rope", arch, "interleaved", rope(128, 128, interleaved=True, kept=False), pairs),
        case("support_rope", arch, "neox, part of the head", rope(256, 64), WIDE),
    ]


def quantizers(arch: str) -> list[Case]:
    return [
        case(kernel, arch, f"{str(code).removeprefix('torch.')}, {label}", call(code), WIDE)
        for code in ((INT8,) if arch == "sm_80" else (INT8, FP8))
        for kernel, label, call in (
            *(
                ("support_quantize_rows", str(n), lambda c, n=n: lambda: quantize_rows(meta(TOKENS, n, dtype=BF16), c))
                for n in (2048, 4096, 8192, 28672)
            ),
            ("support_quantize_blocks", "4096", lambda c: lambda: quantize_blocks(meta(TOKENS, 4096, dtype=BF16), c)),
            ("support_kv_quantize", "a scale a head", lambda c: kv(128, c, False)),
            ("support_kv_quantize", "a scale a token", lambda c: kv(128, c, True)),
            ("support_kv_quantize", "wide heads", lambda c: kv(256, c, True)),
        )
    ]


def loops(arch: str) -> list[Case]:
    vector = meta(2**28)
    units = {"sm_80": {"mma_sync": True}, "sm_90": {"wgmma": True, "mma_sync": False}, "sm_100": {"tcgen05": True}}
    cases = [
        case("support_copy", arch, "fp32", lambda: ceilings.copy(vector, vector), WIDE),
        case("support_triad", arch, "fp32", lambda: ceilings.triad(vector, vector, 3.0, vector), WIDE),
        case("support_read", arch, "fp32", lambda: ceilings.read_sum(vector), {"cp_async16": True}),
        case("support_read", arch, "fp32, not pipelined", lambda: ceilings.read_sum(vector, AT_ONCE), WIDE),
        case("support_cached_read", arch, "fp32", lambda: ceilings.cached_read_sum(meta(2**22), 10), WIDE),
        case("support_exp2", arch, "fp32", lambda: ceilings.exp2_loop(meta(1024), 1000), {"ex2": True}),
        case("support_fma", arch, "fp32", lambda: ceilings.fma_loop(meta(4096), 1000), {}),
        case("support_empty", arch, "one warp", lambda: ceilings.empty(meta(1)), {}),
    ]
    for width in (64, 1024):
        pool = meta(2**18, width)
        call = lambda pool=pool: ceilings.gather_sum(pool, meta(2**16, dtype=torch.int32))  # noqa: E731
        cases.append(case("support_gather", arch, f"rows of {4 * width} bytes", call, WIDE))
    for dtype in (BF16, INT8) if arch == "sm_80" else (BF16, INT8, FP8):
        none = arch == "sm_100" and dtype == INT8  # Triton 3.6 has no int8 for tcgen05
        expects = units["sm_80" if none else arch]
        cases.append(case("support_mma", arch, str(dtype).removeprefix("torch."), mma(dtype), expects))
    return cases


def norm_candidates(arch: str, hidden: int) -> Candidates:
    """Warps for a row that one block holds, and blocks for one that is read twice."""
    whole = 1 << (hidden - 1).bit_length()

    def call(config: Config) -> object:
        x = meta(TOKENS, hidden, dtype=BF16)
        return rms_norm(x, meta(hidden, dtype=BF16), residual=x, config=config)

    def work(config: Config) -> Work:
        again = 2.0 if int(config.meta["BLOCK_H"]) < hidden else 0.0
        return Work(TOKENS, hbm_bytes=8.0 * TOKENS * hidden, l2_bytes=(8.0 + again) * TOKENS * hidden)

    blocks = {"BLOCK_H": tuple(sorted({min(whole, 4096), min(whole, 8192), min(whole, 16384)}))}
    keep = lambda config: 4 <= int(config.meta["BLOCK_H"]) // (32 * config.num_warps) <= 64  # noqa: E731
    return Candidates("support_rms_norm", arch, f"hidden {hidden}", blocks, (2, 4, 8, 16), (1,), call, work, keep)


CANDIDATES = [norm_candidates(arch, hidden) for arch in SM_COUNT for hidden in (1024, 2048, 4096, 8192, 16384)]
CASES = [one for arch in ("sm_80", "sm_90", "sm_100") for one in (*layers(arch), *quantizers(arch), *loops(arch))]
