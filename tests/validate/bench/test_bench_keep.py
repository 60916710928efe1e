"""What is kept: a measured processor's spec, that `--gpu cpu` then is, and its fit, which belongs to it."""

from pathlib import Path

import pytest

from perfmodel.base.errors import OutputError, SpecError, UnknownName, UsageError
from perfmodel.base.userdata import keep as keep_text
from perfmodel.hwspecs import detect, kept, processor
from perfmodel.hwspecs.load import gpu
from perfmodel.roofline.efficiency import load
from perfmodel.validate.bench import keep, machine
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings
from perfmodel.validate.bench.fit import fit_device
from perfmodel.validate.bench.operators import gemm, pack, title
from perfmodel.validate.bench.spec import unknown_gpu
from perfmodel.validate.bench.store import Result

FOUND = Ceilings({
    "memory": Ceiling(31.5e9, "B/s", "measured here: a test", 0.02),
    "peak:fp32": Ceiling(101e9, "FLOP/s", "measured here: a test"),
    "peak:bf16": Ceiling(402e9, "FLOP/s", "measured here: a test"),
    "exp": Ceiling(2e9, "OP/s", "measured here: a test"),
    "launch": Ceiling(1e-6, "s", "measured here: a test"), "t0": Ceiling(0.0, "s", "measured here: a test"),
})  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))


def test_a_measured_processor_is_the_cpu() -> None:
    """Once measured, `cpu` has the measured ceilings and names their method; what was assumed is an alternative."""
    before = gpu("cpu")
    data = keep.measured("cpu", FOUND, 1)
    path, written = keep.keep_spec(data, "torch-cpu")
    assert written
    now = gpu("cpu")
    assert now.name == path.stem
    assert now.name.endswith("-1t")
    assert now.bandwidth == 31.5e9
    assert now.peak("fp32") == 101e9
    assert now.compute.exp is not None
    assert now.compute.exp.value == 2e9
    assert now.compute.vector["fp32"].source == "measured here: a test"
    assert now.compute.vector["fp32"].alternatives[0].value == before.compute.vector["fp32"].text
    assert now.compute.sms is not None
    assert now.compute.sms.value == 1
    assert "1 of" in now.title
    assert gpu(path.stem).bandwidth == gpu(str(path)).bandwidth == 31.5e9
    assert before.bandwidth == detect.detected_cpu().bandwidth  # the detection is as it was


def test_names_that_were_not_measured() -> None:
    """A name that is neither built in nor kept is unknown; a kept one that is damaged is an error when it is named."""
    with pytest.raises(UnknownName):
        gpu("my-own-cpu-4t")
    kept.path_of("my-own-cpu-4t").parent.mkdir(parents=True)
    kept.path_of("my-own-cpu-4t").write_text("title: [")
    with pytest.raises(SpecError, match="my-own-cpu-4t"):
        gpu("my-own-cpu-4t")
    assert gpu("cpu").name == "cpu"  # detection does not trip over it
    assert kept.names() == ["my-own-cpu-4t"]


def test_a_kept_fit_holds_its_ceilings() -> None:
    """A new run leaves the spec that a fit refers to as it is, unless both are renewed."""
    data = keep.measured("cpu", FOUND, 1)
    keep.keep_spec(data, "torch-cpu")
    spec = keep.as_gpu(data)
    listed = [gemm(m, 256, 256, "bf16") for m in (1, 16, 64, 256, 1024)]
    times = [1e-5 + 2 * float(op.cost().flops) / 402e9 for op in listed]
    rows = [
        Result(title(op, "bf16"), op.kind, "torch-cpu", "bf16", pack(op), t, t, t, 0.0, 9, {})
        for op, t in zip(listed, times, strict=True)
    ]
    keep.keep_fit(fit_device(rows, spec, "torch-cpu", 1e-6, "2", "a test"))
    assert load(gpu("cpu")).fits[0].engine == "torch-cpu"
    other = keep.measured("cpu", Ceilings({**FOUND.items, "memory": Ceiling(20e9, "B/s", "measured here: later")}), 1)
    assert keep.keep_spec(other, "torch-cpu")[1] is False
    assert gpu("cpu").bandwidth == 31.5e9
    assert keep.keep_spec(other, "torch-cpu", renew=True)[1] is True
    assert gpu("cpu").bandwidth == 20e9
    two = keep.as_gpu(keep.measured("cpu", FOUND, 2))
    assert [fit.machine for fit in load(two).fits] == [""]  # another number of threads is another device


