"""Which shapes are measured: a quick and a full suite of a device, each with a set that a fit has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.roofline.op import Op
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.compare import FIT_SET, FRESH

SUITES = ("quick", "full")
#: Time for the cases of a suite, unless `--budget` says otherwise. [s]
BUDGETS = {"quick": 45.0, "full": 420.0, "model": 60.0}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Shapes of one set.

    Attributes
    ----------
    gemm : tuple
        (m, n, k).
    prefill, decode : tuple
        (batch, heads, KV heads, head dimension, length).
    latent : tuple
        (batch, heads, length).
    experts : tuple
        (tokens, n, k, experts, chosen).
    passes : tuple
        (rows, columns).
    rejection : tuple
        (requests, vocabulary), each with four drafts.
    """

    gemm: tuple[Shape, ...]
    prefill: tuple[Shape, ...]
    decode: tuple[Shape, ...]
    latent: tuple[Shape, ...]
    experts: tuple[Shape, ...]
    passes: tuple[Shape, ...]
    rejection: tuple[Shape, ...]


CPU_QUICK = Shapes(
    gemm=((1, 1024, 1024), (1, 2048, 2048), (4, 2048, 1024), (1, 512, 4096), (8, 1024, 1024), (16, 1024, 2048),
          (1, 3072, 768), (32, 512, 512), (64, 1024, 1024), (128, 1024, 512), (192, 1024, 1024)),
    prefill=((1, 8, 2, 64, 128), (1, 8, 8, 64, 256), (2, 8, 2, 64, 256), (1, 16, 4, 64, 384), (1, 4, 2, 128, 192),
             (1, 8, 2, 64, 1024), (1, 4, 2, 64, 2048)),
    decode=((1, 8, 2, 64, 512), (4, 8, 8, 64, 512), (8, 16, 4, 64, 256), (1, 8, 8, 64, 2048), (2, 16, 4, 64, 1024),
            (1, 8, 2, 64, 4096)),
    latent=(),
    experts=((2, 1024, 512, 8, 2), (8, 1024, 512, 8, 2), (32, 1024, 512, 8, 2), (128, 1024, 512, 8, 2),
             (16, 512, 1024, 16, 4)),
    passes=((16, 1024), (128, 2048), (512, 1024), (96, 4096)),
    rejection=((1, 8000), (4, 8000), (2, 32000), (1, 32000)),
)  # fmt: skip
CPU_FRESH = Shapes(
    gemm=((1, 1536, 1536), (1, 3072, 1024), (2, 1024, 2048), (6, 1536, 1024), (12, 2048, 768), (24, 1024, 1024),
          (48, 768, 1536), (96, 1024, 1024), (160, 768, 1024)),
    prefill=((1, 8, 2, 64, 192), (1, 16, 4, 64, 256), (2, 8, 8, 64, 160), (1, 8, 4, 64, 320), (1, 8, 4, 64, 1536)),
    decode=((2, 8, 2, 64, 512), (1, 16, 4, 64, 1536), (4, 8, 2, 64, 768), (2, 8, 8, 64, 1024), (1, 8, 4, 64, 3072)),
    latent=(),
    experts=((4, 1024, 512, 8, 2), (16, 1024, 512, 8, 2), (64, 1024, 512, 8, 2), (24, 512, 1024, 16, 4)),
    passes=((32, 1024), (176, 2048), (80, 4096)),
    rejection=((2, 16000), (3, 8000), (1, 24000)),
)  # fmt: skip
#: Layers of models of one to three billion parameters.
CPU_FULL = Shapes(
    gemm=tuple(
        (m, n, k) for n, k in ((1024, 1024), (2048, 2048), (3072, 2048), (512, 2048), (2048, 512), (6144, 2048),
                               (2048, 6144)) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ),
    prefill=tuple((b, *h, n) for h in ((8, 2, 64), (16, 16, 64), (32, 8, 64), (16, 8, 128))
                  for b, n in ((1, 128), (1, 256), (2, 256), (1, 512), (1, 1024))),
    decode=tuple((b, *h, n) for h in ((8, 2, 64), (16, 16, 64), (32, 8, 64), (16, 8, 128))
                 for b, n in ((1, 256), (1, 1024), (4, 512), (1, 4096), (8, 1024))),
    latent=((1, 16, 512), (2, 16, 1024), (4, 16, 512), (1, 64, 1024), (1, 16, 4096)),
    experts=tuple((t, n, k, e, c) for n, k, e, c in ((1024, 512, 8, 2), (512, 1024, 16, 4), (2048, 768, 8, 2))
                  for t in (1, 4, 16, 64, 256)),
    passes=tuple((r, c) for c in (1024, 2048, 4096) for r in (1, 16, 128, 512, 2048)),
    rejection=tuple((b, v) for v in (8000, 32000, 128256) for b in (1, 2, 4)),
)  # fmt: skip

