"""Tables of quantized sizes: GGUF files and bits a weight, safetensors checkpoints, and weights as vLLM loads them.

What is printed differs: file listings count the whole file (GB = 10^9), llama.cpp's loader the tensors alone (GiB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.base.errors import UnknownName
from perfmodel.modelspecs.formats import weight_format
from perfmodel.modelspecs.gguf_presets import WITH_MATRIX, Preset, preset
from perfmodel.modelspecs.quant_sizes import as_gguf, quantize
from perfmodel.modelspecs.quantized import Quantized
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.capacity import FORMAT_WORDS, base_name
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Printed, Row, Skip, measured, printed
from perfmodel.validate.size_models import Target, file_model

GIB, GB = 2.0**30, 1e9
UNITS = {"GiB": GIB, "MiB": 2.0**20, "GB as printed = GiB": GIB, "bytes": 1.0}
CUSTOM = "the row's own note: a custom mix of types, of which the name says the majority only"
ROUNDED = "quality B: its author left the unit or a part of the size out"
COARSE = "its author rounded the size up to a tenth of a GB, which is more than half a per cent of it"
RECIPE = "a recipe's figure: it says neither whether prediction layers are loaded nor what its NVFP4 leaves alone"
#: A step of the printed size that says something of errors of tenths of a per cent.
FINE = 0.005
#: Rules of llama.cpp by what a row says of its quantizer; most files of the tables are of 2024 and 2025.
RULES = (("old k-quant mixes", "2023-09"), ("Dec-2023", "2023-12"))
USUAL = "2024"
#: llama.cpp's table of original and quantized sizes is one of rounded requirements, not of files.
REQUIREMENTS = (
    "a table of rounded requirements, not of files: it says 43.1 GB for the 70B whose listed file has 42.5, and 280.9 "
    "for 70.55 B parameters of 4 bytes"
)
FORKED = (
    "ik_llama.cpp, whose quantizer mixes types by rules of its own; llama-bench's label names the majority type only"
)
#: Presets that give one type to all matrices (but a head in Q8_0) in either quantizer; mixtures are mixed by hand.
UNMIXED = ("F32", "F16", "BF16", "Q8_0", "Q6_K")
#: People whose files are all made with an importance matrix, as their model cards say.
MATRIX = re.compile(r"bartowski|i1-GGUF")
_GPTQ = re.compile(r"GPTQ (\d)-bit (no group|(\d+)g)( act-order)?")


@dataclass(frozen=True)
class Predicted:
    """A prediction for a row: bytes of the tensors, of the file, and bits a weight."""

    tensors: float
    file: float
    bits: float
    words: str
    source: str


def compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """Size and bits a weight of a row."""
    if row.get("quality", "").startswith(("B", "C")) and "rounded up" not in row["size_unit"]:
        raise Skip(ROUNDED)
    if "custom mix" in row.get("notes", ""):
        raise Skip(CUSTOM)
    if "tools/quantize/README" in row["source"] and row["size_unit"].startswith("GB"):
        raise Skip(REQUIREMENTS)
    if row["bpw_kind"].startswith("derived") and "ik_llama.cpp" in row["source"] and not _unmixed(row):
        raise Skip(FORKED)
    if row["bpw_kind"].startswith("nominal"):
        yield _bits(row, _nominal(row["quant_type"]))
        return
    unit, size, whole = _size(row)
    ways = _predicted(row, models)
    bits = measured(row, "bpw") if row["bpw_kind"] and not row["bpw_kind"].startswith("derived") else None

    def value(way: Predicted) -> float:
        return (way.file if whole else way.tensors) / unit

    found = min(
        ways, key=lambda way: abs(value(way) - size.value) if size else abs(way.bits - bits.value) if bits else 0
    )
    if size is not None:
        words = f"{found.words}: {'file' if whole else 'tensors'} of {value(found) * unit:,.0f} bytes"
        yield Comparison(
            "size", size.value, value(found), words, found.source, half_unit=size.half_unit, group=_group(row),
            plain=value(ways[0]),
        )  # fmt: skip
    if bits is not None:
        yield _bits(row, found, ways[0])


def _unmixed(row: Row) -> bool:
    """Whether a label means the same file in llama.cpp and its fork: a dense model in one type."""
    try:
        chosen = preset(row["quant_type"])
    except UnknownName:
        return False
    return chosen.name in UNMIXED and not re.search(r"moe|deepseek", row["model"], re.IGNORECASE)


def _group(row: Row) -> dict[str, str]:
    kind = (
        "GGUF" if row["format"].startswith("GGUF") else "loaded" if row["format"].startswith("vLLM") else "safetensors"
    )
    return {"kind": kind}


def _bits(row: Row, found: Predicted, first: Predicted | None = None) -> Comparison:
    number = measured(row, "bpw")
    if number is None:
        raise Skip("bpw is missing")
    return Comparison(
        "bpw", number.value, found.bits, f"{found.words}: {found.bits:.4f} bits a weight", found.source,
        half_unit=number.half_unit, group=_group(row), plain=first.bits if first else None,
    )  # fmt: skip


def _size(row: Row) -> tuple[float, Printed | None, bool]:
    """Bytes of the unit, the printed size, and whether it is of the whole file."""
    text, name = _of_version(row["size"]), row["size_unit"]
    unit = UNITS.get(name) or (GB if name.startswith("GB (decimal") else None)
    if not text.strip():
        return 1.0, None, False
    number = printed(text)
    if unit is None or number is None:
        raise Skip("size is no number, or its unit says neither GB nor GiB")
    if "rounded up" in name:
        if 2 * number.half_unit > FINE * number.value:
            raise Skip(COARSE)
        number = Printed(number.value - number.half_unit, number.half_unit)  # the middle of what it may be
    return unit, number, unit in (GB, 1.0)


def _of_version(text: str) -> str:
    """The size, or of several of an engine's versions that of the newest: ``13.47 (v0.11) / 13.64 (v0.19)``."""
    found = re.findall(r"([\d.]+) \(v([\d.]+)\)", text)
    return max(found, key=lambda one: [int(part) for part in one[1].split(".") if part])[0] if found else text


