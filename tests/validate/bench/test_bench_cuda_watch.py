"""The stopwatch of a GPU, on a simulated one: a host that issues calls, and a device that does them in turn."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from perfmodel.validate.bench import machine
from perfmodel.validate.bench import watch as w


class Simulated:
    """What the stopwatch uses of torch.cuda. The host's clock is ``now``; the device has work until ``busy``. [s]"""

    def __init__(self) -> None:
        self.now = self.busy = 0.0
        self.capturing: list[float] | None = None
        self.graphs: list[list[float]] = []
        self.stream = "default"

    def call(self, host: float, device: float, captured: bool = True) -> Callable[[], None]:
        """A call that takes the host and the device so long; one that waits for the device cannot be captured."""

        def run() -> None:
            self.now += host
            if self.capturing is None:
                self.busy = max(self.busy, self.now) + device
            elif not captured:
                raise RuntimeError("operation not permitted when stream is capturing")
            else:
                self.capturing.append(device)

        return run

    def event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace()

        def record() -> None:
            event.at = self.busy = max(self.busy, self.now)

        event.record = record
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy)

    def sleep(self, cycles: int) -> None:
        self.busy = max(self.busy, self.now) + cycles / 2e9

    def current_stream(self) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None, name=self.stream)

    def set_stream(self, stream: SimpleNamespace) -> None:
        self.stream = stream.name

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        yield

    def new_graph(self) -> SimpleNamespace:
        graph = SimpleNamespace(work=[])

        def replay() -> None:
            self.busy = max(self.busy, self.now) + sum(graph.work)

        graph.replay = replay
        return graph

    @contextmanager
    def graph(self, graph: SimpleNamespace, stream: object) -> Iterator[None]:
        """As torch does it: where the capture fails, its stream stays the current one."""
        self.capturing, self.stream = graph.work, "capturing"
        try:
            yield
        finally:
            self.capturing = None
        self.graphs.append(graph.work)
        self.stream = "default"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A simulated GPU in place of torch's."""
    found = Simulated()
    cuda = SimpleNamespace(
        Event=found.event, Stream=found.current_stream, CUDAGraph=found.new_graph, graph=found.graph, stream=found.on,
        synchronize=found.synchronize, _sleep=found.sleep, current_stream=found.current_stream,
        set_stream=found.set_stream,
    )  # fmt: skip
    monkeypatch.setattr(w, "import_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(w, "time", SimpleNamespace(perf_counter=lambda: found.now, sleep=time.sleep))
    return found


def test_a_short_call_is_timed_without_the_host(gpu: Simulated) -> None:
    """20 us of work that takes 150 us to issue is captured: the time is the device's."""
    calls = [gpu.call(150e-6, 20e-6) for _ in range(7)]
    assert w.CudaWatch().seconds(calls, 14) == pytest.approx(20e-6)
    assert [len(graph) for graph in gpu.graphs] == [14]


def test_a_long_call_is_not_captured(gpu: Simulated) -> None:
    """A millisecond that the host issues in 20 us is timed call by call."""
    assert w.CudaWatch().seconds([gpu.call(20e-6, 1e-3)], 5) == pytest.approx(1e-3)
    assert gpu.graphs == []


def test_a_step_that_the_host_cannot_keep_up_with_is_captured(gpu: Simulated) -> None:
    """6 ms of work in 11 ms of the host's: longer than 100 us, and still the host would be timed."""
    assert w.CudaWatch().seconds([gpu.call(11e-3, 6e-3)], 1) == pytest.approx(6e-3)
    assert len(gpu.graphs) == 1


def test_what_cannot_be_captured_is_timed_as_it_is(gpu: Simulated) -> None:
    """The stream that was current is so again after the failure, and the capture is not tried again."""
    calls = [gpu.call(5e-6, 20e-6, captured=False)]
    watch = w.CudaWatch()
    assert watch.seconds(calls, 10) == watch.seconds(calls, 10) == pytest.approx(20e-6)
    assert gpu.stream == "default"
    assert gpu.graphs == []


def test_each_number_of_repeats_has_a_graph_until_it_is_let_go(gpu: Simulated) -> None:
    """Equal batches replay one graph; after ``forget`` other calls may have the same place in memory."""
    watch, calls = w.CudaWatch(), [gpu.call(5e-6, 20e-6)]
    for repeats in (10, 10, 20):
        watch.seconds(calls, repeats)
    assert [len(graph) for graph in gpu.graphs] == [10, 20]
    watch.forget()
    watch.seconds(calls, 10)
    assert len(gpu.graphs) == 3


class NvmlError(Exception):
    """NVML's."""


def test_what_nvml_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is found by torch's identifier; a clock that it keeps to itself hides no temperature."""
    import sys

    import torch

    asked: list[str] = []

    def refuse(*_: object) -> int:
        raise NvmlError

    nvml = SimpleNamespace(
        NVMLError=NvmlError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=asked.append, nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetClockInfo=refuse, nvmlDeviceGetPowerUsage=lambda gpu: 250_000,
        nvmlDeviceGetTemperature=lambda gpu, kind: 40,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1-2"))
    machine._nvml.cache_clear()
    assert machine.gpu_state() == {"driver": "580.1", "power_w": 250.0, "temperature_c": 40}
    assert machine.gpu_state()["temperature_c"] == 40
    assert asked == ["GPU-1-2"]
    machine._nvml.cache_clear()


def test_without_nvml_torch_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is built in is found by the name that torch gives it, with the memory that torch sees."""
    import sys

    import torch

    from perfmodel.validate.bench import keep
    from perfmodel.validate.bench.ceilings import Ceilings

    told = SimpleNamespace(name="NVIDIA H200", total_memory=150e9)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: told)
    found = keep.datasheet(Ceilings({}))
    assert (found.name, found.machine, found.usable_memory) == ("h200", "NVIDIA H200", 150e9)
    assert found.memory.hbm.usable is not None
    assert found.memory.hbm.usable.source == "torch.cuda.get_device_properties on this machine"
