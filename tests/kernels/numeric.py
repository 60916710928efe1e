"""What the kernel tests share: seeded data, poisoned outputs, guard bands, paged caches and error measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 4e-3,
    torch.float8_e4m3fn: 1e-2,
    torch.float8_e5m2: 1e-2,
}
"""Largest relative error in the Frobenius norm, by the type of the result."""

BAND = 4096
"""Bytes of a guard band: a multiple of every alignment that a kernel asks for."""


def random(*shape: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed numbers (integers: uniform over the type's range), the same on every device."""
    source = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=source) * scale).to(dtype).to(device)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, generator=source, dtype=torch.int64).to(dtype).to(device)


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """A tensor of NaN (integers: -1, in which all bits are set), to find what a kernel left unwritten."""
    fresh = torch.empty(tuple(shape), dtype=dtype, device=device)
    fresh.view(torch.uint8).fill_(0xFF)
    return fresh


@dataclass(frozen=True)
class Guarded:
    """A tensor in the middle of a larger allocation whose borders must stay as they are."""

    tensor: torch.Tensor
    memory: torch.Tensor = field(repr=False)

    def check(self) -> None:
        """Fail if a byte outside the tensor was written; what is read there is NaN in every floating-point type."""
        inside = self.tensor.numel() * self.tensor.element_size()
        before, after = self.memory[:BAND], self.memory[BAND + inside :]
        changed = int((before != 0xFF).sum()), int((after != 0xFF).sum())
        assert changed == (0, 0), f"{changed[0]} bytes before and {changed[1]} after the tensor were overwritten"


def guarded(tensor: torch.Tensor) -> Guarded:
    """A copy of a contiguous tensor between two guard bands, its first byte aligned as an allocation's is."""
    inside = tensor.numel() * tensor.element_size()
    memory = torch.full((2 * BAND + inside,), 0xFF, dtype=torch.uint8, device=tensor.device)
    body = memory[BAND : BAND + inside].view(tensor.dtype).view(tensor.shape)
    body.copy_(tensor)
    return Guarded(body, memory)


def relative_error(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """||actual - reference|| / ||reference||, Frobenius norms in float64; the numerator for a zero reference."""
    difference = (actual.double() - reference.double().to(actual.device)).norm().item()
    size = reference.double().norm().item()
    return difference / size if size else difference


def assert_close(
    actual: torch.Tensor,
    reference: torch.Tensor,
    *,
    tolerance: float | None = None,
    torch_result: torch.Tensor | None = None,
    atol: float = 1e-6,
) -> None:
    """Fail unless `actual` is the float64 `reference` to the accuracy of its type.

    Integers must agree exactly. Floating-point results must be free of NaN where the reference is, have the same
    infinities, and a relative Frobenius error of at most TOLERANCE (or `tolerance`). With `torch_result`, what torch
    computes in the same type, the largest error may be twice torch's, plus `atol` times the largest reference value.
    """
    assert actual.shape == reference.shape, f"shape {tuple(actual.shape)}, {tuple(reference.shape)} is right"
    reference = reference.to(actual.device)
    if not actual.dtype.is_floating_point:
        wrong = int((actual.long() != reference.long()).sum())
        assert wrong == 0, f"{wrong} of {actual.numel()} integers differ"
        return
    got, right = actual.double(), reference.double()
    special = ~torch.isfinite(right)
    same = torch.where(right[special].isnan(), got[special].isnan(), got[special] == right[special])
    assert bool(same.all()), f"{int((~same).sum())} of {int(special.sum())} infinities or NaN differ"
    assert bool(torch.isfinite(got[~special]).all()), (
        f"{int((~torch.isfinite(got[~special])).sum())} of {got.numel()} results are not finite"
    )
    got, right = got[~special], right[~special]
    limit = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    error = relative_error(got, right)
    assert error <= limit, f"relative error {error:.3g}, at most {limit:.3g} is allowed"
    if torch_result is not None and got.numel():
        theirs = (torch_result.to(actual.device).double()[~special] - right).abs().max().item()
        ours = (got - right).abs().max().item()
        allowed = 2 * theirs + atol * right.abs().max().item()
        assert ours <= allowed, f"largest error {ours:.3g}; torch's is {theirs:.3g}, at most {allowed:.3g} is allowed"


def starts(lengths: Sequence[int], device: str = "cpu") -> torch.Tensor:
    """Where each of several sequences laid end to end begins, and the end of the last: int32 [len(lengths) + 1]."""
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32).to(device)


@dataclass(frozen=True)
class Paged:
    """Rows of several sequences in a cache of pages, in shuffled order.

    cache: [pages, page, ...], NaN wherever no row lies. table: int32 [sequences, pages of the longest], padded with
    the number of a page of NaN. lengths: int32 [sequences].
    """

    cache: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor


def paged(rows: Sequence[torch.Tensor], page: int, *, seed: int = 0, spare: int = 2, padding: int = 0) -> Paged:
    """Put the rows of each sequence ([length, ...], lengths may be 0) into pages; equal seeds give equal tables.

    spare: pages that no sequence uses. padding: further columns of the table.
    """
    device, dtype, width = rows[0].device, rows[0].dtype, rows[0].shape[1:]
    needed = [-(-len(row) // page) for row in rows]
    total = sum(needed) + spare
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    unused = order[sum(needed)] if spare else 0
    cache = poisoned((total, page, *width), dtype, str(device))
    table = torch.full((len(rows), max([*needed, 1]) + padding), unused, dtype=torch.int32)
    taken = iter(order)
    for i, row in enumerate(rows):
        for j in range(needed[i]):
            table[i, j] = number = next(taken)
            part = row[j * page : (j + 1) * page]
            cache[number, : len(part)] = part
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    return Paged(cache, table.to(device), lengths.to(device))
