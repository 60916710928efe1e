"""Wrong spec files and names: one clear line that says the key, the limit and what to do, and the right exit code."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError, UnknownName
from perfmodel.base.validation import build
from perfmodel.base.yamlio import parse_yaml
from perfmodel.hwspecs.load import GPUS, gpu, system
from perfmodel.hwspecs.schema import Gpu

GOOD: dict[str, Any] = {
    "title": "A test card",
    "vendor": "nobody",
    "architecture": "none",
    "sources": {"sheet": "Nobody's data sheet (2026-01-01)"},
    "compute": {
        "sms": {"value": 10, "source": "sheet"},
        "tensor": {"bf16": {"value": "100 TFLOP/s", "source": "sheet"}},
    },
    "memory": {
        "hbm": {
            "capacity": {"value": "80 GB", "source": "sheet"},
            "bandwidth": {
                "value": "2 TB/s",
                "source": "sheet",
                "alternatives": [{"value": "2.1 TB/s", "source": "a blog of 2026", "why": "rounded up"}],
            },
        }
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good spec with one key set, or removed when the value is ``...``."""
    data = copy.deepcopy(GOOD)
    *parents, last = path.split("/")
    node = data
    for key in parents:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return data


def refused(tmp_path: Path, data: dict[str, Any]) -> SpecError:
    """The error of loading a spec from a file, after what holds for all of them was checked."""
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(SpecError) as caught:
        gpu(str(path))
    error = caught.value
    assert error.exit_code == 3
    assert "\n" not in str(error)
    assert "mine.yaml" in str(error)
    return error


def test_the_good_spec_loads(tmp_path: Path) -> None:
    """What the bad ones are made from is right, and a source's short name has become the document."""
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    spec = gpu(str(path))
    assert (spec.name, spec.peak("bf16"), spec.ridge()) == ("mine", 1e14, 50.0)
    assert spec.memory.hbm.capacity.source == "Nobody's data sheet (2026-01-01)"


HBM = "memory/hbm/bandwidth"


