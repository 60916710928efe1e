"""GPTQ and AWQ words: the published bit positions, both zero-point conventions, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.gemm import w4_formats
from perfmodel.kernels.gemm.w4_formats import pack_awq, pack_gptq, unpack_awq, unpack_gptq

pytestmark = pytest.mark.interpreter


def integers(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def unsigned(words: torch.Tensor) -> list[int]:
    return [word & 0xFFFFFFFF for word in words.flatten().tolist()]


def test_gptq_words_hold_eight_inputs_the_first_lowest() -> None:
    """Inputs 0 to 7 of one output read as hexadecimal digits from the right."""
    q = torch.zeros(8, 8, dtype=torch.uint8)
    q[:, 3] = torch.arange(8)
    qweight, _ = pack_gptq(q, torch.full((1, 8), 8))
    assert qweight.shape == (1, 8)
    assert unsigned(qweight) == [0, 0, 0, 0x76543210, 0, 0, 0, 0]


@pytest.mark.parametrize(("version", "word"), [(1, 0x77777777), (2, 0x88888888)])
def test_symmetric_gptq_zeros(version: int, word: int) -> None:
    """The zero point 8 of a symmetric checkpoint is stored as 7 in version 1 and as 8 in version 2."""
    _, qzeros = pack_gptq(integers(8, 16), torch.full((2, 16), 8), version=version)
    assert unsigned(qzeros) == [word] * 4


def test_version_1_subtracts_from_the_word() -> None:
    """A zero point of 0 borrows from its neighbour, 0x50 - 0x11 = 0x3f, and is read back."""
    zeros = torch.tensor([[0, 5, 1, 1, 1, 1, 1, 1]])
    q = integers(8, 8)
    qweight, qzeros = pack_gptq(q, zeros, version=1)
    assert unsigned(qzeros) == [0x0000003F]
    assert torch.equal(unpack_gptq(qweight, qzeros, version=1)[1], zeros.to(torch.uint8))


def test_awq_words_hold_eight_outputs_interleaved() -> None:
    """Outputs 0 to 7 lie in the order 0, 2, 4, 6, 1, 3, 5, 7 from the low bits up, zero points as well."""
    row = torch.arange(8, dtype=torch.uint8)[None, :]
    qweight, qzeros = pack_awq(row, row)
    assert unsigned(qweight) == unsigned(qzeros) == [0x75316420]


@pytest.mark.parametrize(("zero", "version_1", "version_2"), [(0, 0xEEEEEEEF, 0), (15, 0xEEEEEEEE, 0xFFFFFFFF)])
def test_extreme_zero_points(zero: int, version_1: int, version_2: int) -> None:
    """All 0: 2^32 - 0x11111111, each but the lowest digit lent 1 and borrowed; all 15: no borrow. Both come back."""
    q, zeros = integers(8, 8), torch.full((1, 8), zero, dtype=torch.uint8)
    for version, word in ((1, version_1), (2, version_2)):
        qweight, qzeros = pack_gptq(q, zeros, version=version)
        assert unsigned(qzeros) == [word]
        assert torch.equal(unpack_gptq(qweight, qzeros, version=version)[1], zeros)
    assert unsigned(pack_awq(q, zeros)[1]) == [version_2]
    assert torch.equal(unpack_awq(*pack_awq(q, zeros))[1], zeros)


@given(st.lists(st.integers(0, 15), min_size=8, max_size=8))
def test_version_1_adds_one_to_each_digit_below_15(digits: list[int]) -> None:
    """Without a digit of 15 every zero point is its digit plus 1, 1 to 15; the lowest digit of 15 is a zero point of 0,
    and all below it are their digits plus 1."""
    word = sum(digit << 4 * i for i, digit in enumerate(digits))
    qzeros = torch.tensor([[word]]).sub(2**32 * (word >= 2**31)).to(torch.int32)
    zeros = unpack_gptq(torch.zeros(1, 8, dtype=torch.int32), qzeros, version=1)[1][0].tolist()
    plain = digits.index(15) if 15 in digits else 8
    assert zeros[:plain] == [digit + 1 for digit in digits[:plain]]
    assert zeros[plain : plain + 1] == ([0] if plain < 8 else [])


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31), st.sampled_from([1, 2, "awq"]))
def test_unpacking_inverts_packing(k8: int, n8: int, groups: int, seed: int, form: int | str) -> None:
    """Integers and zero points 0 to 15 come back from every format."""
    q, zeros = integers(8 * k8, 8 * n8, seed), integers(groups, 8 * n8, seed + 1)
    if form == "awq":
        back = unpack_awq(*pack_awq(q, zeros))
    else:
        assert isinstance(form, int)
        back = unpack_gptq(*pack_gptq(q, zeros, version=form), version=form)
    assert torch.equal(back[0], q)
    assert torch.equal(back[1], zeros)


def test_wrong_conventions_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading another version's zero points, or AWQ without its order, gives other integers (planted faults)."""
    q, zeros = integers(16, 16), integers(2, 16) % 14 + 1
    read = unpack_gptq(*pack_gptq(q, zeros, version=1), version=2)
    assert torch.equal(read[1], zeros - 1)
    words = pack_awq(q, zeros)
    monkeypatch.setattr(w4_formats, "AWQ_ORDER", tuple(range(8)))
    assert not torch.equal(unpack_awq(*words)[0], q)


