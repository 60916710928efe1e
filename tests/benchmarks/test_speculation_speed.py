"""How fast the speedup of a million points is found."""

import time

import numpy as np

from perfmodel.roofline.clock import clock
from perfmodel.roofline.setup import setup
from perfmodel.roofline.speculative import drafts, formulas, rounds


def test_a_million_points_in_a_second() -> None:
    """50 acceptances x 20 draft lengths x 20 draft costs x 50 batches, with calibrated verification: under 1 s."""
    target = setup("llama3-70b", "h100", tp=8)
    timer, draft = clock(target, "calibrated"), drafts.lookup(target)
    alpha = np.linspace(0, 1, 50)[:, None, None, None]
    gamma = np.arange(1.0, 21.0)[None, :, None, None]
    cost = np.linspace(0, 0.5, 20)[None, None, :, None]
    batch = np.arange(1.0, 51.0)[None, None, None, :]
    seconds = []
    for _ in range(3):
        start = time.process_time()
        got = rounds.measure(draft, batch, 2048.0, rounds.chain_shape(gamma), clock=timer)
        speedup = np.asarray(formulas.speedup(alpha, gamma, cost, got.verify_cost))
        seconds.append(time.process_time() - start)
    assert speedup.size == 10**6
    assert np.isfinite(speedup).all()
    assert min(seconds) < 1


def test_the_best_length_of_a_million_points() -> None:
    """The best draft length of a million (acceptance, draft cost, verification cost) points in under 2 s."""
    rng = np.random.default_rng(4)
    alpha, cost, verify = rng.random(10**6), rng.random(10**6), 1 + rng.random(10**6)
    start = time.process_time()
    best = np.asarray(formulas.best_gamma(alpha, cost, verify))
    assert time.process_time() - start < 2
    assert best.min() >= 0
