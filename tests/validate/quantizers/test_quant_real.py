"""Quantizers on a real model's weights and activations: who wins, by how much, and whether theory says so."""

import pytest
import torch

from perfmodel.validate.quantizers.awq import awq
from perfmodel.validate.quantizers.formats import round_to
from perfmodel.validate.quantizers.gptq import gptq, hessian
from perfmodel.validate.quantizers.grid import Grid, find_scales, round_to_nearest
from perfmodel.validate.quantizers.smoothquant import int8_product, smoothed, smoothing
from perfmodel.validate.quantizers.theory import (
    flat_groups,
    output_error,
    predicted_output_error,
    rounding_variance,
    salience,
    spread_variance,
)


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 3])
def test_gptq_beats_rounding_on_every_layer(layers, bits) -> None:
    """GPTQ's output error is below that of rounding, on the same grid, for every layer; held-out inputs beside it.

    Calibration rows outnumber the inputs here, so that it holds on inputs that GPTQ did not see as well.
    """
    grid, ratios = Grid(bits, symmetric=False, group=128), {}
    for name, (w, seen, unseen) in layers.items():
        plain, found = round_to_nearest(w, grid).values(), gptq(w, hessian(seen), grid).values()
        ratios[name] = tuple(output_error(w, found, x) / output_error(w, plain, x) for x in (seen, unseen))
        print(f"{bits} bits, {name}: {ratios[name][0]:.2f} of rounding's error, held out {ratios[name][1]:.2f}")
    assert len(ratios) == 12
    assert max(ratio for ratio, _ in ratios.values()) < 1
    assert mean(ratio for ratio, _ in ratios.values()) < 0.4
    assert mean(ratio for _, ratio in ratios.values()) < 0.6


@pytest.mark.slow
def test_awq_beats_rounding_on_average(layers) -> None:
    """AWQ's output error is below that of rounding on average, on calibration and on held-out inputs."""
    grid, ratios = Grid(4, symmetric=False, group=128), []
    for name, (w, seen, unseen) in layers.items():
        plain, found = round_to_nearest(w, grid).values(), awq(w, seen[::4], grid, steps=10).values()
        ratios.append([output_error(w, found, x) / output_error(w, plain, x) for x in (seen, unseen)])
        print(f"{name}: {ratios[-1][0]:.2f} of rounding's error, held out {ratios[-1][1]:.2f}")
    assert mean(ratio for ratio, _ in ratios) < 0.9
    assert mean(ratio for _, ratio in ratios) < 0.9


def test_gptq_with_act_order(layers) -> None:
    """Taking the columns with the most input first is right for a scale a row too, and loses less than rounding."""
    w, seen, unseen = layers["encoder.layer.5.output.dense"]
    grid = Grid(3, symmetric=False)
    plain = round_to_nearest(w, grid).values()
    found = gptq(w, hessian(seen), grid, act_order=True)
    assert output_error(w, found.values(), seen) < 0.5 * output_error(w, plain, seen)
    assert output_error(w, found.values(), unseen) < output_error(w, plain, unseen)


def test_smoothquant_is_exact(layers) -> None:
    """The smoothed product is the product, to rounding: 1e-12 of its size in double precision."""
    for w, seen, _ in layers.values():
        x, v = seen[:64].double(), w.double()
        for alpha in (0.0, 0.5, 1.0):
            a, b = smoothed(x, v, smoothing(x.abs().amax(dim=0), v, alpha))
            assert float((a @ b.T - x @ v.T).abs().max()) <= 1e-12 * float((x @ v.T).abs().max())


