"""Measured cases as tables that `validate --against`, `calibrate` and `--measured` read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfmodel.base.errors import OutputError, PerfmodelError, UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.shapes import DECODE_TOKENS
from perfmodel.roofline.measured.record import Recorded
from perfmodel.roofline.op import Op
from perfmodel.validate.bench.operators import pack, unpack
from perfmodel.validate.bench.session import CEILINGS, ENGINES
from perfmodel.validate.bench.spec import slug
from perfmodel.validate.bench.store import Result, Run, Store
from perfmodel.validate.measured_tables import measured
from perfmodel.validate.table_operators import TABLES

#: Formats as the tables name them.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
HEAD = ("gpu", "framework", "version", "kernel_source")
#: Rows that no other table has.
OTHER = "operators"

Row = dict[str, Any]


def device_name(run: Run) -> str:
    """The name under which specs know the device of a run: of a processor that of its kept spec, of a GPU its own."""
    if run.kind == "cpu":
        return f"{slug(run.device.split(', ')[0])}-{run.machine.get('threads', 1)}t"
    try:
        return load_gpu(run.device).name
    except PerfmodelError:  # not built in: its spec was kept under a name made from it
        return f"{slug(run.device)}-measured"


def table_of(op: Op, fmt: str) -> tuple[str, Row]:
    """The table that holds an operator, and its columns there."""
    i: Any = op.inputs
    dtype = DTYPES.get(fmt, fmt)
    if op.kind == "gemm":
        return "gemm", {"dtype": dtype, **{n: _whole(i[n]) for n in "mnk"}}
    if op.formula.__name__ == "gqa" and _plain_attention(i):
        heads = {"num_heads": _whole(i["heads"]), "num_key_value_heads": _whole(i["kv_heads"])}
        shape = {"batch_size": _whole(i["batch"])}
        cache = _cache(i, dtype)
        if i["q"] == 1:
            length = {"context_len": _whole(i["kv"])}
            return "generation_attention", {"kv_cache_dtype": cache, **shape, **length, **heads, **_dim(i)}
        if i["q"] == i["kv"] and i["q"] > DECODE_TOKENS:
            length = {"isl": _whole(i["q"])}
            return "context_attention", {
                "dtype": dtype, "kv_cache_dtype": cache, **shape, **length, **heads, **_dim(i),
            }  # fmt: skip
    if op.formula.__name__ == "mla" and (i["latent"], i["rope"], i["q"]) == (512, 64, 1) and not i.get("topk"):
        columns = {"phase": "generation", "kv_cache_dtype": _cache(i, dtype), "num_heads": _whole(i["heads"])}
        return "mla_kernel", {**columns, "batch_size": _whole(i["batch"]), "length": _whole(i["kv"])}
    packed = json.dumps(pack(op), sort_keys=True)
    return OTHER, {"op_kind": op.kind, "op_name": op.name, "dtype": dtype, "inputs": packed}


def _whole(value: Any) -> int:
    return int(value)


def _dim(i: Mapping[str, Any]) -> Row:
    return {"head_dim": _whole(i["qk_dim"])}


def _cache(i: Mapping[str, Any], dtype: str) -> str:
    half = dtype if dtype in ("bfloat16", "float16") else "bfloat16"
    return {1.0: "fp8", 4.0: "float32"}.get(float(i["kv_bytes"]), half)


def _plain_attention(i: Mapping[str, Any]) -> bool:
    return i["qk_dim"] == i["v_dim"] and not (i.get("window") or i.get("sinks") or i.get("chunk"))


def tables(run: Run, results: Sequence[Result]) -> dict[str, list[Row]]:
    """Rows by table, of the device's own engine; libraries beside it are not among them."""
    engine, found = ENGINES[run.kind], dict[str, list[Row]]()
    version = str(run.machine.get("versions", {}).get("torch" if run.kind == "cpu" else "triton", ""))
    for r in results:
        if r.engine != engine or r.operator in (CEILINGS, "step"):
            continue
        name, columns = table_of(unpack(r.operator, r.shape), r.dtype)
        head = dict(zip(HEAD, (device_name(run), engine, version, r.more.get("source", "")), strict=True))
        found.setdefault(name, []).append({**head, **columns, "latency_us": float(f"{r.median * 1e6:.6g}")})
    return found


def text(rows: Sequence[Row]) -> str:
    """A table as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def export(run: Run, results: Sequence[Result], path: str | Path) -> list[Path]:
    """Write the cases of a run: ``x.csv`` where all belong to one table, else ``x-gemm.csv`` and so on.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        For another ending, or a run without cases.
    OutputError
        When a file cannot be written.
    """
    path = Path(path)
    if path.suffix.casefold() != ".csv":
        raise UsageError(f"--export writes CSV: name it .csv, not {path.name[:60]!r}")
    found = tables(run, results)
    if not found:
        raise UsageError(f"run {run.id} has no cases to export")
    written = []
    for name, rows in found.items():
        target = path if len(found) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}")
        try:
            target.write_text(text(rows), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {target}: {error.strerror or error}") from error
        written.append(target)
    return written


def recorded(spec: Gpu) -> tuple[Recorded, ...]:
    """What was measured on this device, the newest time of each case, as ``--fidelity measured`` takes it.

    Raises
    ------
    UsageError
        When nothing was measured on it that a table holds.
    """
    with Store() as store:
        newest: dict[str, dict[str, Row]] = {}
        for run in reversed(store.runs()):
            if device_name(run) != spec.name:
                continue
            for name, rows in tables(run, store.results(run)).items():
                for row in rows:
                    shape = json.dumps({k: v for k, v in row.items() if k not in ("latency_us", "version")})
                    newest.setdefault(name, {})[shape] = row
    if not any(name in TABLES for name in newest):
        raise UsageError(
            f"nothing was measured on {spec.name} yet: run `perfmodel validate` first, or give --measured TABLE.csv"
        )
    with TemporaryDirectory() as folder:
        return tuple(_read(Path(folder), name, list(rows.values())) for name, rows in newest.items() if name in TABLES)


def _read(folder: Path, name: str, rows: Sequence[Row]) -> Recorded:
    path = folder / f"this machine's {name}.csv"
    path.write_text(text(rows), encoding="utf-8")
    return measured(path)
