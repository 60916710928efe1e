"""docs/quantization.md walked against the command line: every name in its tables does what the table says."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli import main
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, kv_format, weight_format
from perfmodel.validate.quantizers.formats import has_quantizer

PAGE = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text()
MODEL, GPU = "llama3.1-8b", "h100"
#: What stands for a pattern of the table.
MEMBERS = {
    "gptq_gN": ("gptq_g32", "gptq_g128"), "awq_gN": ("awq_g64",), "int4_gN": ("int4_g32",), "int8_gN": ("int8_g64",),
    "..._sym": ("gptq_g64_sym",), "..._act": ("gptq_g64_act",),
}  # fmt: skip


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a row of headings."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    ]


def names(cell: str) -> list[str]:
    """Names in a cell, patterns replaced by members of theirs; the dots after a list are none."""
    found = re.findall(r"`([^`]+)`", cell)
    return [name for one in found for name in MEMBERS.get(one, (one,))]


FORMAT_CELLS = rows("| formats | a matrix of")
WEIGHTS = [name for first, *_ in FORMAT_CELLS for name in names(first)]
CACHES = [(name, bits) for first, bits in rows("| format | bits an element, head size 128 |") for name in names(first)]


def call(*arguments: str, code: int = 0) -> str:
    """Text or error of a command."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_tables_are_read() -> None:
    """The walk below has names to walk: those of every row, and no format is in no row."""
    assert len(WEIGHTS) == 28
    assert len(CACHES) == 13
    plain = {f.name for f in FORMATS.values() if not f.block}
    listed = {weight_format(name).name for name in WEIGHTS}
    families = re.compile(r"(gptq|awq|int)[0-9]?_(g\d+|channel)(_sym|_act)?")
    assert plain - listed <= {name for name in plain if families.fullmatch(name)}
    assert {name for name, _ in CACHES} | {"bf16", "fp16", "fp32"} == set(KV_FORMATS)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_taken(name) -> None:
    """--weights of estimate and memory, --format and --compare take a name, and call it the same."""
    fmt = weight_format(name)
    typed = f"type:{name}" if fmt.block else name
    assert f"weights {fmt.name}," in call("estimate", "--gpu", GPU, "--model", MODEL, "--weights", name)
    assert f"weights {fmt.name}," in call("memory", "--gpu", GPU, "--model", MODEL, "--weights", name)
    assert json.loads(call("quantize", MODEL, "--format", typed, "--format", "json"))["format"] == fmt.name
    found = json.loads(call("quantize", MODEL, "--compare", typed, "--gpu", GPU, "--format", "json"))
    assert [line["format"] for line in found["formats"]] == [fmt.name]
    assert has_quantizer(fmt) == (not fmt.block)


@pytest.mark.parametrize(("name", "bits"), CACHES)
def test_caches_are_taken(name, bits) -> None:
    """--kv of estimate takes a name; its bits for a long context are among the table's."""
    assert f"KV cache {kv_format(name).name}," in call("estimate", "--gpu", GPU, "--model", MODEL, "--kv", name)
    printed = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", bits)}
    assert float(kv_format(name).cache_bits(128)) in printed


@pytest.mark.parametrize(("engines", "cell"), rows("| engine | `--kv` beside"))
def test_caches_of_engines(engines, cell) -> None:
    """memory takes for each engine what its row lists, and nothing else of the caches."""
    for engine in engines.split(", "):
        for name, _ in CACHES:
            code = 0 if name in names(cell) else 2
            call("memory", "--gpu", GPU, "--model", MODEL, "--engine", engine, "--kv", name, code=code)


@pytest.mark.parametrize(("cell", "sized", "weights"), rows("| name | `quantize --format`"))
def test_names_that_are_two_things(cell, sized, weights) -> None:
    """The table of names: a preset where it says so, a type or weight format elsewhere, for both kinds of option."""
    for name in names(cell):
        found = json.loads(call("quantize", "llama3.2-1b", "--format", name, "--format", "json"))
        assert (found["container"] == "gguf") == sized.startswith("the preset"), name
        text = call("estimate", "--gpu", GPU, "--model", "llama3.2-1b", "--weights", name)
        is_preset = weights.startswith("the preset") or (weights == "the same" and sized.startswith("the preset"))
        assert ("llama.cpp's preset, tensor by tensor" in text) == is_preset, name
