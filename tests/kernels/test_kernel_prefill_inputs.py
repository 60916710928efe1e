"""What prefill attention refuses, by name, with the value and what is needed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from numeric import random, starts

from perfmodel.kernels.attention.prefill import Packed, prefill_attention
from perfmodel.kernels.checks import KernelInputError

pytestmark = pytest.mark.interpreter

BF16 = torch.bfloat16
Q, K = random(2, 5, 4, 64, dtype=BF16), random(2, 7, 2, 64, dtype=BF16)
P = Packed(starts([2, 3]), starts([3, 4]), 3, 4)

REFUSED = {
    "q is list, a torch tensor is needed": ({"q": [1.0]}, {}),
    "q is float32, float16 or bfloat16 is needed": ({"q": Q.float()}, {}),
    r"q has shape \(5, 4, 64\), \(any, any, any, any\) is needed": ({"q": Q[0]}, {}),
    r"k has shape \(2, 7, 2, 32\), \(any, any, any, 64\) is needed": ({"k": K[..., :32]}, {}),
    "k is float16, bfloat16 is needed": ({"k": K.half()}, {}),
    "k has 1 sequences, q has 2": ({"k": K[:1], "v": K[:1]}, {}),
    r"v has shape \(2, 6, 2, 64\), \(2, 7, 2, 64\) is needed": ({"v": K[:, :6]}, {}),
    "v is on meta, the others are on cpu": ({"v": K.to("meta")}, {}),
    r"k has strides .*; the last must be 1": ({"k": K.transpose(2, 3).contiguous().transpose(2, 3)}, {}),
    r"v has strides .*; all but the last must be multiples of 8": (
        {"v": torch.empty_strided((2, 7, 2, 64), (1204, 172, 68, 1), dtype=BF16)},
        {},
    ),
    "q starts 2 bytes off a multiple of 16": ({"q": random(2 * 5 * 4 * 64 + 1, dtype=BF16)[1:].view(2, 5, 4, 64)}, {}),
    "q has 4 heads, a multiple of k's 3 is needed": ({"k": random(2, 7, 3, 64, dtype=BF16)}, {}),
    "q has 4 heads, a multiple of k's 0 is needed": ({"k": K[:, :, :0]}, {}),
    "head_dim is 96, 64, 128, 256 are supported": (
        {"q": random(2, 5, 4, 96, dtype=BF16), "k": random(2, 7, 2, 96, dtype=BF16)},
        {},
    ),
    "scale is 0, a number above 0 is needed": ({}, {"scale": 0}),
    "scale is -1.0, a number above 0 is needed": ({}, {"scale": -1.0}),
    "scale is nan, a number above 0 is needed": ({}, {"scale": math.nan}),
    "window is 0, at least 1 is needed": ({}, {"window": 0}),
    "softcap is 0.0, a number above 0 or None is needed": ({}, {"softcap": 0.0}),
    "softcap is inf, a number above 0 or None is needed": ({}, {"softcap": math.inf}),
    r"sinks has shape \(3,\), \(4\) is needed": ({}, {"sinks": torch.zeros(3)}),
    "sinks is float64, float32 or float16 or bfloat16 is needed": ({}, {"sinks": torch.zeros(4, dtype=torch.float64)}),
    r"out\[0\] has shape \(2, 5, 2, 64\), \(2, 5, 4, 64\) is needed": (
        {},
        {"out": (Q[:, :, :2].contiguous(), torch.empty(2, 4, 5))},
    ),
    r"out\[1\] has shape \(2, 5, 4\), \(2, 4, 5\) is needed": ({}, {"out": (Q.clone(), torch.empty(2, 5, 4))}),
    r"out\[1\] is bfloat16, float32 is needed": ({}, {"out": (Q.clone(), torch.empty(2, 4, 5, dtype=BF16))}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    """A wrong argument is refused by name, with what it is and what is needed."""
    tensors, options = REFUSED[message]
    given = {"q": Q, "k": K, **tensors}
    with pytest.raises(KernelInputError, match=message):
        prefill_attention(given["q"], given["k"], given.get("v", given["k"]), **options)


REFUSED_PACKED = {
    "starts_q is int64, int32 is needed": {"starts_q": P.starts_q.long()},
    "starts_q is empty; it holds one number more than there are sequences": {"starts_q": P.starts_q[:0]},
    r"starts_k has shape \(2,\), \(3\) is needed": {"starts_k": P.starts_k[:2]},
    "starts_k is on meta, the others are on cpu": {"starts_k": P.starts_k.to("meta")},
    "max_q is 6, 0 to 5 is supported": {"max_q": 6},
    "max_k is -1, 0 to 7 is supported": {"max_k": -1},
    "max_q is 2, the longest sequence of q has 3 tokens": {"max_q": 2},
    "max_k is 3, the longest sequence of k has 4 tokens": {"max_k": 3},
    r"starts_q is \[0, 2, 6\], from 0 up to at most the 5 tokens of q is needed": {"starts_q": starts([2, 4])},
    r"starts_k is \[0, 4, 3\], from 0 up to": {"starts_k": torch.tensor([0, 4, 3], dtype=torch.int32)},
    r"starts_k is \[1, 3, 7\], from 0 up to": {"starts_k": torch.tensor([1, 3, 7], dtype=torch.int32)},
}


@pytest.mark.parametrize("message", REFUSED_PACKED)
def test_refuses_packed(message: str) -> None:
    """Wrong starts and lengths of packed sequences are refused by name."""
    packed = dataclasses.replace(P, **REFUSED_PACKED[message])
    with pytest.raises(KernelInputError, match=message):
        prefill_attention(Q[0], K[0], K[0], packed=packed)


def test_refuses_dense_tensors_as_packed() -> None:
    """Packed sequences come in tensors of three dimensions."""
    with pytest.raises(KernelInputError, match=r"q has shape \(2, 5, 4, 64\), \(any, any, any\) is needed"):
        prefill_attention(Q, K, K, packed=P)
