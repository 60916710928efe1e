"""llama.cpp on Apple GPUs: seconds of a step of one to a few dozen tokens, from the types of a file's matrices.

A matrix-vector product reads its weights once and dequantizes them: the longer of the two, smoothly. More tokens do not
come free, since dequantization is done again for each of them:

- 2 to 8 tokens: ``mul_mv_ext`` for types with such a kernel, up to five columns a pass over the weights; a second pass
  finds part of them in the cache. 2-bit and 3-bit types repeat the matrix-vector kernel, as K-quants do below 4 tokens.
- more than 8: ``mul_mm`` with tiles of 64 x 32: 9 tokens pay for 32, and narrow matrices do not fill the cores.

Costs are counted in FLOP at the vector peak a weight (and token), so that they go from one Apple GPU to another. Those
of one token come from plain decode speeds of 18 Qwen2.5 files on an M4 Max (alexziskind1/draftbench, baselines of
2026-02; mean error 1.4 %, largest 5 %: in-sample). Those of more tokens come from kernel measurements that others
published: M4 Pro (ggml-org/llama.cpp issue 25250, pull request 20250), M3 Pro (27776), M5 Max (29110), M2 Ultra
(10581), M4 Max (27441); they were not fitted to any speedup. Valid for GPUs of the M3 to M5 families; earlier ones need
about half of the FLOP a token.

The head's and drafter's samplers run on the processor over the whole vocabulary, for each token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import Gqa, ModelSpec
from perfmodel.roofline.speculative.gguf_mix import Stored, stored

#: Exponent of the smooth maximum of reading and dequantizing.
SMOOTH = 4.0
#: Tokens above which the matrix-matrix kernel runs (``ne11_mm_min``), its tile, and the most tokens modelled.
MOST_MV, TILE_ROWS, TILE_TOKENS, MOST_TOKENS = 8, 64, 32, 512
#: Columns that ``mul_mv_ext`` does in a pass, by the number of tokens (``r1ptg``).
COLUMNS = {2: 2, 3: 3, 4: 4, 5: 5, 6: 3, 7: 4, 8: 4}


@dataclass(frozen=True)
class TypeCost:
    """FLOP at the vector peak a weight.

    Attributes
    ----------
    one : float
        Of a matrix-vector product.
    small : float
        Of each token in ``mul_mv_ext``.
    repeat : float
        Of each further token where the matrix-vector kernel is repeated instead.
    repeats_below : int
        Tokens below which it is repeated; 2: never; 9: always.
    """

    one: float
    small: float
    repeat: float = 0.0
    repeats_below: int = 2


@dataclass(frozen=True)
class Metal:
    """The engine on a family of GPUs.

    Attributes
    ----------
    reads : float
        Share of the bandwidth that reading weights reaches.
    second_pass : float
        Cost of a further pass over the weights, over the first.
    layer : float
        Time of a layer's small kernels and launches. [s]
    entry : float
        Time of a sampler a vocabulary entry and token. [s]
    matrix : float
        FLOP at the vector peak a weight and tile of 32 tokens in ``mul_mm``.
    groups : float
        Thread groups of ``mul_mm`` that a core runs at a time.
    types : dict[str, TypeCost]
        By ggml type.
    """

    reads: float = 0.925
    second_pass: float = 0.67
    layer: float = 54e-6
    entry: float = 2.5e-9
    matrix: float = 95.0
    groups: float = 2.0
    types: dict[str, TypeCost] = field(default_factory=dict, hash=False)

    def cost(self, name: str) -> TypeCost:
        """The costs of a ggml type; raises UsageError for one that was not measured."""
        if name not in self.types:
            raise UsageError(f"no cost on Apple GPUs is known for {name}; known are {', '.join(self.types)}")
        return self.types[name]


METAL = Metal(
    types={
        "F16": TypeCost(0, 10),
        "Q8_0": TypeCost(0, 15),
        "Q6_K": TypeCost(20, 23, 23.5, 4),
        "Q5_K": TypeCost(32, 23, 21, 4),
        "Q5_1": TypeCost(24, 21),
        "Q5_0": TypeCost(24, 21),
        "Q4_K": TypeCost(16, 21, 16, 4),
        "Q4_1": TypeCost(15, 18),
        "Q4_0": TypeCost(15, 18),
        "IQ4_NL": TypeCost(15, 19),
        "Q3_K": TypeCost(34, 0, 12.7, 9),
        "Q2_K": TypeCost(17, 0, 12.7, 9),
    }
)


def vector_peak(gpu: Gpu) -> float:
    """FLOP/s of the vector units in 16 or 32 bits; raises UsageError for a GPU that is not Apple's."""
    peaks = [gpu.compute.vector[name].value for name in ("fp32", "fp16") if name in gpu.compute.vector]
    if gpu.vendor != "apple" or not peaks:
        raise UsageError(f"{gpu.name} is no Apple GPU of a known vector peak: llama.cpp is modelled on Metal only")
    return max(peaks)


