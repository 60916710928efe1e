"""Work by unit: counts against loops, shares of time on real GPUs, and the published use of the peak."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.roofline.attention_published import published, share_of_peak, utilisation
from perfmodel.roofline.attention_units import FP32_A_SCORE, exp_rate, non_matmul_ops, unit_times


def loop_ops(q, kv, d, block_q, block_kv, version):
    """Operations of one head, tile by tile (no mask), whole tiles computed."""
    flops = exps = fp32 = 0
    for _ in range(0, q, block_q):
        for j in range(0, kv, block_kv):
            tile = block_q * block_kv
            flops += 4 * d * tile
            exps += tile + block_q * (3 if version == 1 else 1)
            fp32 += FP32_A_SCORE * tile + block_q * (6 if version == 1 else 2)
            fp32 += block_q * d * (2 if version == 1 else int(j > 0))
        if version > 1:
            exps, fp32 = exps + 2 * block_q, fp32 + block_q * d
    return flops, exps, fp32


@given(
    q=st.integers(1, 60),
    kv=st.integers(1, 60),
    d=st.integers(1, 9),
    block_q=st.integers(1, 20),
    block_kv=st.integers(1, 20),
    version=st.sampled_from([1, 2, 3]),
)
def test_ops_equal_a_loop(q, kv, d, block_q, block_kv, version):
    """The counts equal adding them up tile by tile."""
    got = non_matmul_ops(1, 1, 1, q, kv, d, block_q=block_q, block_kv=block_kv, version=version)
    assert (got.matrix_flops, got.exps, got.fp32) == loop_ops(q, kv, d, block_q, block_kv, version)


@given(n=st.integers(1, 3000), d=st.integers(1, 128), block=st.sampled_from([16, 64, 128]), causal=st.booleans())
def test_delayed_rescaling_never_costs_more(n, d, block, causal):
    """FlashAttention-2 needs no more FP32 work or exponentials than 1 with the same tile, and the same matrix FLOPs."""
    first, second = (non_matmul_ops(1, 4, 4, n, n, d, causal, block_q=block, block_kv=block, version=v) for v in (1, 2))
    assert second.fp32 < first.fp32
    assert second.exps <= first.exps
    assert second.rescale * 2 <= first.rescale
    assert second.matrix_flops == first.matrix_flops


def test_scalar_equals_vector():
    """Arrays of lengths give what scalars give."""
    n = np.array([1.0, 130, 4096, 131072])
    got = unit_times(non_matmul_ops(2, 8, 2, n, n, 128, True), gpu("h100"))
    for i, length in enumerate(n):
        one = unit_times(non_matmul_ops(2, 8, 2, float(length), float(length), 128, True), gpu("h100"))
        assert one.overlapped == pytest.approx(got.overlapped[i], rel=1e-13)
        assert one.serial_share == pytest.approx(got.serial_share[i], rel=1e-13)


def test_exponentials_are_half_of_the_products_on_h100():
    """FlashAttention-3's own sum at d = 128: 512 matrix FLOPs (989 TFLOP/s) and an exponential (3.9 T/s) a score."""
    assert exp_rate(gpu("h100")) == pytest.approx(3.9e12, rel=0.1)
    got = unit_times(non_matmul_ops(1, 1, 1, 8192, 8192, 128, block_kv=176, version=3), gpu("h100"), "fp16")
    assert got.exp_to_matrix == pytest.approx(0.5, rel=0.1)
    fp8 = unit_times(non_matmul_ops(1, 1, 1, 8192, 8192, 128, block_kv=176, version=3), gpu("h100"), "fp8")
    assert fp8.exp_to_matrix == pytest.approx(2 * got.exp_to_matrix, rel=1e-3)


def a100_share(d, block_kv, version):
    """Serial time share outside the matrix units at 8K on A100, tiles of 128 rows."""
    ops = non_matmul_ops(1, 1, 1, 8192, 8192, d, block_q=128, block_kv=block_kv, version=version)
    return unit_times(ops, gpu("a100"), "fp16").serial_share