def test_smoothing_helps_inputs_with_outliers(layers) -> None:
    """With one scale for all inputs, smoothing lowers the error of INT8 products of most layers, of one tenfold.

    It helps where a few inputs are large, and makes it worse where none are: the weights then pay for nothing.
    """
    ratios = []
    for w, seen, _ in layers.values():
        seen = seen[:1024]
        exact = seen @ w.T
        a, b = smoothed(seen, w, smoothing(seen.abs().amax(dim=0), w))
        errors = [float(((int8_product(*pair, per_token=False) - exact) ** 2).sum()) for pair in ((seen, w), (a, b))]
        ratios.append(errors[1] / errors[0])
    assert sorted(ratios)[len(ratios) // 2] < 0.8
    assert min(ratios) < 0.2
    assert max(ratios) > 1


#: Grids of 4 bits and more, asymmetric and symmetric, by group, row and matrix.
GRIDS = [
    Grid(4, False, 128),
    Grid(4, True, 128),
    Grid(4, False, 0),
    Grid(6, False, 128),
    Grid(8, True, 0),
    Grid(8, True, 32),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.words)
def test_noise_is_a_twelfth_of_the_step_squared(layers, grid) -> None:
    """s^2/12 is within 5 % of the measured noise on every matrix, over groups whose weights spread over a step.

    Those are at least 85 % of all groups on the worst matrix: elsewhere an outlier sets the step, and most weights
    round to 0.
    """
    for name, (w, _, _) in layers.items():
        scales = find_scales(w, grid)
        flat = flat_groups(w, scales)
        error = (w - round_to_nearest(w, grid).values()) ** 2
        measured = error.reshape(*scales.scale.shape, -1).mean(dim=2)
        assert float(flat.double().mean()) > 0.85, name
        ratio = float((scales.scale[flat] ** 2 / 12).sum() / measured[flat].sum())
        assert ratio == pytest.approx(1, abs=0.05), name


def test_noise_of_a_whole_model(matrices) -> None:
    """Over all weights in groups of 128 s^2/12 is within 5 % too, and with the spread corrected each matrix is."""
    grid = Grid(4, symmetric=False, group=128)
    predicted = measured = 0.0
    for name, w in matrices.items():
        error = float(((w - round_to_nearest(w, grid).values()) ** 2).mean())
        assert spread_variance(w, grid) == pytest.approx(error, rel=0.05), name
        predicted += rounding_variance(find_scales(w, grid)) * w.numel()
        measured += error * w.numel()
    assert predicted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("fmt", "limit"),
    [
        ("bf16", 0.02), ("fp8", 0.02), ("fp8_block", 0.02), ("int4_g32", 0.02), ("w8a16", 0.05), ("nf4", 0.05),
        ("mxfp4", 0.06), ("mxfp6", 0.02), ("mxfp8", 0.02),
    ],
)  # fmt: skip
def test_expected_noise_of_formats(layers, fmt, limit) -> None:
    """A format's expected noise, with its local steps, its clipping and what sets its scale, is the measured one."""
    expected = measured = 0.0
    for w, _, _ in layers.values():
        r = round_to(w, fmt)
        expected += float(r.expected.double().expand_as(w).sum())
        measured += float(((w - r.values).double() ** 2).sum())
    assert expected == pytest.approx(measured, rel=limit)


def test_output_noise_follows_from_the_inputs_power(layers) -> None:
    """The output error of rounding is what errors that are independent of the inputs would give, where s^2/12 holds."""
    grid = Grid(4, symmetric=False, group=128)
    for name, (w, seen, _) in layers.items():
        if spread_variance(w, grid) < 0.98 * rounding_variance(find_scales(w, grid)):
            continue  # an outlier's group: see above
        error = output_error(w, round_to_nearest(w, grid).values(), seen)
        assert predicted_output_error(w, grid, seen) == pytest.approx(error, rel=0.1), name


def test_few_inputs_carry_much_of_the_error(layers) -> None:
    """The top 1 % of inputs carry far more than 1 % of the output error, but not half of it on every layer."""
    shares = {name: salience(seen) for name, (_, seen, _) in layers.items()}
    assert min(shares.values()) > 0.02
    assert max(shares.values()) > 0.2
    assert mean(shares.values()) < 0.5


def test_weights_are_real(matrices) -> None:
    """Trained weights: 37 matrices, heavier tails than a normal distribution's."""
    assert len(matrices) == 37
    kurtosis = mean(float(((w - w.mean()) ** 4).mean() / w.var() ** 2) for w in matrices.values())
    assert kurtosis > 3.2
    assert all(torch.isfinite(w).all() for w in matrices.values())
