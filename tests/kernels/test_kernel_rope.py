"""Rotation of queries and keys, and their way into the paged cache."""

from typing import Any

import pytest
import torch
import triton
from numeric import assert_close, guarded, poisoned, random

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.support import rope as module
from perfmodel.kernels.support.rope import rope_and_cache, rotary_table, rotate_reference
from perfmodel.kernels.table import Config

SMALL = Config({"BLOCK_H": 4}, 4, 1)
PAGE = 4


def problem(
    device: str, *, dim: int = 32, turned: int = 32, v_dim: int = 32, heads: tuple[int, int] = (6, 2),
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:  # fmt: skip
    """Five rows, one of them not kept; positions and slots in no order; slices of one tensor if they can be."""
    q_heads, kv_heads = heads
    both = random(5, q_heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    v = (
        both[:, q_heads + kv_heads :]
        if v_dim == dim
        else random(5, kv_heads, v_dim, dtype=dtype, device=device, seed=1)
    )
    return {
        "q": both[:, :q_heads],
        "k": both[:, q_heads : q_heads + kv_heads],
        "v": v,
        "table": rotary_table(100, turned, device=device),
        "positions": torch.tensor([0, 99, 7, 8, 50], dtype=torch.int64, device=device),
        "slots": torch.tensor([9, 0, -1, 7, 11], dtype=torch.int64, device=device),
        "key_cache": poisoned((3, PAGE, kv_heads, dim), dtype, device),
        "value_cache": poisoned((3, PAGE, kv_heads, v_dim), dtype, device),
    }


def assert_exact(given: dict[str, Any], interleaved: bool) -> None:
    """q and k turned, the kept rows in their slots, everything else as it was."""
    before = {name: given[name].clone() for name in ("q", "k", "v")}
    caches = {name: guarded(given[name]) for name in ("key_cache", "value_cache")}
    tensors = {name: one.tensor for name, one in caches.items()}
    rope_and_cache(**(given | tensors), interleaved=interleaved, config=SMALL)
    turned = given["table"].shape[1]
    for name in ("q", "k"):
        right = rotate_reference(before[name], given["table"], given["positions"], interleaved)
        theirs = rotate_reference(before[name].float(), given["table"], given["positions"], interleaved)
        assert_close(given[name], right, torch_result=theirs.to(given[name].dtype))
        assert torch.equal(given[name][..., turned:], before[name][..., turned:])
    assert torch.equal(given["v"], before["v"])
    kept = given["slots"] >= 0
    for name, source in (("key_cache", "k"), ("value_cache", "v")):
        caches[name].check()
        flat = tensors[name].flatten(0, 1)
        assert torch.equal(flat[given["slots"][kept]], given[source][kept]), f"{name} holds other rows"
        free = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
        free[given["slots"][kept]] = False
        assert bool(flat[free].isnan().all()), f"{name} was written in slots of other rows"


@pytest.mark.parametrize("interleaved", [False, True], ids=["neox", "interleaved"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"dtype": torch.float32},
        {"dim": 48, "turned": 12, "v_dim": 20},
        {"heads": (1, 1), "dim": 16, "turned": 2, "dtype": torch.float16, "v_dim": 16},
    ],
    ids=["whole head", "float32", "part of the head", "one head, one pair"],
)
def test_equals_the_reference(device: str, how: dict, interleaved: bool) -> None:
    """Whole and partial rotation, dimensions that are no power of two, values of another width, one head, one pair."""
    assert_exact(problem(device, **how), interleaved)


def test_without_a_cache(device: str) -> None:
    """Without slots and caches q and k are turned and that is all."""
    given = problem(device)
    right = rotate_reference(given["k"], given["table"], given["positions"])
    rope_and_cache(given["q"], given["k"], None, given["table"], given["positions"].int(), config=SMALL)
    assert_close(given["k"], right)


def test_the_shipped_configuration(device: str) -> None:
    """Without a configuration of its own the call takes the table's."""
    given = problem(device)
    right = rotate_reference(given["q"], given["table"], given["positions"])
    with assume("sm_80"):
        rope_and_cache(**given)
    assert_close(given["q"], right)


@pytest.mark.gpu
@pytest.mark.parametrize("interleaved", [False, True], ids=["neox", "interleaved"])
@pytest.mark.parametrize(("dim", "turned", "v_dim"), [(128, 128, 128), (192, 64, 128), (256, 64, 256)])
def test_production_shapes(dim: int, turned: int, v_dim: int, interleaved: bool) -> None:
    """4096 rows of 32 and 8 heads, with the shipped configuration."""
    q, k, v = (random(4096, h, d, dtype=torch.bfloat16).cuda() for h, d in ((32, dim), (8, dim), (8, v_dim)))
    g = torch.Generator().manual_seed(0)
    table = rotary_table(8192, turned, 500000.0, "cuda")
    positions = torch.randint(0, 8192, (4096,), generator=g).cuda()
    slots = torch.randperm(512 * 16, generator=g)[:4096].cuda()
    caches = [poisoned((512, 16, *x.shape[1:]), torch.bfloat16, "cuda") for x in (k, v)]
    right = [rotate_reference(x, table, positions, interleaved) for x in (q, k)]
    rope_and_cache(q, k, v, table, positions, slots, *caches, interleaved=interleaved)
    for found, reference in zip((q, k), right, strict=True):
        assert_close(found, reference)
    for cache, source in zip(caches, (k, v), strict=True):
        assert torch.equal(cache.flatten(0, 1)[slots], source)


def test_rotation_keeps_lengths_and_relative_angles() -> None:
    """The reference is a rotation: norms stay, and the product of q and k depends on their distance alone."""
    q, k = random(1, 1, 64, dtype=torch.float64), random(1, 1, 64, dtype=torch.float64, seed=1)
    table = rotary_table(64, 64)

    def product(i: int, j: int) -> float:
        a, b = (rotate_reference(x, table, torch.tensor([at])) for x, at in ((q, i), (k, j)))
        assert a.norm().item() == pytest.approx(q.norm().item(), rel=1e-6)
        return (a * b).sum().item()

    assert product(3, 10) == pytest.approx(product(43, 50), rel=1e-5)
    assert product(3, 10) != pytest.approx(product(3, 11), rel=1e-3)


def _backwards(first, second, cosine, sine):
    return first * cosine + second * sine, second * cosine - first * sine


def _values_one_slot_on(x, goal, head, HEADS, DIM, FIRST, keep, BLOCK_D: module.tl.constexpr):
    column = module.tl.arange(0, BLOCK_D)
    mask = (head < HEADS)[:, None] & ((column >= FIRST) & (column < DIM))[None, :] & keep
    at = head[:, None] * DIM + column[None, :]
    module.tl.store(goal + at, module.tl.load(x + at + DIM * (HEADS - 1), mask=mask & (head == 0)[:, None]), mask=mask)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("name", "faulty", "message"),
    [("_turn", _backwards, "relative error"), ("_copy_heads", _values_one_slot_on, "value_cache holds other rows")],
)
def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, faulty, message: str) -> None:
    """A turn the other way, and values of another head, fail the comparison that the kernel passes."""
    faulty.__globals__["tl"] = module.tl
    monkeypatch.setattr(module, name, triton.jit(faulty))
    with pytest.raises(AssertionError, match=message):
        assert_exact(problem("cpu"), False)


