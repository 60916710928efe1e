"""Bytes of weights in a storage format: one recipe for every tensor.

Embeddings, LM head, norms, routers, biases and vision parts stay in 16 bits; the linear layers (``quantizable``
tensors) take the format with its scales. A plain float format (``bf16``, ``fp16``, ``fp32``) is every tensor's.
"""

from __future__ import annotations

from perfmodel.modelspecs.formats import FORMATS, Format, weight_format
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.tensors import Tensor, tensors

#: Roles whose bytes are not loaded to generate text: counted by ``counts.checkpoint_params`` only.
NOT_LOADED = ("mtp", "buffer")


def is_plain(fmt: Format) -> bool:
    """Whether a format is a plain float of 16 bits or more, which every tensor takes."""
    return fmt.group is None and fmt.bits >= 16


def tensor_format(t: Tensor, fmt: str | Format) -> Format:
    """The format that the recipe gives a tensor: ``fmt``, or 16 bits where it is left alone.

    A tensor that the model's native checkpoint leaves at 16 bits in that format is left so here too: the attention of
    gpt-oss in ``mxfp4``. Likewise what it stores in another format: all but the experts of DeepSeek V4. A preset of
    llama.cpp has a format for each role.
    """
    fmt = weight_format(fmt)
    if fmt.roles:
        return _of_role(t, fmt)
    if is_plain(fmt):
        return fmt
    if t.quantizable and t.kept_in == fmt.name:
        return FORMATS[t.kept_as]
    return fmt if t.quantizable else FORMATS["bf16"]


def _of_role(t: Tensor, fmt: Format) -> Format:
    """What a preset gives a tensor: by its role, and whether it is a matrix; a single row is stored as a vector."""
    roles, matrix = dict(fmt.roles), len(t.shape) > 1
    found = roles.get((t.role, matrix)) or roles.get((t.role, not matrix))
    return found or FORMATS["bf16"]


def tensor_bytes(t: Tensor, fmt: str | Format) -> float:
    """Bytes of ONE of the ``t.count`` tensors, scales and zero points included.

    >>> tensor_bytes(Tensor("q_proj", "q_proj", (256, 128), quantizable=True), "int4")
    17024.0
    >>> tensor_bytes(Tensor("embed", "embedding", (256, 128)), "int4")
    65536.0
    """
    return tensor_format(t, fmt).tensor_bytes(t.shape)


def weight_bytes(model: ModelSpec, fmt: str | Format = "bf16", without: tuple[str, ...] = ()) -> float:
    """Bytes of a model's weights as an engine loads them: vision parts included, MTP layers and stored buffers not.

    Parameters
    ----------
    fmt : str or Format
        Storage format, such as ``"bf16"``, ``"fp8"``, ``"int4"``; ``model.native_format`` is the checkpoint's own.
    without : tuple[str, ...]
        Further roles to leave out.

    Returns
    -------
    float
        ``sum over tensors of count x (elements x bits + groups x (scale + zero bits)) / 8``. [bytes]
    """
    return sum(t.count * tensor_bytes(t, fmt) for t in tensors(model) if t.role not in (*NOT_LOADED, *without))
