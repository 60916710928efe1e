"""The built-in specs: they load, each number has a source, and the numbers of one device agree with each other."""

import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from perfmodel.base.catalogue import Catalogue, normalise
from perfmodel.base.yamlio import parse_yaml, read_text
from perfmodel.hwspecs import load
from perfmodel.hwspecs.listing import sources
from perfmodel.hwspecs.load import GPUS, SYSTEMS, gpu, system
from perfmodel.hwspecs.schema import Gpu

WANTED = [
    "a100-sxm", "a100-sxm-40gb", "a100-pcie-40gb", "a100-pcie-80gb", "h100-sxm", "h100-pcie", "h100-nvl",
    "h200", "h200-nvl", "h20", "h800", "gh200-96gb", "gh200-144gb", "b200", "b300", "gb200", "gb300", "l4",
    "l40s", "a10", "a10g", "a40", "rtx-a6000", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "mi250x",
    "mi300x", "mi325x", "mi355x", "m2-ultra", "m4-max", "a18-pro", "v100-sxm", "t4", "gaudi-3", "tpu-v5e",
    "tpu-v5p",
]  # fmt: skip

#: Dense 16-bit matrix FLOP a clock and SM that an architecture has; a sparse figure would need twice as many.
PER_CLOCK = {
    "volta": {1024},
    "turing": {1024},
    "ampere": {2048, 1024, 512},
    "ada": {1024, 512},
    "hopper": {4096},
    "blackwell": {8192, 1024, 512},
    "blackwell-ultra": {8192},
    "cdna2": {1024},
    "cdna3": {2048},
    "cdna4": {4096},
}
NUMBERS = [(name, gpu(name)) for name in GPUS.names]
every_gpu = pytest.mark.parametrize("spec", [spec for _, spec in NUMBERS], ids=[name for name, _ in NUMBERS])


def test_all_wanted_gpus_are_built_in() -> None:
    """Each device that the project promises is there."""
    assert set(WANTED) - set(GPUS.names) == set()


@pytest.mark.parametrize("name", SYSTEMS.names)
def test_systems_load_and_name_a_gpu(name: str) -> None:
    """A system's GPU is a built-in, and a domain is at least one node or one node is at least a domain."""
    spec = system(name)
    assert gpu(spec.gpu).name == spec.gpu
    nodes, domain = spec.gpus_per_node.value, spec.domain.value
    assert domain % nodes == 0 or nodes % domain == 0


@every_gpu
def test_system_of_a_gpu_exists(spec: Gpu) -> None:
    """What a GPU says it sits in can be loaded."""
    assert spec.system is None or system(spec.system).name == spec.system


@pytest.mark.parametrize("name", [*GPUS.names, *SYSTEMS.names])
def test_every_number_has_a_real_source(name: str) -> None:
    """A source names a document or the arithmetic; no placeholder, no word of somebody's memory, no registry."""
    spec = gpu(name) if name in GPUS.names else system(name)
    placeholder = re.compile(r"x-y-z|todo|tbd|fixme|unverified|from memory|index file|example\.|pypi", re.IGNORECASE)
    found = sources(spec)
    assert len(found) >= 3
    for number in found:
        for text in (number.source, *(other.source for other in number.alternatives)):
            assert len(text) > 10, number
            assert not placeholder.search(text), number


@pytest.mark.parametrize("catalogue", [GPUS, SYSTEMS], ids=["gpus", "systems"])
def test_each_entry_of_sources_is_used(catalogue: Catalogue) -> None:
    """A document in `sources` is cited by some number of its file: none is left over from an edit."""
    for name in catalogue.names:
        text = read_text(catalogue.folder / f"{name}.yaml")
        for key in parse_yaml(text, name).get("sources", {}):
            assert re.search(rf"source: {re.escape(key)}\b", text), (name, key)


@pytest.mark.parametrize("catalogue", [GPUS, SYSTEMS], ids=["gpus", "systems"])
def test_names_and_aliases_mean_one_thing(catalogue: Catalogue) -> None:
    """No alias is given twice or hides a name, and none of the words that mean this machine is taken."""
    owner = {normalise(name): name for name in catalogue.names}
    for name in catalogue.names:
        header = parse_yaml(read_text(catalogue.folder / f"{name}.yaml").split("\n\n", 1)[0], name)
        assert set(header) == {"title", "aliases"}
        for alias in header["aliases"]:
            assert owner.setdefault(normalise(alias), name) == name, alias
            assert catalogue.resolve(alias) == name
    assert not {"cpu", "local"} & set(owner)


@every_gpu
def test_peak_fits_the_units_and_the_clock(spec: Gpu) -> None:
    """SMs x dense FLOP a clock x clock gives the 16-bit peak within 2 %, at a clock that the device reaches.

    A sparse figure taken for a dense one would need twice the FLOP of the architecture, or twice the clock.
    """
    units = spec.compute
    if units.tensor_per_clock_per_sm is None:
        assert spec.kind != "gpu" or spec.name == "h20"  # H20: capped below its units
        return
    assert units.sms is not None
    assert units.clock_boost is not None
    clock = units.clock_tensor or units.clock_boost
    per_clock = units.tensor_per_clock_per_sm.value
    assert per_clock in PER_CLOCK[spec.architecture]
    assert clock.value <= units.clock_boost.value
    assert units.sms.value * per_clock * clock.value == pytest.approx(spec.peak(spec.half), rel=0.02)


