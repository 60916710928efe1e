"""Facts about the hardware that are often got wrong, each with the number that is used and the one that is not."""

from functools import reduce
from typing import Any

import pytest

from perfmodel.hwspecs.load import gpu, system
from perfmodel.hwspecs.schema import Quantity


def quantity(name: str, path: str) -> Quantity:
    """The quantity at a dotted path of a GPU's spec."""

    def step(node: Any, key: str) -> Any:
        return node[key] if isinstance(node, dict) else getattr(node, key)

    found = reduce(step, path.split("."), gpu(name))
    assert isinstance(found, Quantity)
    return found


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("a100", 153.0),  # 312 / 2.039; 156 with 2.0 TB/s
        ("h100", 295.3),  # 989.4 / 3.35
        ("b200", 293.3),  # 2250 / 7.672: flat from Hopper, and not 250 (9.0 TB/s) or 281 (8.0 TB/s)
        ("h200", 206.1),  # 989.4 / 4.8
        ("h20", 37.0),  # 148 / 4.0
        ("mi300x", 246.7),  # 1307.4 / 5.3
    ],
)
def test_ridge_points(name: str, ridge: float) -> None:
    """BF16 peak over memory bandwidth. [FLOP/byte]"""
    assert gpu(name).ridge() == pytest.approx(ridge, abs=0.05)


@pytest.mark.parametrize(
    ("name", "path", "used", "rejected"),
    [
        ("b200", "memory.hbm.bandwidth", 7.672e12, ["7.7 TB/s", "8.0 TB/s", "8.184 TB/s", "9.0 TB/s"]),
        ("b300", "memory.hbm.bandwidth", 7.672e12, ["7.75 TB/s", "8.0 TB/s"]),
        ("gb200", "memory.hbm.bandwidth", 8.0e12, ["7.7 TB/s", "13.4 TB/s"]),
        ("b200", "memory.l2.capacity", 126.5 * 2**20, ["50 MiB", "96 MiB"]),
        ("b200", "memory.hbm.usable", 182642 * 2**20, ["183359 MiB", "180 GiB"]),
        ("h200", "memory.l2.capacity", 60 * 2**20, ["50 MiB"]),
        ("gh200", "memory.l2.capacity", 60 * 2**20, ["50 MiB"]),
        ("h100", "memory.hbm.usable", 81090 * 2**20, ["81559 MiB"]),
        ("h100", "compute.tensor.bf16", 989.4e12, ["1979 TFLOP/s"]),
        ("a100", "memory.hbm.bandwidth", 2.039e12, ["2.0 TB/s"]),
        ("a100-pcie", "memory.l2.capacity", 40 * 2**20, ["80 MiB"]),
        ("gb200", "compute.tensor.bf16", 2500e12, ["2250 TFLOP/s"]),
        ("b300", "compute.tensor.fp4", 14e15, ["18000 TFLOP/s", "13125 TFLOP/s"]),
        ("b300", "compute.tensor.int8", 153.5e12, ["4500 TOP/s"]),
        ("gb300", "compute.tensor.int8", 165e12, ["5000 TOP/s"]),
        ("h20", "compute.tensor.bf16", 148e12, ["585 TFLOP/s"]),
        ("h20", "memory.hbm.bandwidth", 4.0e12, ["4096 GB/s"]),
        ("a10g", "compute.tensor.bf16", 70e12, ["125 TFLOP/s"]),
        ("a10g", "compute.sms", 80, ["72"]),
        ("rtx-3090", "compute.tensor.fp16", 71e12, ["142 TFLOP/s"]),
        ("rtx-4090", "compute.tensor.fp16", 165.2e12, ["330.3 TFLOP/s"]),
        ("rtx-5090", "compute.tensor.fp16", 209.5e12, ["419 TFLOP/s"]),
        ("l4", "compute.tensor.bf16", 121e12, ["242 TFLOP/s"]),
        ("l4", "memory.hbm.bandwidth", 300e9, ["3350 GB/s"]),
        ("l40s", "compute.tensor.fp8", 733e12, ["1466 TFLOP/s"]),
        ("l40s", "memory.l2.capacity", 96 * 2**20, ["48 MiB"]),
        ("mi300x", "memory.hbm.bandwidth", 5.3e12, ["10.3 TB/s"]),
        ("mi300x", "compute.tensor.bf16", 1307.4e12, ["2615 TFLOP/s"]),
        ("mi325x", "memory.hbm.bandwidth", 6.0e12, ["10.3 TB/s"]),
        ("mi355x", "compute.tensor.bf16", 2516.6e12, ["2300 TFLOP/s"]),
        ("mi355x", "compute.tensor.fp4", 10.066e15, ["20.1 PFLOP/s"]),
        ("gaudi-3", "compute.tensor.bf16", 1677e12, ["1835 TFLOP/s"]),
    ],
)
def test_conflicts_are_decided_and_kept(name: str, path: str, used: float, rejected: list[str]) -> None:
    """The number used, and beside it those that other sources print, each with the reason that it is not used."""
    found = quantity(name, path)
    assert found.value == pytest.approx(used, rel=1e-9)
    others = {other.value: other.why for other in found.alternatives}
    assert set(rejected) <= set(others)
    assert all(others.values())


