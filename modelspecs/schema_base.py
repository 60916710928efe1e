"""What a spec's schema is made of: frozen sections that refuse unknown keys, and bounded whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

#: Larger than any model of the field; a bigger number is a slip of the pen.
Dim = Annotated[int, Field(gt=0, le=10**9, strict=True)]
Size = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class Frozen(BaseModel):
    """A section that cannot change and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; what was worked out from the old ones (cached properties) is left behind."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(vars(copied)) - set(type(self).model_fields):
            del vars(copied)[name]
        return copied
