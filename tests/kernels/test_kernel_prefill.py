"""Prefill attention against float64: shapes, head groups, masks, packed lengths, both ways of loading."""

from __future__ import annotations

import math

import pytest
import torch
from numeric import assert_close, random
from prefill_problems import needs, problem, small

from perfmodel.kernels.attention import prefill
from perfmodel.kernels.attention.prefill import Packed, prefill_attention, prefill_reference
from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import SM_COUNT, assume, target
from perfmodel.kernels.table import rows

FP16, BF16 = torch.float16, torch.bfloat16

#: queries and keys, heads and key heads, head_dim, dtype, causal
SHAPES = {
    "one token": ((1, 1), (1, 1), 64, BF16, True),
    "one query, many keys": ((1, 200), (4, 1), 64, FP16, True),
    "a tail of one missing": ((63, 63), (8, 8), 64, BF16, True),
    "whole tiles": ((64, 64), (4, 4), 128, FP16, True),
    "whole tiles, not causal": ((64, 64), (8, 4), 64, BF16, False),
    "long, grouped heads": ((200, 200), (2, 1), 64, BF16, True),
    "long, not causal": ((200, 200), (1, 1), 128, BF16, False),
    "head_dim 256": ((63, 64), (1, 1), 256, FP16, True),
    "fewer queries than keys": ((63, 200), (2, 1), 64, FP16, True),
    "more queries than keys": ((64, 37), (4, 2), 64, BF16, True),
    "more queries than keys, not causal": ((64, 37), (1, 1), 128, BF16, False),
    "no keys": ((5, 0), (2, 1), 64, BF16, True),
}


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device: str, shape: str, path: str) -> None:
    """Output and log-sum-exp are right to the dtype for each shape, rows without keys being 0 and -inf."""
    needs(device, path)
    lengths, heads, head_dim, dtype, causal = SHAPES[shape]
    problem(device, dtype, heads, head_dim, [lengths]).check(small(path), causal=causal)


OPTIONS = {
    "window": ({"window": 20}, False),
    "window of one": ({"window": 1}, False),
    "window as wide as a tile": ({"window": 16}, False),
    "window wider than the keys": ({"window": 1000}, False),
    "window, not causal": ({"window": 33, "causal": False}, False),
    "sinks": ({}, True),
    "sinks and window": ({"window": 24}, True),
    "cap": ({"softcap": 8.0}, False),
    "cap, scale, sinks, window, not causal": ({"softcap": 5.0, "scale": 0.5, "window": 40, "causal": False}, True),
    "scale": ({"scale": 0.02}, False),
}


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(device: str, name: str, path: str) -> None:
    """Windows, sinks, cap and scale give what the formula says, alone and together, with more keys than queries."""
    needs(device, path)
    options, sinks = OPTIONS[name]
    problem(device, FP16, (2, 1), 64, [(70, 100)], sinks=sinks).check(small(path), **options)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("path", ["pointer", "tma"])
def test_more_queries_than_keys(device: str, path: str, sinks: bool) -> None:
    """With a window, rows before the first key see nothing: output 0, log-sum-exp -inf or the sink."""
    needs(device, path)
    given = problem(device, FP16, (2, 1), 64, [(70, 40)], sinks=sinks)
    out, lse = given.check(small(path), window=25)
    assert bool((out[:, :30] == 0).all())
    expected = (
        given.sinks[None, :, None].expand(1, 2, 30) if given.sinks is not None else torch.full_like(lse, -math.inf)
    )
    torch.testing.assert_close(lse[:, :, :30], expected[:, :, :30])


PACKED = {
    "lengths 0, 1, 37 and 130": [(0, 0), (1, 1), (37, 37), (130, 130)],
    "more keys than queries": [(1, 130), (37, 64), (0, 5), (16, 17)],
    "sequences without keys": [(37, 0), (16, 16), (3, 0)],
    "one sequence": [(64, 64)],
}


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("lengths", PACKED)
@pytest.mark.parametrize("causal", [True, False])
def test_packed(device: str, causal: bool, lengths: str, path: str) -> None:
    """Packed sequences of any lengths, empty ones among them, are each attended to alone."""
    needs(device, path)
    given = problem(device, BF16, (2, 1), 64, PACKED[lengths], packed=True)
    given.check(small(path), causal=causal)


