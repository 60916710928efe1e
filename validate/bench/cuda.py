"""The operators that our Triton kernels realise, with the vendor's library beside them where there is one."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import cuda_attention, cuda_passes, cuda_products, cuda_rows
from perfmodel.validate.bench.case import Case, NotRealised

ENGINE = cuda_products.ENGINE
#: Formula of an operator -> what makes its case on a device.
MAKERS: dict[str, Callable[[Op, str], Case]] = {
    "gemm": cuda_products.gemm, "gqa": cuda_attention.attention, "mla": cuda_attention.latent,
    "sampling": cuda_rows.sampling, "kv_write": cuda_rows.kv_write,
}  # fmt: skip


def realise(op: Op, columns: int | None = None, device: str = "cuda") -> Case:
    """The case of an operator.

    Parameters
    ----------
    columns : int, optional
        Columns of a row, where an operator tells only its elements.
    device : str
        ``cuda``; ``cpu`` only where Triton interprets the kernels, which times nothing.

    Raises
    ------
    NotRealised
        When no kernel of ours does it, with the reason.
    """
    name = op.formula.__name__
    if name == "elementwise":
        return cuda_passes.passing(op, columns, device)
    if name not in MAKERS:
        raise NotRealised(f"no kernel of ours does {op.kind.replace('_', ' ')}")
    return MAKERS[name](op, device)
