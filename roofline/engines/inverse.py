"""Inverse questions: the longest context, the largest batch, the fewest GPUs, each exact for the forward model.

Fitting can only end as a context or a batch grows, so both are found by bisection; GPUs are tried from one upwards, in
counts that machines have, because not every number divides a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.engines.ask import whole
from perfmodel.roofline.engines.budget import answer, ask
from perfmodel.roofline.engines.result import EngineMemory
from perfmodel.roofline.engines.rules import engine_name

if TYPE_CHECKING:
    import pandas as pd

#: Nobody runs more sequences, or GPUs for one replica.
MOST_BATCH, MOST_GPUS = 2**20, 64


@dataclass(frozen=True)
class Solution:
    """The answer to an inverse question.

    Attributes
    ----------
    asked : str
        ``context``, ``batch`` or ``gpus``.
    value : int
        0 when nothing fits.
    words : str
        The answer in a sentence.
    memory : EngineMemory
        At that value, or at the smallest one when nothing fits.
    """

    asked: str
    value: int
    words: str
    memory: EngineMemory

    @property
    def frame(self) -> pd.DataFrame:
        """Terms of the budget at the answer."""
        return self.memory.frame

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"solved": self.asked, "value": self.value, "answer": self.words, **self.memory.to_dict()}

    def _repr_html_(self) -> str:
        import html

        return f"<p>{html.escape(self.words)}</p>" + self.memory._repr_html_()


def at(model: str | ModelSpec, gpu: str | Gpu, batch: int, context: int, **options: Any) -> tuple[bool, EngineMemory]:
    """Whether ``batch`` requests of ``context`` tokens are held at once, and the budget.

    ``max_num_seqs`` follows the batch unless it is given; data-parallel replicas share the batch. llama.cpp gets a slot
    for each request.
    """
    engine, each = engine_name(options.get("engine", "vllm")), ceil(batch / whole(options.get("dp", 1), "dp"))
    more: dict[str, Any] = {}
    if engine == "llamacpp":
        more = {"n_parallel": each, "unified": False}
    elif options.get("max_num_seqs") is None:
        more = {"max_num_seqs": each}
    elif each > options["max_num_seqs"]:
        return False, answer(ask(model, gpu, max_model_len=context, **options))
    found = answer(ask(model, gpu, max_model_len=context, **{**options, **more}))
    return found.fits and (engine == "llamacpp" or found.max_concurrency >= each), found


def _bisect(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that holds; 0 when 1 does not. ``holds`` may only go from true to false."""
    low, high = 0, 1
    while high <= most and holds(high):  # double up, so that a huge limit costs nothing
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def largest_context(
    model: str | ModelSpec, gpu: str | Gpu, *, batch: int = 1, most: int | None = None, **options: Any
) -> Solution:
    """The longest request of which ``batch`` fit at once.

    Parameters
    ----------
    model, gpu
        Names, files or specs.
    batch : int
        Requests of the whole deployment.
    most : int, optional
        Where to stop; the model's longest context by default. [tokens]
    **options
        As ``memory``, ``max_model_len`` apart.

    Examples
    --------
    >>> largest_context("llama3.1-8b", "rtx-4090", engine="vllm").value < 131072
    True
    """
    spec, device = load_model(model), load_gpu(gpu)
    batch, most = whole(batch, "batch"), whole(most if most is not None else spec.max_context, "most")
    found = _bisect(lambda n: at(spec, device, batch, n, **options)[0], most)
    budget = at(spec, device, batch, found or 1, **options)[1]
    if not found:
        return Solution("context", 0, f"not even {batch:,} requests of 1 token fit: {budget.notice}", budget)
    end = " (the model's longest)" if found == spec.max_context else ""
    requests = "a request" if batch == 1 else f"{batch:,} requests at once"
    limit = _limit(budget, batch, options)
    return Solution("context", found, f"{requests} can have {found:,} tokens{end}{limit}", budget)


