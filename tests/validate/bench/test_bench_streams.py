"""Sweeps over sizes: the line of the memory, the steps of the caches, and the ceilings made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.validate.bench.ceilings import Ceiling, Ceilings, memory_items
from perfmodel.validate.bench.streams import Stream, beyond, line, sizes, steps

MIB = 2.0**20


@given(st.floats(1e-7, 1e-4), st.floats(1e9, 5e12))
def test_a_line_is_recovered(start: float, bandwidth: float) -> None:
    """Times that follow t0 + bytes / bandwidth give both back."""
    moved = [1e5, 1e6, 1e7, 1e8, 1e9]
    found = line(moved, [start + b / bandwidth for b in moved])
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-6)
    assert found.start == pytest.approx(start, rel=1e-4, abs=1e-12)
    assert found.error < 1e-6


def test_a_line_stays_physical() -> None:
    """Times that fall below proportion give no negative time at no bytes; no point is refused."""
    assert line([1e6, 1e7], [1e-6, 2e-5]).start == 0
    assert line([1e6], [1e-5]).bandwidth == pytest.approx(1e11)
    with pytest.raises(ValueError, match="a line needs a point"):
        line([], [])


def stream(op: str, held: float, rate: float) -> Stream:
    return Stream(op, held, held, held / rate, held / rate / 1.02)


def test_caches_are_steps() -> None:
    """Sizes that a cache holds and the one below it does not are its; the best of them counts."""
    points = [stream("copy", 0.5 * MIB, 200e9), stream("copy", 8 * MIB, 100e9), stream("read", 8 * MIB, 110e9)]
    points += [stream("copy", 30 * MIB, 60e9), stream("copy", 256 * MIB, 30e9)]
    found = steps(points, {"l2": MIB, "l3": 32 * MIB})
    assert found["l2"].rate == pytest.approx(200e9)
    assert (found["l3"].op, found["l3"].rate) == ("read", pytest.approx(110e9))
    assert [p.held / MIB for p in beyond(points, 32 * MIB)] == [256]
    assert beyond(points[:2], 32 * MIB) == [points[1]]


def test_ceilings_of_the_memory() -> None:
    """The memory's is the best of the sizes far past the caches, by the fastest fifth: 30 GB/s x 1.02."""
    points = [stream("copy", 8 * MIB, 100e9), stream("copy", 256 * MIB, 30e9), stream("read", 512 * MIB, 28e9)]
    found = memory_items(points, {"l3": 32 * MIB}, "1 thread")
    assert found["memory"].value == pytest.approx(30.6e9)
    assert "copy over buffers of 256 MiB, 1 thread" in found["memory"].method
    assert found["l3"].value == pytest.approx(102e9)
    assert found["t0"].unit == "s"


def test_ceilings_are_kept_and_read() -> None:
    """What the store keeps of ceilings is what is read from it."""
    made = Ceilings(
        {"peak:bf16": Ceiling(1e12, "FLOP/s", "measured here: x", 0.01)}, (stream("copy", MIB, 1e10),),
        ({"load": 1.0}, {"load": 2.0}),
    )  # fmt: skip
    assert Ceilings.from_dict(made.to_dict()) == made
    assert made.formats == ("bf16",)
    assert made.items["peak:bf16"].text == "1 TFLOP/s"


def test_sizes_go_by_fours() -> None:
    """64 KiB to 1 GiB are eight sizes."""
    assert len(sizes(2**30)) == 8
    assert sizes(2**30)[-1] == 2**30