@every_gpu
def test_narrower_formats_are_no_slower(spec: Gpu) -> None:
    """Matrix peaks do not fall as the format narrows; INT8 on Blackwell Ultra, which was cut, is the exception."""
    tensor = {name: rate.value for name, rate in spec.compute.tensor.items()}
    for order in (["tf32", "bf16", "fp8", "fp6", "fp4"], ["tf32", "fp16", "int8", "int4"]):
        if spec.architecture == "blackwell-ultra" and "int8" in order:
            order = ["tf32", "fp16"]
        rates = [tensor[name] for name in order if name in tensor]
        assert rates == sorted(rates)
    if "bf16" in tensor:
        assert tensor["bf16"] == tensor["fp16"] if "fp16" in tensor else spec.kind == "accelerator"
    vector = spec.compute.vector
    if "fp32" in vector and "fp64" in vector:
        assert vector["fp64"].value <= vector["fp32"].value


@every_gpu
def test_memory_as_reported_fits_memory_as_sold(spec: Gpu) -> None:
    """Sold GB are 10^9 or 2^30 bytes: the driver's figure is at most 8 % above and not far below what is sold."""
    ratio = spec.usable_memory / spec.memory.hbm.capacity.value
    assert ratio <= 1.08
    assert ratio >= (0.75 if spec.vendor == "apple" else 0.92)


@every_gpu
def test_memory_levels_are_ordered(spec: Gpu) -> None:
    """Nearer memory is faster, closer and smaller; a block's shared memory fits its SM's, and that fits beside L1."""
    memory = spec.memory
    levels = [level for level in (memory.hbm, memory.l3, memory.l2) if level is not None]
    rates = [level.bandwidth.value for level in levels if level.bandwidth]
    clocks = [level.latency_clocks.value for level in levels if level.latency_clocks]
    sizes = [level.capacity.value for level in levels]
    if memory.shared:
        shared = memory.shared
        rates += [shared.bandwidth.value] if shared.bandwidth else []
        clocks += [shared.latency_clocks.value] if shared.latency_clocks else []
        assert shared.per_block.value <= shared.per_sm.value
        assert shared.with_l1 is None or shared.per_sm.value <= shared.with_l1.value
    assert rates == sorted(rates)
    assert sizes == sorted(sizes, reverse=True)
    assert clocks == sorted(clocks, reverse=True)


@every_gpu
def test_derived_rates_are_their_arithmetic(spec: Gpu) -> None:
    """Exponentials and shared-memory bandwidth are rate a clock x SMs x the clock that their source names."""
    units, shared = spec.compute, spec.memory.shared
    clock = (units.clock_tensor or units.clock_boost).value if units.clock_boost else 0.0
    if units.exp and units.exp_per_clock_per_sm and units.sms:
        assert units.exp.value == pytest.approx(units.exp_per_clock_per_sm.value * units.sms.value * clock, rel=1e-3)
    if shared and shared.bandwidth and shared.per_clock_per_sm and units.sms:
        assert shared.bandwidth.value == pytest.approx(
            shared.per_clock_per_sm.value * units.sms.value * clock, rel=1e-3
        )


@pytest.mark.parametrize("name", SYSTEMS.names)
def test_only_a_switch_of_hopper_or_later_adds(name: str) -> None:
    """NVLS needs the NVSwitch of NVLink 4 or 5: not the A100's, no mesh, no PCIe, and no GPU alone."""
    spec = system(name)
    assert spec.scale_up.in_network_reduction == (
        spec.scale_up.kind in ("NVLink4", "NVLink5") and spec.domain.value > 1
    )


def test_a_mesh_splits_its_bandwidth_over_the_peers() -> None:
    """All links of a full mesh together are the bandwidth of one times the peers."""
    meshes = [spec for spec in map(system, SYSTEMS.names) if spec.scale_up.topology == "mesh"]
    assert len(meshes) >= 3
    for spec in meshes:
        assert spec.scale_up.per_pair is not None
        total = spec.scale_up.per_pair.value * (spec.domain.value - 1)
        assert spec.scale_up.bandwidth.value == pytest.approx(total)


def best_of(times: int, work: Callable[[], object]) -> float:
    """Shortest of some runs. [s]"""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def test_loading_is_fast() -> None:
    """One built-in by an alias, the scan of all aliases included, takes under 30 ms."""

    def fresh() -> None:
        load._builtin_gpu.cache_clear()
        catalogue = Catalogue(GPUS.folder, "GPU", "gpus")
        load._builtin_gpu(catalogue.resolve("h100"))

    assert best_of(5, fresh) < 0.03


def test_heavy_libraries_stay_out() -> None:
    """Loading a spec imports neither numpy, pandas, psutil nor NVML: only detection needs them."""
    code = (
        "import sys, perfmodel.hwspecs.load as l, perfmodel.hwspecs.detect; l.gpu('h100'); "
        "print([m for m in ('numpy', 'pandas', 'psutil', 'pynvml', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
