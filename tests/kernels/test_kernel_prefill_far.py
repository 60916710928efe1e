"""Prefill attention where tokens, sequences and heads lie more than 2^31 elements from the first, in memory of which
only what is written takes room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from far_memory import sparse
from faulty import faulty
from numeric import assert_close, random, starts
from prefill_problems import small

from perfmodel.kernels.attention import prefill as module
from perfmodel.kernels.attention import prefill_pointer
from perfmodel.kernels.attention.prefill import Packed, prefill_attention, prefill_reference
from perfmodel.kernels.checks import KernelInputError

pytestmark = pytest.mark.interpreter

BF16, D = torch.bfloat16, 64
FAR = 2**30
"""A stride that is a 32-bit number, as twice it is not."""

LAYOUTS = {
    # sequences, tokens, heads; strides of each: what lies far apart
    "tokens": ((1, 400, 1), (0, module.WIDEST, 0)),
    "sequences": ((3, 9, 1), (FAR, 4 * D, 0)),
    "heads": ((1, 9, 3), (0, 4 * D, FAR)),
}


@dataclass(frozen=True)
class Far:
    """Queries, keys, values and output in one piece of memory, a head of each next to the other; the log-sum-exp."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    packed: Packed | None = None

    def check(self, path: str) -> None:
        """Run the kernel and compare with the reference of the same numbers close together."""
        sizes = module._sizes(self.q, self.k, self.v, self.packed)
        options = module._Options(True, module.Scores(None))
        given = (self.q, self.k, self.v)
        module._launch(given, (self.out, self.lse), sizes, options, self.packed, small(path, 64, 64))
        right, mass = prefill_reference(*(x.contiguous() for x in given), packed=self.packed)
        assert_close(self.out, right)
        assert_close(self.lse, mass)


def far(layout: str, lengths: tuple[int, ...] = ()) -> Far:
    """Random numbers in a layout; lengths: of packed sequences, which take up its tokens."""
    (sequences, tokens, heads), strides = LAYOUTS[layout]
    whole = sparse((sequences, tokens, heads, 4 * D), (*strides, 1), BF16)
    parts = whole.split(D, -1)
    for seed, part in enumerate(parts[:3]):
        part.copy_(random(*part.shape, dtype=BF16, seed=seed))
    lse = sparse((sequences, heads, tokens), (strides[0], strides[2], 1), torch.float32)
    for result in (parts[3], lse):
        result.fill_(float("nan"))
    if not lengths:
        return Far(*parts, lse)
    where = Packed(starts(lengths), starts(lengths), max(lengths), max(lengths))
    return Far(*(part[0] for part in parts), lse[0], where)


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_lies_far_apart_is_found(layout: str, path: str) -> None:
    """Offsets past 2^31 elements are computed in 64 bits, whichever dimension makes them."""
    far(layout).check(path)


@pytest.mark.parametrize("path", ["pointer", "tma"])
def test_packed_sequences_far_from_the_first_are_found(path: str) -> None:
    """So are those of a packed sequence that begins past 2^31 elements."""
    far("tokens", (370, 30)).check(path)


FAULTS = {
    # what is written without its cast: where it shows
    ("tl.cast(n, tl.int64) * k_step", "n * k_step"): "tokens",
    ("tl.cast(n, tl.int64) * v_step", "n * v_step"): "tokens",
    ("tl.cast(first_k, tl.int64) * k_row", "first_k * k_row"): "packed",
    ("tl.cast(first_k, tl.int64) * v_row", "first_k * v_row"): "packed",
    ("top = tl.cast(first_q + row, tl.int64)", "top = first_q + row"): "packed",
    ("(pair // heads).to(tl.int64)", "pair // heads"): "sequences",
    ("(pair % heads).to(tl.int64)", "pair % heads"): "heads",
}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[1])
def test_a_missing_cast_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, str]) -> None:
    """The pointer kernel without one of its casts reads or writes elsewhere, and fails the same comparison."""
    loaded = faulty(prefill_pointer, fault, tmp_path)
    given = far("tokens", (370, 30)) if FAULTS[fault] == "packed" else far(FAULTS[fault])
    monkeypatch.setattr(module, "prefill_pointer_kernel", loaded.prefill_pointer_kernel)
    with pytest.raises(AssertionError):
        given.check("pointer")


LIMITS = {
    "the distance of two tokens of k is 8388608, 0 to 8388600 is supported": ((1, 2, 1, D), (0, 2**23, D, 1)),
    "the number of tokens of k is 1073741825, 0 to 1073741824 is supported": ((1, 2**30 + 1, 0, D), (8, 8, 8, 1)),
}


@pytest.mark.parametrize("message", LIMITS)
def test_what_is_too_far_is_refused(message: str) -> None:
    """More tokens than positions can count, and tokens too far apart for offsets within a tile, are refused."""
    shape, strides = LIMITS[message]
    k = torch.empty(2**23 + D, dtype=BF16).as_strided(shape, strides)
    heads = max(shape[2], 1)
    with pytest.raises(KernelInputError, match=message):
        prefill_attention(torch.zeros(1, 2, heads, D, dtype=BF16), k, k)
