"""The measures of the kernel tests fail when they should."""

import pytest
import torch
from numeric import BAND, TOLERANCE, assert_close, guarded, paged, poisoned, random, relative_error, starts

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_is_nan_in_every_format(dtype) -> None:
    """An output that was not written cannot pass for a number."""
    assert poisoned((3, 5), dtype).float().isnan().all()


def test_poisoned_integers_are_negative() -> None:
    """Indices and counts are never -1."""
    assert poisoned((4,), torch.int32).tolist() == [-1] * 4


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8])
def test_guard_bands_see_one_byte(dtype) -> None:
    """A copy is intact and aligned; a write just before or behind it is found."""
    original = random(7, 3, dtype=dtype)
    for offset in (-1, 21 * dtype.itemsize):
        guard = guarded(original)
        assert torch.equal(guard.tensor.view(torch.uint8), original.view(torch.uint8))
        assert guard.tensor.data_ptr() % 16 == 0
        guard.check()
        guard.memory[BAND + offset] = 1
        with pytest.raises(AssertionError, match=r"1 bytes before and 0|0 bytes before and 1"):
            guard.check()


def test_relative_error_by_hand() -> None:
    """|(3, 4) - (3, 5)| / |(3, 5)| = 1 / sqrt(34); for a zero reference the difference itself."""
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == pytest.approx(34**-0.5)
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5


REFERENCE = random(64, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:-1], "shape"),
        (lambda x: x * (1 + 3e-3), "relative error 0.003"),
        (lambda x: x.clone().index_fill_(0, torch.tensor([5]), float("nan")), "1 of 64 results are not finite"),
        (lambda x: x.clone().index_fill_(0, torch.tensor([5]), float("inf")), "1 of 64 results are not finite"),
    ],
)
def test_what_is_not_close_fails(change, message) -> None:
    """Another shape, a relative error over the type's, NaN and infinity where the reference is finite."""
    actual = REFERENCE.half()
    assert_close(actual, REFERENCE)
    with pytest.raises(AssertionError, match=message):
        assert_close(change(actual), REFERENCE)


def test_infinities_belong_where_the_reference_has_them() -> None:
    """The same infinity passes; the other sign and a number do not."""
    reference = torch.tensor([1.0, -float("inf")], dtype=torch.float64)
    assert_close(reference.float(), reference)
    for wrong in (float("inf"), -1e38, float("nan")):
        with pytest.raises(AssertionError, match="1 of 1 infinities or NaN differ"):
            assert_close(torch.tensor([1.0, wrong]), reference)


def test_the_largest_error_is_held_against_torch() -> None:
    """Twice torch's error may be made in one place and no more, though the norm would allow it."""
    theirs = REFERENCE.half()
    allowed = 2 * (theirs.double() - REFERENCE).abs().max().item()
    for factor, passes in ((0.9, True), (1.5, False)):
        ours = REFERENCE.float()
        ours[3] += factor * allowed
        if passes:
            assert_close(ours, REFERENCE, tolerance=1e-3, torch_result=theirs)
        else:
            with pytest.raises(AssertionError, match="largest error"):
                assert_close(ours, REFERENCE, tolerance=1e-3, torch_result=theirs)


def test_integers_are_exact() -> None:
    """One wrong integer fails."""
    right = torch.arange(5)
    assert_close(right.to(torch.int32), right)
    with pytest.raises(AssertionError, match="1 of 5 integers differ"):
        assert_close(torch.tensor([0, 1, 2, 3, 5]), right)


@pytest.mark.parametrize("page", [16, 64])
def test_pages_hold_the_rows_in_another_order(page) -> None:
    """The table leads back to every row; everything else is NaN; equal seeds shuffle alike."""
    rows = [random(n, 2, 3, dtype=torch.float32, seed=n) for n in (0, 1, 37, 130)]
    filled = paged(rows, page, seed=3, padding=1)
    assert filled.lengths.tolist() == [0, 1, 37, 130]
    for i, row in enumerate(rows):
        found = filled.cache[filled.table[i].long()].flatten(0, 1)[: len(row)]
        assert torch.equal(found, row)
    assert int((~filled.cache.isnan()).sum()) == sum(row.numel() for row in rows)
    assert filled.cache[filled.table[0, 0]].isnan().all()
    assert filled.table[3].tolist() != sorted(filled.table[3].tolist())
    assert torch.equal(paged(rows, page, seed=3, padding=1).table, filled.table)


def test_starts_by_hand() -> None:
    """Three sequences laid end to end."""
    assert starts([3, 0, 2]).tolist() == [0, 3, 3, 5]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_alone_is_within_the_tolerance(dtype) -> None:
    """The reference itself, rounded to a format, passes in it; for the formats of 8 bits it needs a wider tolerance."""
    rounded = random(4096, dtype=torch.float64).to(dtype)
    error = relative_error(rounded, random(4096, dtype=torch.float64))
    assert (error <= TOLERANCE[dtype]) == (dtype.itemsize > 1)
