"""The processor's stopwatch: it goes round through the buffers, and takes other processes' time off."""

import time

import pytest

from perfmodel.validate.bench import watch as w
from perfmodel.validate.bench.timing import interleaved


def spin() -> int:
    """A fixed piece of work."""
    return sum(range(20_000))


def test_it_reads_the_time() -> None:
    """A call of known work takes what the plain clock says, within a factor of two."""
    plain = []
    for _ in range(200):
        start = time.perf_counter()
        spin()
        plain.append(time.perf_counter() - start)
    assert min(plain) / 2 < w.CpuWatch(1).seconds([spin], 20) < 4 * sorted(plain)[100]


def test_batches_go_on_where_the_last_one_ended() -> None:
    """Batches shorter than a round of the buffers go through all of them in turn; other calls start anew."""
    order: list[int] = []
    calls = [lambda i=i: order.append(i) for i in range(5)]
    watch = w.CpuWatch(1)
    for _ in range(3):
        watch.seconds(calls, 2)
    assert order[:6] == [0, 1, 2, 3, 4, 0]
    watch.forget()
    order.clear()
    watch.seconds(calls, 2)
    assert order[:2] == [0, 1]


def test_sampling_uses_short_batches() -> None:
    """With it a batch need not hold a round of all buffers."""
    calls = [spin for _ in range(500)]
    got = interleaved(w.CpuWatch(1), {"": calls}, budget=0.05)[""]
    assert got.repeats < 500


def counted(*lost: float):  # type: ignore[no-untyped-def]
    """A scheduler that lets the process wait so long in each batch, one after another."""
    total, waits = [0.0], iter(lost)

    def waited(thread: int | None = None) -> float:
        now = total[0]
        total[0] += next(waits, 0.0) if waited.calls % 2 == 0 else 0.0  # type: ignore[attr-defined]
        waited.calls += 1  # type: ignore[attr-defined]
        return now

    waited.calls = 0  # type: ignore[attr-defined]
    return waited


def test_a_disturbed_batch_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch lost 1 s to others, the second nothing: it counts, and the first one is noted."""
    monkeypatch.setattr(w, "waited", counted(1.0, 0.0))
    watch = w.CpuWatch(2)
    assert watch.seconds([spin], 1) < 0.5
    assert (watch.batches, watch.disturbed, watch.spoiled) == (2, 1, 0)


def test_one_thread_takes_its_wait_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all tries are disturbed, the wait of the only thread is taken off the one that counts: 8 ms of 10."""
    monkeypatch.setattr(w, "waited", counted(8e-3, 8e-3, 8e-3))
    took: list[float] = []

    def sleep() -> None:
        start = time.perf_counter()
        time.sleep(10e-3)
        took.append(time.perf_counter() - start)

    got = w.CpuWatch(1).seconds([sleep], 1)
    assert len(took) == w.TRIES
    assert any(got == pytest.approx(one - 8e-3, abs=1e-3) for one in took)


def test_several_threads_are_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of several threads overlap and cannot be taken off: the reading is marked."""
    monkeypatch.setattr(w, "waited", counted(*[5e-3] * 20))
    watch = w.CpuWatch(2)
    watch.seconds([lambda: time.sleep(1e-3)], 1)
    assert watch.spoiled == watch.readings == 1


def test_a_crowded_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """When more than a quarter of the last readings of several threads are spoiled, it says so instead of going on."""
    monkeypatch.setattr(w, "waited", counted(*[5e-3] * 1000))
    monkeypatch.setattr(w, "PAUSE", 0.0)
    watch = w.CpuWatch(2)

    def readings() -> None:
        for _ in range(w.RECENT):
            watch.seconds([lambda: time.sleep(1e-3)], 1)

    with pytest.raises(w.Crowded, match=r"keep the cores busy \(11 of the last 11 readings.*fewer --threads") as caught:
        readings()
    assert caught.value.exit_code == 2


def test_the_system_is_asked() -> None:
    """The wait of this process is a time, and a thread that does not exist has waited for nothing."""
    assert w.waited() >= 0
    assert w.waited(2**22 + 1) == 0
