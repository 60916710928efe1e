"""Launch tables: the first row that applies is taken, on every architecture, and the shipped files are well formed."""

import dataclasses
import json
from importlib import resources
from types import SimpleNamespace

import pytest
import torch

from perfmodel.kernels import device, table
from perfmodel.kernels.table import Config, Row, rows, select

CPU = torch.empty(1)
CASES = [
    # arch, quantities, the row taken
    ("sm_90", {"m": 1}, 0),
    ("sm_90", {"m": 16}, 0),
    ("sm_90", {"m": 17}, 1),
    ("sm_90", {"m": 10**9}, 1),
    ("sm_90", {"m": 0}, 2),
    ("sm_80", {"m": 5}, 0),
]
TABLE = {
    "kernel": "toy",
    "why": "small tiles for few rows",
    "architectures": {
        "sm_90": [
            {"when": {"m": [1, 16]}, "meta": {"BLOCK": 16}, "num_warps": 4, "num_stages": 4},
            {"when": {"m": [17, None]}, "meta": {"BLOCK": 128}, "num_warps": 8, "num_stages": 3},
            {"meta": {"BLOCK": 32}, "num_warps": 4, "num_stages": 1},
        ],
        "sm_80": [{"meta": {"BLOCK": 64, "FAST": True}, "num_warps": 4, "num_stages": 2}],
    },
}
SHIPPED = sorted(
    entry.name.removesuffix(".json")
    for entry in resources.files("perfmodel.kernels").joinpath("data").iterdir()
    if entry.name.endswith(".json")
)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The table above in place of the shipped ones."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "toy.json").write_text(json.dumps(TABLE))
    monkeypatch.setattr(table.resources, "files", lambda package: tmp_path)
    rows.cache_clear()
    yield
    rows.cache_clear()


@pytest.mark.parametrize(("arch", "quantities", "row"), CASES)
@pytest.mark.usefixtures("toy")
def test_the_first_row_that_applies_is_taken(arch, quantities, row) -> None:
    """Ranges are closed, null is no limit, and the last row takes what is left."""
    with device.assume(arch):
        config = select("toy", CPU, **quantities)
    assert config.row == row
    assert config.meta == TABLE["architectures"][arch][row]["meta"]


@pytest.mark.usefixtures("toy")
def test_options_are_all_that_a_launch_passes() -> None:
    """Compile-time constants, warps and stages, under the names that a launch takes."""
    with device.assume("sm_80"):
        assert select("toy", CPU, m=1).options() == {"BLOCK": 64, "FAST": True, "num_warps": 4, "num_stages": 2}


@pytest.mark.usefixtures("toy")
def test_an_architecture_without_rows_is_refused_by_name() -> None:
    """The message names kernel, architecture and quantities."""
    with device.assume("sm_100"), pytest.raises(ValueError, match=r"toy has no configuration for sm_100 with .*'m': 3"):
        select("toy", CPU, m=3)


@pytest.mark.usefixtures("toy")
def test_a_quantity_that_was_not_given_is_an_error() -> None:
    """A row that asks for a quantity the kernel does not give is a mistake, not a row that does not apply."""
    with device.assume("sm_90"), pytest.raises(KeyError, match="m"):
        select("toy", CPU, n=3)


def test_no_conditions_always_apply() -> None:
    """A row without conditions takes everything."""
    assert Row({}, Config({}, 4, 1)).applies({"anything": 7})


def test_unknown_architectures_are_refused() -> None:
    """`assume` says which there are."""
    with pytest.raises(
        ValueError, match="'sm_70' has no configurations; there are sm_80, sm_90, sm_100, sm_86, sm_89, sm_120"
    ):
        device.assume("sm_70").__enter__()


def test_assumptions_nest_and_end() -> None:
    """The inner assumption holds inside, the outer one again after it, the default after all."""
    default = device.target(CPU)
    with device.assume("sm_80", sm_count=4):
        with device.assume("sm_100"):
            assert device.target(CPU) == device.Target("sm_100", 148, 232448, True)
            assert device.has_tma(CPU)
        assert device.target(CPU) == device.Target("sm_80", 4, 166912, False)
        assert not device.has_tma(CPU)
    assert device.target(CPU) == default == device.Target("sm_90", 132, 232448, True)


def test_only_compiling_is_assumed_where_it_is_said() -> None:
    """Launches run unless the innermost assumption says that they are compiled only."""
    with device.assume("sm_90", ahead_of_time=True):
        assert device.ahead_of_time()
        with device.assume("sm_80"):
            assert not device.ahead_of_time()
        assert device.ahead_of_time()
    assert not device.ahead_of_time()


