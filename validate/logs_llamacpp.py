"""llama.cpp's logs: the size of the KV cache by the types of K and V, and the printed number of parameters.

``KV self size = 3196.00 MiB, K (q8_0): 1598.00 MiB, V (q8_0): 1598.00 MiB``; of a latent cache ``c^KV (f16): 2196.00
MiB, kv^T: not used`` (or its transposed value part, stored again). Source: llama_kv_cache_init of
https://github.com/ikawrakow/ik_llama.cpp and https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.modelspecs.schema import Mla, ModelSpec
from perfmodel.roofline.engines.llamacpp_cache import KvRow, LlamaCache, kv_cache_bytes
from perfmodel.validate import counting
from perfmodel.validate.counting import Parts
from perfmodel.validate.models import Found, Models, same_name
from perfmodel.validate.rows import Comparison, Row, Skip, printed, whole
from perfmodel.validate.table_param_counts import comparison, count

MIB = 2.0**20
_SIZE = r"\s*:?\s*([\d.,]+) MiB"
_K = re.compile(r"\bK \((\w+)\)" + _SIZE)
_V = re.compile(r"\bV \((\w+)\)" + _SIZE)
_LATENT = re.compile(r"c\^KV \((\w+)\)" + _SIZE)
_STATES = re.compile(r"llama_memory_recurrent: size = ([\d.]+) MiB(?: \((\d+) cells)?")
_TRANSPOSED = re.compile(r"kv\^T \((\w+)\)" + _SIZE)


@dataclass(frozen=True)
class Log:
    """What a log says of the cache.

    Attributes
    ----------
    n_ctx : int
    type_k, type_v : str
    sizes : dict[str, str]
        Printed sizes in MiB by what they are: ``k_mem``, ``v_mem``.
    latent : bool
        Whether the cache holds latents.
    """

    n_ctx: int
    type_k: str
    type_v: str
    sizes: dict[str, str]
    latent: bool


def read(row: Row) -> Log | None:
    """The cache that a row's log prints; ``None`` where it prints none.

    Raises
    ------
    Skip
        When the types or the context are not stated.
    """
    text = row["verbatim"]
    latent, k, v = _LATENT.search(text), _K.search(text), _V.search(text)
    if latent:
        again = _TRANSPOSED.search(text)
        sizes = {"k_mem": latent[2], **({"v_mem": again[2]} if again else {})}
        return Log(whole(row, "max_len_or_n_ctx"), latent[1], again[1] if again else latent[1], sizes, True)
    if k and v:
        return Log(whole(row, "max_len_or_n_ctx"), k[1], v[1], {"k_mem": k[2], "v_mem": v[2]}, False)
    if row["kv_mem"].strip():
        types = row["kv_dtype"].strip().split("/")
        if not types[0] or len(types) > 2:
            raise Skip("the log prints a cache without the types of K and V")
        return Log(whole(row, "max_len_or_n_ctx"), types[0], types[-1], {}, False)
    return None


def compare(row: Row, models: Models) -> Iterator[Comparison]:
    """Sizes of the caches and parameters of a row."""
    log = read(row)
    found: Found | None = None
    problem = ""
    try:
        found = named(row, models)
    except Skip as skip:
        problem = str(skip)
    if log is not None:
        yield from caches(row, log, found, problem)
        if found is not None:
            yield from states(row, found)
    number = count(row.get("params_printed", ""))
    if number is not None and found is not None:
        yield comparison("params_printed", number, counting.choose(counting.gguf(Parts(found.model)), number), found)
    elif log is None:
        raise Skip(problem or "the log prints neither a cache nor a number of parameters")


def named(row: Row, models: Models) -> Found:
    """The model of a log; where it names a family only, the member with the printed layers and parameters.

    LLaMA's first and second generation are alike in both where they have a member in common.

    Raises
    ------
    Skip
    """
    if same_name(row["model"], "LLaMA v2") or (
        same_name(row["model"], "models") and "llama" in row.get("arch_class", "")
    ):
        return _member(row, models, ("llama2-7b", "llama2-13b", "llama2-70b"))
    found = models.printed(row["model"])
    layers = row.get("n_layer", "").strip()
    if layers and whole(row, "n_layer") != found.model.num_layers:
        raise Skip(f"the log prints {layers} layers and the model of that name has {found.model.num_layers}")
    return found


def _member(row: Row, models: Models, family: tuple[str, ...]) -> Found:
    number, layers = count(row.get("params_printed", "")), whole(row, "n_layer")
    for name in family:
        found = models.find(name)
        if number and found.model.num_layers == layers:
            ways = counting.gguf(Parts(found.model))
            if any(way.agrees(number) for way in ways):
                return found
    raise Skip("no model of the family has the printed layers and parameters")


def caches(row: Row, log: Log, found: Found | None, problem: str) -> Iterator[Comparison]:
    """The cache as a whole, and its parts by type."""
    size, source = _size(row, log, found, problem)
    parts = {"kv_mem": size.kv, "k_mem": size.k + size.swa_k, "v_mem": size.v + size.swa_v}
    texts = {"kv_mem": row["kv_mem"], **log.sizes}
    for name, text in texts.items():
        number = printed(text.strip().replace(",", "."))
        if number is not None:
            words = f"{size.cells:,} cells, K {log.type_k}" + (f", V {log.type_v}" if parts["v_mem"] else "")
            yield Comparison(
                name, number.value, parts[name] / MIB, f"{words}: {parts[name]:,.0f} bytes", source,
                half_unit=number.half_unit,
            )  # fmt: skip


def states(row: Row, found: Found) -> Iterator[Comparison]:
    """Recurrent states, by the sequences that the log prints."""
    text = row["other_numbers"]
    match = _STATES.search(text) or _STATES.search(row["verbatim"])
    if match is None or match[2] is None or (number := printed(match[1])) is None:
        return
    size = kv_cache_bytes(found.model, 256, n_parallel=int(match[2])).state
    words = f"states of {match[2]} sequences, scan and convolution in 32 bits: {size:,.0f} bytes"
    yield Comparison("state_mem", number.value, size / MIB, words, found.source, half_unit=number.half_unit)


def _size(row: Row, log: Log, found: Found | None, problem: str) -> tuple[LlamaCache, str]:
    """Sizes by the model, else by the dimensions that the log prints."""
    if found is None:
        dims = [row.get(name, "").strip() for name in ("n_layer", "n_embd_k_gqa", "n_embd_v_gqa")]
        if log.latent or not all(dims):
            raise Skip(problem)
        layers, k, v = (whole(row, name) for name in ("n_layer", "n_embd_k_gqa", "n_embd_v_gqa"))
        size = kv_cache_bytes([KvRow(layers, k, v)], log.n_ctx, log.type_k, log.type_v)
        return size, f"printed dimensions: {layers} layers, K {k}, V {v}"
    if log.latent and not _has_latent(found.model):
        raise Skip("the log prints a latent cache and the model of that name has none: two logs in one row")
    mla = "expanded" if not log.latent else "latent_v" if "v_mem" in log.sizes else "latent"
    full = "ik_llama" in row["engine"] or "swa-full" in row.get("other_settings", "")  # it has no cache of windows
    return (
        kv_cache_bytes(found.model, log.n_ctx, log.type_k, log.type_v, swa_full=full, mla=mla),  # type: ignore[arg-type]
        found.source,
    )


def _has_latent(model: ModelSpec) -> bool:
    return any(isinstance(a, Mla) for a in model.attention.values())
