"""A configuration given by hand is checked the same way by every function: by the rows of its kernel's table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gemm_operands import small
from numeric import random
from public_calls import Call, calls
from test_kernel_refusals import outcome
from w4_data import quantized

from perfmodel.kernels.attention.merge import merge_attention
from perfmodel.kernels.attention.prefill import prefill_attention
from perfmodel.kernels.attention.standard import attention_softmax
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import SM_COUNT, assume
from perfmodel.kernels.gemm.dense import gemm_dense
from perfmodel.kernels.gemm.fp8 import gemm_fp8
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block
from perfmodel.kernels.gemm.int8 import gemm_w8a8
from perfmodel.kernels.gemm.w4_dequantize import dequantize_w4
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
from perfmodel.kernels.table import Config, check_given, rows

pytestmark = pytest.mark.interpreter

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def products() -> Iterator[Call]:
    """A call of each product that is taken."""
    dense, whole, eight = (random(4, 128, dtype=kind) for kind in (BF16, torch.int8, FP8))
    one, blocks = torch.ones(1), torch.ones(4, 1)
    weight = quantized(128, 64, 128).weight()
    yield gemm_dense, {"a": dense, "b": dense, "config": small()}
    yield gemm_w8a8, {"a": whole, "b": whole, "scale_a": one, "scale_b": one, "config": small()}
    yield gemm_fp8, {"a": eight, "b": eight, "scale_a": one, "scale_b": one, "config": small()}
    yield gemm_fp8_block, {"a": eight, "b": eight, "scale_a": blocks, "scale_b": torch.ones(1, 1),
                           "config": small(64, 64, 128)}  # fmt: skip
    yield gemm_w4a16, {"x": dense, "weight": weight, "config": Config({"BLOCK_M": 16, "BLOCK_N": 64}, 4, 2)}
    yield dequantize_w4, {"weight": weight, "config": Config({"BLOCK_N": 64}, 4, 1)}


def every() -> list[Call]:
    """The public calls whose function takes a configuration, each with one: the call's own, or the table's."""
    found = [call for call in [*calls(), *products()] if "config" in inspect.signature(call[0]).parameters]
    return [
        (function, {**given, "config": given.get("config") or chosen(function, given)}) for function, given in found
    ]


def chosen(function: Callable[..., Any], given: dict[str, Any]) -> Config:
    """The configuration that a call without one takes from the table."""
    module: Any = inspect.getmodule(inspect.unwrap(function))
    seen: list[Config] = []
    ask = module.configured

    def noted(*args: Any, **kwargs: Any) -> Config:
        seen.append(ask(*args, **kwargs))
        raise KernelInputError("seen")

    module.configured = noted
    try:
        outcome(function, given)
    finally:
        module.configured = ask
    return seen[0]


CALLS = [pytest.param(call, id=f"{call[0].__name__}-{i}") for i, call in enumerate(every())]


def spoiled(config: Config) -> Iterator[tuple[str, Config]]:
    """What is wrong, and the configuration that has it."""

    def other(warps: object = config.num_warps, stages: object = config.num_stages, **more: object) -> Config:
        return Config({**config.meta, **more}, warps, stages)  # type: ignore[arg-type, dict-item]

    if config.meta:
        yield "nothing", Config({}, 4, 3)
    yield "one constant more", other(OTHER=1)
    for key in ("ACC", "M", "EVEN_K", "GROUPS", "num_warps"):
        yield f"{key} of the launch", other(**{key: 1})
    for name in config.meta:
        for value in (-16, 0, 2**40, "16", 16.0, None, [16]):
            yield f"{name}={value!r}", other(**{name: value})
        if name.isupper() and name != "GROUP_M":
            yield f"{name}=48", other(**{name: 48})
        yield f"{name} of the other kind", other(**{name: 1 if isinstance(config.meta[name], bool) else True})
    for warps in (0, 3, 7, -4, 32, 4.0, True):
        yield f"{warps} warps", other(warps=warps)
    for stages in (0, -1, 9, "2"):
        yield f"{stages!r} stages", other(stages=stages)


@pytest.mark.parametrize("call", CALLS)
def test_what_no_row_resembles_is_refused(call: Call) -> None:
    """Constants that lack or that no row has, numbers out of range, of another kind or no powers of two, and warps and
    stages that no launch takes are refused by every function, before anything is launched."""
    function, given = call
    for what, config in spoiled(given["config"]):
        assert outcome(function, {**given, "config": config}) == "refused", what


@pytest.mark.parametrize("call", CALLS)
def test_what_a_row_resembles_is_taken(call: Call) -> None:
    """The configurations that are spoiled above are taken as they stand."""
    function, given = call
    assert outcome(function, given) == "taken"


def test_all_functions_are_there() -> None:
    """The sweep has all 35 functions that take a configuration."""
    assert len({function for function, _ in every()}) == 35


@pytest.mark.parametrize("arch", SM_COUNT)
def test_shipped_rows_may_be_given(arch: str) -> None:
    """Every row of every table is right by its own table."""
    from importlib import resources

    names = [path.name[:-5] for path in resources.files("perfmodel.kernels").joinpath("data").iterdir()]
    for kernel in names:
        for row in rows(kernel, arch):
            check_given(kernel, row.config)


X = random(2, 5, 4, 64, dtype=BF16)
OF_FUNCTIONS: dict[str, Callable[[], object]] = {
    r"config.meta\['BLOCK_D'\] is 256, a divisor of head_dim, 64, is needed": lambda: merge_attention(
        random(3, 2, 64, dtype=torch.float32), torch.zeros(3, 2), config=Config({"BLOCK_S": 8, "BLOCK_D": 256}, 4, 1)
    ),
    "config.meta.'tma'. is True, which needs sm_90 or later": lambda: prefill_attention(
        X, X, X, config=Config({"tma": True, "BLOCK_M": 64, "BLOCK_N": 32, "SPECIALIZE": False}, 4, 2)
    ),
    r"ROWS x BLOCK are 16777216, up to 2\^20 are supported": lambda: attention_softmax(
        torch.zeros(1, 1, 2, 16), config=Config({"ROWS": 128, "BLOCK": 131072}, 4, 1)
    ),
    "warp_specialized is True, which needs sm_90 or sm_100, head_dim 64 or 128": lambda: prefill_attention(
        *[random(1, 5, 1, 256, dtype=BF16)] * 3, warp_specialized=True
    ),
    "config.meta has no 'BLOCK_V', which spec_chain needs; its constants are BLOCK_V": lambda: check_given(
        "spec_chain", Config({}, 4, 1)
    ),
}


@pytest.mark.parametrize("message", OF_FUNCTIONS)
def test_what_only_the_function_knows(message: str) -> None:
    """What does not fit the arguments, or the GPU, is refused by the function, and says what would fit."""
    with assume("sm_80", sm_count=2), pytest.raises(KernelInputError, match=message):
        OF_FUNCTIONS[message]()
