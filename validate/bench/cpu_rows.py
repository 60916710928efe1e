"""Rows that are fetched, stored, added up or sampled from, on a processor by torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw, pick
from perfmodel.validate.bench.cpu_passes import FORMAT
from perfmodel.validate.bench.cpu_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title

#: Rows of a table from which others are fetched or to which they are written: past any cache. [bytes]
TABLE = 128 * 2**20


def _format(i: Any, name: str = "act_bytes") -> str:
    if not (fmt := FORMAT.get(float(i[name]), "")):
        raise NotRealised("a format that torch does not pass over")
    return fmt


@dataclass(frozen=True)
class Places:
    """Some rows of a large table.

    Attributes
    ----------
    table : Tensor
        Shared by all copies.
    rows : Tensor
        Which ones.
    values : Tensor, optional
        What is written there.
    """

    table: Tensor
    rows: Tensor
    values: Tensor | None = None

    def again(self) -> Places:
        """Other rows of the same table, each once as in these: what is written twice would be the later one's."""
        shift = import_torch().randint(0, len(self.table), ())
        return Places(self.table, (self.rows + shift) % len(self.table), self.values)


def _places(tokens: int, width: int, fmt: str, write: bool) -> Places:
    torch = import_torch()
    entries = max(int(TABLE / (width * WIDTH[fmt])), tokens, 16)
    table = draw((16, width), fmt).repeat(-(-entries // 16), 1)
    rows = torch.randperm(len(table))[:tokens]
    return Places(table, rows, draw((tokens, width), fmt) if write else None)


def embedding(op: Op) -> Case:
    """Rows gathered from a table: ``torch.nn.functional.embedding``."""
    i: Any = op.inputs
    tokens, d, fmt = int(i["tokens"]), int(i["d"]), _format(i)
    torch = import_torch()

    def make() -> Inputs:
        return _places(tokens, d, fmt, write=False)

    def run(inputs: Places) -> Tensor:
        return torch.nn.functional.embedding(inputs.rows, inputs.table)

    def reference(inputs: Places, result: Tensor) -> tuple[Tensor, Tensor]:
        return result.double(), inputs.table[inputs.rows].double()

    touched = 2 * tokens * d * WIDTH[fmt]
    return Case(title(op, fmt), op, ENGINE, "torch embedding", fmt, make, run, reference, touched)


def kv_write(op: Op) -> Case:
    """New keys and values copied to their slots of the cache: ``index_copy_``."""
    i: Any = op.inputs
    tokens, elements, fmt = int(i["tokens"]), int(i["elements"]), _format(i)
    if float(i["kv_bytes"]) != float(i["act_bytes"]):
        raise NotRealised("a cache in another format than the activations")

    def make() -> Inputs:
        return _places(tokens, elements, fmt, write=True)

    def run(inputs: Places) -> Tensor:
        return inputs.table.index_copy_(0, inputs.rows, inputs.values)

    def reference(inputs: Places, result: Tensor) -> tuple[Tensor, Tensor]:
        assert inputs.values is not None
        return result[inputs.rows].double(), inputs.values.double()

    touched = 2 * tokens * elements * WIDTH[fmt]
    return Case(title(op, fmt), op, ENGINE, "torch index_copy_", fmt, make, run, reference, touched)


def combine(op: Op) -> Case:
    """Weighted sum of the experts' rows of a token."""
    i: Any = op.inputs
    tokens, chosen, d, fmt = int(i["tokens"]), int(i["chosen"]), int(i["d"]), _format(i)
    if i["chosen"] != chosen:
        raise NotRealised("a part of an expert")
    torch = import_torch()

    def make() -> Inputs:
        return draw((tokens, chosen, d), fmt), draw((tokens, 1, chosen), fmt)

    def run(inputs: Inputs) -> Tensor:
        return torch.bmm(inputs[1], inputs[0])

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        some = pick(tokens, 16)
        return result[some].double(), inputs[1][some].double() @ inputs[0][some].double()

    touched = tokens * d * (chosen + 1) * WIDTH[fmt]
    return Case(title(op, fmt), op, ENGINE, "torch.bmm", fmt, make, run, reference, touched)


def sampling(op: Op) -> Case:
    """One token a row by softmax and inverse transform; for ``rejection`` see there."""
    if op.name == "rejection":
        return rejection(op)
    i: Any = op.inputs
    rows, vocab, fmt = int(i["rows"]), int(i["vocab"]), _format(i)
    torch = import_torch()

    def make() -> Inputs:
        return draw((rows, vocab), fmt), torch.rand(rows, 1)

    def run(inputs: Inputs) -> Tensor:
        running = torch.softmax(inputs[0], -1, dtype=torch.float32).cumsum(-1)
        return torch.searchsorted(running, inputs[1] * running[:, -1:])

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of the uniform number from the token's interval of the running sum, against 1."""
        running = torch.softmax(inputs[0].double(), -1).cumsum(-1)
        at, u = result.clamp(0, vocab - 1), inputs[1].double() * running[:, -1:]
        high, low = running.gather(1, at), running.gather(1, (at - 1).clamp_min(0)) * (at > 0)
        off = (low - u).clamp_min(0) + (u - high).clamp_min(0)
        return 1 + off, torch.ones_like(off)

    touched = rows * vocab * (WIDTH[fmt] + 8)
    return Case(title(op, fmt), op, ENGINE, "torch softmax, cumsum", fmt, make, run, reference, touched, 1e-3)


#: Rows of a request in the rejection sampling cases: drafts, and one more of the target.
DRAFTS = 4


def rejection(op: Op) -> Case:
    """Rejection sampling of a drafted chain (Leviathan et al. 2023): accept while ``u q < p``, then the residual's
    sample. ``rows`` are those of target and draft, ``2 x 4 + 1`` a request."""
    i: Any = op.inputs
    rows, vocab, fmt = int(i["rows"]), int(i["vocab"]), _format(i)
    if rows % (2 * DRAFTS + 1):
        raise NotRealised(f"rejection sampling is measured with {DRAFTS} drafts a request")
    batch = rows // (2 * DRAFTS + 1)
    torch = import_torch()

    def make() -> Inputs:
        target, draft = draw((batch, DRAFTS + 1, vocab), fmt), draw((batch, DRAFTS, vocab), fmt)
        drafted = torch.softmax(draft.float(), -1).view(-1, vocab).multinomial(1).view(batch, DRAFTS)
        return target, draft, drafted, torch.rand(batch, DRAFTS), torch.rand(batch, 1)

    touched = rows * vocab * WIDTH[fmt]
    return Case(
        title(op, fmt), op, ENGINE, "torch rejection sampling", fmt, make, verify, judged, touched, 1e-3
    )  # fmt: skip


def verify(inputs: Inputs) -> Tensor:
    """Accepted drafts of each request, and the token after them: [batch, 2]."""
    torch = import_torch()
    target, draft, drafted, uniforms, last = inputs
    p, q = torch.softmax(target, -1, dtype=torch.float32), torch.softmax(draft, -1, dtype=torch.float32)
    token = drafted.unsqueeze(-1)
    kept = uniforms * q.gather(-1, token).squeeze(-1) < p[:, :-1].gather(-1, token).squeeze(-1)
    accepted = kept.int().cumprod(-1).sum(-1)
    at = torch.arange(len(p))
    rest = p[at, accepted]
    other = q[at, accepted.clamp_max(q.shape[1] - 1)]
    rest = torch.where((accepted < q.shape[1]).unsqueeze(-1), (rest - other).clamp_min_(0), rest)
    running = rest.cumsum(-1)
    after = torch.searchsorted(running, last * running[:, -1:]).squeeze(-1)
    return torch.stack([accepted, after], -1)


def judged(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
    """1 + what each request is off by: drafts whose verdict differs by more than rounding, and the distance of the
    uniform number from the interval of the token that followed."""
    torch = import_torch()
    target, draft, drafted, uniforms, last = inputs
    p, q, off = torch.softmax(target.double(), -1), torch.softmax(draft.double(), -1), []
    for b, (accepted, after) in enumerate(result.tolist()):
        wrong = 0.0
        for g in range(min(accepted + 1, DRAFTS)):
            x = drafted[b, g]
            margin = float(uniforms[b, g] * q[b, g, x] - p[b, g, x])
            wrong = max(wrong, margin if g < accepted else -margin)
        rest = (p[b, accepted] - q[b, accepted]).clamp_min(0) if accepted < DRAFTS else p[b, accepted]
        running = rest.cumsum(-1) / rest.sum()
        low, high = float(running[after - 1]) if after else 0.0, float(running[min(after, len(running) - 1)])
        u = float(last[b])
        off.append(max(wrong, low - u, u - high, 0.0))
    actual = 1 + torch.tensor(off, dtype=torch.float64)
    return actual, torch.ones_like(actual)