def _nominal(name: str) -> Predicted:
    fmt = weight_format(name)
    return Predicted(0.0, 0.0, fmt.bits, f"block of {fmt.name}", f"built-in format {fmt.name}")


def _predicted(row: Row, models: Models) -> list[Predicted]:
    """Predictions for the settings that a row leaves open, the usual one first."""
    kind = row["format"]
    if kind.startswith("GGUF"):
        return list(_gguf(row, models))
    if kind.startswith("vLLM load"):
        return [_loaded(row, models)]
    if "loaded in vLLM" in kind:
        models.find(row["model"])
        raise Skip(RECIPE)
    if kind.startswith("safetensors"):
        return [_checkpoint(row, models)]
    raise Skip(f"the format {kind[:60]!r} is not one that is predicted: GGUF, safetensors, vLLM load")


def _preset(row: Row) -> Preset:
    text = re.sub(r"\s*\(.*", "", row["quant_type"]).strip()
    try:
        return preset({"bf16": "BF16", "f16": "F16"}.get(text, text))
    except UnknownName:
        raise Skip(
            "the quantization is none of llama.cpp's presets (others are ik_llama.cpp's or one author's)"
        ) from None


def _gguf(row: Row, models: Models) -> Iterator[Predicted]:
    """By the rules of the row's date; without and with an importance matrix where it says of neither."""
    chosen = _preset(row)
    target = file_model(models, row["model"], row["params_printed"])
    rules = next((date for words, date in RULES if words in row["quality"]), USUAL)
    always = chosen.name in WITH_MATRIX or bool(MATRIX.search(row["source"]))
    for matrix in (True,) if always else (False, True) if rules == USUAL else (False,):
        yield _file(target, chosen, matrix, rules)