#: Layers of Llama 3 8B and a mixture of experts; a GPU needs larger shapes than a core.
CUDA_QUICK = Shapes(
    gemm=((1, 4096, 4096), (1, 6144, 4096), (16, 4096, 4096), (16, 28672, 4096), (64, 4096, 14336), (256, 4096, 4096),
          (512, 6144, 4096), (2048, 4096, 4096), (4096, 4096, 4096), (4096, 28672, 4096)),
    prefill=((1, 32, 8, 128, 512), (1, 32, 8, 128, 2048), (4, 32, 8, 128, 2048), (1, 32, 8, 128, 8192),
             (8, 32, 32, 128, 512)),
    decode=((1, 32, 8, 128, 4096), (16, 32, 8, 128, 1024), (16, 32, 8, 128, 4096), (64, 32, 8, 128, 2048),
            (64, 32, 8, 128, 8192)),
    latent=((1, 16, 4096), (16, 16, 4096), (64, 16, 4096), (16, 128, 4096)),
    experts=(),
    passes=((1, 4096), (64, 4096), (1024, 4096), (4096, 14336)),
    rejection=((1, 128256), (8, 128256), (64, 128256), (64, 32000)),
)  # fmt: skip
CUDA_FRESH = Shapes(
    gemm=((1, 5120, 5120), (4, 4096, 4096), (32, 6144, 4096), (128, 4096, 4096), (384, 8192, 4096), (1024, 5120, 5120),
          (3072, 4096, 4096), (8192, 6144, 4096)),
    prefill=((1, 40, 8, 128, 1024), (2, 32, 8, 128, 4096), (4, 32, 8, 128, 1024), (2, 16, 16, 128, 2048)),
    decode=((4, 32, 8, 128, 4096), (32, 32, 8, 128, 2048), (8, 40, 8, 128, 8192), (128, 32, 8, 128, 1024)),
    latent=((4, 16, 8192), (32, 16, 2048), (32, 128, 2048)),
    experts=(),
    passes=((16, 5120), (512, 4096), (2048, 8192)),
    rejection=((16, 128256), (32, 32000), (4, 151936)),
)  # fmt: skip
CUDA_FULL = Shapes(
    gemm=tuple((m, n, k) for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (8192, 8192))
               for m in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    prefill=tuple((b, h, k, 128, n) for h, k in ((32, 8), (64, 8), (32, 32))
                  for b, n in ((1, 128), (1, 512), (1, 2048), (1, 8192), (4, 512), (4, 2048), (16, 512))),
    decode=tuple((b, h, k, 128, n) for h, k in ((32, 8), (64, 8), (32, 32))
                 for b, n in ((1, 512), (1, 4096), (1, 32768), (16, 1024), (16, 4096), (64, 1024), (64, 4096))),
    latent=tuple((b, h, n) for h in (16, 128) for b, n in ((1, 1024), (1, 8192), (16, 2048), (64, 4096))),
    experts=(),
    passes=tuple((r, c) for c in (4096, 8192, 14336) for r in (1, 16, 128, 1024, 8192)),
    rejection=tuple((b, v) for v in (32000, 128256, 151936) for b in (1, 8, 64)),
)  # fmt: skip

_LISTS = {
    ("cpu", "quick"): CPU_QUICK, ("cpu", "full"): CPU_FULL, ("cpu", FRESH): CPU_FRESH,
    ("cuda", "quick"): CUDA_QUICK, ("cuda", "full"): CUDA_FULL, ("cuda", FRESH): CUDA_FRESH,
}  # fmt: skip
#: Formats of products and of attention on each kind of device, and passes over activations.
PRODUCTS = {"cpu": ("fp32", "bf16", "int8"), "cuda": ("bf16", "fp8", "int8")}
PASSES = {"cpu": ("norm", "activation", "rope", "softmax"), "cuda": ("norm", "activation", "rope", "quantize")}
ATTENTION = {"cpu": ("bf16", "fp32"), "cuda": ("bf16",)}
#: Columns of a rope: those of a head. Nodes of a tree of drafts.
HEAD, NODES = 128, 16
#: Bytes of a product's result, where it is not 2: torch leaves int8 products in int32.
RESULTS = {("cpu", "fp32"): 4.0, ("cpu", "int8"): 4.0}


