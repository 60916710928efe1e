"""Speculative decoding of a real pair of models on this device, for several draft lengths, beside the formula."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from perfmodel.base.errors import UsageError
from perfmodel.validate.bench import machine
from perfmodel.validate.bench.interrupt import keeping
from perfmodel.validate.bench.session import Session, session
from perfmodel.validate.bench.speculation import run as run_pair
from perfmodel.validate.bench.speculation_report import Outcome, Speculated
from perfmodel.validate.bench.store import Result, Run
from perfmodel.validate.bench.transformer import Sizes, Transformer

#: Name of a run in the store; and the operator and engine of its rows: no kernel of the device's own engine.
SUITE = OPERATOR = ENGINE = "speculative"
GAMMAS = (1, 3, 5)
#: Rounds for each draft length.
ROUNDS = 300
#: The pair by device: the whole model, and how many of its first layers draft.
PAIRS = {
    "cpu": (Sizes(), 2),
    "cuda": (Sizes(vocab=32000, hidden=2048, layers=16, heads=16, intermediate=5632, positions=1024), 4),
}
#: Longest draft that is measured.
MOST = 16


def use_kernel(device: str) -> bool:
    """Whether our kernel verifies: on a GPU with Triton."""
    return device == "cuda" and importlib.util.find_spec("triton") is not None


def measure(
    s: Session, gammas: Sequence[int] = GAMMAS, *, rounds: int = ROUNDS, seconds: float = 20.0,
    seed: int | None = None, pair: tuple[Sizes, int] | None = None,
) -> Speculated:  # fmt: skip
    """Run the pair for each draft length that the run does not have yet, and keep what was seen.

    On a processor it runs on one thread: its products are small.

    Parameters
    ----------
    gammas : sequence of int
        Draft lengths, 1 to 16.
    rounds : int
        For each of them, unless the time is spent before.
    seconds : float
        For all of them together. [s]
    seed : int, optional
        Of the weights and of all that is drawn; by default that of the run.
    pair : tuple, optional
        Sizes of the model and layers of its drafter; those of the device by default.
    """
    if not gammas or any(not 1 <= gamma <= MOST for gamma in gammas):
        raise UsageError(f"draft lengths are 1 to {MOST}, not {', '.join(map(str, gammas)) or 'none'}")
    sizes, draft_layers = pair or PAIRS[s.device]
    kernel, chosen = use_kernel(s.device), seed_of(s.run) if seed is None else seed
    known = {r.shape["gamma"]: Outcome(**r.more) for r in s.store.results(s.run) if r.operator == OPERATOR}
    with _one_thread(s.device):
        model = Transformer(sizes, seed=chosen, device=s.device)
        for gamma in [gamma for gamma in gammas if gamma not in known]:
            found = known[gamma] = run_pair(
                model, draft_layers, gamma, rounds=rounds, seconds=seconds / len(gammas), seed=chosen + gamma,
                kernel=kernel,
            )  # fmt: skip
            s.store.add(s.run, _row(found, sizes, draft_layers))
            s.say(_line(found))
    verifier = "kernels.speculative.chain.verify_chain" if kernel else "torch"
    outcomes = tuple(known[gamma] for gamma in gammas)
    return Speculated(s.run.device, asdict(sizes), draft_layers, verifier, outcomes, chosen)


def _line(o: Outcome) -> str:
    tau = f"tau {o.tau:.3f}, {o.tau_expected:.3f} expected ({o.off:+.1f} std. errors)"
    return f"gamma {o.gamma}: {tau}; speedup {o.speedup:.2f} (noise {o.noise:.0%})"


def seed_of(run: Run) -> int:
    """The seed of a run: another one each time, and the same when it is resumed."""
    return zlib.crc32(f"{run.id} {run.started} {run.device}".encode())


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    torch = machine.import_torch()
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _row(found: Outcome, sizes: Sizes, draft_layers: int) -> Result:
    """As the store keeps it: the time is that of a token."""
    shape = {"gamma": found.gamma, "draft_layers": draft_layers, **asdict(sizes)}
    token, fast, slow = (found.plain_seconds / x for x in (found.speedup, found.speedup_high, found.speedup_low))
    name = f"speculative decoding gamma={found.gamma} draft={draft_layers}/{sizes.layers} layers"
    return Result(name, OPERATOR, ENGINE, "fp32", shape, token, fast, slow, 0.0, found.rounds, asdict(found))


def run(
    gammas: Sequence[int] = GAMMAS, *, device: str | None = None, seconds: float = 20.0, seed: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Speculated:  # fmt: skip
    """A run of its own; see ``measure``.

    Raises
    ------
    UsageError, NoGpu
        For arguments that do not fit.
    KeyboardInterrupt
        By Ctrl-C, with what is kept.
    """
    if seed is not None and not 0 <= seed < 2**32:
        raise UsageError(f"--seed is a whole number from 0 to {2**32 - 1}, not {seed}")
    where = machine.choose(device)
    with session(where, SUITE, False, 1 if where == "cpu" else None, say) as s, keeping(s, "draft length"):
        found = measure(s, gammas, seconds=seconds, seed=seed)
        s.store.finish(s.run)
    return found
