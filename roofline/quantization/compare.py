"""Formats side by side: bytes, times, and what is left of the memory for a KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format, kv_format
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.mixes import chosen_format, meaning
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import NOT_LOADED, weight_bytes
from perfmodel.modelspecs.tensors import tensors
from perfmodel.roofline.analysis import Analysis, analyze, finite
from perfmodel.roofline.engines.budget import VENDORS
from perfmodel.roofline.engines.inverse import largest_batch
from perfmodel.roofline.engines.rules import engine_name
from perfmodel.roofline.quantization.units import computes_in, fallback
from perfmodel.roofline.step import check_whole

if TYPE_CHECKING:
    import pandas as pd

#: Formats of one table.
MOST = 64


@dataclass(frozen=True)
class FormatLine:
    """One format.

    Attributes
    ----------
    format : Format
    weights_bytes : float
        Of the whole model. [bytes]
    bits_per_weight : float
        Over all parameters, those that stay at 16 bits too.
    computes_in : str
        Number format of the products, with ``unpacked`` where the weights are converted first.
    analysis : Analysis or None
        Of the batch that was asked for; ``None`` where it does not fit.
    max_batch : int
        Requests that are held at once; 0 where not even one is.
    kv_tokens : int
        Tokens of KV cache of one replica, as the engine counts them.
    full : Analysis or None
        Of ``max_batch`` requests.
    note : str
        What the name means where it could mean two things, what does not fit, and what stands in for a unit that the
        GPU lacks.
    error : float or None
        Measured on weights, where some were given.
    """

    format: Format
    weights_bytes: float
    bits_per_weight: float
    computes_in: str
    analysis: Analysis | None
    max_batch: int
    kv_tokens: int
    full: Analysis | None
    note: str = ""
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The line in SI units, ready for JSON."""
        a, full = self.analysis, self.full
        found: dict[str, Any] = {
            "format": self.format.name, "title": self.format.title, "weights_bytes": self.weights_bytes,
            "bits_per_weight": self.bits_per_weight, "computes_in": self.computes_in,
        }  # fmt: skip
        for name in ("ttft", "tpot"):
            low, high = getattr(a, f"{name}_interval") if a else (None, None)
            found[f"{name}_s"] = getattr(a, f"{name}_s") if a else None
            found |= {f"{name}_low_s": low, f"{name}_high_s": finite(high) if high is not None else None}
        return found | {
            "max_batch": self.max_batch, "tokens_per_s": full.tokens_per_s if full else None,
            "kv_tokens": self.kv_tokens, "error": self.error, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Comparison:
    """Formats of one model on one GPU.

    Attributes
    ----------
    lines : tuple[FormatLine, ...]
    settings : Mapping[str, Any]
        What was asked: model, gpu, parallelism, lengths, fidelity, engine.
    """

    lines: tuple[FormatLine, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row a format, in SI units."""
        return [line.to_dict() for line in self.lines]

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**self.settings, "formats": self.rows()}

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))


def compare(
    model: str | ModelSpec, gpu: str | Gpu, formats: Iterable[str | Format], *, batch: int = 1, input: int = 2048,
    output: int = 256, fidelity: str = "bound", engine: str | None = None, kv: str | Format = "bf16",
    errors: Mapping[str, float] | None = None, errors_of: str = "", **options: Any,
) -> Comparison:  # fmt: skip
    """What each weight format takes, how fast it is, and what it leaves for the KV cache.

    Parameters
    ----------
    model, gpu
        Names, files or specs.
    formats : iterable
        Names as ``quantize`` takes them: weight formats (``int4``), presets of llama.cpp (``Q4_K_M``), types of ggml
        for every linear layer (``type:q4_k``); or formats; 1 to 64.
    batch : int
        Requests of the times to first token and per output token.
    input, output : int
        Tokens of each request.
    engine : str, optional
        Whose memory is counted (vLLM by default) and, at calibrated fidelity, whose kernels are timed.
    errors : mapping, optional
        Measured error by name of the format.
    errors_of : str
        What was measured, in words.
    **options
        ``tp, pp, ep, dp, system, efficiency, measured, dequantization`` as ``analyze`` takes them.

    Raises
    ------
    UnknownName, SpecError, UsageError
        Never for a format that does not fit: its line says so and has no times.

    Examples
    --------
    >>> found = compare("llama3.1-8b", "h100", ["bf16", "int4"])
    >>> [round(line.analysis.tpot_s * 1e3, 2) for line in found.lines]
    [4.57, 1.48]
    """
    for name, value in (("batch", batch), ("input", input), ("output", output)):
        check_whole(name, value)
    spec, device, cache = load_model(model), load_gpu(gpu), kv_format(kv)
    listed = list(dict.fromkeys(chosen_format(spec, f) for f in formats))
    if not 1 <= len(listed) <= MOST:
        raise UsageError(f"{len(listed)} formats to compare; name 1 to {MOST}")
    timed = {"fidelity": fidelity, "kv": cache, "input": input, "output": output, **options}
    if engine and fidelity != "bound":
        timed["engine"] = engine
    lines = [
        _line(spec, device, fmt, int(batch), timed, _holder(device, engine), (errors or {}).get(fmt.name))
        for fmt in listed
    ]
    settings = {
        "model": spec.name, "gpu": device.name, "batch": int(batch), "input": int(input), "output": int(output),
        "fidelity": fidelity, "engine": engine, "memory_engine": _holder(device, engine), "kv": cache.name,
        **({"errors_of": errors_of} if errors_of else {}),
        **{name: options[name] for name in ("tp", "pp", "ep", "dp", "dequantization") if options.get(name)},
    }  # fmt: skip
    return Comparison(tuple(lines), settings)


def _holder(device: Gpu, engine: str | None) -> str:
    """Engine whose memory is counted: the named one, else vLLM, else (where it does not run) llama.cpp."""
    if engine:
        return engine_name(engine)
    return "vllm" if device.kind == "gpu" and device.vendor in VENDORS["vllm"] else "llamacpp"


def _line(
    spec: ModelSpec, device: Gpu, fmt: Format, batch: int, timed: dict[str, Any], holder: str, error: float | None
) -> FormatLine:
    spread = {name: timed[name] for name in ("tp", "pp", "ep", "dp") if timed.get(name)}
    held = largest_batch(
        spec,
        device,
        context=timed["input"] + timed["output"],
        engine=holder,
        weights=fmt,
        kv=timed["kv"].name,
        **spread,
    )
    notes = [meaning(fmt).partition(": ")[2], fallback(fmt, device)]
    if held.value < batch:
        notes.append(held.words if not held.value else f"only {held.words}")
    size = weight_bytes(spec, fmt)
    elements = sum(t.total for t in tensors(spec) if t.role not in NOT_LOADED)
    return FormatLine(
        fmt, size, size * 8 / elements, computes_in(fmt, device), _times(spec, device, fmt, batch, held.value, timed),
        held.value, held.memory.kv_tokens if held.value else 0,
        _times(spec, device, fmt, held.value, held.value, timed), "; ".join(filter(None, notes)), error,
    )  # fmt: skip


def _times(spec: ModelSpec, device: Gpu, fmt: Format, batch: int, most: int, timed: dict[str, Any]) -> Analysis | None:
    return analyze(spec, device, batch=batch, weights=fmt, **timed) if 0 < batch <= most else None


def names(text: str, option: str = "--compare") -> Sequence[str]:
    """Formats of a list such as ``bf16,int4,fp8``.

    Raises
    ------
    UsageError
        For an empty name.
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise UsageError(f"{option} takes names of formats such as bf16,int4,fp8, not {text[:80]!r}")
    return found