def test_a5_shares_of_time_outside_the_matrix_units():
    """A5: 50 % and 25 % are not what the counts give: in time without overlap on A100, with equal tiles, delayed
    rescaling takes d = 64 from 52 to 50 % and d = 128 from 38 to 35 %; the softmax itself is the rest."""
    assert a100_share(64, 128, 1) == pytest.approx(0.52, abs=0.01)
    assert a100_share(64, 128, 2) == pytest.approx(0.50, abs=0.01)
    assert a100_share(128, 128, 1) == pytest.approx(0.376, abs=0.01)
    assert a100_share(128, 128, 2) == pytest.approx(0.350, abs=0.01)


def test_a5_by_count_it_is_two_percent():
    """A5: as a share of operations, the non-matrix work of FlashAttention-1 is 1 to 2 %, far from 50 %."""
    for d, share in ((64, 0.021), (128, 0.0127)):
        assert non_matmul_ops(1, 1, 1, 8192, 8192, d, version=1).flop_share == pytest.approx(share, abs=0.001)


def test_a4_published_use_of_the_peak():
    """A4: FlashAttention-1 25 to 40 %, -2 50 to 73 %; -3 at 740 TFLOP/s is 75 %, at 840 85 %."""
    assert utilisation("fa1").share == (0.25, 0.40)
    assert utilisation("fa2").share == (0.50, 0.73)
    assert share_of_peak("fa2", gpu("a100")) == pytest.approx(0.737, abs=0.001)
    assert share_of_peak("fa3-fp16", gpu("h100")) == pytest.approx(0.748, abs=0.001)
    assert share_of_peak("fa3-bf16", gpu("h100")) == pytest.approx(0.849, abs=0.001)
    assert share_of_peak("fa1", gpu("a100")) is None


def test_a4_fp8_is_66_percent():
    """A4: 1.3 of 1.979 PFLOP/s is 66 %, not the quoted 75 %."""
    assert share_of_peak("fa3-fp8", gpu("h100")) == pytest.approx(0.657, abs=0.001)


def test_a4_225_tflops_is_training():
    """A4: the quoted 225 TFLOP/s is end-to-end training (72 %), the kernel's best forward rate is 230 (73 %)."""
    training, kernel = utilisation("fa2-training"), utilisation("fa2")
    assert (training.rate, kernel.rate) == (225e12, 230e12)
    assert "training" in training.scope
    assert share_of_peak("fa2-training", gpu("a100")) == pytest.approx(0.72, abs=0.002)


def test_printed_shares_agree_with_the_specs():
    """Where rate and share are both printed, the rate over our peak gives the highest printed share within a point."""
    both = [name for name, entry in published().utilisation.items() if entry.rate and entry.share]
    assert len(both) >= 4
    for name in both:
        entry = utilisation(name)
        assert share_of_peak(name, gpu(entry.gpu)) == pytest.approx(entry.share[1], abs=0.01), name


def test_every_figure_has_a_source():
    """Each published figure names its document."""
    data = published()
    entries = [*data.utilisation.values(), *data.training_traffic.values(), data.decode_split]
    assert all(entry.source in data.sources.values() for entry in entries)


def test_bad_input_is_named():
    """Unknown presets, versions and peaks are refused by name."""
    with pytest.raises(UnknownName, match="did you mean fa3-fp8"):
        utilisation("fa3fp8")
    with pytest.raises(UsageError, match="version 0 is not known"):
        non_matmul_ops(1, 1, 1, 8, 8, 64, version=0)
    with pytest.raises(UsageError, match="no matrix peak for fp4"):
        unit_times(non_matmul_ops(1, 1, 1, 8, 8, 64), gpu("h100"), "fp4")
    bare = gpu("h100").compute.model_copy(update={"exp": None, "exp_per_clock_per_sm": None})
    with pytest.raises(UsageError, match="rate of exponentials"):
        exp_rate(gpu("h100").model_copy(update={"compute": bare}))
