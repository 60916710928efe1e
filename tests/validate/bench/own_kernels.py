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
