"""Scores of NaN and inf: the rows that see them are NaN, output and log-sum-exp, and no other row is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from decode_data import BF16, FP8, FP8_TOLERANCE, FP16, blocks, latent_problem, problem
from faulty import faulty
from numeric import assert_close, random
from prefill_problems import needs, small

from perfmodel.kernels.attention import decode_blocks, merge, softmax_blocks
from perfmodel.kernels.attention.decode import decode_reference, paged_decode
from perfmodel.kernels.attention.merge import merge_attention, merge_reference
from perfmodel.kernels.attention.mla import mla_decode, mla_reference
from perfmodel.kernels.attention.prefill import prefill_attention, prefill_reference
from perfmodel.kernels.attention.standard import attention_scores, attention_softmax, standard_attention
from perfmodel.kernels.attention.tree import ancestor_masks, tree_attention, tree_reference
from perfmodel.kernels.device import interpreted
from perfmodel.kernels.table import Config

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")

Results = tuple[torch.Tensor, torch.Tensor]
SPECIAL = [math.nan, math.inf]
LENGTHS = (100, 40)
HEADS = 4


def special_query(q: torch.Tensor, value: float) -> None:
    """Put a special value in the query of the second head of the first sequence's last token."""
    q[0, -1, 1, 3] = value


def special_key(cache: torch.Tensor, table: torch.Tensor, value: float) -> None:
    """Put a special value in the key of the first sequence's token 50, so that its scores are NaN or infinite."""
    page = cache.shape[1]
    cache[table[0, 50 // page].item(), 50 % page].view(-1)[3] = value


def rows_are(results: Results, right: Results, dirty: torch.Tensor, tolerance: float | None = None) -> None:
    """Compare with the reference; NaN in just the rows that are `dirty` [like lse], all of their output."""
    for got, exact in zip(results, right, strict=True):
        assert_close(got, exact, tolerance=tolerance)
    assert torch.equal(results[1].isnan(), dirty)
    assert torch.equal(results[0].isnan().all(-1), dirty)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("kv", [None, FP8])
def test_a_special_query_is_nan_however_keys_are_cut(
    device: str, kv: torch.dtype | None, splits: int, value: float
) -> None:
    """A query that holds NaN or inf gives NaN, in one piece as in several, and changes no other head or token."""
    given = problem(device, LENGTHS, q_len=2, kv=kv)
    special_query(given.q, value)
    out, lse = paged_decode(given.q, given.cache, splits=splits, config=blocks())
    dirty = torch.zeros(2, 2, HEADS, dtype=torch.bool, device=device)
    dirty[0, 1, 1] = True
    right = decode_reference(given.q, given.cache)
    kept = ~dirty
    assert torch.equal(lse.isnan(), dirty)
    assert torch.equal(out.isnan().all(-1), dirty)
    assert_close(out[kept], right[0][kept], tolerance=FP8_TOLERANCE if kv else None)
    assert_close(lse[kept], right[1][kept])


@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("sink", [False, True])
def test_a_nan_key_is_nan_however_keys_are_cut(device: str, sink: bool, splits: int) -> None:
    """A key of NaN that all rows of a sequence see gives them NaN, whether its piece has other keys or not."""
    given = problem(device, LENGTHS, q_len=2)
    special_key(given.cache.k, given.cache.table, math.nan)
    sinks = torch.zeros(HEADS, device=device) if sink else None
    results = paged_decode(given.q, given.cache, sinks=sinks, splits=splits, config=blocks())
    dirty = torch.tensor([True, False], device=device)[:, None, None].expand(2, 2, HEADS)
    rows_are(results, decode_reference(given.q, given.cache, sinks=sinks), dirty)


@pytest.mark.parametrize("splits", [1, 4])
def test_latents_of_nan_are_nan(device: str, splits: int) -> None:
    """So does MLA."""
    q, latents = latent_problem(device, LENGTHS, heads=HEADS)
    special_key(latents.cache, latents.table, math.nan)
    results = mla_decode(q, latents, 0.05, splits=splits, config=blocks(TWO_LOOPS=True))
    dirty = torch.tensor([True, False], device=device)[:, None, None].expand(2, 1, HEADS)
    rows_are(results, mla_reference(q, latents, 0.05), dirty)


@pytest.mark.parametrize("splits", [1, 4])
def test_trees_of_nan_are_nan(device: str, splits: int) -> None:
    """So does a tree, for the nodes that see the node of NaN alone: the value of that node is finite."""
    given = problem(device, (100,), q_len=4)
    page = given.cache.table[0, 97 // 16].item()
    given.cache.k[page, 97 % 16, 0, 3] = math.nan  # the second node
    ancestors = ancestor_masks(torch.tensor([[-1, 0, 0, 1]], device=device))
    results = tree_attention(given.q, given.cache, ancestors, splits=splits, config=blocks())
    dirty = torch.tensor([False, True, False, True], device=device)[None, :, None].expand(1, 4, HEADS)
    rows_are(results, tree_reference(given.q, given.cache, ancestors), dirty)


@pytest.mark.parametrize("path", ["pointer", "tma"])
@pytest.mark.parametrize("value", SPECIAL)
def test_prefill_rows_of_nan_are_nan(device: str, value: float, path: str) -> None:
    """A query of NaN or inf, and every query that sees a key of NaN, has NaN in output and log-sum-exp."""
    needs(device, path)
    q, k, v = (random(1, 70, 1, 64, dtype=FP16, device=device, seed=i) for i in range(3))
    q[0, 5, 0, 3], k[0, 50, 0, 3] = value, math.nan
    out, lse = prefill_attention(q, k, v, config=small(path))
    right, mass = prefill_reference(q, k, v)
    dirty = torch.arange(70, device=device) >= 50
    dirty[5] = True
    rows_are((out[0, :, 0], lse[0, 0]), (right[0, :, 0], mass[0, 0]), dirty)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("at", [0, 4, 19])
def test_a_special_mass_is_nan(device: str, at: int, value: float) -> None:
    """A piece whose lse is NaN or inf makes its row NaN, between pieces without a key too, and no other row."""
    partial = random(3, 20, 64, dtype=torch.float32, device=device)
    lse = random(3, 20, dtype=torch.float32, device=device, seed=1)
    lse[:, 1:4] = -math.inf
    lse[1, at] = value
    dirty = torch.tensor([False, True, False], device=device)
    rows_are(merge_attention(partial, lse), merge_reference(partial, lse), dirty)
    alone = torch.full((1, 20), -math.inf, device=device)
    alone[0, at] = value
    rows_are(merge_attention(partial[:1], alone), merge_reference(partial[:1], alone), dirty[1:2])


@pytest.mark.parametrize("block", [32, 256])
@pytest.mark.parametrize("value", SPECIAL)
def test_standard_rows_of_nan_are_nan(device: str, value: float, block: int) -> None:
    """The softmax of a row with NaN or inf is NaN throughout, in one pass and in several, as torch's is."""
    scores = attention_scores(
        *(random(1, 70, 1, 64, dtype=BF16, device=device, seed=i) for i in range(2)), dtype=torch.float32
    )
    scores[0, 0, 5, 3] = value
    right = scores.double().softmax(-1)
    right[0, 0, 5] = math.nan
    assert_close(attention_softmax(scores, causal=False, config=Config({"ROWS": 16, "BLOCK": block}, 4, 1)), right)


def test_standard_attention_keeps_nan_in_its_row(device: str) -> None:
    """The whole of standard attention: NaN in the row of a query of NaN, and in no other."""
    q, k, v = (random(1, 70, 1, 64, dtype=BF16, device=device, seed=i) for i in range(3))
    q[0, 5] = math.nan
    dirty = torch.arange(70, device=device) == 5
    assert torch.equal(standard_attention(q, k, v)[0, :, 0].isnan().all(-1), dirty)


def test_values_of_nan_are_nan(device: str) -> None:
    """A value of NaN, its score finite, gives NaN in its column alone, and a finite log-sum-exp, however cut."""
    given = problem(device, (100,))
    special_key(given.cache.v, given.cache.table, math.nan)
    for splits in (1, 4):
        out, lse = paged_decode(given.q, given.cache, splits=splits, config=blocks())
        assert torch.equal(out.isnan().all((0, 1, 2)), torch.arange(64, device=device) == 3)
        assert bool(lse.isfinite().all())


FAULTS: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "a piece of NaN is empty": lambda patch, folder: patch.setattr(
        decode_blocks, "finish", faulty(softmax_blocks, ("some = total != 0.0", "some = total > 0.0"), folder).finish
    ),
    "a mass of NaN is empty": lambda patch, folder: patch.setattr(
        merge, "finish", faulty(softmax_blocks, ("some = total != 0.0", "some = total > 0.0"), folder).finish
    ),
}


@pytest.mark.interpreter
@pytest.mark.skipif(not interpreted(), reason="a compiled kernel does not see a helper that is replaced")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking a total that is not above 0 for one without keys fails, in a piece and in the merge."""
    test_a_nan_key_is_nan_however_keys_are_cut("cpu", False, 4)
    FAULTS[fault](monkeypatch, tmp_path)
    with pytest.raises(AssertionError):
        test_a_nan_key_is_nan_however_keys_are_cut("cpu", False, 4)
