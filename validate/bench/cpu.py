"""The operators that torch on a processor realises."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import cpu_attention, cpu_passes, cpu_products, cpu_rows
from perfmodel.validate.bench.case import Case, NotRealised

ENGINE = cpu_products.ENGINE
#: Formula of an operator -> what makes its case.
MAKERS: dict[str, Callable[[Op], Case]] = {
    "gemm": cpu_products.gemm, "batched_per_head": cpu_products.per_head, "grouped_gemm": cpu_products.grouped,
    "gqa": cpu_attention.attention, "mla": cpu_attention.latent, "elementwise": cpu_passes.passing,
    "embedding": cpu_rows.embedding, "kv_write": cpu_rows.kv_write, "combine": cpu_rows.combine,
    "sampling": cpu_rows.sampling,
}  # fmt: skip


def realise(op: Op, columns: int | None = None) -> Case:
    """The case of an operator.

    Parameters
    ----------
    columns : int, optional
        Columns of a row, where an operator tells only its elements.

    Raises
    ------
    NotRealised
        When torch has no such operator, with the reason.
    """
    maker = MAKERS.get(op.formula.__name__)
    if maker is None:
        raise NotRealised(f"{op.kind} is not among the operators that are measured")
    return cpu_passes.passing(op, columns) if maker is cpu_passes.passing else maker(op)
