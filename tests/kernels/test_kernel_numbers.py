"""Numbers that kernels take as float32, and what else they are given besides tensors: refused where it does not fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from numeric import random
from public_calls import Call, calls
from test_kernel_refusals import outcome
from w4_data import quantized

from perfmodel.kernels.attention.standard import attention_scores, standard_attention
from perfmodel.kernels.checks import KernelInputError, check_number
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4
from perfmodel.kernels.gemm.w4_packing import W4Weight
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
from perfmodel.kernels.support.ceilings import triad
from perfmodel.kernels.support.norm import rms_norm
from perfmodel.kernels.support.rope import rotary_table

pytestmark = pytest.mark.interpreter

BF16 = torch.bfloat16
BEYOND = (10**400, -(10**400), 10**5000, 1e39, -1e39, 1e-60, 1e-45, math.inf, -math.inf, math.nan)
"""What float32 does not hold, or not to its precision."""

NAMES = ("scale", "softcap", "eps", "factor", "base")
CALLS = [
    pytest.param(call, name, id=f"{call[0].__name__}-{i}-{name}")
    for i, call in enumerate(calls())
    for name in NAMES
    if name in call[1]
]


@pytest.mark.parametrize(("call", "name"), CALLS)
def test_numbers_beyond_float32_are_refused(call: Call, name: str) -> None:
    """Integers of hundreds of digits, numbers that would be inf or lose digits in float32, inf and NaN."""
    function, given = call
    for value in BEYOND:
        assert outcome(function, {**given, name: value}) == "refused", f"{name}={str(value)[:20]}"
    for value in (2.0**-60, 2.0**60, 3):
        arguments = {**given, name: value} | ({"softcap": value} if name == "scale" and "softcap" in given else {})
        assert outcome(function, arguments) == "taken", f"{name}={value}"


def test_a_quotient_beyond_float32_is_refused() -> None:
    """Scale and softcap may each fit, and what the kernel multiplies by, their quotient, not."""
    function, given = next(call for call in calls() if "softcap" in call[1])
    for scale, cap in ((2.0**100, 2.0**-100), (2.0**-100, 2.0**100)):
        assert outcome(function, {**given, "scale": scale, "softcap": cap}) == "refused"


def test_numbers_are_named_with_their_limits() -> None:
    """The name, the value or how long it is, and the range."""
    with pytest.raises(KernelInputError, match=r"eps is 1e-60, a number above 0 is needed, from 2\^-120 to 2\^120"):
        check_number("eps", 1e-60)
    with pytest.raises(KernelInputError, match="scale is an integer of 1329 bits, a number above 0 is needed"):
        check_number("scale", 10**400)


@pytest.mark.parametrize("scale", [0, -0.5, -1])
def test_standard_attention_wants_a_scale_above_zero(scale: float) -> None:
    """As the other kinds of attention do."""
    q = random(1, 3, 2, 64, dtype=BF16)
    for call in (lambda: standard_attention(q, q, q, scale=scale), lambda: attention_scores(q, q, scale=scale)):
        with pytest.raises(KernelInputError, match=f"scale is {scale}, a number above 0 is needed"):
            call()


@pytest.mark.parametrize("factor", [0, 0.0, -2.0])
def test_the_triad_takes_any_sign(factor: float) -> None:
    """Its factor may be 0 or negative, unlike the others."""
    x, out = torch.ones(2048), torch.empty(2048)
    triad(x, torch.ones(2048), factor, out)
    assert torch.equal(out, x + factor)


ROTARY: dict[str, Callable[[], object]] = {
    "device is 'nowhere', which cannot be used": lambda: rotary_table(4, 8, device="nowhere"),
    "device is 'cuda:77', which cannot be used": lambda: rotary_table(4, 8, device="cuda:77"),
    r"the numbers of the table \(positions x turned\) is 2199023254528, 2 to 1073741824": lambda: rotary_table(
        2**31 - 1, 1024
    ),
    "positions is 0, 1 to 2147483647": lambda: rotary_table(0, 8),
    "base is -1, a number above 0": lambda: rotary_table(4, 8, -1),
}


@pytest.mark.parametrize("message", ROTARY)
def test_rotary_tables_that_cannot_be_made(message: str) -> None:
    """A device that is none or is not there, more numbers than memory, and a base without powers."""
    with pytest.raises(KernelInputError, match=message):
        ROTARY[message]()


ORDERS = {"twice": lambda x: x.index_fill(0, torch.tensor([0]), 5), "beyond": lambda x: x + 1, "below": lambda x: x - 1}


@pytest.mark.parametrize("fault", ORDERS)
def test_an_order_of_inputs_is_a_permutation(fault: str) -> None:
    """On a CPU each input of a 4-bit weight must be in its order once; the product and the copy refuse another."""
    weight = quantized(64, 32, 32, act_order=True).weight()
    assert weight.order is not None
    wrong = dataclasses.replace(weight, order=ORDERS[fault](weight.order))
    for call in (lambda: dequantize_w4(wrong), lambda: gemm_w4a16(random(2, 64, dtype=BF16), wrong)):
        with pytest.raises(KernelInputError, match=r"weight.order does not hold each of the inputs 0 to 63 once"):
            call()


def test_an_empty_weight_has_an_order() -> None:
    """A weight made for timing, without data, reads x in its own order: no place beyond it."""
    weight = W4Weight.empty(64, 32, 32, device="cpu", reordered=True)
    assert weight.order is not None
    assert torch.equal(weight.order, torch.arange(64))


def test_the_range_of_rms_norm() -> None:
    """Up to the documented size rows are normalised; beyond it their squares overflow and they become 0."""
    largest = 1.8e19 / 8
    x = torch.tensor([[largest], [1e20]]).expand(2, 64).contiguous()
    with pytest.warns(RuntimeWarning, match="overflow"):
        out, _ = rms_norm(x, torch.ones(64))
    assert torch.allclose(out[0], torch.ones(64))
    assert torch.equal(out[1], torch.zeros(64))