@dataclass(frozen=True)
class Wanted:
    """An operator to measure.

    Attributes
    ----------
    op : Op
    set : str
        Which set of shapes it belongs to.
    columns : int, optional
        Columns of a row, where the operator tells only its elements.
    times : float
        How often a step of a model runs it; 1 in a suite.
    step : str
        ``prefill`` or ``decode`` of a model; empty in a suite.
    """

    op: Op
    set: str = FIT_SET
    columns: int | None = None
    times: float = 1.0
    step: str = ""


def suite(device: str, name: str, fresh: bool = False) -> list[Wanted]:
    """The operators of a suite, those of a kind spread over it, so that a run that is cut short has some of each.

    Parameters
    ----------
    fresh : bool
        The set of shapes that a fit is judged on.

    Raises
    ------
    UsageError
        For an unknown suite.
    """
    if name not in SUITES:
        raise UsageError(f"--suite is {' or '.join(SUITES)}, not {name[:40]!r}")
    shapes = _LISTS[device, FRESH if fresh else name]
    kinds = [list(some) for some in _kinds(device, shapes)]
    mixed = [op for some in _spread(kinds) for op in some]
    return [Wanted(op, FRESH if fresh else FIT_SET, columns) for op, columns in mixed]


def _spread(kinds: Sequence[Sequence[tuple[Op, int | None]]]) -> Iterator[list[tuple[Op, int | None]]]:
    """The n-th of every kind, for n = 0, 1, ..."""
    for i in range(max(map(len, kinds), default=0)):
        yield [some[i] for some in kinds if i < len(some)]


def _kinds(device: str, s: Shapes) -> Iterator[Iterator[tuple[Op, int | None]]]:
    """The operators by kind and format."""
    for fmt in PRODUCTS[device]:
        yield ((o.gemm(m, n, k, fmt, RESULTS.get((device, fmt), 2.0)), None) for m, n, k in s.gemm)
    for fmt in ATTENTION[device]:
        yield ((o.attention(b, h, k, d, n, n, fmt), None) for b, h, k, d, n in s.prefill)
        yield ((o.attention(b, h, k, d, 1, n, fmt), None) for b, h, k, d, n in s.decode)
    yield ((o.latent(b, h, n), None) for b, h, n in s.latent)
    yield ((o.grouped(t, n, k, e, c, "bf16"), None) for t, n, k, e, c in s.experts)
    for name in PASSES[device]:
        wide = HEAD if name == "rope" else None
        yield ((o.passing(name, r, c, "bf16"), wide or c) for r, c in s.passes)
    if device == "cpu":
        yield ((o.embedding(r, c, "bf16"), None) for r, c in s.passes)
        yield ((o.kv_write(r, c, "bf16"), None) for r, c in s.passes)
        yield ((o.sampling(b, v, 2.0), None) for b, v in s.rejection)
    yield ((o.rejection(b, 4, v, 4.0 if device == "cpu" else 2.0), None) for b, v in s.rejection)
    if device == "cuda":
        yield from _kernels(s)


def _kernels(s: Shapes) -> Iterator[Iterator[tuple[Op, int | None]]]:
    """What only our kernels do: block scales, 4-bit weights, trees of drafts, 8-bit caches, argmax and log-sum-exp."""
    yield ((o.block_gemm(m, n, k), None) for m, n, k in s.gemm)
    yield ((o.narrow_gemm(m, n, k), None) for m, n, k in s.gemm)
    yield ((o.attention(b, h, k, d, NODES, n + NODES, "bf16"), None) for b, h, k, d, n in s.decode)
    yield ((o.kv_write(r, 2 * 8 * 128, "bf16", 1.0), None) for r, _ in s.passes)
    yield ((o.verified("greedy", 5 * b, v), None) for b, v in s.rejection)
    yield ((o.verified("logsumexp", 5 * b, v), None) for b, v in s.rejection)