def _file(target: Target, chosen: Preset, matrix: bool, rules: str) -> Predicted:
    found = as_gguf(target.found.model, chosen, matrix, rules, target.latent)
    total, elements = found.total_bytes + _again(found, target), float(found.elements or 0)
    elements += _again_elements(found, target)
    words = f"{chosen.shown} by the rules of {rules}{', importance matrix' if matrix else ''}"
    words += ", tied head printed twice" if target.head_twice else ""
    return Predicted(total, found.file_bytes, 8 * total / elements, words, target.found.source)


def _again(found: Quantized, target: Target) -> float:
    """Bytes of a tied head that the loader counts a second time."""
    return next((t.bytes for t in found.tensors if t.name == "token_embd.weight"), 0.0) if target.head_twice else 0.0


def _again_elements(found: Quantized, target: Target) -> int:
    return next((t.elements for t in found.tensors if t.name == "token_embd.weight"), 0) if target.head_twice else 0


def _checkpoint(row: Row, models: Models) -> Predicted:
    text = row["quant_type"]
    model = models.find(re.sub(r"(?i)-instruct.*$|-intermediate.*$", "", row["model"]))
    match = _GPTQ.fullmatch(text)
    if match:
        name = f"gptq{match[1]}_" + (f"g{match[3]}" if match[3] else "channel") + ("_act" if match[4] else "")
    elif (awq := re.fullmatch(r"AWQ int4 g(\d+)", text)) is not None:
        name = f"awq_g{awq[1]}"
    else:
        raise Skip("the quantization is no recipe of a checkpoint that is known: GPTQ and AWQ are")
    found = quantize(model.model, name)
    return Predicted(found.total_bytes, found.file_bytes, found.bits_per_weight or 0, found.format, model.source)


def _loaded(row: Row, models: Models) -> Predicted:
    """Weights as vLLM's log prints them after loading."""
    short, by_name = base_name(row["model"])
    word = row["quant_type"].split()[0].casefold()
    try:
        found = models.find(row["model"])
    except Skip:
        found = models.find(short)
    fmt = by_name or FORMAT_WORDS.get(word) or word
    if fmt.startswith("compressed"):
        raise Skip("which scheme of compressed-tensors the weights have, the row does not say")
    native = found.model.native_format
    weights = None if fmt == native or (word == "fp8" and native.startswith("fp8")) else fmt
    answer = memory(found.model, "h100", engine="vllm", weights=weights, memory_fraction=0.9)
    terms = "; ".join(f"{t.name} {t.bytes / GIB:.2f} GiB" for t in answer.terms if t.name == "weights")
    return Predicted(answer.weights, answer.weights, 0.0, f"vLLM, {fmt}: {terms}", found.source)


def remark(compared: Sequence[Comparison], skipped: Mapping[str, int]) -> str:
    """How many sizes were compared by a setting that the row leaves open, and the error without that choice."""
    plain = [(one, one.predicted if one.plain is None else one.plain) for one in compared]
    chosen = sum(first != one.predicted for one, first in plain)
    if not chosen:
        return ""
    error = sum(abs(first / one.measured - 1) for one, first in plain) / len(plain)
    return (
        f"{chosen:,} of {len(plain):,} numbers are compared as of a file made with an importance matrix, which the row "
        f"does not say and the printed number suggests; without that choice the mean error is {100 * error:.3g} %"
    )


KIND = Kind(
    "quant_sizes", "sizes of quantized models",
    ("id", "model", "params_printed", "quant_type", "format", "size", "size_unit", "bpw", "bpw_kind"),
    ("size", "bpw"), ("format",), compare,
    note=lambda: "GB is 10^9 and whole files, GiB 2^30 and tensors alone, as listings and llama.cpp print them",
    remark=remark,
)  # fmt: skip
