"""A product kernel in configurations that must be refused, and in some that may be shipped."""

from functools import partial

import torch
import triton
import triton.language as tl
from kernel_cases.case import Candidates, Case, Work

from perfmodel.kernels.table import Config


@triton.jit
def _product_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BOUNDED: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    steps = tl.maximum(tl.cdiv(K, BK), 1) if BOUNDED else tl.cdiv(K, BK)
    for step in range(0, steps):
        left = tl.load(a + i[:, None] * K + (step * BK + k)[None, :])
        right = tl.load(b + j[None, :] * K + (step * BK + k)[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + i[:, None] * N + j[None, :], total.to(tl.bfloat16))


def product(config: Config, bounded: bool = True, size: int = 4096) -> None:
    """A square product of bf16 matrices with the configuration given."""
    a = torch.empty(size, size, dtype=torch.bfloat16, device="meta")
    grid = (size // int(config.meta["BM"]), size // int(config.meta["BN"]))
    _product_kernel[grid](a, a, a, size, size, size, BOUNDED=bounded, **config.options())


def of(rows: int, columns: int, depth: int, warps: int, stages: int) -> Config:
    """A configuration by its tile."""
    return Config({"BM": rows, "BN": columns, "BK": depth}, warps, stages)


def case(arch: str, label: str, config: Config, bounded: bool = True, **more) -> Case:
    """A case of the kernel."""
    return Case("planted", arch, label, partial(product, config, bounded), **more)


SMALL = of(64, 64, 32, 4, 2)
CASES = [
    case("sm_90", "good", SMALL, expects={"wgmma": True, "tcgen05": False, "shape": "m64n64k16", "cp_async16": True}),
    case("sm_80", "good", SMALL, expects={"mma_sync": True, "wgmma": False, "blocks_per_sm": 2}),
    case("sm_90", "spills", of(128, 256, 32, 4, 2)),
    case("sm_90", "serialised", of(128, 256, 64, 8, 3), bounded=False),
    case("sm_80", "too much shared memory", of(128, 128, 64, 8, 8)),
    case("sm_90", "expects what is not there", SMALL, expects={"tma_load": True, "registers": 8}),
    case("sm_90", "does not compile", of(64, 60, 32, 4, 2)),
]


def work(config: Config, size: int = 4096) -> Work:
    """A square product: each tile reads its rows and columns once."""
    rows, columns = int(config.meta["BM"]), int(config.meta["BN"])
    blocks = (size // rows) * (size // columns)
    return Work(blocks, 3 * 2 * size**2, 2 * blocks * size * (rows + columns), 2 * size**3)


CANDIDATES = [
    Candidates(
        "planted", "sm_90", "4096 cubed", {"BM": [64, 128], "BN": [64, 256], "BK": [32]}, [4], [2],
        call=product, work=work, keep=lambda config: config.meta["BM"] != 64 or config.meta["BN"] != 256,
    )
]  # fmt: skip
