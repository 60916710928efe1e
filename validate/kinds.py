"""The kinds of table that are known, and which one a header is."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.errors import SpecError
from perfmodel.validate import (
    table_memory_logs,
    table_operators,
    table_param_counts,
    table_quant_sizes,
    table_single_operators,
    table_spec_decode,
    table_vllm_capacity,
)
from perfmodel.validate.rows import Kind

#: A further kind of table is a module with a ``KIND`` and a line here.
KINDS: tuple[Kind, ...] = (
    table_param_counts.KIND,
    table_param_counts.BULK,
    table_vllm_capacity.KIND,
    table_memory_logs.KIND,
    table_quant_sizes.KIND,
    table_spec_decode.KIND,
    *table_operators.KINDS,
    table_single_operators.KIND,
)


def kind_of(header: Sequence[str], file: object) -> Kind:
    """The kind whose columns a header has; of several, the one with most columns.

    Raises
    ------
    SpecError
        Naming the nearest kind and the columns that it lacks.
    """
    having = set(header)
    fitting = [kind for kind in KINDS if having.issuperset(kind.columns)]
    if fitting:
        return max(fitting, key=lambda kind: len(kind.columns))
    near = max(KINDS, key=lambda kind: len(having.intersection(kind.columns)) / len(kind.columns))
    if having.isdisjoint(near.columns):
        names = ", ".join(kind.name for kind in KINDS)
        raise SpecError(file, "", f"has the header of no kind of table that is known; known are {names}")
    lacks = ", ".join(column for column in near.columns if column not in having)
    raise SpecError(
        file, "", f"has the header of no kind of table that is known; nearest is {near.name}, it lacks {lacks}"
    )
