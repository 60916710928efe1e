"""``perfmodel quantize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.commands._options import data_format, emit, fidelity_options
from perfmodel.commands.quantize_run import check_used, question, run, run_options

if TYPE_CHECKING:
    from perfmodel.modelspecs.quantized import Quantized

#: Values of ``--format`` that are forms of the output; all others are storage formats.
FORMS = ("table", "json", "csv", "md")


@click.command(name="quantize")
@click.argument("model", required=False)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="F",
    help="Storage format or preset of llama.cpp, and (a second --format) table, json, csv or md for the output.",
)
@click.option(
    "--keep", multiple=True, metavar="ROLE", help="Matrices left at 16 bits, such as o_proj (weight formats)."
)
@click.option("--keep-first", type=int, default=0, help="First layers left at 16 bits.")
@click.option("--keep-last", type=int, default=0, help="Last layers left at 16 bits.")
@click.option("--imatrix/--no-imatrix", "matrix", default=None, help="Whether llama.cpp has an importance matrix.")
@click.option("--rules", default=None, metavar="DATE", help="llama.cpp's rules: 2026, 2024, 2023-12 or 2023-09.")
@click.option("--output-tensor-type", "output", default="", metavar="T", help="Type of the output matrix (GGUF).")
@click.option("--token-embedding-type", "embedding", default="", metavar="T", help="Type of the embedding (GGUF).")
@click.option("--tensors", is_flag=True, help="Every tensor in the table, layers apart (JSON and CSV always).")
@run_options()
@fidelity_options()
@click.option("-o", "--output-file", "path", type=click.Path(), help="Write the result to a file.")
def command(
    model: str | None, formats: tuple[str, ...], keep: tuple[str, ...], keep_first: int, keep_last: int,
    matrix: bool | None, rules: str | None, output: str, embedding: str, tensors: bool, path: str | None, **asked: Any,
) -> None:  # fmt: skip
    """Size MODEL in a storage format tensor by tensor; or report a .gguf or .safetensors file, or a folder of them.

    --format may be given twice: once for the storage format (int4, awq_g64, nf4_dq, Q4_K_M, type:q4_k, gguf:BF16; by
    default the checkpoint's own), once for the form of the output (table, json, csv, md).

    --compare puts the same formats side by side on a GPU: bytes, times, capacity. --budget gives each tensor the width
    that costs least. --weights quantizes a file's matrices and shows their errors beside theory; it also gives
    --compare its errors and --budget what it minimises. With a MODEL the file has to hold that model's tensors.
    """
    from perfmodel.base.errors import UsageError
    from perfmodel.modelspecs.quant_sizes import quantize

    form, stored = split_formats(formats, path)
    check_used(question(asked))
    if question(asked) != "sizes":
        emit(run(model, stored, asked, form), path)
        return
    if model is None:
        raise UsageError("give a MODEL to size, or --weights to quantize a file")
    options: dict[str, Any] = {
        "keep": keep, "keep_first": keep_first, "keep_last": keep_last, "matrix": matrix, "output": output,
        "embedding": embedding,
    }  # fmt: skip
    found = quantize(model, only_format(stored), **options | ({"rules": rules} if rules else {}))
    emit(sizes_text(found, form, tensors), path)


def split_formats(formats: tuple[str, ...], path: str | None) -> tuple[str, list[str]]:
    """The form of the output, and the storage formats: what ``--format`` was given, told apart by its values.

    Raises
    ------
    UsageError
        For two forms, or one that the file's ending contradicts.
    """
    from perfmodel.base.errors import UsageError

    forms = [value.casefold() for value in formats if value.casefold() in FORMS]
    if len(set(forms)) > 1:
        raise UsageError(f"--format {' and '.join(forms)}: the output has one form")
    return data_format(forms[0] if forms else None, path), [v for v in formats if v.casefold() not in FORMS]


def only_format(stored: list[str]) -> str | None:
    """The one storage format that was given, or none."""
    from perfmodel.base.errors import UsageError
    from perfmodel.base.text import printable

    if len(stored) > 1:
        raise UsageError(f"--format {printable(' and '.join(stored), 120)}: one storage format at a time")
    return stored[0] if stored else None


def sizes_text(found: Quantized, form: str, every: bool = False) -> str:
    """The tensors of a model and their sum, in a form of output."""
    from perfmodel.modelspecs.quantized import merged
    from perfmodel.reports.tables import Column, render, to_json

    if form == "json":
        return to_json(found.to_dict())
    listed = found.tensors if every or form == "csv" else merged(found.tensors)
    rows: list[dict[str, Any]] = [t.to_dict() | {"shape": " x ".join(map(str, t.shape))} for t in listed]
    columns = (
        Column("name", "tensor"), Column("role", "role", last=2), Column("shape", "shape", last=1),
        Column("count", "tensors"), Column("type", "stored as"), Column("bytes", "bytes", "B", lambda v: f"{v:,.0f}"),
        Column("bits", "bits", show=lambda v: f"{v:.4g}"), Column("why", "why", optional=1, last=3),
    )  # fmt: skip
    if form == "csv":
        return render(rows, columns, form)
    rows.append({
        "name": "all", "count": sum(t.count for t in found.tensors), "bytes": found.total_bytes,
        "bits": found.bits_per_weight, "_total": True,
    })  # fmt: skip
    whole = found.total_bytes or 1.0  # a file may hold empty tensors alone
    parts = ", ".join(f"{name} {sums['bytes'] / whole:.1%}" for name, sums in found.by_type.items())
    notes = [
        f"by type: {parts}" if found.total_bytes else "",
        *found.notes,
        f"source: {found.source}" if found.source else "",
    ]
    return render(rows, columns, form, found.sentence, [note for note in notes if note])