@pytest.mark.parametrize("path", ["pointer", "tma"])
def test_packed_with_everything(device: str, path: str) -> None:
    """Window, sinks, cap and packed lengths go together, where max_q and max_k are larger than any length too."""
    needs(device, path)
    given = problem(device, BF16, (4, 1), 128, [(37, 50), (1, 9), (40, 20)], packed=True, sinks=True)
    given.check(small(path), window=18, softcap=10.0)
    roomy = Packed(given.packed.starts_q, given.packed.starts_k, 78, 79)
    out = prefill_attention(given.q.tensor, given.k.tensor, given.v.tensor, packed=roomy, config=small(path))
    exact = prefill_reference(given.q.tensor, given.k.tensor, given.v.tensor, packed=given.packed)
    assert_close(out[0], exact[0])
    assert_close(out[1], exact[1], tolerance=1e-5)


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("most", [1, 20])
def test_a_window_holds_whatever_max_k_says(device: str, most: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is kept with a max_k too small to need it, which only a GPU does not notice."""
    needs(device, path)
    monkeypatch.setattr("perfmodel.kernels.attention.prefill._check_starts", lambda *_: None)
    given = problem(device, BF16, (1, 1), 64, [(20, 20), (9, 20)], packed=True)
    assert given.packed is not None
    wrong = Packed(given.packed.starts_q, given.packed.starts_k, 20, most)
    three = (given.q.tensor, given.k.tensor, given.v.tensor)
    out, lse = prefill_attention(*three, packed=wrong, window=2, config=small(path))
    right, mass = prefill_reference(*three, packed=given.packed, window=2)
    assert_close(out, right)
    assert_close(lse, mass)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("packed", [True, False])
def test_nan_stays_in_its_sequence(device: str, packed: bool, path: str) -> None:
    """NaN in one sequence's keys and values reaches no other sequence, though tiles end in the middle of both."""
    needs(device, path)
    given = problem(device, FP16, (1, 1), 64, [(21, 21)] * 3, packed=packed)
    for tensor in (given.k.tensor, given.v.tensor):
        tensor.view(3, 21, 1, 64)[1] = float("nan")
    out, lse = prefill_attention(
        given.q.tensor, given.k.tensor, given.v.tensor, packed=given.packed, causal=False, config=small(path)
    )
    clean, rows_lse = out.view(3, 21, 64).isfinite().all(2), lse.view(3, 21).isfinite()
    assert clean.all(1).tolist() == [True, False, True]
    assert rows_lse.all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 30}])
def test_specialized_loop(device: str, options: dict[str, object]) -> None:
    """One loop that is masked everywhere gives what the two do."""
    needs(device, "specialized")
    config = small("specialized") if device == "cpu" else None
    given = problem(device, BF16, (2, 1), 64, [(100, 100)])
    given.check(config, warp_specialized=True, **options)


@pytest.mark.parametrize("arch", SM_COUNT)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_shipped_configurations(device: str, arch: str, head_dim: int) -> None:
    """Every row of the table is right for a length that needs two of its tiles in each direction."""
    if device == "cuda" and target(torch.empty(0, device=device)).arch != arch:
        pytest.skip(f"not the configurations of this GPU: {arch}")
    for row in rows("attention_prefill", arch):
        low, high = row.when["head_dim"]
        if not low <= head_dim <= high:
            continue
        n = int(row.config.meta["BLOCK_M"]) + 9
        packed = row.when.get("packed", (0, 0))[0] == 1
        problem(device, BF16, (1, 1), head_dim, [(n, n)], packed=packed).check(row.config)


