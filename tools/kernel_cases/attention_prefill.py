"""Prefill and standard attention: a case for each row of their tables, head dimension and variant of the code."""

from __future__ import annotations

from functools import partial

import torch

from kernel_cases.case import Candidates, Case, Work
from perfmodel.kernels.attention.prefill import Packed, prefill_attention
from perfmodel.kernels.attention.standard import ROW_MULTIPLE, attention_scores, attention_softmax, attention_values
from perfmodel.kernels.device import SM_COUNT
from perfmodel.kernels.table import Config

HEADS, KV_HEADS = 32, 8
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}

Expectations = dict[str, bool | int | float | str]
Variants = dict[str, dict[str, bool | int | float]]


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def prefill(
    head_dim: int,
    queries: int,
    keys: int,
    *,
    dtype: torch.dtype = BF16,
    packed: bool = False,
    sinks: bool = False,
    config: Config | None = None,
    **options: bool | int | float,
) -> object:
    """Four sequences of one length, dense or packed."""
    rows, columns = ((4 * queries,), (4 * keys,)) if packed else ((4, queries), (4, keys))
    where = Packed(meta(5, dtype=torch.int32), meta(5, dtype=torch.int32), queries, keys) if packed else None
    return prefill_attention(
        meta(*rows, HEADS, head_dim, dtype=dtype),
        meta(*columns, KV_HEADS, head_dim, dtype=dtype),
        meta(*columns, KV_HEADS, head_dim, dtype=dtype),
        packed=where,
        sinks=meta(HEADS, dtype=FP32) if sinks else None,
        config=config,
        **options,  # type: ignore[arg-type]
    )


def unit(arch: str, head_dim: int = 0, *, tma: bool) -> Expectations:
    """The matrix instruction of an architecture and how tiles are loaded."""
    loads: Expectations = {"tma_load": True, "cp_async": False} if tma else {"cp_async16": True, "tma_load": False}
    if arch == "sm_80":
        return {"mma_sync": True, **loads}
    if arch == "sm_100":
        return {"tcgen05": True, "mma_sync": False, **loads}
    shape: Expectations = {"shape": f"m64n{head_dim}k16"} if head_dim else {}
    return {"wgmma": True, "mma_sync": False, **shape, **loads}


#: What changes the code of a prefill row: options of the call.
ALL = "packed, window, sinks, softcap"
VARIANTS: Variants = {
    "not causal": {"causal": False},
    "window, sinks": {"window": 1024, "sinks": True},
    "softcap": {"softcap": 50.0},
    "packed": {"packed": True},
    ALL: {"packed": True, "window": 1024, "sinks": True, "softcap": 30.0},
}


def several(
    arch: str, label: str, shape: tuple[int, int, int], expects: Expectations, variants: Variants
) -> list[Case]:
    return [
        Case("attention_prefill", arch, f"{label}, {name}", partial(prefill, *shape, **options), expects)  # type: ignore[arg-type]
        for name, options in variants.items()
    ]


def main_rows(arch: str, head_dim: int) -> list[Case]:
    """Long prompts, with everything that a call may ask for."""
    expects = unit(arch, head_dim, tma=arch != "sm_80")
    expects |= {"blocks_per_sm": 2} if (arch, head_dim) == ("sm_90", 64) else {}
    label = f"D{head_dim}, 4096 tokens"

    def one(name: str, dtype: torch.dtype = BF16, **options: bool | int | float) -> Case:
        call = partial(prefill, head_dim, 4096, 4096, dtype=dtype, **options)
        met = expects if (head_dim, "softcap" in options, arch) != (64, True, "sm_80") else unit(arch, tma=False)
        return Case("attention_prefill", arch, f"{label}, {name}", call, met)

    return [one("causal"), one("fp16", FP16), *(one(name, **options) for name, options in VARIANTS.items())]


def few_queries(arch: str, head_dim: int) -> list[Case]:
    """A chunk of at most 64 tokens behind a long prefix."""
    expects = unit(arch, tma=arch != "sm_80")
    return several(arch, f"D{head_dim}, 64 queries", (head_dim, 64, 4096), expects, {"causal": {}, ALL: VARIANTS[ALL]})


def short_packed(arch: str, head_dim: int) -> list[Case]:
    """Packed sequences of up to 512 keys, by pointers."""
    variants: Variants = {
        "causal": {"packed": True},
        "not causal": {"packed": True, "causal": False},
        "sinks, softcap": {"packed": True, "sinks": True, "softcap": 30.0},
    }
    expects = unit(arch, head_dim, tma=False)
    return several(arch, f"D{head_dim}, packed, 512 tokens", (head_dim, 512, 512), expects, variants)