@pytest.mark.interpreter
def test_the_wrong_pairing_is_caught() -> None:
    """Pairs of neighbours where halves are meant fail the comparison."""
    given = problem("cpu")
    right = rotate_reference(given["q"], given["table"], given["positions"], interleaved=False)
    rope_and_cache(**given, interleaved=True, config=SMALL)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(given["q"], right)


BAD = [
    ("q", lambda x: x[0], r"q has shape \(6, 32\), \(any, any, any\) is needed"),
    ("q", lambda x: x.transpose(1, 2), r"q has strides .* heads must be packed"),
    ("k", lambda x: x.float(), "k is float32, bfloat16 is needed"),
    ("k", lambda x: x[:3], "q has 5 rows and k 3; they must agree"),
    ("k", lambda x: x[..., :16].contiguous(), "a head of q has 32 columns and one of k 16"),
    ("v", lambda x: x[:, :1], r"v has shape \(5, 1, 32\), rows and heads of k \(5, 2, 32\) are needed"),
    ("v", lambda x: None, "v, slots, key_cache and value_cache are given together or not at all"),
    ("table", lambda x: x[:, :7].contiguous(), "table has 7 columns, an even number from 2 to the head's 32 is needed"),
    ("table", lambda x: x.double(), "table is float64, float32 is needed"),
    ("positions", lambda x: x[:4], r"positions has shape \(4,\), \(5\) is needed"),
    ("slots", lambda x: x.int(), "slots is int32, int64 is needed"),
    ("key_cache", lambda x: x[:, :, :1], r"key_cache has shape \(3, 4, 1, 32\), \(any, any, 2, 32\) is needed"),
    ("value_cache", lambda x: x[:2], r"value_cache has shape \(2, 4, 2, 32\), \(3, 4, 2, 32\) is needed"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD)
def test_bad_input_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = problem(device)
    given[name] = spoil(given[name])
    with pytest.raises(KernelInputError, match=message):
        rope_and_cache(**given)