@pytest.mark.parametrize("arch", SM_COUNT)
@pytest.mark.interpreter
def test_table_is_used(arch: str) -> None:
    """Without a configuration the table's is taken; warp specialization is refused on sm_80, and packed everywhere."""
    given = problem("cpu", BF16, (1, 1), 64, [(20, 20)])
    with assume(arch):
        given.check(None)
        if arch != "sm_80":
            given.check(None, warp_specialized=True)
            given = problem("cpu", BF16, (1, 1), 64, [(20, 20)], packed=True)
        with pytest.raises(KernelInputError, match="warp_specialized is True, which needs sm_90 or"):
            given.check(None, warp_specialized=True)


def test_slices_of_a_fused_projection(device: str) -> None:
    """q, k and v may be views into one tensor, as a fused projection leaves them."""
    fused = random(2, 40, 4 + 2 + 2, 64, dtype=BF16, device=device)
    q, k, v = fused.split([4, 2, 2], dim=2)
    for path in ("pointer", "tma") if device == "cpu" else ("pointer",):
        out, lse = prefill_attention(q, k, v, config=small(path))
        exact, exact_lse = prefill_reference(q, k, v)
        assert_close(out, exact)
        assert_close(lse, exact_lse, tolerance=1e-5)
    packed = Packed(*(torch.tensor([0, 30, 40], dtype=torch.int32, device=device),) * 2, 30, 30)
    given = (q[0], k[0], v[0])
    assert_close(prefill_attention(*given, packed=packed)[0], prefill_reference(*given, packed=packed)[0])


@pytest.mark.parametrize("causal", [True, False])
def test_sections(device: str, monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """Heads dealt in sections that fit in L2, the last one smaller, are all computed."""
    monkeypatch.setattr(prefill, "L2_BYTES", 2 * (2 * 40 * 64 * 2))
    problem(device, BF16, (2, 1), 64, [(40, 40)] * 3).check(small("pointer"), causal=causal)


def test_large_scores(device: str) -> None:
    """Scores of several hundred, which overflow without the running peak, are right."""
    problem(device, FP16, (1, 1), 64, [(40, 40)], scale=40.0).check(small("pointer"))


@pytest.mark.parametrize("shape", [(0, 5, 2, 64), (2, 0, 2, 64)])
def test_nothing_to_do(device: str, shape: tuple[int, ...]) -> None:
    """No sequences or no queries: empty results, and no launch."""
    q = torch.empty(shape, dtype=BF16, device=device)
    out, lse = prefill_attention(q, torch.empty_like(q), torch.empty_like(q))
    assert out.shape == shape
    assert lse.shape == (shape[0], shape[2], shape[1])


@pytest.mark.parametrize("path", ["pointer", "tma"])
def test_equal_calls_give_equal_bits(device: str, path: str) -> None:
    """Nothing is summed in an order that varies."""
    needs(device, path)
    given = problem(device, BF16, (2, 1), 64, [(64, 64)])
    tensors = (given.q.tensor, given.k.tensor, given.v.tensor)
    first, second = (prefill_attention(*tensors, config=small(path)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_production_shapes(head_dim: int, causal: bool, packed: bool) -> None:
    """With the table's configurations a few thousand tokens are right, in bf16 and fp16."""
    lengths = [(4096, 4096), (1000, 4000), (77, 77), (1, 2048)] if packed else [(4000, 4000)]
    for dtype in (BF16, FP16):
        problem("cuda", dtype, (8, 2), head_dim, lengths, packed=packed).check(None, causal=causal)


@pytest.mark.gpu
def test_can_be_captured() -> None:
    """The function can be recorded in a CUDA graph, which then reads what its inputs hold at replay."""
    given = problem("cuda", BF16, (8, 2), 128, [(300, 300), (7, 90)], packed=True, sinks=True)
    tensors = (given.q.tensor, given.k.tensor, given.v.tensor)
    options = {"packed": given.packed, "sinks": given.sinks, "window": 64}
    prefill_attention(*tensors, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = prefill_attention(*tensors, **options)
    tensors[0].mul_(0.5)
    graph.replay()
    exact, exact_lse = prefill_reference(*tensors, **options)
    assert_close(out, exact)
    assert_close(lse, exact_lse, tolerance=1e-5)