@pytest.mark.parametrize(
    ("name", "per_sm", "per_block", "l2_mib"),
    [("a100", 164, 163, 40), ("h100", 228, 227, 50), ("b200", 228, 227, 126.5)],
)
def test_shared_memory_and_l2(name: str, per_sm: float, per_block: float, l2_mib: float) -> None:
    """The largest shared-memory carve-out (not L1 and shared together: 192, 256, 256 KiB), a block's limit, and L2."""
    assert quantity(name, "memory.shared.per_sm").value == per_sm * 2**10
    assert quantity(name, "memory.shared.per_block").value == per_block * 2**10
    assert quantity(name, "memory.l2.capacity").value == l2_mib * 2**20


def test_nineteen_terabytes_a_second_is_the_whole_a100() -> None:
    """The 19 TB/s of shared memory are the sum of 108 SMs, 128 bytes a clock each: 180 GB/s for one."""
    total = quantity("a100", "memory.shared.bandwidth").value
    assert total == pytest.approx(19.5e12, rel=0.01)
    assert total / quantity("a100", "compute.sms").value == pytest.approx(128 * 1.41e9, rel=0.01)


@pytest.mark.parametrize("name", ["v100", "a100", "h100", "gh200-96gb", "l40s"])
def test_measured_latencies(name: str) -> None:
    """Loads take some 30, 200 to 280 and 430 to 690 clocks; a few clocks, 30 and 300 are all too low."""
    assert 30 <= quantity(name, "memory.shared.latency_clocks").value <= 36
    assert 200 <= quantity(name, "memory.l2.latency_clocks").value <= 280
    assert 430 <= quantity(name, "memory.hbm.latency_clocks").value <= 690


@pytest.mark.parametrize("name", ["h100", "h100-pcie", "h100-nvl", "h200", "h200-nvl", "h20", "h800", "gh200"])
def test_hopper_has_no_four_bit_units(name: str) -> None:
    """Hopper multiplies neither INT4 nor FP4: such weights are widened first."""
    assert not gpu(name).supports("int4")
    assert not gpu(name).supports("fp4")


@pytest.mark.parametrize("name", ["a100", "a10g", "a40", "a6000", "3090", "v100", "t4", "mi250x"])
def test_no_fp8_before_ada_and_cdna3(name: str) -> None:
    """These have no FP8 units, whatever a table says of the A100's 624."""
    assert not gpu(name).supports("fp8")


@pytest.mark.parametrize(("name", "half"), [("v100", "fp16"), ("t4", "fp16"), ("h100", "bf16"), ("m4-max", "fp16")])
def test_sixteen_bit_format(name: str, half: str) -> None:
    """Volta and Turing have no BF16; their 16-bit peak is FP16's."""
    assert gpu(name).half == half


def test_blackwell_ultra_doubles_the_exponentials() -> None:
    """32 exp2 a clock and SM instead of 16, so about twice the rate of the B200."""
    assert quantity("b300", "compute.exp").value == pytest.approx(2 * quantity("b200", "compute.exp").value)
    assert quantity("h100", "compute.exp").value == pytest.approx(3.9e12, rel=0.01)  # FlashAttention-3's figure


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100-sxm"),
        ("A100", "a100-sxm"),
        ("gh200", "gh200-144gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("RTX_4090", "rtx-4090"),
        ("a6000", "rtx-a6000"),
        ("phone", "a18-pro"),
    ],
)
def test_short_names(alias: str, name: str) -> None:
    """What people write finds the part they mean, whatever its case and dashes."""
    assert gpu(alias).name == name


@pytest.mark.parametrize(
    ("name", "domain", "gigabytes", "adds"),
    [
        ("dgx-a100", 8, 300, False),
        ("dgx-h100", 8, 450, True),  # 900 is both ways
        ("hgx-h800", 8, 200, True),
        ("dgx-b200", 8, 900, True),  # 1800 is both ways
        ("gb200-nvl72", 72, 900, True),
        ("mi300x-8", 8, 448, False),
        ("pcie-gen5-8", 8, 63, False),  # 64 before the encoding
    ],
)
def test_links_are_one_way(name: str, domain: int, gigabytes: float, adds: bool) -> None:
    """GPUs in a domain, the bandwidth of one in one direction, and whether the switch adds."""
    spec = system(name)
    assert spec.domain.value == domain
    assert spec.scale_up.bandwidth.value == pytest.approx(gigabytes * 1e9)
    assert spec.scale_up.in_network_reduction is adds