def specialized(arch: str, head_dim: int) -> list[Case]:
    """The warp-specialized loop: the registers are shared out among its warp groups."""
    variants: Variants = {
        "causal": {"warp_specialized": True},
        "not causal": {"warp_specialized": True, "causal": False},
        "window, sinks, softcap": {"warp_specialized": True, "window": 1024, "sinks": True, "softcap": 30.0},
    }
    warps = {("sm_90", 64): 12, ("sm_90", 128): 12, ("sm_100", 64): 16, ("sm_100", 128): 20}[arch, head_dim]
    expects = {**unit(arch, head_dim, tma=True), "setmaxnreg": True, "warps": warps}
    return several(arch, f"D{head_dim}, warp-specialized", (head_dim, 4096, 4096), expects, variants)


def standard(arch: str) -> list[Case]:
    """Scores and output by head dimension, the softmax by the length of a row."""
    cases = []
    kinds = [(d, n, dtype) for d in (64, 128, 256) for n in (64, 4096) for dtype in (BF16, FP32)]
    for d, n, dtype in kinds:
        if dtype is FP32 and d != 128:
            continue
        label = f"D{d}, {n} queries, {NAMES[dtype]} scores"
        loads = {name: True for name in unit(arch, tma=False) if name not in ("mma_sync", "tma_load", "cp_async16")}
        cases += [
            Case("attention_standard_scores", arch, label, partial(scores, d, n, dtype), loads),
            Case("attention_standard_values", arch, label, partial(values, d, n, dtype), unit(arch, tma=False)),
        ]
    for n in (200, 1000, 4000, 16000, 40000):
        call = partial(softmax, n)
        cases.append(Case("attention_standard_softmax", arch, f"{n} keys", call, {"load_v4": True}))
    return cases


def scores(head_dim: int, queries: int, dtype: torch.dtype) -> object:
    return attention_scores(meta(1, queries, HEADS, head_dim), meta(1, 4096, KV_HEADS, head_dim), dtype=dtype)


def values(head_dim: int, queries: int, dtype: torch.dtype) -> object:
    return attention_values(padded(queries, 4096, dtype), meta(1, 4096, KV_HEADS, head_dim))


def softmax(keys: int) -> object:
    return attention_softmax(padded(1024, keys))


def padded(queries: int, keys: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Scores as `attention_scores` makes them."""
    return meta(1, HEADS, queries, -(-keys // ROW_MULTIPLE) * ROW_MULTIPLE, dtype=dtype)[..., :keys]


CASES = [
    *(case for arch in SM_COUNT for d in (64, 128, 256) for case in (*main_rows(arch, d), *few_queries(arch, d))),
    *(case for arch in ("sm_90", "sm_100") for d in (64, 128) for case in short_packed(arch, d)),
    *(case for arch in ("sm_90", "sm_100") for d in (64, 128) for case in specialized(arch, d)),
    *(case for arch in SM_COUNT for case in standard(arch)),
]


def work(config: Config, head_dim: int, tokens: int, causal: bool) -> Work:
    """Four sequences: tiles on the diagonal count whole, keys and values are read once a query tile."""
    down, across = int(config.meta["BLOCK_M"]), int(config.meta["BLOCK_N"])
    tiles, pairs = -(-tokens // down), 4 * HEADS
    blocks = sum(-(-min((i + 1) * down, tokens) // across) if causal else -(-tokens // across) for i in range(tiles))
    moved = 4.0 * tokens * head_dim * 2
    return Work(
        blocks=tiles * pairs,
        hbm_bytes=moved * 2 * (HEADS + KV_HEADS),
        l2_bytes=moved * 2 * HEADS + 4.0 * pairs * blocks * across * head_dim,
        flops=4.0 * pairs * blocks * down * across * head_dim,
        exp=float(pairs * blocks * down * across),
    )


def keep(config: Config) -> bool:
    """Four warps hold at most 64 rows of scores and sums."""
    return config.num_warps == 8 or int(config.meta["BLOCK_M"]) <= 64


CANDIDATES = [
    Candidates(
        "attention_prefill",
        arch,
        f"D{head_dim}, causal, 4096 tokens",
        {
            "tma": (arch != "sm_80",),
            **({} if arch == "sm_80" else {"SPECIALIZE": (False,)}),
            "BLOCK_M": (64, 128),
            "BLOCK_N": (32, 64, 128),
        },
        (4, 8),
        (2, 3),
        lambda config, d=head_dim: prefill(d, 4096, 4096, config=config),  # type: ignore[misc]
        lambda config, d=head_dim: work(config, d, 4096, True),  # type: ignore[misc]
        keep,
    )
    for arch in SM_COUNT
    for head_dim in (64, 128, 256)
]
