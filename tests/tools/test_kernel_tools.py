"""The tools that judge compiled kernels, from the inside: occupancy, gates, reports of ptxas, ranking, the page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

pytest.importorskip("triton")

import triton_versions  # noqa: E402
from kernel_aot import figures, gates, page, pruning, store, work  # noqa: E402
from kernel_aot.occupancy import Occupancy, occupancy  # noqa: E402
from kernel_cases.case import Case, Work  # noqa: E402

GOOD = {
    "kernel": "_k", "caller": "m:f", "programs": [8], "warps": 8, "stages": 3, "shared": 100_000, "registers": 128,
    "spill_stores": 0, "spill_loads": 0, "stack": 0, "warnings": [], "counts": {"wgmma": 4}, "shapes": ["m64n128k16"],
    "blocks_per_sm": 2, "occupancy": 0.25, "limiter": "registers", "instructions_per_weight": 3.9,
}  # fmt: skip


def case(arch="sm_90", **more):
    return Case("k", arch, "one", lambda: None, **more)


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "expected"),
    [
        # 255 registers are given as 256: 8192 a warp, 2 warps a partition, 8 warps in all
        ("sm_90", 255, 0, 8, Occupancy(1, 0.125, "registers")),
        # 40 registers: 1280 a warp, 12 warps a partition, 48 in all
        ("sm_90", 40, 0, 4, Occupancy(12, 0.75, "registers")),
        # 164 KiB less nothing: 40 KiB and the reserved KiB fit 4 times
        ("sm_80", 32, 40 * 1024, 4, Occupancy(4, 0.25, "shared memory")),
        ("sm_90", 32, 40 * 1024, 4, Occupancy(5, 0.3125, "shared memory")),
        # 232448 bytes are what one block may ask for: one fits
        ("sm_90", 128, 232448, 8, Occupancy(1, 0.125, "shared memory")),
        ("sm_80", 16, 0, 1, Occupancy(32, 0.5, "blocks")),
        ("sm_100", 16, 0, 4, Occupancy(16, 1.0, "warps")),
        # 99 KiB and the reserved one are all that a multiprocessor of 100 KiB has; 48 warps are its most
        ("sm_89", 32, 101376, 12, Occupancy(1, 0.25, "shared memory")),
        ("sm_120", 16, 0, 4, Occupancy(12, 1.0, "warps")),
        ("sm_86", 16, 0, 3, Occupancy(16, 1.0, "warps")),
        # 512 threads of 255 registers do not fit at all
        ("sm_90", 255, 0, 16, Occupancy(0, 0.0, "registers")),
    ],
)
def test_occupancy_by_hand(arch, registers, shared, warps, expected) -> None:
    """Resident blocks follow from registers, shared memory, warps and blocks, whichever runs out first."""
    assert occupancy(arch, registers, shared, warps) == expected


@pytest.mark.parametrize(
    ("changes", "expects", "message"),
    [
        ({"shared": 232449}, {}, "asks for 232449 bytes of shared memory, the limit is 232448"),
        ({"spill_loads": 4}, {}, "spills 4 bytes of registers, 0 are allowed"),
        ({"warnings": ["(C7515) serialised"]}, {}, r"is warned of by ptxas: \(C7515\) serialised"),
        ({"blocks_per_sm": 0}, {}, "does not fit on a multiprocessor"),
        ({"registers": 255, "blocks_per_sm": 2}, {}, "does not fit on a multiprocessor"),
        ({}, {"wgmma": False}, r"expects wgmma False, has \[4\]"),
        ({}, {"tma_load": True}, r"expects tma_load True, has \[0\]"),
        ({}, {"shape": "m64n256k16"}, r"expects shape m64n256k16, has \[\['m64n128k16'\]\]"),
        ({}, {"warps": 12}, r"expects warps 12, has \[8\]"),
        ({}, {"instructions_per_weight": 3.8}, r"expects instructions_per_weight 3.8, has \[3.9\]"),
        ({}, {"blocks_per_sm": 3}, r"expects blocks_per_sm 3, has \[2\]"),
    ],
)
def test_each_gate_can_fail(changes, expects, message) -> None:
    """One fault a time gives one failure, which names it."""
    found = gates.failures(case(expects=expects), [GOOD | changes])
    assert len(found) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[0])


@pytest.mark.parametrize(("key", "row", "expected"), [("x", 0, True), ("y", 0, False), ("x", 1, False)])
def test_figures_of_other_code_or_another_row_are_not_current(key, row, expected) -> None:
    """Kept figures hold as long as the compiler is given the same and the same row of the table is taken."""
    kept = {"key": "x", "rows": [["k", "sm_80", 0]], "launches": []}
    assert work.current(kept, {"key": key, "rows": [["k", "sm_80", row]]}) is expected


def test_what_is_good_passes() -> None:
    """All expectations at their limits, and a spill that is allowed with a reason."""
    expects = {"wgmma": True, "tcgen05": False, "shape": "m64n128k16", "warps": 8, "registers": 128}
    expects |= {"instructions_per_weight": 3.9, "blocks_per_sm": 2}
    assert gates.failures(case(expects=expects), [GOOD]) == []
    assert gates.failures(case(max_spill=8, why="outside the loop"), [GOOD | {"spill_stores": 8}]) == []


def test_one_launch_of_several_may_meet_an_expectation() -> None:
    """What a merge kernel lacks is found in the main launch; what must be absent must be absent from both."""
    merge = GOOD | {"counts": {}, "shapes": []}
    assert gates.failures(case(expects={"wgmma": True}), [GOOD, merge]) == []
    assert len(gates.failures(case(expects={"wgmma": False}), [merge, GOOD])) == 1
    assert gates.failures(case(), []) == ["k/sm_90/one: launches no kernel"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "sm_75"}, "'sm_75' is not one of sm_80, sm_90, sm_100"),
        ({"expects": {"wgmna": True}}, r"expects \['wgmna'\]; known are"),
        ({"max_spill": 16}, "needs a reason"),
        ({"max_spill": 33, "why": "so"}, "at most 32"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(arguments, message) -> None:
    """Misspelt expectations and spills without a reason do not pass silently."""
    with pytest.raises(ValueError, match=message):
        case(**arguments)


REPORT = """ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to X
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size
"""


def test_a_report_of_ptxas_is_read() -> None:
    """Registers, spills, stack and the warning, without the prefix."""
    found = figures.read_report(REPORT)
    warning = found.pop("warnings")
    assert found == {"registers": 168, "spill_stores": 8, "spill_loads": 12, "stack": 16}
    assert len(warning) == 1
    assert warning[0].startswith("(C7510) Potential Performance Loss: wgmma")


def test_a_report_without_registers_is_an_error() -> None:
    """A format that changed is not taken for zero spills."""
    with pytest.raises(ValueError, match="ptxas does not say registers"):
        figures.read_report("ptxas info    : nothing")


SASS = """
.L_x_0:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HGMMA.64x16x16.F32 R24, R4 ;
        /*0020*/              @!P0 LOP3.LUT R0, R0, 0xf, RZ ;
        /*0030*/               @P1 BRA `(.L_x_1) ;
        /*0040*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_2) ;
"""


def test_the_longest_loop_is_found() -> None:
    """It is that of the longest backward branch, the branch included; forward branches are no loops."""
    assert figures.longest_loop(SASS) == ["HGMMA.64x16x16.F32", "LOP3.LUT", "BRA"]
    assert figures.longest_loop("        /*0000*/                   EXIT ;") == []


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("cp_async16", "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", 1),
        ("cp_async16", "cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;", 0),
        ("cp_async", "cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;", 1),
        ("cp_async", "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%r1], [%rd1, {%r2, %r3}], [%r4];", 0),
        ("tma_load", "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%r1], [%rd1, {%r2, %r3}], [%r4];", 1),
        ("tma_store", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];", 1),
        ("mma_sync", "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", 0),
        ("mma_sync", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 1),
    ],
)
def test_instructions_are_told_apart(name, line, found) -> None:
    """Each expression counts its instruction and not one that is spelt alike."""
    assert len(re.findall(figures.COUNTS[name], line)) == found


def test_ranking_is_by_the_slowest_resource() -> None:
    """132 blocks on an H200's 132 multiprocessors take what the matrix peak says; one block more is a second wave."""
    full, limiter = pruning.predicted(Work(132, 1e6, 1e6, 1e12), "sm_90", 1)
    assert limiter == "matrix"
    assert full == pytest.approx(1e12 / 989.5e12, rel=1e-3)
    more, _ = pruning.predicted(Work(133, 1e6, 1e6, 1e12), "sm_90", 1)
    assert more / full == pytest.approx(264 / 133)
    few, limiter = pruning.predicted(Work(33, 4.8e9), "sm_90", 1)
    assert limiter == "hbm"
    assert few == pytest.approx(4.8e9 / (4.8e12 / 4))  # a quarter of the multiprocessors has a quarter of 4.8 TB/s


def test_records_survive_the_file(tmp_path) -> None:
    """What is stored is what is read, and another version of Triton reads nothing."""
    records = {"k/sm_90/one": {"key": "x", "rows": [["k", "sm_90", 0]], "launches": [GOOD, GOOD]}}
    store.save(tmp_path, "family", records)
    assert store.load(tmp_path, "family") == records
    path = tmp_path / "family.json"
    path.write_text(path.read_text().replace(f'"triton": "{store.triton.__version__}"', '"triton": "0.0"'))
    assert store.load(tmp_path, "family") == {}


def test_measured_fractions_are_shown_beside_the_targets(tmp_path) -> None:
    """The column is empty and said to be so until a recording exists; the newest recording counts."""
    assert "measured column is empty" in page.targets(tmp_path)
    for folder, fraction in (("h200-2026-02-01", "0.71"), ("h200-2026-01-01", "0.60"), ("h100-2026-03-01", "0.99")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel_targets.csv").write_text(f"target,fraction\ngemm_bf16,{fraction}\n")
    text = page.targets(tmp_path)
    assert "measured column is empty" not in text
    assert "| bf16 GEMM | M = N = K = 8192 | 0.75 of matrix peak | 0.71 |" in text
    assert "| decode attention | " not in text


def test_a_pytest_report_is_counted(tmp_path) -> None:
    """Passed is what neither failed nor was skipped, in the report that pytest itself writes."""
    (tmp_path / "test_three.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('x')\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "."]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert triton_versions.counts(report) == {"passed": 1, "failed": 1, "skipped": 1}


def test_results_are_kept_by_version(tmp_path) -> None:
    """A version's entry is replaced, the others stay."""
    path = tmp_path / "versions.json"
    for name, passed in (("3.9.0", 5), ("3.6.0", 4), ("3.9.0", 6)):
        triton_versions.keep(path, name, {"passed": passed})
    assert json.loads(path.read_text()) == {"3.6.0": {"passed": 4}, "3.9.0": {"passed": 6}}


def test_calls_with_one_row_share_a_line(tmp_path) -> None:
    """Figures that differ between the calls stand as least and greatest, equal ones once; architectures in order."""
    cases = [Case("toy", arch, label, lambda: None) for arch, label in (("sm_90", "a"), ("sm_90", "b"), ("sm_80", "a"))]
    fast = GOOD | {"registers": 90, "shared": 51_200, "counts": {"tma_load": 2}, "caller": "perfmodel.kernels.toy:toy"}
    records = {case.name: {"key": "", "rows": [], "launches": [fast]} for case in cases}
    records["toy/sm_90/b"]["launches"] = [fast | {"registers": 128}, GOOD | {"kernel": "_merge_kernel", "caller": ""}]
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "toy.py").write_text('def toy():\n    """Play.\n\n    More.\n    """\n')
    text = page.kernel_section(tmp_path, "toy", cases, records)
    assert "`perfmodel.kernels.toy.toy`: Play.\n" in text
    old, new, merge = text.strip().splitlines()[-3:]
    assert old.startswith("| sm_80 | a | 1 | `k` | 8 | 3 | 90 | 0 | 50 | 2 | 25 % | registers | m64n128k16 | 2/0 |")
    assert new.startswith("| sm_90 | a | 2 | `k` | 8 | 3 | 90–128 | 0 | 50 | 2 |")
    assert merge.startswith("|  |  |  | `merge` | 8 | 3 | 128 | 0 | 98 |")
