"""Kernels of a user: right ones, and ones that are wrong in every way that is looked for."""

import torch

NOT_A_FUNCTION = 3


def matmul(a, b):
    """Right."""
    return a @ b.t()


def one_row_off(a, b):
    """A single row of many is off by a tenth."""
    out = a @ b.t()
    out[3] *= 1.1
    return out


def half_written(a, b):
    """Rows of the second half are never written."""
    out = torch.full((a.shape[0], b.shape[0]), torch.nan, dtype=a.dtype)
    half = a.shape[0] // 2
    out[:half] = a[:half] @ b.t()
    return out


def drops_a_term(a, b):
    """One product of each sum is missing."""
    return a[:, 1:] @ b[:, 1:].t()


def changes_its_input(a, b):
    """Right, but scribbles on what it was given."""
    a.mul_(2)
    return (a @ b.t()) / 2


def other_type(a, b):
    """Right numbers of another type."""
    return (a @ b.t()).float()


def other_shape(a, b):
    """Transposed."""
    return (a @ b.t()).t()


def nothing(a, b):
    """Writes nowhere."""


def fails(a, b):
    """Raises."""
    raise RuntimeError("no kernel image is available for execution on the device")


def attention(q, k, v):
    """Right, and with the log-sum-exp that is not looked at."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2), None


def decode(q, k, v, table, lengths):
    """Right: pages gathered, all lengths alike."""
    length = int(lengths[0])
    k, v = (x[table.long()].flatten(1, 2)[:, :length].transpose(1, 2) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True)
    return out.transpose(1, 2)


def unpaged(q, k, v, table, lengths):
    """Wrong: takes pages in the order in which they lie."""
    return decode(q, k, v, torch.arange(table.numel()).view(table.shape), lengths)


def norm(x, weight):
    """Right."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


#: How often a kernel of those below was called.
CALLS = {"n": 0}


def _called() -> int:
    CALLS["n"] += 1
    return CALLS["n"]


def wrong_every_fifth(a, b):
    """Right four times of five."""
    return (a @ b.t()) * (1.5 if _called() % 5 == 0 else 1)


def wrong_at_call_40(a, b):
    """Wrong once."""
    return (a @ b.t()) * (1.5 if _called() == 40 else 1)


def wrong_when_warm(a, b):
    """Wrong from the 200th call on: while it is timed, and after it."""
    return (a @ b.t()) * (1.5 if _called() >= 200 else 1)


def zeroes_its_input(a, b):
    """Right three times; then its input is gone."""
    out = a @ b.t()
    if _called() >= 4:
        a.zero_()
    return out


def zeroes_once(a, b):
    """One set of buffers is spoiled in the middle of timing."""
    out = a @ b.t()
    if _called() == 150:
        a.zero_()
    return out


_KEPT: dict[tuple[int, ...], torch.Tensor] = {}


def remembers(a, b):
    """Works out a result once for each pair of buffers."""
    key = (a.data_ptr(), b.data_ptr(), *a.shape)
    if key not in _KEPT:
        _KEPT[key] = a @ b.t()
    return _KEPT[key].clone()


def exits(a, b):
    """Ends the process as if all were well."""
    raise SystemExit(0)


def exits_later(a, b):
    """The same, when it is timed."""
    if _called() >= 100:
        raise SystemExit(0)
    return a @ b.t()


def fails_at_the_seventh(a, b):
    """Raises after the first checks."""
    if _called() >= 7:
        raise RuntimeError("an illegal memory access was encountered")
    return a @ b.t()


def fails_when_timed(a, b):
    """Raises while it is timed."""
    if _called() >= 100:
        raise RuntimeError("an illegal memory access was encountered")
    return a @ b.t()


def nothing_later(a, b):
    """Forgets to return something from the second call on."""
    return a @ b.t() if _called() == 1 else None


def in_fp8(a, b, scale_a, scale_b):
    """Right: an 8-bit product worked out in fp32."""
    return (a.float() @ b.float().t() * scale_a * scale_b).to(torch.bfloat16)


def interrupted(a, b):
    """Ctrl-C at the second shape."""
    if len(a) == 9:
        raise KeyboardInterrupt
    return a @ b.t()
