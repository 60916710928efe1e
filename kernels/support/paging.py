"""What the kernels that write a paged KV cache have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perfmodel.kernels.checks import MOST, check_apart, check_range, check_tensor, require


def check_heads(name: str, x: torch.Tensor, dtypes: Sequence[torch.dtype], like: torch.Tensor | None = None) -> None:
    """Check [T, heads, head dimension] whose heads are packed; rows may be apart, as in a slice of a fused QKV."""
    check_tensor(name, x, (None, None, None), dtypes, like=like, contiguous=False, align=16)
    tokens, heads, dim = x.shape
    check_range(f"the number of rows of {name}", tokens, 1, MOST)
    check_range(f"the heads of {name}", heads, 1, 1024)
    check_range(f"the head dimension of {name}", dim, 1, 1024)
    packed = x.stride(2) == 1 and (x.stride(1) == dim or heads == 1)
    require(packed, f"{name} has strides {x.stride()}; a row's heads must be packed, (any, {dim}, 1)")


def check_caches(
    key_cache: torch.Tensor, value_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: torch.dtype
) -> None:
    """Check caches [pages, page, heads, head dimension] for keys and values of these shapes, of at least one page."""
    like = {"like": k}
    check_tensor("key_cache", key_cache, (None, None, *k.shape[1:]), (dtype,), **like)
    check_tensor("value_cache", value_cache, (*key_cache.shape[:2], *v.shape[1:]), (dtype,), **like)
    check_range("the number of pages of key_cache", key_cache.shape[0], 1, MOST)
    check_range("the slots of a page of key_cache", key_cache.shape[1], 1, MOST)
    check_apart("key_cache", key_cache, {"value_cache": value_cache, "k": k, "v": v})
    check_apart("value_cache", value_cache, {"k": k, "v": v})


def check_slots(slots: torch.Tensor, k: torch.Tensor) -> None:
    """Check slots, int64 [T]: page number x page size + place in the page, negative for rows that are not kept."""
    check_tensor("slots", slots, (k.shape[0],), (torch.int64,), like=k, align=8)