Q, Z = integers(8, 8), integers(1, 8)
REFUSED = {
    "q holds 0 to 16, 4-bit integers are 0 to 15": lambda: pack_gptq(torch.tensor([[0] * 7 + [16]] * 8), Z),
    "zeros holds -1 to 3, 4-bit integers": lambda: pack_awq(Q, torch.tensor([[-1, 3] * 4])),
    "zeros holds 0 to 16, 4-bit integers are 0 to 15; clamp": lambda: pack_gptq(Q, torch.tensor([[0, 16] * 4])),
    "q is torch.float32, integers are needed": lambda: pack_awq(Q.float(), Z),
    "q is torch.bool, integers are needed": lambda: pack_awq(Q.bool(), Z),
    "q is on the meta device, which holds nothing": lambda: pack_awq(Q.to("meta"), Z),
    "q has no input; K is 0": lambda: pack_awq(Q[:0], Z),
    "K is 0, a positive multiple of 8": lambda: pack_gptq(Q[:0], Z),
    "N is 0, a positive multiple of 8": lambda: pack_awq(Q[:, :0], Z[:, :0]),
    r"zeros has shape \(1, 4\), a row a group of N = 8 is needed": lambda: pack_awq(Q, Z[:, :4]),
    r"zeros has shape \(0, 8\), a row a group of N = 8 is needed": lambda: pack_gptq(Q, Z[:0]),
    r"qzeros has shape \(1, 0\): it holds nothing": lambda: unpack_gptq(Q.int(), Z[:, :0].int()),
    "qweight is list, a torch tensor is needed": lambda: unpack_awq([[1]], Z.int()),
    "K is 4, a positive multiple of 8": lambda: pack_gptq(Q[:4], Z),
    "N is 4, a positive multiple of 8": lambda: pack_awq(Q[:, :4], Z[:, :4]),
    "version is 3; the GPTQ format has 1 and 2": lambda: pack_gptq(Q, Z, version=3),
    "qweight is torch.uint8, torch.int32 is needed": lambda: unpack_gptq(Q, Z),
    r"qzeros has shape \(8,\), a matrix is needed": lambda: unpack_awq(Q.int(), Z[0].int()),
    "qzeros has 8 columns, N/8 = 1 are needed": lambda: unpack_gptq(Q.int(), Z.int()),
    "qzeros has 4 columns, qweight has 8; they must agree": lambda: unpack_awq(Q.int(), Z[:, :4].int()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """What is not in the format is refused with its value and what is needed."""
    with pytest.raises(KernelInputError, match=message):
        REFUSED[message]()
