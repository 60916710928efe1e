"""Analyses that several tests of the reports look at, and names that a stranger might choose."""

from collections.abc import Callable

import pytest

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.analysis import Analysis, analyze

#: Markup of a page, a terminal, a formula, a table and a path in one name.
HOSTILE = "<script>alert(1)</script> $\\frac{ [red]x[/red] \x1b[31m | a\nb ]]> \u202e & \"'"


@pytest.fixture(scope="session")
def llama() -> Analysis:
    """Llama 3 70B on one H100: dense, and it does not fit."""
    return analyze("llama3-70b", "h100")


@pytest.fixture(scope="session")
def sharded() -> Analysis:
    """Llama 3 70B over four H100: it fits, and talks over links."""
    return analyze("llama3-70b", "h100", tp=4)


@pytest.fixture(scope="session")
def deepseek() -> Analysis:
    """DeepSeek-V3 over eight H200: the most operators."""
    return analyze("deepseek-v3", "h200", tp=8, batch=32)


@pytest.fixture(scope="session")
def hostile() -> Analysis:
    """A model and a GPU whose every free text is hostile, with a hostile layer class."""
    plain = model("llama3-8b").model_dump()
    layer = "<img src=x onerror=alert(2)>\x1b]0;x\x07$\\alpha$"
    spec = ModelSpec.model_validate(
        plain | {"name": HOSTILE, "title": HOSTILE, "source": f"{HOSTILE} https://example.org/<b>", "notes": HOSTILE,
                 "attention": {layer: plain["attention"].popitem()[1]}, "ffn": {layer: plain["ffn"].popitem()[1]},
                 "layers": [{"repeat": 32, "pattern": [f"{layer}/{layer}"]}]}
    )  # fmt: skip
    device = gpu("h100")
    hbm = device.memory.hbm
    capacity = hbm.capacity.model_copy(update={"note": HOSTILE, "source": HOSTILE})
    memory = device.memory.model_copy(update={"hbm": hbm.model_copy(update={"capacity": capacity})})
    return analyze(spec, device.model_copy(update={"name": HOSTILE, "title": HOSTILE, "memory": memory}))


@pytest.fixture(scope="session")
def no_traces() -> Callable[[str], None]:
    """A check that no character of a text can act on a terminal or break XML."""

    def check(text: str) -> None:
        bad = {c for c in text if not c.isprintable() and c not in "\n\u00a0"}
        assert bad == set()

    return check