def matrix_seconds(m: Stored, gpu: Gpu, tokens: int, engine: Metal = METAL) -> float:
    """Seconds of all matrices of one shape and type, for ``tokens`` tokens.

    ``(read^4 + dequantize^4)^(1/4)`` below 9 tokens; raises UsageError above ``MOST_TOKENS``.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"{tokens} tokens; 1 to {MOST_TOKENS} are modelled")
    cost, peak = engine.cost(m.type.name), vector_peak(gpu)
    read = m.bytes / (gpu.memory.hbm.bandwidth.value * engine.reads)
    if tokens > MOST_MV:
        slots = engine.groups * (gpu.compute.sms.value if gpu.compute.sms else 1)
        groups = ceil(m.rows / TILE_ROWS) * ceil(tokens / TILE_TOKENS)
        filled = groups / (ceil(groups / slots) * slots)
        return max(read, m.weights * engine.matrix / peak * ceil(tokens / TILE_TOKENS) / filled)
    one = _smooth(read, m.weights * cost.one / peak)
    if tokens == 1:
        return one
    if tokens < cost.repeats_below:
        return one + (tokens - 1) * m.weights * cost.repeat / peak
    passes = ceil(tokens / COLUMNS[tokens])
    return _smooth(read * (1 + engine.second_pass * (passes - 1)), tokens * m.weights * cost.small / peak)


def _smooth(a: float, b: float) -> float:
    return float((a**SMOOTH + b**SMOOTH) ** (1 / SMOOTH))


def step_seconds(
    model: ModelSpec, mix: str, gpu: Gpu, tokens: int = 1, context: int = 512, sampled: float = 1.0,
    engine: Metal = METAL,
) -> float:  # fmt: skip
    """Seconds of a step of ``tokens`` new tokens of one sequence.

    Parameters
    ----------
    mix : str
        GGUF file type.
    context : int
        Tokens in the cache (16 bits).
    sampled : float
        Tokens that the processor samples.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> from perfmodel.hwspecs.load import gpu
    >>> from perfmodel.modelspecs.load import model
    >>> m, g = model("qwen2.5-7b"), gpu("m4-max")
    >>> one, five = step_seconds(m, "Q4_0", g), step_seconds(m, "Q4_0", g, 5)
    >>> 85 < 1 / one < 100 and 3 < five / one < 4.5
    True
    """
    matrices = sum(matrix_seconds(m, gpu, tokens, engine) for m in stored(model, mix))
    cache = context * _cache_bytes(model) / (gpu.memory.hbm.bandwidth.value * engine.reads)
    return matrices + cache + model.num_layers * engine.layer + sampled * model.vocab_size * engine.entry


def _cache_bytes(model: ModelSpec) -> float:
    """Bytes of a token in a 16-bit cache."""
    a = next(iter(model.attention.values()))
    assert isinstance(a, Gqa)  # ``stored`` refuses others
    return 4.0 * a.kv_heads * a.head_dim * model.num_layers
