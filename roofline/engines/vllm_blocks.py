"""vLLM's block pool: how layers are put into groups, how many blocks there are, and how many a request takes.

Source: ``get_kv_cache_groups``, ``unify_kv_cache_spec_page_size``, ``get_max_concurrency_for_kv_cache_config`` and
``_report_kv_cache_config`` in vllm/v1/core/kv_cache_utils.py, and the ``max_memory_usage_bytes`` of
vllm/v1/kv_cache_interface.py, vLLM 0.19.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from perfmodel.roofline.engines.layers import CacheLayers, merge


@dataclass(frozen=True)
class Group:
    """Layers that share a block table.

    Attributes
    ----------
    layers : CacheLayers
        One layer of the group.
    block_size : int
        Tokens of a block; 0 for a recurrent state.
    """

    layers: CacheLayers
    block_size: int

    def request_blocks(self, length: int, step_tokens: int, draft_tokens: int = 0) -> int:
        """Blocks that one request of ``length`` tokens may hold at most.

        Parameters
        ----------
        step_tokens : int
            Tokens that may be in flight: the budget of one step, or of as many as run at once.
        draft_tokens : int
            Speculated tokens; a recurrent layer keeps a state for each.
        """
        one = self.layers
        if one.recurrent:
            return 1 + draft_tokens
        if one.window:
            return ceil(min(one.window - 1 + step_tokens, length) / self.block_size) + 1
        if one.chunk:
            return ceil(min(one.chunk + step_tokens, length) / self.block_size)
        return ceil(length / self.block_size)


@dataclass(frozen=True)
class Layout:
    """Groups of a model and the bytes of one block.

    Attributes
    ----------
    groups : tuple[Group, ...]
    block_bytes : float
        Of one block id: a page of each layer that shares it. [bytes]
    one_table : bool
        Whether all layers share one block table although their pages differ: a request then takes as many blocks as
        its longest layer.
    """

    groups: tuple[Group, ...]
    block_bytes: float
    one_table: bool = False

    @property
    def hybrid(self) -> bool:
        """Whether there is more than one group."""
        return len(self.groups) > 1

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block."""
        return min((group.block_size for group in self.groups if group.block_size), default=0)

    def blocks(self, available: float) -> int:
        """Blocks that fit ``available`` bytes."""
        return max(0, int(available // self.block_bytes)) if self.block_bytes else 0

    def request_blocks(self, length: int, step_tokens: int, draft_tokens: int = 0) -> int:
        """Blocks that one request of ``length`` tokens may hold at most."""
        found = [group.request_blocks(length, step_tokens, draft_tokens) for group in self.groups]
        return max(found, default=0) if self.one_table else sum(found)

    def printed_tokens(self, blocks: int, length: int, by_concurrency: float | None = None) -> int:
        """Tokens as vLLM prints them: blocks // groups x block size, or concurrency x length where that is the rule.

        Parameters
        ----------
        by_concurrency : float, optional
            The concurrency, from the version on in which a hybrid model's tokens are computed from it.
        """
        if by_concurrency is not None and self.hybrid:
            return int(by_concurrency * length)
        return blocks // max(len(self.groups), 1) * (self.block_size or length)


def layout(layers: Sequence[CacheLayers], block_size: int, hybrid: bool = True) -> Layout:
    """Groups and block bytes of a rank's layers.

    Parameters
    ----------
    block_size : int
        Tokens of a block of the layers with the largest page.
    hybrid : bool
        Whether the hybrid manager is on; without it layers with windows keep every token.

    Examples
    --------
    gpt-oss-20b keeps 12 layers in full and 12 with a window of 128, each 2 KiB a token: two groups of 12.

    >>> found = layout([CacheLayers(12, 2048.0), CacheLayers(12, 2048.0, window=128)], 16)
    >>> len(found.groups), found.block_bytes, found.request_blocks(8192, 8192)
    (2, 393216.0, 1025)
    """
    if not hybrid:
        layers = merge(replace(one, window=0, chunk=0) for one in layers)
    if not layers:
        return Layout((), 0.0)
    same_kind = len({(one.window, one.chunk, one.recurrent) for one in layers}) == 1
    if same_kind:
        block_bytes = sum(one.count * (one.token_bytes * block_size or one.state_bytes) for one in layers)
        group = Group(layers[0], 0 if layers[0].recurrent else block_size)
        return Layout((group,), block_bytes, one_table=True)
    paged = _unified(layers, block_size)
    if paged is None:  # pages that no whole factor brings together: the windows are given up
        return layout(layers, block_size, hybrid=False)
    return _grouped(paged)


def _unified(layers: Sequence[CacheLayers], block_size: int) -> list[tuple[CacheLayers, int, float]] | None:
    """Layers with the block size that gives all of them the same page, and that page; ``None`` when there is none."""
    attention = [one for one in layers if not one.recurrent]
    state = max((one.state_bytes for one in layers if one.recurrent), default=0.0)
    if state and attention:  # a block must hold at least a state: whole multiples of 16 tokens
        smallest = min(one.token_bytes for one in attention)
        block_size = max(block_size, 16 * ceil(state / (16 * smallest)))
    page = max(one.token_bytes * block_size for one in attention)
    found = []
    for one in layers:
        ratio = 1.0 if one.recurrent else page / (one.token_bytes * block_size)
        if ratio != int(ratio):
            return None
        found.append((one, 0 if one.recurrent else block_size * int(ratio), page))
    return found


def _grouped(paged: list[tuple[CacheLayers, int, float]]) -> Layout:
    counts = [one.count for one, _, _ in paged]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = tuple(Group(one, block) for one, block, _ in paged for _ in range(ceil(one.count / size)))
    return Layout(groups, size * paged[0][2])