GPUS = {
    # compute capability, shared memory of a block: whose rows, FP8
    ((8, 0), 166912): ("sm_80", False),
    ((8, 6), 101376): ("sm_80", False),
    ((8, 7), 166912): ("sm_80", False),
    ((8, 9), 101376): ("sm_80", True),
    ((9, 0), 232448): ("sm_90", True),
    ((10, 0), 232448): ("sm_100", True),
    ((10, 3), 232448): ("sm_100", True),
    ((11, 0), 232448): ("sm_100", True),
    ((12, 0), 101376): ("sm_80", True),
    ((12, 1), 101376): ("sm_80", True),
}


def described(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], shared: int) -> device.Target:
    """What is chosen for on a GPU of which the driver says this."""
    major, minor = capability
    told = SimpleNamespace(major=major, minor=minor, multi_processor_count=7)
    held = SimpleNamespace(get_device_properties=lambda index: {"max_shared_mem": shared})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: told)
    monkeypatch.setattr(device, "driver", SimpleNamespace(active=SimpleNamespace(utils=held)))
    return device._of_gpu.__wrapped__(0)


@pytest.mark.parametrize(("gpu", "expected"), GPUS.items())
def test_every_gpu_takes_rows_whose_instructions_it_has(monkeypatch, gpu, expected) -> None:
    """wgmma is Hopper's alone, tensor memory that of 10.x and 11.0; all others run what sm_80 runs, within their own
    shared memory and multiprocessors."""
    assert described(monkeypatch, *gpu) == device.Target(expected[0], 7, gpu[1], expected[1])


def test_what_is_assumed_is_what_the_driver_says(monkeypatch) -> None:
    """The GPUs that `assume` knows have the rows, shared memory and FP8 that they would have if they were there."""
    for arch, known in device.KNOWN.items():
        number = int(arch.removeprefix("sm_"))
        there = described(monkeypatch, divmod(number, 10), device.SHARED_LIMIT[arch])
        assert dataclasses.replace(there, sm_count=known.sm_count) == known


def test_older_gpus_are_refused(monkeypatch) -> None:
    """There are no rows for what lacks asynchronous copies."""
    with pytest.raises(ValueError, match=r"compute capability 7.5 is not supported; the kernels need 8.0"):
        described(monkeypatch, (7, 5), 65536)


SMALLER = [
    # kernel, quantities, bytes that the row for sm_80 asks for
    ("attention_decode", {"rows": 32, "head_dim": 256, "page": 64, "fp8": 0}, 151552),
    ("attention_tree", {"rows": 64, "head_dim": 256, "page": 64, "fp8": 0}, 102400),
    ("attention_mla", {"rows": 128, "page": 64, "fp8": 0}, 112640),
    ("attention_standard_scores", {"head_dim": 256, "queries": 4096, "keys": 4096}, 131072),
]


@pytest.mark.parametrize(("kernel", "quantities", "asked"), SMALLER)
def test_a_row_that_does_not_fit_is_passed_over(kernel, quantities, asked) -> None:
    """sm_86, sm_89 and sm_120 take the row after the one that asks for more than their 99 KiB of shared memory."""
    with device.assume("sm_80"):
        first = select(kernel, CPU, **quantities)
    assert rows(kernel, "sm_80")[first.row].when["shared"][0] == asked > 101376
    for arch in ("sm_86", "sm_89", "sm_120"):
        with device.assume(arch):
            assert select(kernel, CPU, **quantities).row == first.row + 1


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_are_well_formed(name) -> None:
    """A shipped table is called as its file and says why; its rows hold ranges and what a launch can take."""
    text = resources.files("perfmodel.kernels").joinpath("data", f"{name}.json").read_text()
    content = json.loads(text)
    assert set(content) == {"kernel", "why", "architectures"}
    assert content["kernel"] == name
    assert content["why"]
    assert content["architectures"]
    for arch, listed in content["architectures"].items():
        assert arch in device.SM_COUNT
        for raw, row in zip(listed, rows(name, arch), strict=True):
            assert set(raw) <= {"when", "meta", "num_warps", "num_stages"}
            assert all(low <= high for low, high in row.when.values())
            assert row.config.num_warps in (1, 2, 4, 8, 16)
            assert 1 <= row.config.num_stages <= 8
            assert all(isinstance(value, bool | int | str) for value in row.config.meta.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_row_is_hidden_by_one_before_it(name) -> None:
    """A row whose every condition is implied by an earlier row's would never be taken."""
    for arch in device.SM_COUNT:
        listed = rows(name, arch)
        for i, later in enumerate(listed):
            for earlier in listed[:i]:
                hidden = all(
                    key in later.when and low <= later.when[key][0] and later.when[key][1] <= high
                    for key, (low, high) in earlier.when.items()
                )
                assert not hidden, f"{name} {arch} row {i} is hidden by row {earlier.config.row}"