def largest_batch(model: str | ModelSpec, gpu: str | Gpu, *, context: int, **options: Any) -> Solution:
    """The most requests of ``context`` tokens that are held at once, over all data-parallel replicas.

    Examples
    --------
    >>> largest_batch("llama3.1-8b", "h100", context=8192, version="0.33.0").value
    56
    """
    spec, device, context = load_model(model), load_gpu(gpu), whole(context, "context")
    found = _bisect(lambda n: at(spec, device, n, context, **options)[0], MOST_BATCH)
    budget = at(spec, device, max(found, 1), context, **options)[1]
    if not found:
        return Solution("batch", 0, f"not even one request of {context:,} tokens fits: {budget.notice}", budget)
    words = f"{found:,} requests of {context:,} tokens fit at once{_limit(budget, found, options)}"
    return Solution("batch", found, words, budget)


def _limit(budget: EngineMemory, batch: int, options: dict[str, Any]) -> str:
    """What was set beside the question: the engine's limit of sequences follows the batch."""
    engine, each = engine_name(options.get("engine", "vllm")), ceil(batch / options.get("dp", 1))
    if engine == "llamacpp":
        return f", with n_parallel set to {each:,}"
    return "" if options.get("max_num_seqs") is not None else f", with max_num_seqs set to {each:,}"


def smallest_gpu_count(
    model: str | ModelSpec, gpu: str | Gpu, *, batch: int = 1, context: int | None = None, node: int = 8,
    most: int = MOST_GPUS, any_count: bool = False, **options: Any,
) -> Solution:  # fmt: skip
    """The fewest GPUs of one replica that hold ``batch`` requests of ``context`` tokens at once.

    Tensor parallelism is used up to a node's GPUs, pipeline parallelism for the rest: of the ways to use ``n`` GPUs
    the one with the largest tensor parallelism that fits is taken, powers of two first.

    Parameters
    ----------
    context : int, optional
        The model's longest by default. [tokens]
    node : int
        GPUs that tensor parallelism may span.
    most : int
        Where to stop.
    any_count : bool
        Whether any number will do, such as 9; otherwise 1, 2, 4, ... up to a node and whole nodes beyond, with powers
        of two as tensor parallelism.
    **options
        As ``memory``, ``tp`` and ``pp`` apart.
    """
    spec, device = load_model(model), load_gpu(gpu)
    context = whole(context if context is not None else spec.max_context, "context")
    batch, node = whole(batch, "batch"), whole(node, "node")
    last: EngineMemory | None = None
    refused: UsageError | None = None
    for count in _counts(whole(most, "most"), node, any_count):
        for tp, pp in _ways(count, node, any_count, options):
            try:
                fits, budget = at(spec, device, batch, context, **{**options, "tp": tp, "pp": pp})
            except UsageError as error:  # this number does not divide the model
                refused = refused or error
                continue
            last = last or budget
            if fits:
                how = f" (TP {tp}, PP {pp})" if count > 1 else ""
                requests = f"{batch:,} request{'s' if batch > 1 else ''} of {context:,} tokens"
                words = f"{count} x {device.name}{how} hold {requests}{_limit(budget, batch, options)}"
                return Solution("gpus", count, words, budget)
    if last is None:  # not even one GPU could be asked about: a setting is wrong
        raise refused or UsageError(f"no number of GPUs up to {most} can be used for {spec.name}")
    return Solution("gpus", 0, f"no number of GPUs up to {most} holds {batch:,} requests of {context:,} tokens", last)


def _counts(most: int, node: int, any_count: bool) -> list[int]:
    """Numbers of GPUs to try: any, or powers of two below a node and whole nodes.

    >>> _counts(32, 8, False)
    [1, 2, 4, 8, 16, 24, 32]
    """
    if any_count:
        return list(range(1, most + 1))
    powers = [2**n for n in range(node.bit_length()) if 2**n < node]
    return [count for count in (*powers, *range(node, most + 1, node)) if count <= most]


def _ways(count: int, node: int, any_count: bool, options: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline parallelism with so many GPUs: powers of two first, the largest tensor parallelism first."""
    if engine_name(options.get("engine", "vllm")) == "llamacpp":
        yield 1, count
        return
    divisors = [tp for tp in range(min(count, node), 0, -1) if count % tp == 0]
    powers = [tp for tp in divisors if tp & (tp - 1) == 0]
    for tp in powers + ([tp for tp in divisors if tp not in powers] if any_count else []):
        yield tp, count // tp
