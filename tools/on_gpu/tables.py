"""The tables that a run writes, row by row and flushed, and the environment file, replaced whole."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

KEYS = ("gpu", "framework", "version", "kernel_source")
ATTENTION = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "latency_us")
HEADERS: dict[str, tuple[str, ...]] = {
    "gemm": (*KEYS, "dtype", "m", "n", "k", "latency_us"),
    "context_attention": (*KEYS, "dtype", "kv_cache_dtype", ATTENTION[0], "isl", *ATTENTION[1:]),
    "generation_attention": (*KEYS, "kv_cache_dtype", ATTENTION[0], "context_len", *ATTENTION[1:]),
    "copy": (*KEYS, "op", "buffer_bytes", "moved_bytes", "latency_us"),
    "launch": (*KEYS, "mode", "latency_us"),
    "details": (
        *("name", "table", "group", "kernel_source", "status", "reason", "relative_error", "tolerance", "method"),
        *("buffer_sets", "calls", "repeats", "median_us", "p20_us", "p80_us", "min_us", "median_half_width"),
        *("flops", "moved_bytes", "tflop_per_s", "gb_per_s", "case_seconds"),
    ),
}
ENVIRONMENT = "environment.json"


class FolderError(RuntimeError):
    """The result folder cannot be used; the message says why."""


def new_folder(folder: Path) -> None:
    """Make the folder of a run; one that holds files already is refused, so that two runs never mix."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise FolderError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    if present:
        raise FolderError(f"{str(folder)!r} already holds {present[0]}: name a new or empty folder")


class Recorder:
    """Result files in ``folder``, which is made if missing; a folder that holds earlier results is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = [f"{table}.csv" for table in HEADERS]
        present = []
        try:
            present = [name for name in (*names, ENVIRONMENT) if (folder / name).exists()]
            if not present:
                folder.mkdir(parents=True, exist_ok=True)
                self.files = {table: self._open(folder / f"{table}.csv") for table in HEADERS}
        except OSError as error:
            raise FolderError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
        if present:
            raise FolderError(f"{str(folder)!r} already holds {present[0]}: name a new or empty folder")
        self.rows = dict.fromkeys(HEADERS, 0)
        for table, header in HEADERS.items():
            self._write(table, header)

    @staticmethod
    def _open(path: Path) -> io.TextIOWrapper:
        return path.open("x", encoding="utf-8", newline="")

    def _write(self, table: str, fields: tuple[object, ...]) -> None:
        csv.writer(self.files[table], lineterminator="\n").writerow(fields)
        self.files[table].flush()

    def row(self, table: str, values: Mapping[str, object]) -> None:
        """Append one row and flush it; every column of the table must be given, and no other."""
        header = HEADERS[table]
        if set(values) != set(header):
            raise ValueError(f"columns of {table}: {sorted(set(values) ^ set(header))} missing or unknown")
        self._write(table, tuple(values[column] for column in header))
        self.rows[table] += 1

    def environment(self, values: Mapping[str, object]) -> None:
        """Replace environment.json as a whole: a reader finds the old file or the new one."""
        temporary = self.folder / f".{ENVIRONMENT}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.folder / ENVIRONMENT)

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