def test_the_processor_that_was_fitted_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with another number of threads does not take the fit away: `cpu` stays the device that has one."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    one, two = (keep.measured("cpu", FOUND, threads) for threads in (1, 2))
    keep.keep_spec(one, "torch-cpu")
    spec = keep.as_gpu(one)
    rows = [
        Result(title(op, "bf16"), op.kind, "torch-cpu", "bf16", pack(op), t, t, t, 0.0, 9, {})
        for op in (gemm(m, 256, 256, "bf16") for m in (2, 16, 64, 256, 1024))
        for t in [1e-5 + 2 * float(op.cost().flops) / 402e9]
    ]
    fit = fit_device(rows, spec, "torch-cpu", 1e-6, "2", "a test")
    keep.keep_fit(fit)
    keep.keep_spec(two, "torch-cpu")
    assert gpu("cpu").name == spec.name
    with pytest.raises(UsageError, match=r"the kept fit of .* rests on 5 rows, this one would on 4: it stays"):
        keep.check_rows(fit_device(rows[1:], spec, "torch-cpu", 1e-6, "2", "x"), spec, ["1 case: no time"])
    keep.check_rows(fit_device(rows[1:], spec, "torch-cpu", 1e-6, "2", "x"), spec, [])


def test_damaged_files_are_replaced_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged spec gives way to what is measured now; a damaged fit is an error that says what to do."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    data = keep.measured("cpu", FOUND, 1)
    path, _ = keep.keep_spec(data, "torch-cpu")
    path.write_text("not: a spec\n")
    assert keep.keep_spec(data, "torch-cpu") == (path, True)
    fit = tmp_path / "fits" / f"{data['name']}-torch-cpu.yaml"
    fit.parent.mkdir()
    fit.write_text("title: x\n")
    with pytest.raises(SpecError, match=r"fits/.*delete the file, or make it anew with `perfmodel validate --calibr"):
        load(gpu("cpu"))


def test_a_processor_takes_nothing_from_gpus() -> None:
    """Without a fit of its own its calibrated times have another processor's shares of the ceilings, and say so."""
    found = load(gpu("cpu"))
    assert [(fit.gpu, fit.engine) for fit in found.fits] == [("cpu", "torch-cpu")]
    kernel = found.kernel("gemm", ("bf16",))
    assert kernel.origin.startswith("taken from AMD EPYC, 2 cores, ")
    assert "interval widened; `perfmodel validate` fits this one" in kernel.origin
    assert kernel.regimes[-1].low <= 1 / 1.8
    assert kernel.regimes[-1].high >= 1.8
    assert found.kernel("mla_context", ("bf16",)).origin == "assumed: no measurements of this kind"


def test_a_gpu_that_is_not_built_in() -> None:
    """Its spec is made of what the driver says and what was measured."""
    told = {"name": "NVIDIA X9", "capability": "12.1", "multiprocessors": 10, "memory_bytes": 8e9}
    told |= {"l2_bytes": 4 * 2**20, "clock_hz": 2e9}
    spec = unknown_gpu(told, FOUND)
    assert (spec.name, spec.architecture, spec.machine) == ("nvidia-x9", "blackwell", "NVIDIA X9")
    assert spec.bandwidth == 31.5e9
    assert spec.peak("bf16") == 402e9


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The message names the file and what to set; nothing is left half-written."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match=r"cannot keep .*set PERFMODEL_DATA to another folder"):
        keep_text(blocked / "devices" / "x.yaml", "x")
    keep_text(tmp_path / "a" / "x.yaml", "x")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x.yaml"]


def test_the_machine_is_described() -> None:
    """A description names processor, threads and versions, and is the same each time."""
    once, again = (machine.describe("cpu", 1) for _ in range(2))
    assert once == again
    assert once["device"] == f"{processor.machine()}, 1 thread"
    assert {"python", "torch"} <= set(once["versions"])
    cpus = machine.processors()
    assert sorted(machine.idle_first(cpus)) == cpus
    with machine.pinned(cpus[:1]) as used:
        import torch

        assert torch.get_num_threads() == 1
        assert used == cpus[:1]
        assert machine.processors() == cpus[:1]
    assert machine.processors() == cpus


def test_a_table_of_a_device_that_was_just_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was unknown is known once the device is measured, in the same process."""
    from perfmodel.validate.operator_rows import canonical

    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    data = keep.measured("cpu", FOUND, 1)
    assert canonical(data["name"]) is None
    keep.keep_spec(data, "torch-cpu")
    assert canonical(data["name"]) == data["name"]
