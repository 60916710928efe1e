"""Compaction moves the accepted entries, bit for bit, and touches nothing else."""

from typing import Any

import pytest
import torch
import triton
from numeric import guarded

from perfmodel.kernels.checks import KernelInputError
from perfmodel.kernels.device import assume
from perfmodel.kernels.speculative import compact as module
from perfmodel.kernels.speculative.compact import compact_kv, compact_kv_reference
from perfmodel.kernels.table import Config

PATHS = [
    [0, 2, 5, 9, 11],  # everything moves; a row is both source and goal (2 -> 1, 5 -> 2)
    [0, 1, 2, 3, 4],  # nothing moves
    [0, 1, 4, 5, -1],  # the fourth was not accepted
    [0, -1, -1, -1, -1],  # nothing was accepted
]
ACCEPTED = [4, 4, 3, 0]
PREFIXES = [13, 0, 30, 7]


def problem(
    device: str, *, dtype: torch.dtype = torch.bfloat16, tail: tuple[int, ...] = (2, 24), page: int = 16
) -> dict:
    """Two layers of a cache of random bytes, pages in shuffled order, the paths above."""
    g = torch.Generator().manual_seed(0)
    columns = -(-(max(PREFIXES) + 12) // page)
    pages = len(PATHS) * columns + 1

    def cache() -> torch.Tensor:
        size = 2 * pages * page * torch.Size(tail).numel() * dtype.itemsize
        data = torch.randint(0, 256, (size,), generator=g, dtype=torch.int64).to(torch.uint8).to(device)
        return data.view(dtype).view(2, pages, page, *tail)

    table = torch.randperm(pages, generator=g)[: len(PATHS) * columns].view(len(PATHS), columns)
    return {
        "key_cache": cache(),
        "value_cache": cache(),
        "block_table": table.int().to(device),
        "prefix_lengths": torch.tensor(PREFIXES, dtype=torch.int32, device=device),
        "path": torch.tensor(PATHS, dtype=torch.int32, device=device),
        "accepted": torch.tensor(ACCEPTED, dtype=torch.int32, device=device),
    }


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def assert_exact(given: dict[str, Any], block: int = 32) -> None:
    """The whole of both caches is as the reference leaves it, and nothing beyond them was written."""
    right = compact_kv_reference(**given)
    mine = {name: None if given[name] is None else guarded(given[name]) for name in ("key_cache", "value_cache")}
    tensors = {name: None if one is None else one.tensor for name, one in mine.items()}
    compact_kv(**(given | tensors), config=Config({"BLOCK_W": block}, 4, 1))
    for one, reference in zip(mine.values(), right, strict=True):
        if one is not None:
            one.check()
            wrong = int((bits(one.tensor) != bits(reference)).sum())
            assert wrong == 0, f"{wrong} bytes of the cache differ"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float32], ids=str)
def test_equals_the_reference(device: str, dtype: torch.dtype) -> None:
    """All moved, none moved, some rejected, none accepted; sources that are goals of others; pages in any order."""
    assert_exact(problem(device, dtype=dtype))


@pytest.mark.parametrize("page", [1, 16, 64])
def test_pages(device: str, page: int) -> None:
    """Moves across and within pages, to the page of a single entry."""
    assert_exact(problem(device, page=page))


def test_latent_cache_and_scales(device: str) -> None:
    """A cache without values, an odd entry width that the last block exceeds, and one number an entry."""
    assert_exact(problem(device, tail=(45,)) | {"value_cache": None})
    assert_exact(problem(device, tail=(1,), dtype=torch.float32))


def test_the_shipped_configuration(device: str) -> None:
    """Without a configuration of its own the call takes the table's."""
    given = problem(device)
    right, _ = compact_kv_reference(**given)
    with assume("sm_90"):
        compact_kv(**given)
    assert torch.equal(bits(given["key_cache"]), bits(right))


def test_a_count_beyond_the_path_is_limited(device: str) -> None:
    """An accepted count that exceeds the columns of the path reads nothing beyond them."""
    given = problem(device)
    right, _ = compact_kv_reference(**given)
    more = given["accepted"].clone()
    more[0] = 1000
    compact_kv(**(given | {"accepted": more}), config=Config({"BLOCK_W": 32}, 4, 1))
    assert torch.equal(bits(given["key_cache"]), bits(right))


