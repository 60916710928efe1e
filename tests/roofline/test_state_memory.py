"""Recurrent states take memory for each sequence, whatever its length."""

import pytest

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.counts import state_bytes
from perfmodel.modelspecs.load import model
from perfmodel.roofline.memory import memory, rank_kv_bytes
from perfmodel.roofline.step import make_plan


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "mamba-codestral-7b"])
def test_states_are_counted_once_a_sequence(name: str) -> None:
    """The cache of 8 sequences is their KV cache and 8 states; a model of Mamba layers has nothing but states."""
    spec, card = model(name), gpu("b200")
    plan = make_plan(spec, card)
    found = memory(spec, card, plan, 8, 4096, 4096)
    assert found.kv == rank_kv_bytes(spec, plan, 8, 4096) + 8 * state_bytes(spec)
    assert state_bytes(spec) > 0
