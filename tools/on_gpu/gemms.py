"""GEMM cases: activations (m, k) times weights (n, k) through the vendor's library, in bf16, fp8 and int8."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from on_gpu.cases import Case, Sizes, Tensors, normal, pick

# Relative Frobenius errors. bf16: rounding of the output alone is 1.7e-3, a split-K sum in bf16 adds to it. fp8: the
# fast accumulation of the tensor cores keeps some 14 bits. int8 is exact. One missing term in 4096 would be 1.6e-2.
TOLERANCES = {"bfloat16": 8e-3, "fp8": 3e-2, "int8": 0.0}
SCALE_A, SCALE_B = 0.5, 0.25


def layers(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return (n, k) of a layer's projections by name."""
    attention = sizes.heads * sizes.head_dim
    return {
        "qkv": (attention + 2 * sizes.kv_heads * sizes.head_dim, sizes.hidden),
        "o": (sizes.hidden, attention),
        "gate_up": (2 * sizes.ffn, sizes.hidden),
        "down": (sizes.hidden, sizes.ffn),
    }


def shapes(sizes: Sizes) -> Iterator[tuple[str, int, int, int]]:
    """Yield (label, m, n, k): every projection at every row count, the LM head at few, and the squares."""
    for m in sizes.rows:
        for label, (n, k) in layers(sizes).items():
            yield label, m, n, k
    for m in sizes.head_rows:
        yield "lm_head", m, sizes.vocab, sizes.hidden
    for side in sizes.squares:
        yield "square", side, side, side


def _run_bfloat16(inputs: Tensors) -> torch.Tensor:
    a, w, out = inputs
    return torch.mm(a, w.t(), out=out)


def _run_int8(inputs: Tensors) -> torch.Tensor:
    a, w, out = inputs
    return torch._int_mm(a, w.t(), out=out)


def _run_fp8(inputs: Tensors) -> torch.Tensor:
    a, w, scale_a, scale_b = inputs  # w.t() is column-major, as the library requires
    return torch._scaled_mm(a, w.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def _maker(dtype: str, m: int, n: int, k: int) -> Callable[[torch.device], Tensors]:
    storage = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}[dtype]

    def make(device: torch.device) -> Tensors:
        a, w = normal((m, k), storage, device), normal((n, k), storage, device)
        if dtype == "fp8":
            scales = (torch.tensor(s, dtype=torch.float32, device=device) for s in (SCALE_A, SCALE_B))
            return (a, w, *scales)
        return a, w, torch.empty((m, n), dtype=torch.int32 if dtype == "int8" else torch.bfloat16, device=device)

    return make


def _rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if matrix.dtype.itemsize == 1:  # not every version indexes 8-bit floats
        return matrix.view(torch.uint8)[rows].view(matrix.dtype).float().double()
    return matrix[rows].double()


def _reference(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, w = inputs[:2]
    rows, columns = pick(a.shape[0], 64, a.device), pick(w.shape[0], 64, a.device)
    expected = _rows(a, rows) @ _rows(w, columns).t()
    if a.dtype == torch.float8_e4m3fn:
        expected = expected * (SCALE_A * SCALE_B)
    return output[rows][:, columns].double(), expected


RUNS = {"bfloat16": _run_bfloat16, "fp8": _run_fp8, "int8": _run_int8}
SOURCES = {"bfloat16": "cublas", "fp8": "cublaslt_scaled_mm_fast_accum", "int8": "cublaslt_int_mm"}


def gemm(dtype: str, label: str, m: int, n: int, k: int) -> Case:
    """Return the case of one GEMM."""
    width, wide = (2, 2) if dtype == "bfloat16" else (1, 4 if dtype == "int8" else 2)
    size = (m * k + n * k) * width + m * n * wide
    small = "torch._int_mm needs more than 16 rows on CUDA" if dtype == "int8" and m <= 16 else ""
    return Case(
        name=f"gemm {dtype} {label} m={m} n={n} k={k}",
        table="gemm",
        group=f"gemm {dtype}",
        source=SOURCES[dtype],
        columns={"dtype": dtype, "m": m, "n": n, "k": k},
        make=_maker(dtype, m, n, k),
        run=RUNS[dtype],
        reference=_reference,
        tolerance=TOLERANCES[dtype],
        set_bytes=size,
        moved_bytes=size,
        flops=2.0 * m * n * k,
        core=dtype == "bfloat16",
        min_capability=(8, 9) if dtype == "fp8" else (8, 0),
        cuda_unsupported=small,
    )


def gemm_cases(sizes: Sizes, dtype: str) -> list[Case]:
    """Return the GEMMs of one data type."""
    return [gemm(dtype, *shape) for shape in shapes(sizes)]
