"""What pydantic finds becomes one line: file, key, value, limit, remedy."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfmodel.base.errors import SpecError
from perfmodel.base.validation import build


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: Annotated[int, Field(gt=0, le=100, strict=True)]
    kind: Literal["a", "b"] = "a"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    parts: list[Inner] = []
    even: int = 0

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("Must be even: add one")
        return value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "x.yaml: name: is missing; add it"),
        (
            {"name": "n", "colour": 1},
            "x.yaml: colour: is not a known key; it is refused rather than ignored: remove or correct it",
        ),
        (
            {"name": "n", "parts": [{"size": 1}, {"size": -3}]},
            "x.yaml: parts.1.size: input should be greater than 0, not '-3'",
        ),
        (
            {"name": "n", "parts": [{"size": 101}]},
            "x.yaml: parts.0.size: input should be less than or equal to 100, not '101'",
        ),
        ({"name": "n", "parts": [{"size": "5"}]}, "x.yaml: parts.0.size: input should be a valid integer, not '5'"),
        (
            {"name": "n", "parts": [{"size": 1, "kind": "c"}]},
            "x.yaml: parts.0.kind: input should be 'a' or 'b', not 'c'",
        ),
        ({"name": "n", "even": 3}, "x.yaml: even: must be even: add one, not '3'"),
        ({"colour": 1, "parts": 3}, "x.yaml: name: is missing; add it (and 2 more)"),
    ],
)
def test_the_first_problem_is_said(data: dict[str, object], message: str) -> None:
    """Dotted path, what is wrong, the value, and how many more there are."""
    with pytest.raises(SpecError) as caught:
        build(Outer, data, "x.yaml")
    assert str(caught.value) == message
    assert caught.value.exit_code == 3


def test_good_data_is_built() -> None:
    """What is valid becomes the model."""
    assert build(Outer, {"name": "n", "parts": [{"size": 4}]}, "x.yaml").parts[0].size == 4


@pytest.mark.parametrize(
    "data",
    [
        {"name": "n", "k\x1b[31m\n": 1},
        {"name": "n", "parts": [{"size": 1, "kind": "\x1b[2J" * 1000}]},
        {1: 2},
        {"name": ["x"] * 10**5},
    ],
)
def test_hostile_data_makes_one_short_printable_line(data: dict[object, object]) -> None:
    """Keys and values with control characters, huge values, keys that are no text."""
    with pytest.raises(SpecError) as caught:
        build(Outer, data, "x.yaml")  # type: ignore[arg-type]
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
