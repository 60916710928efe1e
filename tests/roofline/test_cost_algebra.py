"""Costs add and scale as numbers do, and their sums are what they say."""

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.cost import EXP, STREAMS, VECTOR, Cost, matrix

NUMBERS = st.integers(0, 2**40).map(float)
UNITS = st.sampled_from([matrix("bf16"), matrix("fp8"), VECTOR, EXP])
COSTS = st.builds(
    Cost,
    st.dictionaries(UNITS, NUMBERS),
    st.dictionaries(st.sampled_from(STREAMS), NUMBERS),
    NUMBERS,
    st.dictionaries(st.sampled_from(["scale_up", "scale_out"]), NUMBERS),
)


def same(a: Cost, b: Cost) -> bool:
    """Whether two costs are equal; an absent key is a zero."""
    pairs = [(a.ops, b.ops), (a.hbm, b.hbm), (a.comm, b.comm)]
    return a.l2 == b.l2 and all(x.get(k, 0.0) == y.get(k, 0.0) for x, y in pairs for k in {*x, *y})


@given(COSTS, COSTS, COSTS)
def test_adding_is_commutative_and_associative(a: Cost, b: Cost, c: Cost) -> None:
    """The order in which operators are added does not matter."""
    assert same(a + b, b + a)
    assert same((a + b) + c, a + (b + c))


@given(COSTS)
def test_nothing_is_the_neutral_element(a: Cost) -> None:
    """An empty cost adds nothing, on either side; so does a cost times zero."""
    assert same(a + Cost(), a)
    assert same(Cost() + a, a)
    assert same(a + a * 0.0, a)


@given(COSTS, COSTS, st.integers(0, 1000), st.integers(0, 1000))
def test_scaling_distributes(a: Cost, b: Cost, m: int, n: int) -> None:
    """n runs of two operators are n runs of each; m and n runs are m + n runs; scaling works from both sides."""
    assert same((a + b) * float(n), a * float(n) + b * float(n))
    assert same(a * float(m + n), a * float(m) + a * float(n))
    assert same(float(n) * a, a * float(n))


@given(COSTS, COSTS)
def test_sums_are_linear(a: Cost, b: Cost) -> None:
    """FLOPs, matrix FLOPs, bytes and bytes sent of a sum are the sums."""
    for name in ("flops", "matrix_flops", "bytes", "sent"):
        assert getattr(a + b, name) == getattr(a, name) + getattr(b, name)


def test_what_is_counted_where() -> None:
    """FLOPs are matrix and vector work, not exponentials; bytes are device memory, not L2 and not links."""
    cost = Cost(
        {matrix("bf16"): 600.0, matrix("fp8"): 300.0, VECTOR: 100.0, EXP: 7.0},
        {"weights": 40.0, "kv_read": 9.0, "act_write": 1.0}, 1e9, {"scale_up": 30.0, "scale_out": 3.0},
    )  # fmt: skip
    assert (cost.flops, cost.matrix_flops, cost.bytes, cost.sent) == (1000.0, 900.0, 50.0, 33.0)
    assert cost.intensity == 20.0


def test_a_cost_cannot_be_changed() -> None:
    """Costs are frozen: adding makes a new one."""
    a = Cost({VECTOR: 1.0})
    b = a + a
    assert (a.ops, b.ops) == ({VECTOR: 1.0}, {VECTOR: 2.0})
