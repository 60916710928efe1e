"""Ahead-of-time compilation: shipped configurations pass the gates, and configurations that must not pass are refused.

The tools run in processes of their own, since kernels are interpreted in this one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "tests" / "kernels" / "data" / "aot"
PLANTED = ROOT / "tests" / "kernels" / "data" / "planted"
KEPT = {path.stem: json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}
VERSION = next((kept["triton"] for kept in KEPT.values()), triton.__version__)

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(triton.__version__ != VERSION, reason=f"figures are those of triton {VERSION}"),
]


def tool(*arguments: object, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run tools/kernels.py; with `cache`, from an empty cache of compiled kernels."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    if cache is not None:
        env["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, str(ROOT / "tools" / "kernels.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.fixture(scope="module")
def findings(tmp_path_factory) -> dict[str, list[str]]:
    """What `check` finds in the shipped figures."""
    path = tmp_path_factory.mktemp("check") / "findings.json"
    done = tool("check", "--json", path)
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", ["gates", "missing", "stale", "uncovered"])
def test_shipped_configurations(findings, kind) -> None:
    """Every case passes the gates with figures that are current, and every row of every table is some case's."""
    assert findings[kind] == []


@pytest.mark.parametrize("family", KEPT)
def test_rows_say_what_smaller_gpus_do_not_have(family) -> None:
    """What asks for more shared memory than the 99 KiB of sm_86, sm_89 and sm_120 takes a row with that condition."""
    for name, record in KEPT[family]["cases"].items():
        kernel, arch, _ = name.split("/", 2)
        asked = max(launch["shared"] for launch in record["launches"])
        if arch == "sm_80" and asked > 99 * 1024:
            table = json.loads((ROOT / "kernels" / "data" / f"{kernel}.json").read_text())
            row = next(i for taken, _, i in record["rows"] if taken == kernel)
            assert table["architectures"]["sm_80"][row].get("when", {}).get("shared", [0])[0] >= asked, name


def test_documentation_is_up_to_date() -> None:
    """docs/kernels.md is what the figures, tables and docstrings make it."""
    done = tool("doc", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not KEPT, reason="no figures are kept")
def test_figures_are_reproducible(tmp_path) -> None:
    """The smallest shipped kernel, compiled from an empty cache, has the figures that are kept."""
    sizes = {
        name: sum(sum(launch["counts"].values()) + launch["registers"] for launch in record["launches"])
        for kept in KEPT.values()
        for name, record in kept["cases"].items()
    }
    smallest = min(sizes, key=lambda name: (sizes[name], name))
    done = tool("check", smallest, "--anew", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(tmp_path.iterdir()), "nothing was compiled"


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The planted cases, compiled: the folder of their figures, and what was said of each."""
    folder = tmp_path_factory.mktemp("planted")
    done = tool("compile", "--cases", PLANTED, "--figures", folder, cache=folder / "cache")
    assert done.returncode == 1, done.stderr
    return folder, dict(re.findall(r"s  planted/([^:]+): (.*)", done.stdout))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("sm_90/good", "^ok$"),
        ("sm_80/good", "^ok$"),
        ("sm_90/spills", r"spills [1-9]\d+ bytes of registers, 0 are allowed"),
        ("sm_90/serialised", r"C7515\) Potential Performance Loss: wgmma.mma_async instructions are serialized"),
        ("sm_80/too much shared memory", r"asks for \d+ bytes of shared memory, the limit is 166912"),
        ("sm_90/expects what is not there", r"expects tma_load True, has \[0\].*expects registers 8, has \[\d+\]"),
        ("sm_90/does not compile", "CompilationError: .*power of 2"),
    ],
)
def test_gates_tell_good_from_bad(planted, case, expected) -> None:
    """What spills, serialises, is too large, lacks what it expects or does not compile fails; the good ones pass."""
    said = planted[1][case]
    assert re.search(expected, said), said


def changed_figures(source: Path, target: Path, changes: dict[str, dict[str, object]]) -> str:
    """What `check` says of the two good cases after their kept records were changed."""
    kept = json.loads((source / "planted.json").read_text())
    for arch, change in changes.items():
        record = kept["cases"][f"planted/{arch}/good"]
        record["key"] = change.pop("key", record["key"])
        record["launches"][0] |= change
    (target / "planted.json").write_text(json.dumps(kept))
    return tool("check", "/good", "--cases", PLANTED, "--figures", target).stdout


def test_kept_figures_are_trusted_while_nothing_changed(planted, tmp_path) -> None:
    """With the key unchanged nothing is compiled, and the gates judge what is kept."""
    said = changed_figures(planted[0], tmp_path, {"sm_90": {"spill_stores": 40}})
    assert said == "gates: planted/sm_90/good: _product_kernel spills 40 bytes of registers, 0 are allowed\n"


def test_a_changed_key_is_compiled_anew(planted, tmp_path) -> None:
    """Figures under another key are stale, whether they differ from what is compiled now or not."""
    said = changed_figures(planted[0], tmp_path, {"sm_90": {"key": "x", "registers": 63}, "sm_80": {"key": "x"}})
    stale = "figures are stale: run tools/kernels.py compile --changed\n"
    assert sorted(said.splitlines(True)) == [f"stale: planted/{arch}/good: {stale}" for arch in ("sm_80", "sm_90")]


EDITS = {
    "comment": ("    total = tl.zeros", "    # From here on\n\n    total = tl.zeros"),
    "code": ("total.to(tl.bfloat16)", "(-total).to(tl.bfloat16)"),
    "tile": ("SMALL = of(64, 64, 32, 4, 2)", "SMALL = of(64, 64, 64, 4, 2)"),
}


def test_the_key_follows_the_code_and_not_its_layout(planted, tmp_path) -> None:
    """A comment leaves the key as it is; another operation in the kernel changes it, and so does another tile."""
    kernel = (PLANTED / "planted.py").read_text()
    for name, (old, new) in EDITS.items():
        assert old in kernel
        (tmp_path / f"{name}.py").write_text(kernel.replace(old, new))
    tool("compile", "sm_90/good", "--cases", tmp_path, "--figures", tmp_path)
    files = {"kept": planted[0] / "planted.json"} | {name: tmp_path / f"{name}.json" for name in EDITS}
    keys = {name: json.loads(path.read_text())["cases"]["planted/sm_90/good"]["key"] for name, path in files.items()}
    assert keys["comment"] == keys["kept"]
    assert len(set(keys.values())) == 3


def test_pruning_drops_and_ranks() -> None:
    """Of the planted candidates the one that spills is dropped, and the tile that reads least comes first."""
    done = tool("prune", "planted", "--cases", PLANTED)
    head, first, second, dropped = done.stdout.splitlines()
    assert head == "planted/sm_90/4096 cubed: 3 candidates, 2 kept"
    assert '"BM": 128, "BN": 64' in first
    assert '"BM": 64, "BN": 64' in second
    assert "dropped 1: _product_kernel spills" in dropped
