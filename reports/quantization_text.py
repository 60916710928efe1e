"""What quantization costs and buys, as text: formats side by side, widths under a budget, measured errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.base.units import bytes_text, engineering
from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import one_line, seconds
from perfmodel.roofline.quantization.compare import Comparison
from perfmodel.roofline.quantization.widths import Mixed


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bits(value: float) -> str:
    return f"{value:.2f}"


def _small(value: float) -> str:
    return f"{value:.3g}"


def compare_text(found: Comparison, fmt: str) -> str:
    """Formats side by side."""
    if fmt == "json":
        return to_json(found.to_dict())
    rows, s = found.rows(), found.settings
    if fmt == "csv":
        return render(rows, [Column(key, key) for key in rows[0]], fmt)
    columns = [
        Column("format", "format"), Column("weights_bytes", "bytes", "", bytes_text),
        Column("bits_per_weight", "bits a weight", "", _bits), Column("computes_in", "products in"),
        Column("ttft_s", "TTFT", "", seconds), Column("tpot_s", "TPOT", "", seconds),
        Column("max_batch", "max batch"), Column("tokens_per_s", "tokens/s at it", "", _rate),
        Column("kv_tokens", "KV tokens"),
    ]  # fmt: skip
    if any(row["error"] is not None for row in rows):
        columns.append(Column("error", "error", "", _small))
    degrees = ", ".join(f"{n.upper()} {s[n]}" for n in ("tp", "pp", "ep", "dp") if s.get(n, 1) > 1)
    title = (
        f"{s['model']} on {s['gpu']}{f' ({degrees})' if degrees else ''}, batch {s['batch']:,}, {s['input']:,} tokens "
        f"in, {s['output']:,} out, KV cache {s['kv']}"
    )
    return render(rows, columns, fmt, title, _notes(found, rows))


def _notes(found: Comparison, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    s = found.settings
    kind = "roofline bounds" if s["fidelity"] == "bound" else f"{s['fidelity']} times"
    notes = [
        f"TTFT and TPOT of the batch that was asked for, {kind}; max batch: requests of {s['input'] + s['output']:,} "
        f"tokens whose cache fits beside the weights under {s['memory_engine']}; tokens/s: output tokens of that batch",
        "bits a weight: over all parameters, embeddings and norms too (16 bits in weight formats); GB = 10^9 bytes",
    ]
    if any("unpacked" in row["computes_in"] for row in rows):
        notes.append("unpacked: no unit multiplies the stored numbers; they are converted to 16 bits in registers")
    if any(row["error"] is not None for row in rows):
        notes.append(
            "error: mean over the matrices that were given, of outputs where inputs were given, else of weights"
            + (f"; {one_line(s['errors_of'])}" if s.get("errors_of") else "")
        )
    origins = dict.fromkeys(
        origin for line in found.lines if line.analysis for origin in line.analysis.origins if "unpacked" in origin
    )
    if origins:
        notes.append("calibrated times of unpacked weights: nothing was measured of such products; see `explain`")
    return notes + [f"{row['format']}: {row['note']}" for row in rows if row["note"]]


def mixed_text(found: Mixed, fmt: str) -> str:
    """Widths under a budget: by role for people, by tensor as data."""
    if fmt == "json":
        return to_json(found.to_dict())
    if fmt == "csv":
        rows = [{**row, "shape": "x".join(map(str, row["shape"]))} for row in found.rows()]
        return render(rows, [Column(key, key) for key in rows[0]], fmt)
    columns = [
        Column("role", "role"), Column("tensors", "tensors"), Column("bytes", "bytes", "", bytes_text),
        Column("bits_per_weight", "bits a weight", "", _bits), Column("widths", "widths: layers"),
    ]  # fmt: skip
    state = "proven least" if found.allocation.proven else f"at least {found.allocation.least_error:.6g}"
    notes = [
        f"total {bytes_text(found.bytes)} of {bytes_text(found.budget)}, {found.bits_per_weight:.3f} bits a weight; "
        f"{engineering(found.kept_bytes, 'B')} stay at 16 bits; error {found.allocation.error:.6g}, {state}",
        f"errors: {found.basis}",
        "widths of 2, 3, 4 and 8 bits are groups of 128 with a 16-bit scale and a zero point each",
    ]
    return render(found.by_role(), columns, fmt, f"{found.title} in {bytes_text(found.budget)}", notes)


def errors_text(
    rows: Sequence[Mapping[str, Any]], skipped: Mapping[str, int], fmt: str, title: str = "",
    remarks: Sequence[str] = (),
) -> str:  # fmt: skip
    """Measured errors of matrices, beside theory; ``remarks`` are said below."""
    if fmt == "json":
        left_out = [{"reason": k, "tensors": v} for k, v in skipped.items()]
        return to_json({"matrices": list(rows), "skipped": left_out, "remarks": list(remarks)})
    with_inputs = any(row["output_error"] is not None for row in rows)
    shown = [{**row, "shape": "x".join(map(str, row["shape"]))} for row in rows]
    if fmt == "csv":
        return render(shown, [Column(key, key) for key in shown[0]] if shown else [], fmt)
    columns = [
        Column("name", "matrix"), Column("shape", "out x in"), Column("format", "format"), Column("method", "method"),
        Column("error", "error", "", _small), Column("sqnr_db", "SQNR dB", "", lambda v: f"{v:.1f}"),
        Column("plain_theory", "s^2/12 : measured", "", lambda v: f"{v:.3f}"),
        Column("theory", "theory : measured", "", lambda v: f"{v:.3f}"),
    ]  # fmt: skip
    if with_inputs:
        columns += [
            Column("output_error", "output error", "", _small), Column("held_out_error", "held out", "", _small),
            Column("salience", "top 1 % of inputs", "", lambda v: f"{v * 100:.0f} %"),
        ]  # fmt: skip
    notes = [
        "error: squared, relative to the weights' power; theory: s^2/12 where values spread over a step, corrected for "
        "groups that do not, for what sets the scale and for clipping; both are of rounding to nearest",
    ]
    if with_inputs:
        notes.append(
            "output error: squared, relative to the output's power, on calibration inputs and on the quarter that was "
            "held out; top 1 %: share of it that the strongest inputs carry"
        )
    notes += [one_line(remark) for remark in remarks]
    notes += [f"left out: {count:,} {one_line(reason)}" for reason, count in skipped.items()]
    return render(shown, columns, fmt, title, notes)
