"""Turn what pydantic found into one clear line: file, key, value, limit, remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from perfmodel.base.errors import SpecError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)


def build(model: type[M], data: dict[str, Any], file: object) -> M:
    """Validate ``data`` as ``model``.

    Raises
    ------
    SpecError
        Naming the first key that is wrong, and how many more are.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise SpecError(file, ".".join(str(part) for part in first["loc"]), _say(first) + more) from error


def _say(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "is not a known key; it is refused rather than ignored: remove or correct it"
    if error["type"] == "missing":
        return "is missing; add it"
    message = error["msg"].removeprefix("Value error, ")
    given = error["input"]
    shown = f", not {str(given)[:80]!r}" if isinstance(given, str | int | float | bool) else ""
    return message[:1].lower() + message[1:] + shown