@pytest.mark.parametrize(
    ("path", "value", "key", "remedy"),
    [
        (f"{HBM}/value", "2", "memory.hbm.bandwidth", "write one of GB/s, TB/s"),
        (f"{HBM}/value", 2e12, "memory.hbm.bandwidth", "write one of GB/s"),
        (f"{HBM}/value", "2 GB", "memory.hbm.bandwidth", "has the unit 'GB'"),
        (f"{HBM}/value", "NaN TB/s", "memory.hbm.bandwidth", "must be finite"),
        (f"{HBM}/value", "inf TB/s", "memory.hbm.bandwidth", "must be finite"),
        (f"{HBM}/value", "-2 TB/s", "memory.hbm.bandwidth", "at least 0"),
        (f"{HBM}/value", "0 TB/s", "memory.hbm.bandwidth", "must be above 0"),
        (f"{HBM}/value", "1e30 TB/s", "memory.hbm.bandwidth", "at most 1e+25"),
        (f"{HBM}/value", True, "memory.hbm.bandwidth", "write a number and a unit"),
        (f"{HBM}/value", "fast", "memory.hbm.bandwidth", "write a number and a unit"),
        (f"{HBM}/value", None, "memory.hbm.bandwidth", "write a number and a unit"),
        (HBM, "2 TB/s", "memory.hbm.bandwidth", "needs 'value' and 'source'"),
        (f"{HBM}/source", ..., "memory.hbm.bandwidth", "name the document"),
        (f"{HBM}/source", "", "memory.hbm.bandwidth", "name the document"),
        (f"{HBM}/source", "datasheet", "memory.hbm.bandwidth.source", "neither an entry of `sources` nor a citation"),
        (f"{HBM}/alternatives/0/value", 1, "memory.hbm.bandwidth.alternatives", "valid"),
        (f"{HBM}/alternatives", [{"value": "2 TB/s", "source": "a b", "why": "same"}], HBM, "which is the value used"),
        (f"{HBM}/alternatives", [{"value": "2.2", "source": "a b", "why": "no unit"}], HBM, "write one of GB/s"),
        (f"{HBM}/alternatives", [{"value": "3 TB/s", "source": "a b"}], "alternatives.0.why", "is missing; add it"),
        ("memory/hbm/bandwith", {}, "memory.hbm.bandwith", "not a known key"),
        ("compute/tensor/fp7", {"value": "1 TFLOP/s", "source": "a b"}, "compute.tensor.fp7", "'fp6'"),
        ("compute/tensor/bf16/value", "0 TFLOP/s", "compute.tensor.bf16", "leave out what does not exist"),
        ("compute/tensor", {}, "", "at least one peak"),
        ("compute/sms/value", 10.5, "compute.sms", "not a whole number"),
        ("compute/sms/value", -1, "compute.sms", "at least 0"),
        ("vendor", ..., "vendor", "is missing; add it"),
        ("title", ["a"], "title", "string"),
        ("kind", "toaster", "kind", "'gpu'"),
        ("aliases", "mine", "aliases", "valid"),
        ("sources", "sheet", "sources", "valid"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, path: str, value: Any, key: str, remedy: str) -> None:
    """Each mistake is refused with the key that has it and what to write instead."""
    if path.endswith("alternatives/0/value"):
        data = changed(f"{HBM}/alternatives", ["not a mapping"])
    else:
        data = changed(path, value)
    error = refused(tmp_path, data)
    assert error.key.startswith(key.replace("/", ".")) or key in error.key
    assert remedy in error.problem


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"title: a\ntitle: b\n", "duplicate key 'title'"),
        (b"compute: {tensor: {}, tensor: {}}\n", "duplicate key 'tensor'"),
        (BOMB.encode(), "anchors and aliases are not allowed"),
        (b"a: " + b"[" * 60 + b"]" * 60 + b"\n", "nested deeper"),
        (b"a: " + b"[" * 20000 + b"]" * 20000 + b"\n", "nest"),
        (bytes(range(128, 256)), "not UTF-8"),
        (b"title: a\x00b\n", "NUL"),
        (b"# " + b"x" * (5 * 2**20), "is this the right file?"),
        (b"- a\n- b\n", "must be a mapping"),
        (b"", "must be a mapping"),
        (b"title: [unclosed\n", "not a valid spec"),
        (b"!!python/object/apply:os.system ['true']\n", "not a valid spec"),
        (b"? [a, b]\n: c\n", "not plain text"),
    ],
    ids=lambda part: part[:24] if isinstance(part, str) else None,
)
def test_wrong_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """What is no plain YAML of bounded size and depth is refused in one line; nothing in it is run."""
    path = tmp_path / "junk.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"junk\.yaml") as caught:
        gpu(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", ["./no-such.yaml", "/nowhere/x.yaml", "~nobody-of-that-name/x.yaml", "."])
def test_missing_files(name: str) -> None:
    """A path that cannot be read says so; it is not taken for a name."""
    with pytest.raises(SpecError, match="cannot be read"):
        gpu(name)


def test_hostile_text_does_not_reach_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in keys and values come out escaped."""
    for path, value in (("bad\x1b[31mkey", 1), (f"{HBM}/value", "\x1b[2J")):
        assert "\x1b" not in str(refused(tmp_path, changed(path, value)))


@pytest.mark.parametrize(
    ("find", "name", "near", "listing"),
    [
        (gpu, "h10", "h100", "list gpus"),
        (gpu, "b20", "b200", "list gpus"),
        (gpu, "mi300", "mi300x", "list gpus"),
        (gpu, "rtx-4080", "rtx-4090", "list gpus"),
        (system, "dgx-h300", "dgx-h100", "list systems"),
        (gpu, "\x1b[31m", "", "list gpus"),
        (gpu, "", "", "list gpus"),
    ],
)
def test_unknown_names_get_near_matches(find: Any, name: str, near: str, listing: str) -> None:
    """A name that nothing has is a usage error (exit code 2) with the nearest names and where all are listed."""
    with pytest.raises(UnknownName) as caught:
        find(name)
    assert caught.value.exit_code == 2
    assert near in str(caught.value)
    assert listing in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_an_unknown_system_key_is_refused(tmp_path: Path) -> None:
    """Systems are as strict as GPUs."""
    path = tmp_path / "rack.yaml"
    number = {"value": 8, "source": "a document of 2026"}  # given once each, or YAML would write an anchor
    link = {"kind": "wire", "bandwidth": {"value": "1 GB/s", "source": "a document of 2026"}}
    good = {"title": "t", "gpu": "h100", "gpus_per_node": number, "domain": dict(number), "scale_up": link}
    path.write_text(yaml.safe_dump(good))
    assert system(str(path)).scale_up.bandwidth.value == 1e9
    path.write_text(yaml.safe_dump({**good, "scale_up": {**link, "speed": 1}}))
    with pytest.raises(SpecError, match=r"scale_up\.speed"):
        system(str(path))


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    """Whatever stands in the place of a number gives a positive finite one or a SpecError, never another error."""
    try:
        spec = build(Gpu, {"name": "x", **changed(f"{HBM}/value", text)}, "x")
    except SpecError:
        return
    assert 0 < spec.bandwidth < 1e26


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(data: bytes) -> None:
    """Random bytes, read as text, are never a spec and never anything but a SpecError."""
    with pytest.raises(SpecError):
        build(Gpu, {"name": "x", **parse_yaml(data.decode("latin-1"), "x")}, "x")


@given(st.sampled_from(GPUS.names), st.data())
def test_dropping_any_key_is_noticed_or_harmless(name: str, data: st.DataObject) -> None:
    """A built-in without one of its keys is refused by that key's name, or loads because the key is optional."""
    raw, _ = GPUS.read(name)
    node, path = raw, []
    while isinstance(node, dict) and node and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(sorted(node))))
        parent, node = node, node[path[-1]]
    del parent[path[-1]]
    assert named_or_loads(name, raw)


def named_or_loads(name: str, raw: dict[str, Any]) -> bool:
    """Whether a spec loads, or is refused by a key (a spec without any peak is refused as a whole)."""
    try:
        build(Gpu, {"name": name, **raw}, name)
    except SpecError as error:
        return bool(error.key) or "at least one peak" in error.problem
    return True
