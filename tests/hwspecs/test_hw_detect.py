"""Detection of this machine: its processor for real, its GPU where there is one, and what is said where not."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from perfmodel.base.errors import NoGpu
from perfmodel.hwspecs import detect, processor
from perfmodel.hwspecs.load import gpu


def test_this_processor_is_a_spec() -> None:
    """`cpu` has a name, memory that exists, a plausible bandwidth and a peak, each with a source."""
    spec = gpu("cpu")
    assert spec.kind == "cpu"
    assert spec.compute.sms is not None
    assert spec.compute.sms.value >= 1
    assert 2**28 < spec.usable_memory <= spec.memory.hbm.capacity.value
    assert 1e8 < spec.bandwidth < 5e12
    assert 1e9 < spec.peak("fp32") < 1e15
    assert spec.memory.hbm.bandwidth.source.startswith("measured here: numpy copy")
    assert spec.compute.vector["fp64"].value <= spec.compute.vector["fp32"].value
    assert gpu("CPU") is spec  # asked once a process: the same number each time


def test_avx512_peak_by_hand() -> None:
    """4 cores x 2 ports x 16 lanes x 2 FLOP x 2 GHz = 512 GFLOP/s in FP32, half in FP64, twice in BF16 dot products."""
    found = processor.compute({"avx512f", "avx512_bf16", "avx512_vnni", "fma", "avx"}, 4, 2e9)
    assert found["vector"]["fp32"]["value"] == "512 GFLOP/s"
    assert found["vector"]["fp64"]["value"] == "256 GFLOP/s"
    assert found["vector"]["bf16"]["value"] == "1.024 TFLOP/s"
    assert found["vector"]["int8"]["value"] == "2.048 TOP/s"
    assert found["tensor"] == {}
    assert "two full ports assumed" in found["vector"]["fp32"]["source"]


def test_amx_is_a_matrix_unit() -> None:
    """AMX does 16 x 16 x 32 multiply-adds in 16 clocks: 1024 BF16 FLOP a clock and core, 2 cores at 3 GHz: 6.144 T."""
    found = processor.compute({"avx512f", "amx_bf16", "amx_int8"}, 2, 3e9)
    assert found["tensor"]["bf16"]["value"] == "6.144 TFLOP/s"
    assert found["tensor"]["int8"]["value"] == "12.29 TOP/s"


@pytest.mark.parametrize(
    ("flags", "gigaflops"),
    [
        ({"avx", "avx2", "fma"}, "64 GFLOP/s"),  # 1 x 2 x 8 lanes x 2 x 2 GHz
        ({"avx"}, "32 GFLOP/s"),  # no fused multiply-add
        ({"asimd"}, "32 GFLOP/s"),  # 4 lanes, fused
    ],
)
def test_narrower_simd(flags: set[str], gigaflops: str) -> None:
    """One core's peak follows from the widest instructions that its flags name; an unknown clock is taken as 2 GHz."""
    found = processor.compute(flags, 1, None)
    assert found["vector"]["fp32"]["value"] == gigaflops
    assert "assumption" in found["clock_boost"]["source"]


def test_shared_caches_are_counted_once(tmp_path: Path) -> None:
    """Two cores with an L2 each and one L3 together: 2 x 1 MiB and 32 MiB; instruction caches do not count."""
    caches = [
        (1, "Instruction", "32K", "0", "1"),
        (2, "Unified", "1024K", "0", "1"),
        (3, "Unified", "32M", "0-1", "0-1"),
    ]
    for cpu in (0, 1):
        for number, (level, kind, size, *shared) in enumerate(caches):
            folder = tmp_path / f"cpu{cpu}/cache/index{number}"
            folder.mkdir(parents=True)
            parts = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared[cpu]}
            for name, text in parts.items():
                (folder / name).write_text(text + "\n")
    assert processor.cache_bytes(tmp_path) == {2: 2 * 2**20, 3: 32 * 2**20}


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    """Without /proc and /sys there are no flags and no caches, and that is no error."""
    assert processor.cpuinfo(tmp_path / "none") == {}
    assert processor.cache_bytes(tmp_path / "none") == {}


def test_measured_copy_is_short_and_bounded() -> None:
    """The copy moves what it says, in a memory that may be small."""
    rate, size = processor.copy_rate(1, 32 * 2**20, seconds=0.01)
    assert rate > 0
    assert size == 2 * 2**20  # a sixteenth of what is free


def test_without_bindings_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pynvml: exit code 5, which extra to install, and how to go on without a GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoGpu, match=r"perfmodel\[gpu\].*--gpu h100") as caught:
        gpu("local")
    assert caught.value.exit_code == 5


def nvml_without_driver() -> bool:
    """Whether the bindings are there and find no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return False
    except pynvml.NVMLError:
        return True
    return False


@pytest.mark.skipif(not nvml_without_driver(), reason="needs NVML bindings and no NVIDIA driver")
def test_without_a_driver_the_remedy_is_named() -> None:
    """No driver: exit code 5 and the same remedy."""
    with pytest.raises(NoGpu, match=r"no NVIDIA driver answers.*--gpu h100") as caught:
        detect.local_gpu()
    assert caught.value.exit_code == 5


@pytest.mark.gpu
def test_this_gpu_is_a_spec() -> None:
    """On a machine with a GPU that is built in, its spec has the memory that its driver reports."""
    spec = detect.local_gpu()
    assert spec.memory.hbm.usable is not None
    assert spec.memory.hbm.usable.source.startswith("NVML on this machine")


class FakeNvml(ModuleType):
    """The few NVML calls that detection makes, for a machine with GPUs of one name."""

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self, name: str, total: float, count: int = 1) -> None:
        super().__init__("pynvml")
        self.nvmlInit = self.nvmlShutdown = lambda: None
        self.nvmlDeviceGetCount = lambda: count
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetName = lambda handle: name.encode()
        self.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=total)
        self.nvmlSystemGetDriverVersion = lambda: "580.82.07"


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_names_as_nvml_reports_them(monkeypatch: pytest.MonkeyPatch, reported: str, name: str) -> None:
    """NVML's name finds the built-in, and the memory is the driver's."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(reported, 20e9))
    spec = gpu("local")
    assert spec.name == name
    assert spec.usable_memory == 20e9
    assert gpu(name).usable_memory != 20e9  # the built-in is left as it was


def test_a_gpu_that_is_not_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found, the nearest built-ins, and how to write a spec; an escape sequence in the name is escaped."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("NVIDIA H10\x1b[0m", 80 * 2**30))
    with pytest.raises(NoGpu, match=r"found the GPU 'NVIDIA H10\\x1b\[0m' with 80\.00 GiB.*--gpu FILE\.yaml"):
        gpu("local")


def test_a_gpu_index_past_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a second GPU where there is one says how many there are."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("NVIDIA H200", 150e9))
    with pytest.raises(NoGpu, match="GPU 1 was asked for and the driver knows 1"):
        detect.local_gpu(1)
