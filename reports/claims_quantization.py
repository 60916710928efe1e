"""Claims about the mathematics of quantization (chapter sections 4.1 to 4.4 and 4.6): Q1 to Q6, Q9, Q12 and Q13."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.util import find_spec

from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.reports.claims import Line, claim
from perfmodel.roofline.quantization.budget import Choice, Option, allocate
from perfmodel.roofline.quantization.noise import (
    gptq_flops,
    gptq_traffic,
    metadata_bits,
    normal_clipping,
    normal_rounding,
    normal_second_moment_beyond,
    salient_error,
    smoothing_gap,
    smoothing_spread,
    steps_a_side,
    symmetric_scale,
)
from perfmodel.validate.quantizer_record import (
    awq_ratio,
    gptq_ratio,
    mean_salience,
    noise_ratio,
    record,
)


@claim(
    "Q1", where="4.1 and 4.3", says="s = 2 max / (2^b - 1); an outlier of 8.0 gives s = 2 x 8 / 127 = 0.126, 4 levels"
)
def q1() -> Iterator[Line]:
    """The step that holds the largest value with the integers that there are."""
    reason = "integers go to 2^(b-1) - 1 on each side: s = max / (2^(b-1) - 1); the chapter's clips the largest value"
    for bits in (8, 4):
        mine = symmetric_scale(8.0, bits)
        what = f"step of a largest value of 8.0 in {bits} bits, by the definition"
        yield Line(what, 2 * 8.0 / (2**bits - 1), mine, "", symmetric_scale, reason, strict=True)
    twice = "the example doubles it: 8 / 127 = 0.063"
    scale = symmetric_scale(8.0, 8)
    yield Line("step in the example of section 4.3, INT8", 0.126, scale, "", symmetric_scale, twice)
    yield Line("levels a side of channels of 0.5 beside it", 4, steps_a_side(0.5, scale), "", steps_a_side, twice)
    yield Line("levels a side of the channel of 8.0", 63, steps_a_side(8.0, scale), "", steps_a_side, twice)


@claim("Q2", where="4.1", says="the variance of the rounding error is s^2/12")
def q2() -> Iterator[Line]:
    """Exact for a density that is flat over a step; a normal one, and the weights of a real model."""
    reason = "the values spread less than the step: most are rounded to 0, and lose less than s^2/12"
    for step in (0.5, 1.0, 2.0, 3.0):
        mine = normal_rounding(step) / (step**2 / 12)
        yield Line(
            f"normal values, step of {step:g} deviations: error over s^2/12", 1, mine, "", normal_rounding, reason
        )
    outlier = "on some matrices outliers set the step of whole rows, whose other weights are rounded to 0"
    for grid in (
        "4-bit asymmetric, group 128",
        "8-bit symmetric, a scale a tensor",
        "4-bit symmetric, a scale a channel",
    ):
        what = f"{record().model}, all linear layers, {grid}: error over s^2/12"
        yield Line(what, 1, noise_ratio(grid), "", noise_ratio, outlier)


@claim("Q3", where="4.1", says="a group of 128 adds 0.15 bits an element")
def q3() -> Iterator[Line]:
    """16 bits of scale, and 4 of zero point where there is one, over the group."""
    for name, words in (("int4", "16-bit scale and 4-bit zero point"), ("int4_g128", "16-bit scale alone")):
        fmt = weight_format(name)
        reason = "a scale alone is 16 / 128 = 0.125"
        yield Line(f"metadata of groups of 128: {words}", 0.15, metadata_bits(fmt), "bits", metadata_bits, reason)
    yield Line("metadata of groups of 32, scale alone", None, metadata_bits(FORMATS["int4_g32"]), "bits", metadata_bits)


@claim("Q4", where="4.2", says="GPTQ makes good each column's error by the columns still to come; 3 to 4 bits")
def q4() -> Iterator[Line]:
    """Output error over that of rounding on the same grid, layers of a real model; recorded, and tested anew."""
    note = f"{record().model}, 12 layers, groups of 128, {record().inputs}"
    for bits in (4, 3):
        for held_out in (False, True):
            where = "inputs held out" if held_out else "its calibration inputs"
            worst = gptq_ratio(bits, held_out, worst=True)
            what = f"GPTQ in {bits} bits, {where}: error over rounding's, worst layer"
            yield Line(what, (0, 1), worst, "x", gptq_ratio, note=note, strict=True)
            mean = gptq_ratio(bits, held_out)
            yield Line(f"GPTQ in {bits} bits, {where}: mean over the layers", None, mean, "x", gptq_ratio)
    yield Line("time for 175 B parameters", 4, None, "GPU hours", reason="a run of a quantizer is not predicted")
    yield Line(
        "change of WikiText perplexity", (0.1, 0.3), None, "", reason="a perplexity is measured on a model and a text"
    )


@claim("Q5", where="4.3", says="SmoothQuant's transform leaves the product as it is: s_j = max|X_j|^a / max|W_j|^(1-a)")
def q5() -> Iterator[Line]:
    """Exact: what is left is the rounding of FP64."""
    what = "smoothed against plain product, inputs with outliers: largest relative difference, FP64"
    yield Line(what, (0, 1e-12), smoothing_gap(), "", smoothing_gap, strict=True)


@claim("Q6", where="4.4", says="AWQ: W' = W diag(s)^-1 magnifies salient weights; the top 1 % carry half of the loss")
def q6() -> Iterator[Line]:
    """The direction by a simulation; shares and gains on the layers of a real model."""
    right = "W' = W diag(s) and X' = X diag(s)^-1: dividing shrinks the column, whose error then grows by s^2"
    what = "error of a salient column over that without scaling, s = 2"
    yield Line(f"{what}: W diag(s)^-1, as the chapter has it", (0, 1), salient_error(0.5), "x", salient_error, right)
    yield Line(f"{what}: W diag(s), as AWQ has it", (0, 1), salient_error(2.0), "x", salient_error, strict=True)
    note = f"{record().model}, 12 layers: an encoder without the outliers of large decoders"
    few = "its activations have smaller outliers than those of large language models"
    yield Line("share of the output error that the top 1 % of inputs carry", 50, mean_salience() * 100, "%",
               mean_salience, few, note)  # fmt: skip
    gain = (1 - awq_ratio(4)) * 100
    yield Line("AWQ in 4 bits: output error below rounding's, mean", (25, 40), gain, "%", awq_ratio, few)
    yield Line("AWQ in 4 bits: error over rounding's, worst layer", (0, 1), awq_ratio(4, worst=True), "x", awq_ratio)
    yield Line("quality kept", 95, None, "%", reason="a quality is measured on a model and a benchmark")


def excess_over_brute_force() -> float:
    """Error of the integer programme over the least of all combinations, less 1: six tensors, five widths each."""
    widths, sizes, weights = (2, 3, 4, 8, 16), (3, 5, 8, 13, 21, 34), (5.0, 1.0, 3.0, 0.5, 2.0, 0.25)
    choices = [
        Choice(str(i), tuple(Option(f"{b}", n * b, w * n * 4.0**-b) for b in widths))
        for i, (n, w) in enumerate(zip(sizes, weights, strict=True))
    ]
    budget = sum(sizes) * 4.5
    best = min(
        sum(o.error for o in tried)
        for tried in itertools.product(*(c.options for c in choices))
        if sum(o.bytes for o in tried) <= budget
    )
    return allocate(choices, budget).error / best - 1


@claim("Q9", where="4.6", says="bits a layer by an integer programme over {2, 3, 4, 8, 16} under a budget")
def q9() -> Iterator[Line]:
    """Solved exactly, against brute force."""
    what = "six tensors, 4.5 bits on average: excess over the best of all 15,625 combinations"
    if find_spec("scipy") is None:
        yield Line(what, (0, 1e-9), None, "", reason="needs scipy, which is not installed")
        return
    yield Line(what, (0, 1e-9), max(excess_over_brute_force(), 0.0), "", allocate, strict=True)


@claim("Q12", where="4.1", says="clipping loses the integral of x^2 beyond the range")
def q12() -> Iterator[Line]:
    """What is clipped is taken to the end of the range, not to 0: it loses (x - end)^2."""
    for end in (2.0, 3.0):
        reason = "a clipped value keeps the end of the range: the loss is (x - x_max)^2"
        chapter = normal_second_moment_beyond(end)
        what = f"normal values clipped at {end:g} deviations: squared error"
        yield Line(what, chapter, normal_clipping(end), "", normal_clipping, reason)


@claim("Q13", where="4.2 and 4.3", says="a = 0 does not smooth; blocks of 128 turn GPTQ's O(d^3) into O(d^2 B)")
def q13() -> Iterator[Line]:
    """a = 0 is 1 / max|W|; blocks change memory traffic, not FLOPs."""
    reason = "a = 0 gives s = 1 / max|W|, which makes all columns of the weights equally large"
    what = "largest over smallest factor at a = 0, weights of uneven columns"
    yield Line(what, 1, smoothing_spread(0.0), "x", smoothing_spread, reason)
    same = "blocks do the same sums, later: 2 rows sum of (columns - i)"
    d, block = 4096, 128
    flops = gptq_flops(d, d)
    yield Line(
        f"FLOPs without blocks over those with, d = {d:,}", d / block, flops / gptq_flops(d, d), "x", gptq_flops, same
    )
    traffic = gptq_traffic(d, d, 1) / gptq_traffic(d, d, block)
    yield Line(f"memory traffic without blocks over that with, d = {d:,}", None, traffic, "x", gptq_traffic)