@pytest.mark.gpu
@pytest.mark.parametrize("tail", [(8, 128), (576,)], ids=str)
def test_many_layers(tail: tuple[int, ...]) -> None:
    """Thirty-two layers of caches of production width, 64 requests with trees of 40 nodes and paths of eight."""
    g = torch.Generator().manual_seed(0)
    cache = torch.randn(32, 512, 16, *tail, generator=g).bfloat16().cuda()
    steps = torch.stack([torch.randperm(40, generator=g)[:8].sort().values + 1 for _ in range(64)])
    given = {
        "key_cache": cache,
        "value_cache": cache.flip(0) if len(tail) > 1 else None,
        "block_table": torch.randperm(512, generator=g).view(64, 8).int().cuda(),
        "prefix_lengths": torch.randint(0, 87, (64,), generator=g).int().cuda(),
        "path": torch.nn.functional.pad(steps, (1, 0)).int().cuda(),
        "accepted": torch.randint(0, 9, (64,), generator=g).int().cuda(),
    }
    right = compact_kv_reference(**given)
    compact_kv(**given)
    for ours, reference in zip((given["key_cache"], given["value_cache"]), right, strict=True):
        assert ours is None or torch.equal(bits(ours), bits(reference))


def _page_off_by_one(table, request, position, live, PAGE, MOST_PAGES):
    page = module.tl.load(table + request * MOST_PAGES + (position + 1) // PAGE, mask=live, other=0)
    return page.to(module.tl.int64) * PAGE + position % PAGE


def _table_unused(table, request, position, live, PAGE, MOST_PAGES):
    return (request * MOST_PAGES * PAGE + position).to(module.tl.int64)


@pytest.mark.interpreter
@pytest.mark.parametrize("faulty", [_page_off_by_one, _table_unused])
def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, faulty) -> None:
    """A page one off at its end, and positions taken as places, fail the comparison that the kernel passes."""
    faulty.__globals__["tl"] = module.tl
    monkeypatch.setattr(module, "_rows_of", triton.jit(faulty))
    with pytest.raises(AssertionError, match="bytes of the cache differ"):
        assert_exact(problem("cpu"))


@pytest.mark.interpreter
def test_rows_moved_in_the_wrong_order_are_caught() -> None:
    """A path handed over from its end overwrites what has still to move, and fails the comparison."""
    given = problem("cpu")
    right, _ = compact_kv_reference(**given)
    for step in range(4, 0, -1):  # one at a time, deepest first
        path = torch.arange(5, dtype=torch.int32).repeat(4, 1)
        path[:, step] = torch.where(given["accepted"] >= step, given["path"][:, step], step)
        compact_kv(**(given | {"path": path}), config=Config({"BLOCK_W": 32}, 4, 1))
    assert not torch.equal(bits(given["key_cache"]), bits(right))


BAD = [
    ("key_cache", lambda x: x[0, 0], r"key_cache has shape \(16, 2, 24\), \[layers, pages, page, \.\.\.\] is needed"),
    ("key_cache", lambda x: x.transpose(0, 1), "key_cache is not contiguous"),
    ("value_cache", lambda x: x.float(), "value_cache is float32, bfloat16 is needed"),
    ("value_cache", lambda x: x[..., :8].contiguous(), r"value_cache has shape .* is needed"),
    ("block_table", lambda x: x.long(), "block_table is int64, int32 is needed"),
    ("prefix_lengths", lambda x: x[:2], r"prefix_lengths has shape \(2,\), \(4\) is needed"),
    ("path", lambda x: x[:, :1], "path is not contiguous"),
    ("path", lambda x: x[:, :1].contiguous(), r"the depth \(columns of path less one\) is 0, 1 to 63 is supported"),
    ("accepted", lambda x: x.to("meta"), "accepted is on meta, the others are on"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD)
def test_bad_input_is_refused(device: str, name: str, spoil, message: str) -> None:
    """The message names the argument, its value and what is needed."""
    given = problem(device)
    given[name] = spoil(given[name])
    with pytest.raises(KernelInputError, match=message):
        compact_kv(**given)
