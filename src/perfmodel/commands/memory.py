"""``perfmodel memory``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.commands._options import emit, output_options, target_options


@click.command(name="memory")
@target_options()
@click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, trtllm or llamacpp.")
@click.option("--engine-version", "version", help="Version of the engine; of llama.cpp the date of a build.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline parallelism (llama.cpp: GPUs).")
@click.option("--ep", type=int, default=1, show_default=True, help="Expert parallelism.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data parallelism (of attention).")
@click.option("--weights", help="Weight format; the checkpoint's own by default.")
@click.option("--kv", default="auto", show_default=True, help="KV-cache format.")
@click.option("--max-model-len", "--context", type=int, help="Tokens of the longest request; the model's by default.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of a step; the engine's default.")
@click.option("--max-num-seqs", type=int, help="Sequences of a step; the engine's default.")
@click.option("--memory-fraction", type=float, help="Share of the memory; the engine's default.")
@click.option("--block-size", type=int, help="Tokens of a KV block.")
@click.option("--usable", help="Device memory as the driver gives it, such as '79.19 GiB'.")
@click.option("--draft", help="What drafts: 'mtp', or a model.")
@click.option("--option", "-O", "extra", multiple=True, metavar="NAME=VALUE", help="An option of the engine's own.")
@click.option("--ngl", type=int, help="Layers on the GPU (llama.cpp).")
@click.option("--solve", type=click.Choice(["context", "batch", "gpus"]), help="Ask for the most, or the fewest.")
@click.option("--batch", type=int, help="Requests at once, for --solve context or gpus; 1 by default.")
@click.option(
    "--any-count", is_flag=True, help="For --solve gpus: any number, not 1, 2, 4, 8 and multiples of 8 alone."
)
@output_options()
def command(
    gpu: str, model: str, extra: tuple[str, ...], ngl: int | None, solve: str | None, batch: int | None,
    any_count: bool, fmt: str, path: str | None, **options: Any,
) -> None:  # fmt: skip
    """Say what MODEL takes and holds on GPU under an engine, term by term.

    Exit code 4 when it does not fit; the message says what would. Tokens and concurrency are as the engine prints them.
    """
    from perfmodel.base.errors import DoesNotFit

    options = {key: value for key, value in options.items() if value is not None}
    _check_solve(solve, batch, any_count)
    options |= _extra(extra, options["engine"], {"ngl": ngl} if ngl is not None else {})
    found, answer = _solve(model, gpu, solve, batch or 1, options | ({"any_count": True} if any_count else {}))
    emit(_text(found, answer, fmt), path)
    if answer is not None and not answer.value:
        raise DoesNotFit(answer.words, found.request_bytes, max(found.kv_pool, 0.0))
    if not found.fits and answer is None:
        hints = f"; {' or '.join(found.remedies)} would fit" if found.remedies else "; no option tried would fit"
        raise DoesNotFit(f"{found.title}: {found.notice}{hints}", found.request_bytes, max(found.kv_pool, 0.0))


def _check_solve(solve: str | None, batch: int | None, any_count: bool) -> None:
    """Refuse options that belong to another inverse question, rather than leave them aside."""
    from perfmodel.base.errors import UsageError

    if batch is not None and solve not in ("context", "gpus"):
        raise UsageError(f"--batch {batch} is for --solve context or gpus; leave it out" + (
            ": --solve batch finds it" if solve else ", or say --max-num-seqs"
        ))  # fmt: skip
    if batch is not None and batch < 1:
        raise UsageError(f"batch must be 1 or more, not {batch}")
    if any_count and solve != "gpus":
        raise UsageError("--any-count is for --solve gpus; leave it out")
    for name in ("tp", "pp") if solve == "gpus" else ():
        source = click.get_current_context().get_parameter_source(name)
        if source is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--solve gpus finds --{name}: leave it out, or leave --solve out")


def _solve(model: str, gpu: str, solve: str | None, batch: int, options: dict[str, Any]) -> tuple[Any, Any]:
    from perfmodel.base.errors import UsageError
    from perfmodel.roofline.engines import inverse
    from perfmodel.roofline.engines.budget import memory

    if solve is None:
        return memory(model, gpu, **options), None
    length = options.pop("max_model_len", None)
    if solve == "context":
        answer = inverse.largest_context(model, gpu, batch=batch, most=length, **options)
    elif solve == "batch":
        if length is None:
            raise UsageError("--solve batch needs --context: how long each request is")
        answer = inverse.largest_batch(model, gpu, context=length, **options)
    else:
        options = {name: value for name, value in options.items() if name not in ("tp", "pp")}
        answer = inverse.smallest_gpu_count(model, gpu, batch=batch, context=length, **options)
    return answer.memory, answer


def _extra(pairs: tuple[str, ...], engine: str, found: dict[str, Any]) -> dict[str, Any]:
    """Options of the engine's own, by name, as the text that was given; the engine reads them."""
    from perfmodel.base.errors import UsageError
    from perfmodel.base.text import printable
    from perfmodel.roofline.engines.options import check_name

    for name in found:
        check_name(engine, name)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name.isidentifier():
            raise UsageError(f"--option takes NAME=VALUE, not {printable(pair, 80)!r}")
        check_name(engine, name)
        if name in found:
            raise UsageError(f"{name} is given twice; say it once")
        found[name] = value
    return found


def _text(found: Any, answer: Any, fmt: str) -> str:
    from perfmodel.base.units import gib
    from perfmodel.reports.tables import Column, render, to_json

    if fmt == "json":
        return to_json((answer or found).to_dict())

    def size(value: float) -> str:
        return gib(value)

    columns = (
        Column("term", "term"), Column("bytes", "a GPU", "B", size),
        Column("low_bytes", "low", "B", size, optional=True), Column("high_bytes", "high", "B", size, optional=True),
        Column("formula", "formula", optional=True),
        *(() if fmt == "table" else (Column("source", "source", optional=True),)),
    )  # fmt: skip
    notes = [answer.words] if answer is not None else []
    notes += [found.sentence] + ([found.notice] if found.notice else []) + list(found.remarks)
    if found.remedies:
        notes.append(f"would fit: {' or '.join(found.remedies)}")
    if any(row["low_bytes"] is not None for row in found.rows()):
        notes.append("low and high: 80 % interval, from models left out of the fit")
    return render(found.rows(), columns, fmt, title=found.title, notes=notes)
